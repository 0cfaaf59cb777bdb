/* SPDX-License-Identifier: MIT */
/*
 * The fast paths, for callgrind to count their instructions: each function count_NAME() does RECORDS times what NAME says.
 *
 * valgrind does not know rseq(2), so no thread is registered in it. This one enters CPU 0 in its area itself. valgrind neither
 * migrates nor interrupts it, so no section needs to be restarted. Nor does it know how a page is mapped a second time by
 * mremap(2), as the library does with the page that says which events are wanted; so this program maps it from its file.
 */
#define _GNU_SOURCE
#include <relayfs/producer.h>
#include <relayfs/trace.h>

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <unistd.h>

enum { RECORDS = 1000, SUBBUF = 1 << 20 };

RELAY_TRACE_EVENT(counted, words, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h))
RELAY_TRACE_EVENT(unwanted, words, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h))

static struct rchan *chan, *full, *lockless, *lockless_full;
static struct relay_rings *rings;
static struct relay_counters *counters;
static int instance;
static char record[256];

/* In place of libc's. */
void *mremap(void *old_address, size_t old_size, size_t new_size, int flags, ...)
{
	char path[4096];
	va_list rest;

	(void)old_address, (void)old_size, (void)flags;
	va_start(rest, flags);
	void *to = va_arg(rest, void *);
	va_end(rest);
	snprintf(path, sizeof(path), "%s/.traces", getenv("RELAYFS_STORE"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *mapped = mmap(to, new_size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
	close(fd);
	return mapped;
}

#define COUNT(name, call)                                        \
	static __attribute__((noinline)) void count_##name(void) \
	{                                                        \
		for (int i = 0; i < RECORDS; i++)                \
			if (call)                                \
				exit(3);                         \
	}

/* The library's functions, which producer.h has not inlined. */
static int (*volatile write_called)(struct rchan *, const void *, size_t) = relay_write;
static int (*volatile adjust_called)(struct relay_counters *, int, int64_t) = relay_perf_adjust;
static int (*volatile output_called)(struct relay_rings *, const void *, size_t, uint64_t) = relay_rings_output;

/* Reserve a record, and commit it. They fill in nothing. */
#define COMMITTED(reserve, commit)                   \
	({                                           \
		void *to = (reserve);                \
		__asm__ volatile("" : : : "memory"); \
		!to || (commit);                     \
	})

static void *(*volatile reserve_called)(struct rchan *, size_t) = relay_reserve;
static void (*volatile commit_called)(struct rchan *, void *) = relay_commit;
static void *(*volatile ring_reserve_called)(struct relay_rings *, size_t, uint64_t) = relay_rings_reserve;
static int (*volatile ring_commit_called)(void *, uint64_t) = relay_ring_commit;

COUNT(write_16, relay_write(chan, record, 16))
COUNT(write_64, relay_write(chan, record, 64))
COUNT(write_256, relay_write(chan, record, 256))
COUNT(write_called_64, write_called(chan, record, 64))
COUNT(refused, relay_write(full, record, 64) != -28) /* ENOSPC */
COUNT(refused_called, write_called(full, record, 64) != -28)
COUNT(lockless_16, write_called(lockless, record, 16))
COUNT(lockless_64, write_called(lockless, record, 64))
COUNT(lockless_refused, write_called(lockless_full, record, 64) != -28)
COUNT(adjust, relay_perf_adjust(counters, instance, 1))
COUNT(adjust_called, adjust_called(counters, instance, 1))
COUNT(output_64, relay_rings_output(rings, record, 64, 0))
COUNT(output_called_64, output_called(rings, record, 64, 0))
COUNT(reserve_64, COMMITTED(relay_reserve(chan, 64), (relay_commit(chan, to), 0)))
COUNT(reserve_called_64, COMMITTED(reserve_called(chan, 64), (commit_called(chan, to), 0)))
COUNT(lockless_reserve_64, COMMITTED(reserve_called(lockless, 64), (commit_called(lockless, to), 0)))
COUNT(ring_reserve_64, COMMITTED(relay_rings_reserve(rings, 64, 0), relay_ring_commit(to, 0)))
COUNT(ring_reserve_called_64, COMMITTED(ring_reserve_called(rings, 64, 0), ring_commit_called(to, 0)))

/* An event that one trace of this process's own buffers wants, clock=tsc. */
static struct {
	struct relay_trace_record head;
	uint64_t words[8];
} event;

static struct relay_trace_event *declared;
static void (*volatile emit_called)(struct relay_trace_event *, struct relay_trace_record *, size_t) = relay_trace_emit;

#define WORDS(provider, i) (trace_##provider##_words(i, 1, 2, 3, 4, 5, 6, 7), 0)

COUNT(event_64, WORDS(counted, (uint64_t)i))
COUNT(event_called_64, (emit_called(declared, &event.head, sizeof(event)), 0))
COUNT(event_unwanted, WORDS(unwanted, (uint64_t)i))

/* The same event, for relay_trace_emit(). */
static void declare(void)
{
	struct relay_trace_field fields[8];
	for (int i = 0; i < 8; i++)
		fields[i] = (struct relay_trace_field){(const char *[]){"a", "b", "c", "d", "e", "f", "g", "h"}[i],
		                                       RELAY_TRACE_U64};
	declared = relay_trace_declare("counted", "words", fields, 8);
}

static struct rchan *create(const char *name, const char *options)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", getenv("RELAYFS"), name);
	return relay_create(path, options);
}

/* So that all that is done once is done, and dynamic symbols are bound. */
static void warm_up(void)
{
	while (write_called(full, record, 64) == 0)
		;
	while (write_called(lockless_full, record, 64) == 0)
		;
	if (write_called(lockless, record, 64) || write_called(chan, record, 64) || relay_write(chan, record, 64) ||
	    adjust_called(counters, instance, 1) || output_called(rings, record, 64, 0) ||
	    COMMITTED(reserve_called(chan, 64), (commit_called(chan, to), 0)) ||
	    COMMITTED(ring_reserve_called(rings, 64, 0), ring_commit_called(to, 0)))
		exit(2);
	trace_counted_words(0, 1, 2, 3, 4, 5, 6, 7);
	trace_unwanted_words(0, 1, 2, 3, 4, 5, 6, 7);
	emit_called(declared, &event.head, sizeof(event));
}

int main(void)
{
	volatile struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	char path[4096];

	area->cpu_id_start = 0;
	area->cpu_id = 0;
	chan = relay_open(NULL, NULL, SUBBUF, 2, NULL, NULL);
	full = relay_open(NULL, NULL, 4096, 2, NULL, NULL);
	lockless = create("lockless", "scheme=lockless mode=overwrite subbuf_size=1M n_subbufs=2");
	lockless_full = create("lockless-full", "scheme=lockless subbuf_size=4K n_subbufs=2");
	counters = relay_counters_open(NULL);
	instance = relay_perf_add(counters, "instructions/counted");
	snprintf(path, sizeof(path), "%s/ring", getenv("RELAYFS"));
	rings = relay_rings_create(path, "buffers=percpu scheme=rseq size=1M");
	declare();
	if (!declared || !chan || !full || !lockless || !lockless_full || !counters || instance < 0 || !rings)
		return 2;
	warm_up();
	count_write_16();
	count_write_64();
	count_write_256();
	count_write_called_64();
	count_refused();
	count_refused_called();
	count_lockless_16();
	count_lockless_64();
	count_lockless_refused();
	count_adjust();
	count_adjust_called();
	count_output_64();
	count_output_called_64();
	count_reserve_64();
	count_reserve_called_64();
	count_lockless_reserve_64();
	count_ring_reserve_64();
	count_ring_reserve_called_64();
	count_event_64();
	count_event_called_64();
	count_event_unwanted();
	return 0;
}
