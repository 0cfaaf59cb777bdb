/* SPDX-License-Identifier: MIT */
/*
 * Time record rings. One line a sample:  NAME NANOSECONDS_PER_RECORD TAKEN REFUSED
 * If the kernel's own ring cannot be measured, the first line says why:  # REASON
 *
 *     bench_ring ROUNDS CPU OTHER_CPU DIRECTORY
 *
 * Everything is measured in each round, so that what disturbs the machine disturbs all of it alike. Both yardsticks and each
 * kind of ring have one of their own, of the same size. What is not overwritten is taken out now and then, outside of
 * the time, by setting the consumer's position as a program that maps the ring may. DIRECTORY is on tmpfs.
 */
#define _GNU_SOURCE
#include "bench_kernel_ring.h"
#include "yardsticks.h"

#include <relayfs/layout.h>
#include <relayfs/producer.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>
#include <stdint.h>
#include <sys/mman.h>

typedef int output_function(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

enum {
	RING_SIZE = 2 << 20,
	BATCH_BYTES = RING_SIZE / 2,
	BYTES_PER_SAMPLE = 64 << 20,
	RECORDS_MAX = 400000,
	PAIR_RECORDS = 1000000
};

static const size_t sizes[] = {16, 64, 256, 4096};
static int cpus[2];
static _Alignas(8) char record[4096];

static struct relay_ring *make(const char *directory, const char *name, uint32_t buffers, uint32_t mode, uint32_t times)
{
	char path[4096];
	struct relay_ring *ring;
	struct relay_ring_spec spec = {.size = sizeof(spec),
	                               .ring_size = RING_SIZE,
	                               .n_rings = buffers == RELAY_PERCPU ? relay_n_possible_cpus() : 1,
	                               .mode = mode,
	                               .buffers = buffers,
	                               .times = times,
	                               .file_mode = 0600,
	                               .uid = (uint32_t)-1,
	                               .gid = (uint32_t)-1};

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	errno = -relay_ring_create(path, &spec);
	if (errno)
		die(path);
	snprintf(path, sizeof(path), "%s/%s/mem%d", directory, name, buffers == RELAY_PERCPU ? cpus[0] : 0);
	ring = relay_ring_open(path);
	if (!ring)
		die(path);
	return ring;
}

/* A ring, and the kernel's two positions in it. */
struct bench {
	struct relay_ring *ring;
	volatile uint64_t *consumer, *producer;
};

static struct bench make_bench(const char *directory, const char *name, uint32_t buffers, uint32_t mode, uint32_t times)
{
	struct bench bench = {.ring = make(directory, name, buffers, mode, times)};

	bench.consumer = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, relay_ring_fd(bench.ring), 0);
	if (bench.consumer == MAP_FAILED)
		die("mmap");
	bench.producer = bench.consumer + 512;
	return bench;
}

/* Time many records, in batches: what is not overwritten is taken out before each. */
#define TIME_BATCHES(name, bench, size, call)                                                                       \
	do {                                                                                                        \
		long n = BYTES_PER_SAMPLE / (long)size < RECORDS_MAX ? BYTES_PER_SAMPLE / (long)size : RECORDS_MAX; \
		long batch = BATCH_BYTES / (long)(size + 8), i, done, refused = 0;                                  \
		double ns = 0, start;                                                                               \
		for (done = 0; done < n; done += batch) {                                                           \
			*bench->consumer = *bench->producer;                                                        \
			start = now_ns();                                                                           \
			for (i = 0; i < batch; i++) {                                                               \
				__asm__ volatile("" : : "r"(record) : "memory");                                    \
				refused += (call) != 0;                                                             \
			}                                                                                           \
			ns += now_ns() - start;                                                                     \
		}                                                                                                   \
		printf("%s-%zu %.4f %ld %ld\n", name, size, ns / (double)done, done - refused, refused);            \
	} while (0)

/* The call goes through a pointer for all alike, and the compiler must not know what is in the record. */
static void sample(const char *name, output_function *volatile function, const struct bench *bench, size_t size)
{
	output_function *call = function;

	TIME_BATCHES(name, bench, size, call(bench->ring, record, size, 0));
}

/* What is compiled into the loop, with a length that the compiler knows. */
static void sample_inline(const struct bench *bench)
{
	const size_t size = 64;

	TIME_BATCHES("percpu-inline", bench, size, relay_ring_output(bench->ring, record, size, 0));
}

