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
 * MEGABYTES_PER_SECOND: of the best 2 ms in which the kernel has interrupted neither process, to run others on its CPU; if
 * there are none, of the whole time. What one of them wrote, and the other one read, is noted each half of a millisecond; the
 * smaller one counts, because the rest was written before, or is read after. RECORDS: that were read; LOST: that were written
 * and not read; LINE_NS: what a cache line took from one CPU to the other and back just before, because hosts move virtual CPUs.
 */
#ifndef BENCH_FLOW_H
#define BENCH_FLOW_H

#include "bench.h"

#include <err.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 4096, BATCH = 64, LINE_TRIPS = 100, LINE_SAMPLES = 10 };
enum { WINDOW_NS = 500000, WINDOWS = 10000, STRETCH = 4, STEP_RECORDS = 32, STEP_BYTES = 32768 };

static unsigned char record[LONGEST];
static volatile uint64_t sink;

/* What one process has done until each window of time, from `began` on. Written by it. */
struct progress {
	volatile int at;                  /* the window that it is in */
	long interrupted;                 /* how often it was until then */
	uint64_t bytes[WINDOWS];          /* that were written or read when each window began */
	unsigned char disturbed[WINDOWS]; /* 1: it was interrupted in it */
};

/* What the two processes tell each other, in shared memory. */
struct found {
	volatile int ended;    /* set when the writer has written all */
	volatile double began; /* when the writer has begun, in ns of CLOCK_MONOTONIC; 0: not yet */
	uint64_t bytes;        /* that were read */
	double ns;             /* from then until all was read */
	struct progress writer, reader;
};

static struct found *found;

/* What a measurement is about. */
struct flow {
	size_t length;
	double seconds;
	int cpus[2];
	const char *path;
	int timeout_ms; /* of the reader's waits; 0: it spins */
	int ends[2];    /* descriptors to read from and to write to */
	uint64_t most;  /* records; 0: as many as there is time for */
};

/* How a kind of records is written, in the parent: returns how many. How it is read, in the child: returns the bytes. */
typedef uint64_t flow_function(const struct flow *flow);

/* Note how many bytes a process has written or read by now. */
static inline void note_progress(struct progress *progress, uint64_t bytes)
{
	struct rusage usage;
	const double began = found->began;
	const int now = began > 0 ? (int)((clock_ns(CLOCK_MONOTONIC) - began) / (double)WINDOW_NS) : 0;
	if (now <= progress->at || now >= WINDOWS)
		return;
	getrusage(RUSAGE_THREAD, &usage);
	for (int i = progress->at; i < now; i++) {
		progress->disturbed[i] = usage.ru_nivcsw != progress->interrupted;
		progress->bytes[i + 1] = bytes;
	}
	progress->interrupted = usage.ru_nivcsw;
	progress->at = now;
}

/* Read what was written: a word of each line. */
static inline void touch(const void *data, size_t length)
{
	static uint64_t bytes, noted, records;
	uint64_t sum = 0;
	for (size_t i = 0; i + 8 <= length; i += 64)
		sum += *(const uint64_t *)((const char *)data + i);
	sink = sum;
	bytes += length;
	if (++records % STEP_RECORDS == 0 || bytes - noted >= STEP_BYTES) {
		note_progress(&found->reader, bytes);
		noted = bytes;
	}
}

/* Write records until the time is over: write_one(context) writes one, and waits if it has to. Returns how many. */
static inline __attribute__((always_inline)) uint64_t write_for(const struct flow *flow,
                                                                void (*write_one)(void *context), void *context)
{
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	uint64_t records = 0;
	found->began = clock_ns(CLOCK_MONOTONIC);
	for (; clock_ns(CLOCK_MONOTONIC) < end && (!flow->most || records < flow->most); records += BATCH) {
		for (int i = 0; i < BATCH; i++)
			write_one(context);
		note_progress(&found->writer, (records + BATCH) * flow->length);
	}
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

/* MB/s of the best stretch; 0: there is none without an interruption. */
static inline double best_rate(void)
{
	const struct progress *writer = &found->writer, *reader = &found->reader;
	const int end = writer->at < reader->at ? writer->at : reader->at;
	uint64_t best = 0;
	for (int i = 0, since = 0; i < end; i++) {
		if (writer->disturbed[i] || reader->disturbed[i])
			since = i + 1;
		if (i + 1 - since < STRETCH)
			continue;
		const uint64_t written = writer->bytes[i + 1] - writer->bytes[i + 1 - STRETCH];
		const uint64_t read = reader->bytes[i + 1] - reader->bytes[i + 1 - STRETCH];
		const uint64_t bytes = written < read ? written : read;
		best = bytes > best ? bytes : best;
	}
	return (double)best / (double)(STRETCH * WINDOW_NS) * 1e3;
}

static inline void measure(const char *name, struct flow flow, flow_function *write_all, flow_function *read_all,
                           uint32_t (*wakeups)(void))
{
	int status;
	found = (struct found *)mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (found == MAP_FAILED)
		die("mmap");
	fflush(stdout);
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
	const double rate = best_rate();
	printf("%s-%zu %.1f %llu %llu %.0f %.0f\n", name, flow.length,
	       rate > 0 ? rate : (double)found->bytes / found->ns * 1e3, (unsigned long long)records,
	       (unsigned long long)(written - records), (wakeups() - before) / found->ns * 1e9, line);
	munmap(found, sizeof(*found));
}

#endif
