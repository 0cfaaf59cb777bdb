/* SPDX-License-Identifier: MIT */
/*
 * Time writes. One line a sample:  NAME NANOSECONDS_PER_RECORD TAKEN REFUSED
 *
 *     bench_write ROUNDS CPU OTHER_CPU COPY RSEQ LOCKLESS CALLBACK RSEQ_FULL LOCKLESS_FULL RESERVES
 *
 * From COPY on: channels. Those of 2003 it makes itself, in $RELAYFS.
 *
 * Everything is measured in each round, so that what disturbs the machine disturbs all of it alike. The copy
 * has a channel of its own, of the same geometry. The *_FULL channels are no-overwrite and nobody reads them.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "yardsticks.h"

#define RELAYFS_CLASSIC_LONG_NAMES
#include <relayfs/classic.h>
#include <relayfs/producer.h>
#include <stdint.h>

typedef int write_function(struct rchan *chan, const void *data, size_t length);

enum { BYTES_PER_SAMPLE = 64 << 20, RECORDS_MAX = 400000, PAIR_RECORDS = 2000000 };

static const size_t sizes[] = {16, 64, 256, 4096};
static int cpus[2];
static char record[4096];
static struct rchan *copy, *rseq, *rseq_full;

static struct rchan *attach(const char *path)
{
	struct rchan *chan = relay_attach(path);

	if (!chan)
		die(path);
	return chan;
}

/* The call goes through a pointer for all alike, and the compiler must not know what is in the record. */
static void sample(const char *name, write_function *volatile function, struct rchan *chan, size_t size)
{
	long n = BYTES_PER_SAMPLE / (long)size < RECORDS_MAX ? BYTES_PER_SAMPLE / (long)size : RECORDS_MAX;
	write_function *call = function;
	long i, refused = 0;
	double start = now_ns();

	for (i = 0; i < n; i++) {
		__asm__ volatile("" : : "r"(record) : "memory");
		refused += call(chan, record, size) != 0;
	}
	printf("%s-%zu %.4f %ld %ld\n", name, size, (now_ns() - start) / (double)n, n - refused, refused);
}

/* What is compiled into the loop, with a length that the compiler knows. */
#define SAMPLE_INLINE(name, call, size)                                                                        \
	do {                                                                                                   \
		long n = BYTES_PER_SAMPLE / (size) < RECORDS_MAX ? BYTES_PER_SAMPLE / (size) : RECORDS_MAX;    \
		long i, refused = 0;                                                                           \
		double start = now_ns();                                                                       \
		for (i = 0; i < n; i++) {                                                                      \
			__asm__ volatile("" : : "r"(record) : "memory");                                       \
			refused += (call) != 0;                                                                \
		}                                                                                              \
		printf("%s-inline-%d %.4f %ld %ld\n", name, size, (now_ns() - start) / (double)n, n - refused, \
		       refused);                                                                               \
	} while (0)

/* A copy to a position that lies in memory, as a buffer's does. */
static inline __attribute__((always_inline)) int copy_inline(const void *data, size_t length)
{
	static unsigned char *memory;
	static size_t bytes;
	static volatile size_t next;
	size_t at = next;

	if (__builtin_expect(at + length > bytes, 0)) {
		memory = yardstick_memory(copy, &bytes);
		at = 0;
	}
	memcpy(memory + at, data, length);
	next = at + length;
	return 0;
}

/* The relay document's flight recorder: each sub-buffer begins with the padding of its end. Its header fills a cache
 * line, so that records lie on lines as they do without. */
static int overwrite(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)subbuf;
	if (prev_subbuf)
		*((unsigned *)prev_subbuf) = prev_padding;
	subbuf_start_reserve(buf, 64);
	return 1;
}

static struct rchan *attach_with_callback(const char *path)
{
	static const struct rchan_callbacks callbacks = {.subbuf_start = overwrite};
	struct rchan *chan = relay_attach_callbacks(path, &callbacks, NULL);

	if (!chan)
		die(path);
	return chan;
}

/* Two channels of 2003, of the same geometry. Marks fill a cache line, as above. */
enum { MARK_BYTES = 64, BUFSIZE = 256 << 10, NBUFS = 8 };
static int plain, with_callbacks;

static int buffer_start(int id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
                        uint64_t start_tsc, int using_tsc)
{
	(void)id, (void)start_time, (void)start_tsc, (void)using_tsc;
	memset(current_write_pos, (int)buffer_id, MARK_BYTES);
	return MARK_BYTES;
}

static int buffer_end(int id, char *current_write_pos, char *end_of_buffer, struct timeval end_time, uint64_t end_tsc,
                      int using_tsc)
{
	(void)id, (void)end_of_buffer, (void)end_time, (void)end_tsc, (void)using_tsc;
	memset(current_write_pos, 'f', MARK_BYTES);
	return MARK_BYTES;
}

static void deliver(int id, char *from, uint32_t len)
{
	(void)id, (void)from, (void)len;
}

static int buffers_full(int id)
{
	(void)id;
	return 0;
}