static int reserve_and_commit(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	void *to = relay_ring_reserve(ring, length, 0);

	if (!to)
		return -errno;
	memcpy(to, data, length);
	return relay_ring_commit(to, flags);
}

/* What the kernel's program does. */
static int reserve_and_commit_word(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	uint64_t *to = relay_ring_reserve(ring, length, 0);

	if (!to)
		return -errno;
	*to = *(const uint64_t *)data;
	return relay_ring_commit(to, flags);
}

/* How fast a full ring is emptied in place, touching each record. */
static void sample_consumer(struct relay_ring *ring)
{
	const void *data;
	size_t length;
	long n = 0, round;
	double ns = 0, start;
	volatile char touched;

	for (round = 0; round < 10; round++) {
		while (relay_ring_output(ring, record, 64, RELAY_RING_NO_WAKEUP) == 0)
			;
		start = now_ns();
		while (relay_ring_next(ring, &data, &length) == 1) {
			touched = *(const char *)data;
			relay_ring_release(ring);
			n++;
		}
		ns += now_ns() - start;
	}
	(void)touched;
	printf("next-release-64 %.4f %ld 0\n", ns / (double)n, n);
}

static long produce(void *on)
{
	long i, refused = 0;

	for (i = 0; i < PAIR_RECORDS; i++) {
		__asm__ volatile("" : : "r"(record) : "memory");
		refused += relay_ring_output(on, record, 64, 0) != 0;
	}
	return refused;
}

int main(int argc, char **argv)
{
	struct bench copy, exchange, percpu, global, percpu_overwrite, global_overwrite, percpu_timed, global_timed;
	struct kernel_ring kernel;
	bool kernel_lets;
	int round, rounds;
	unsigned i;

	if (argc != 5)
		return 2;
	rounds = atoi(argv[1]);
	take_cpus(argv, cpus);
	memset(record, 'r', sizeof(record));
	copy = make_bench(argv[4], "copy", RELAY_PERCPU, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP);
	exchange = make_bench(argv[4], "exchange", RELAY_GLOBAL, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP);
	percpu = make_bench(argv[4], "percpu", RELAY_PERCPU, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP);
	global = make_bench(argv[4], "global", RELAY_GLOBAL, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP);
	percpu_overwrite = make_bench(argv[4], "percpu-overwrite", RELAY_PERCPU, RELAY_OVERWRITE, RELAY_NO_TIMESTAMP);
	global_overwrite = make_bench(argv[4], "global-overwrite", RELAY_GLOBAL, RELAY_OVERWRITE, RELAY_NO_TIMESTAMP);
	percpu_timed = make_bench(argv[4], "percpu-timed", RELAY_PERCPU, RELAY_NO_OVERWRITE, RELAY_MONO);
	global_timed = make_bench(argv[4], "global-timed", RELAY_GLOBAL, RELAY_NO_OVERWRITE, RELAY_MONO);
	kernel_lets = kernel_make(&kernel);
	if (!kernel_lets)
		printf("# the kernel's own ring was not measured: bpf(2): %s\n", strerror(errno));
	for (round = 0; round < rounds; round++) {
		if (kernel_lets)
			kernel_sample_all(&kernel);
		for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			sample("copy", yardstick_ring_copy, &copy, sizes[i]);
			sample("percpu", relay_ring_output, &percpu, sizes[i]);
			sample("global", relay_ring_output, &global, sizes[i]);
		}
		sample("exchange", yardstick_ring_exchange, &exchange, 64);
		sample("exchange", yardstick_ring_exchange, &exchange, 8);
		sample_inline(&percpu);
		sample("percpu-reserve", reserve_and_commit, &percpu, 64);
		sample("global-reserve", reserve_and_commit, &global, 64);
		sample("percpu-reserve", reserve_and_commit_word, &percpu, 8);
		sample("global-reserve", reserve_and_commit_word, &global, 8);
		sample("percpu-overwrite", relay_ring_output, &percpu_overwrite, 64);
		sample("global-overwrite", relay_ring_output, &global_overwrite, 64);
		sample("percpu-timed", relay_ring_output, &percpu_timed, 64);
		sample("global-timed", relay_ring_output, &global_timed, 64);
		sample_consumer(percpu.ring);
		sample_rate("one-producer", cpus, 1, produce, global_overwrite.ring, PAIR_RECORDS);
		if (cpus[1] != cpus[0])
			sample_rate("two-producers", cpus, 2, produce, global_overwrite.ring, PAIR_RECORDS);
		pin(cpus[0]);
		fflush(stdout);
	}
	return 0;
}
