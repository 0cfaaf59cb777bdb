/* SPDX-License-Identifier: MIT */
/*
 * Threads of one program write into a channel, rings, counters and traces at once, each also at its very end:
 *
 *     all_parts MNT N_THREADS N
 *
 * writes N lines of each thread to MNT/all/channel, N to MNT/all/ring, counts each of them in parts/lines, and traces an
 * event for each; a thread's last one is written by a destructor of its thread-specific data. Prints how much was
 * counted by threads that had no CPU of their own.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

RELAY_TRACE_EVENT(parts, line, (u32, thread), (u64, seq))

enum { MAX_THREADS = 64 };

static struct rchan *chan;
static struct relay_rings *rings;
static struct relay_counters *counters;
static int instance;
static pthread_key_t at_end;

static struct thread {
	pthread_t id;
	unsigned number;
	unsigned rounds; /* of destructors */
	uint64_t n;
} threads[MAX_THREADS];

static void check(int err, const char *what)
{
	if (err) {
		fprintf(stderr, "%s: %s\n", what, strerror(-err));
		exit(1);
	}
}

static void write_line(const struct thread *thread, uint64_t seq)
{
	char line[64];
	size_t length = (size_t)snprintf(line, sizeof(line), "%u %" PRIu64 "\n", thread->number, seq);
	check(relay_write(chan, line, length), "relay_write");
	check(relay_rings_output(rings, line, length, 0), "relay_rings_output");
	check(relay_perf_adjust(counters, instance, 1), "relay_perf_adjust");
	trace_parts_line(thread->number, seq);
}

/* The library has destructors, too: some lines are written before them and some behind. */
static void write_last(void *argument)
{
	struct thread *thread = argument;
	if (++thread->rounds < 3)
		pthread_setspecific(at_end, thread);
	else
		write_line(thread, thread->n - 1);
}

static void *run(void *argument)
{
	struct thread *thread = argument;
	pthread_setspecific(at_end, thread);
	for (uint64_t seq = 0; seq < thread->n - 1; seq++)
		write_line(thread, seq);
	return NULL;
}

static void *opened(void *part, const char *what)
{
	if (!part) {
		perror(what);
		exit(1);
	}
	return part;
}

int main(int argc, char **argv)
{
	char path[2][4096];
	unsigned n_threads = argc > 3 ? (unsigned)atoi(argv[2]) : 0;
	if (n_threads == 0 || n_threads > MAX_THREADS)
		return 2;
	snprintf(path[0], sizeof(path[0]), "%s/all/channel", argv[1]);
	snprintf(path[1], sizeof(path[1]), "%s/all/ring", argv[1]);
	chan = opened(relay_attach(path[0]), "relay_attach");
	rings = opened(relay_rings_attach(path[1]), "relay_rings_attach");
	counters = opened(relay_counters_open(argv[1]), "relay_counters_open");
	instance = relay_perf_add(counters, "parts/lines");
	check(instance < 0 ? instance : 0, "relay_perf_add");
	check(-pthread_key_create(&at_end, write_last), "pthread_key_create");
	for (unsigned i = 0; i < n_threads; i++) {
		threads[i].number = i;
		threads[i].n = strtoull(argv[3], NULL, 10);
		check(-pthread_create(&threads[i].id, NULL, run, &threads[i]), "pthread_create");
	}
	for (unsigned i = 0; i < n_threads; i++)
		pthread_join(threads[i].id, NULL);
	check(relay_flush(chan), "relay_flush");
	int64_t without_cpu;
	if (relay_counters_refresh(counters) < 0)
		return 1;
	uint32_t no_cpu = relay_counters_header(counters)->nr_cpus;
	check(relay_counters_read(counters, no_cpu, instance, &without_cpu), "relay_counters_read");
	printf("%" PRId64 "\n", without_cpu);
	relay_counters_close(counters);
	relay_rings_close(rings);
	relay_close(chan);
	return 0;
}