static int open_classic(const char *path, uint32_t flags, const struct relay_classic_callbacks *callbacks,
                        uint32_t reserve)
{
	flags |= RELAY_SCHEME_LOCKLESS | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK;
	int id = relay_classic_open(path, BUFSIZE, NBUFS, flags, callbacks, reserve, reserve, 0);

	if (id < 0) {
		errno = -id;
		die(path);
	}
	return id;
}

static void open_classics(void)
{
	static const struct relay_classic_callbacks callbacks = {
	    .buffer_start = buffer_start, .buffer_end = buffer_end, .deliver = deliver, .buffers_full = buffers_full};

	plain = open_classic("/bench/plain", 0, NULL, 0);
	with_callbacks = open_classic("/bench/with-callbacks", RELAY_TIMESTAMP_TSC, &callbacks, MARK_BYTES);
}

static int write_plain(struct rchan *chan, const void *data, size_t length)
{
	(void)chan;
	return relay_classic_write(plain, data, length, -1) != (int)length;
}

static int write_with_callbacks(struct rchan *chan, const void *data, size_t length)
{
	(void)chan;
	return relay_classic_write(with_callbacks, data, length, -1) != (int)length;
}

static int write_with_delta(struct rchan *chan, const void *data, size_t length)
{
	(void)chan;
	return relay_classic_write(with_callbacks, data, length, 0) != (int)length;
}

static inline __attribute__((always_inline)) int reserve_inline(struct rchan *chan, const void *data, size_t length)
{
	void *to = relay_reserve(chan, length);

	if (!to)
		return -errno;
	memcpy(to, data, length);
	relay_commit(chan, to);
	return 0;
}

/* The same through the library's functions. */
static int reserve_and_commit(struct rchan *chan, const void *data, size_t length)
{
	static void *(*volatile reserve)(struct rchan * chan, size_t length) = relay_reserve;
	static void (*volatile commit)(struct rchan * chan, void *reserved) = relay_commit;
	void *to = reserve(chan, length);

	if (!to)
		return -errno;
	memcpy(to, data, length);
	commit(chan, to);
	return 0;
}

#define SAMPLE_BOTH_INLINE(size)                                \
	SAMPLE_INLINE("copy", copy_inline(record, size), size); \
	SAMPLE_INLINE("rseq", relay_write(rseq, record, size), size)

static void sample_inline(void)
{
	SAMPLE_BOTH_INLINE(16);
	SAMPLE_BOTH_INLINE(64);
	SAMPLE_BOTH_INLINE(256);
	SAMPLE_BOTH_INLINE(4096);
	SAMPLE_INLINE("reserve", reserve_inline(rseq, record, 64), 64);
	SAMPLE_INLINE("rseq-full", relay_write(rseq_full, record, 64), 64);
}

static void fill(struct rchan *chan)
{
	int err;

	do
		err = relay_write(chan, record, 64);
	while (err == 0);
	if (err != -ENOSPC)
		die("fill");
}

static long write_many(void *on)
{
	long i, refused = 0;

	for (i = 0; i < PAIR_RECORDS; i++) {
		__asm__ volatile("" : : "r"(record) : "memory");
		refused += relay_write(on, record, 64) != 0;
	}
	return refused;
}

int main(int argc, char **argv)
{
	struct rchan *lockless, *callback, *lockless_full, *reserves, *timed, *timed_lockless;
	int round, rounds;
	unsigned i;

	if (argc != 13)
		return 2;
	rounds = atoi(argv[1]);
	take_cpus(argv, cpus);
	memset(record, 'r', sizeof(record));
	copy = attach(argv[4]);
	rseq = attach(argv[5]);
	lockless = attach(argv[6]);
	callback = attach_with_callback(argv[7]);
	rseq_full = attach(argv[8]);
	lockless_full = attach(argv[9]);
	reserves = attach(argv[10]);
	timed = attach(argv[11]);
	timed_lockless = attach(argv[12]);
	open_classics();
	fill(rseq_full);
	fill(lockless_full);
	for (round = 0; round < rounds; round++) {
		for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			sample("copy", yardstick_copy, copy, sizes[i]);
			sample("rseq", relay_write, rseq, sizes[i]);
			sample("lockless", relay_write, lockless, sizes[i]);
		}
		sample_inline();
		sample("callback", relay_write, callback, 64);
		sample("reserve", reserve_and_commit, rseq, 64);
		sample("rseq-reserves", relay_write, reserves, 64);
		sample("timed", relay_write, timed, 64);
		sample("timed-lockless", relay_write, timed_lockless, 64);
		sample("classic", write_plain, NULL, 64);
		sample("classic-callbacks", write_with_callbacks, NULL, 64);
		sample("classic-delta", write_with_delta, NULL, 64);
		sample("rseq-full", relay_write, rseq_full, 64);
		sample("lockless-full", relay_write, lockless_full, 64);
		sample_rate("one-writer", cpus, 1, write_many, rseq, PAIR_RECORDS);
		if (cpus[1] != cpus[0])
			sample_rate("two-writers", cpus, 2, write_many, rseq, PAIR_RECORDS);
		pin(cpus[0]);
		fflush(stdout);
	}
	relay_classic_close(plain);
	relay_classic_close(with_callbacks);
	return 0;
}
