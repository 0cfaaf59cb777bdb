/* SPDX-License-Identifier: MIT */
/*
 * One process writes, another one reads, on two CPUs: what the programs share that measure what flows from one to the other.
 *
 *     parent: write_all()  ---  a channel, a pipe, a socket ...  --->  child: read_all()
 *
 * A record of one byte is the last one. Each measurement prints a line:
 *
 *     NAME-LENGTH MEGABYTES_PER_SECOND RECORDS LOST WAKEUPS_PER_SECOND LINE_NS
 *
 * RECORDS: that were read; LOST: that were written and not read; LINE_NS: what a cache line took from one CPU to the other and back
 * just before, because hosts move virtual CPUs.
 */
#ifndef BENCH_FLOW_H
#define BENCH_FLOW_H

#include "bench.h"

#include <err.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 4096, BATCH = 64, LINE_TRIPS = 200, LINE_SAMPLES = 30 };

static unsigned char record[LONGEST];
static volatile uint64_t sink;

/* What the two processes tell each other, in shared memory. */
struct found {
	volatile int ended;    /* set when the writer has written all */
	volatile double began; /* when the writer has begun, in ns of CLOCK_MONOTONIC */
	uint64_t bytes;        /* that were read */
	double ns;             /* from then until all was read */
};

/* What a measurement is about. */
struct flow {
	size_t length;
	double seconds;
	int cpus[2];
	const char *path;
	int timeout_ms; /* of the reader's waits; 0: it spins */
	int ends[2];    /* descriptors to read from and to write to */
	uint64_t most;  /* records; 0: as many as there is time for */
	struct found *found;
};

/* How a kind of records is written, in the parent: returns how many. How it is read, in the child: returns the bytes. */
typedef uint64_t flow_function(const struct flow *flow);

static inline void touch(const void *data, size_t length)
{
	uint64_t sum = 0;
	for (size_t i = 0; i + 8 <= length; i += 64)
		sum += *(const uint64_t *)((const char *)data + i);
	sink = sum;
}

/* Write records until the time is over: write_one(context) writes one, and waits if it has to. Returns how many. */
static inline __attribute__((always_inline)) uint64_t write_for(const struct flow *flow,
                                                                void (*write_one)(void *context), void *context)
{
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	uint64_t records = 0;
	flow->found->began = clock_ns(CLOCK_MONOTONIC);
	for (; clock_ns(CLOCK_MONOTONIC) < end && (!flow->most || records < flow->most); records += BATCH)
		for (int i = 0; i < BATCH; i++)
			write_one(context);
	return records;
}

/* --- descriptors --- */

/* Read until the record of one byte, whose end is the only one that is no multiple of 64; of a file, what is appended. */
static inline uint64_t read_descriptor(const struct flow *flow)
{
	static unsigned char buffer[1 << 20];
	uint64_t bytes = 0;
	while (bytes % 64 != 1) {
		const ssize_t n = read(flow->ends[0], buffer, sizeof(buffer));
		if (n < 0)
			die("read");
		if (n == 0)
			sched_yield();
		touch(buffer, (size_t)n);
		bytes += (uint64_t)n;
	}
	return bytes - 1;
}

static inline void write_to_descriptor(void *context)
{
	const struct flow *flow = (const struct flow *)context;
	if (write(flow->ends[1], record, flow->length) != (ssize_t)flow->length)
		die("write");
}

static inline uint64_t write_descriptor(const struct flow *flow)
{
	const uint64_t records = write_for(flow, write_to_descriptor, (void *)flow);
	if (write(flow->ends[1], record, 1) != 1)
		die("write");
	return records;
}

/* A pipe of 1 MiB. */
static inline void open_pipe(int ends[2])
{
	if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0)
		die("pipe");
}

static inline void close_ends(const int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

/* --- a cache line --- */

struct line {
	atomic_uint turn __attribute__((__aligned__(128)));
	int cpu;
};

static inline void *answer(void *argument)
{
	struct line *line = (struct line *)argument;
	pin(line->cpu);
	for (unsigned i = 1; i < 2 * LINE_TRIPS * LINE_SAMPLES; i += 2) {
		while (atomic_load_explicit(&line->turn, memory_order_acquire) != i)
			;
		atomic_store_explicit(&line->turn, i + 1, memory_order_release);
	}
	return NULL;
}

/* The best of some samples, of round trips each, in ns: others use the CPUs, too. */
static inline double line_ns(const int *cpus)
{
	static struct line line;
	pthread_t other;
	double best = 1e9;
	atomic_store(&line.turn, 0);
	line.cpu = cpus[1];
	pin(cpus[0]);
	if (pthread_create(&other, NULL, answer, &line) != 0)
		die("pthread_create");
	for (unsigned i = 0, sample = 0; sample < LINE_SAMPLES; sample++) {
		const double start = clock_ns(CLOCK_MONOTONIC);
		for (int trip = 0; trip < LINE_TRIPS; trip++, i += 2) {
			atomic_store_explicit(&line.turn, i + 1, memory_order_release);
			while (atomic_load_explicit(&line.turn, memory_order_acquire) != i + 2)
				;
		}
		const double ns = (clock_ns(CLOCK_MONOTONIC) - start) / (double)LINE_TRIPS;
		best = ns < best ? ns : best;
	}
	pthread_join(other, NULL);
	return best;
}

/* --- a measurement --- */

static inline uint32_t no_wakeups(void)
{
	return 0;
}

static inline void measure(const char *name, struct flow flow, flow_function *write_all, flow_function *read_all,
                           uint32_t (*wakeups)(void))
{
	struct found *found =
	    (struct found *)mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	if (found == MAP_FAILED)
		die("mmap");
	fflush(stdout);
	flow.found = found;
	const double line = line_ns(flow.cpus);
	const uint32_t before = wakeups();
	const pid_t reader = fork();
	if (reader == 0) {
		pin(flow.cpus[1]);
		found->bytes = read_all(&flow);
		found->ns = clock_ns(CLOCK_MONOTONIC) - found->began;
		_exit(0);
	}
	const uint64_t written = write_all(&flow);
	found->ended = 1;
	if (waitpid(reader, &status, 0) < 0 || status)
		errx(2, "%s: the reader ended with %d", name, status);
	const uint64_t records = found->bytes / flow.length;
	printf("%s-%zu %.1f %llu %llu %.0f %.0f\n", name, flow.length, (double)found->bytes / found->ns * 1e3,
	       (unsigned long long)records, (unsigned long long)(written - records),
	       (wakeups() - before) / found->ns * 1e9, line);
	munmap(found, sizeof(*found));
}

#endif
