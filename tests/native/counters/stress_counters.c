/* SPDX-License-Identifier: MIT */
/*
 * Counting exactly: threads that add and are moved, or killed; a reader beside them; an account at the end.
 *
 *     stress_counters add STORE PROGRESS FIRST N_THREADS ADJUSTS    threads FIRST .. FIRST+N_THREADS-1
 *     stress_counters read STORE                                    until SIGTERM: prints how often it looked at all
 *     stress_counters account STORE PROGRESS N_THREADS              prints how many adjusts were completed
 *
 * The i-th adjust of a thread is that of instance i % N_INSTANCES, and adds DELTA: both halves of a value that is not
 * torn are the same. PROGRESS is a file of a struct progress for each thread.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/counters.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_INSTANCES = 3, MAX_THREADS = 256, MAX_BLOCKS = 8193, ADJUSTS_ON_A_CPU = 700 };
#define DELTA 0x100000001

struct progress {
	volatile uint64_t started, completed;
	uint64_t unused[6];
};

static struct relay_counters *counters;
static int instances[N_INSTANCES];
static struct progress *progress;
static uint64_t n_adjusts;
static volatile sig_atomic_t stop;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_all(const char *store)
{
	char name[32];
	counters = relay_counters_open(store);
	if (!counters)
		die(store);
	for (int i = 0; i < N_INSTANCES; i++) {
		snprintf(name, sizeof(name), "stress/%d", i);
		instances[i] = relay_perf_add(counters, name);
		if (instances[i] < 0)
			die(name);
	}
	if (relay_counters_refresh(counters) < 0)
		die("refresh");
}

static void open_progress(const char *path)
{
	int fd = open(path, O_RDWR);
	progress = mmap(NULL, MAX_THREADS * sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (progress == MAP_FAILED)
		die(path);
	close(fd);
}

/* ------------------------------------------------------------------ adding */

static void move(uint32_t *random, const cpu_set_t *all)
{
	cpu_set_t one;
	*random = *random * 1103515245 + 12345;
	unsigned cpu = *random >> 16, n = (unsigned)CPU_COUNT(all);
	CPU_ZERO(&one);
	for (unsigned i = 0, found = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, all) && found++ == cpu % n)
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void *add(void *arg)
{
	struct progress *mine = arg;
	uint32_t random = (uint32_t)(mine - progress);
	cpu_set_t all;
	sched_getaffinity(0, sizeof(all), &all);
	for (uint64_t i = 0; i < n_adjusts; i++) {
		if (i % ADJUSTS_ON_A_CPU == 0)
			move(&random, &all);
		mine->started = i + 1;
		if (relay_perf_adjust(counters, instances[i % N_INSTANCES], DELTA))
			exit(1);
		mine->completed = i + 1;
	}
	return NULL;
}

static int run_add(int first, int n_threads)
{
	pthread_t threads[MAX_THREADS];
	for (int i = 0; i < n_threads; i++)
		if (pthread_create(&threads[i], NULL, add, &progress[first + i]))
			die("pthread_create");
	for (int i = 0; i < n_threads; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

/* ------------------------------------------------------------------ reading */

static void end(int number)
{
	(void)number;
	stop = 1;
}

static void check(int instance, uint32_t block, int64_t *last)
{
	int64_t value;
	if (relay_counters_read(counters, block, instance, &value))
		exit(1);
	if (value >> 32 != (int64_t)(uint32_t)value || value < *last) {
		fprintf(stderr, "instance %d, block %u: %llx after %llx\n", instance, block, (long long)value,
		        (long long)*last);
		exit(1);
	}
	*last = value;
}

static int run_read(void)
{
	static int64_t last[N_INSTANCES][MAX_BLOCKS];
	uint64_t looks = 0;
	signal(SIGTERM, end);
	for (; !stop; looks++)
		for (int i = 0; i < N_INSTANCES; i++)
			for (uint32_t block = 0; block < relay_counters_header(counters)->nr_blocks; block++)
				check(instances[i], block, &last[i][block]);
	printf("%llu\n", (unsigned long long)looks);
	return 0;
}

/* ------------------------------------------------------------------ the account */

/* How many of `n` adjusts of one thread were those of an instance. */
static uint64_t share(uint64_t n, uint64_t i)
{
	return n / N_INSTANCES + (i < n % N_INSTANCES);
}

static int run_account(int n_threads)
{
	uint64_t all = 0;
	for (uint64_t i = 0; i < N_INSTANCES; i++) {
		uint64_t completed = 0, started = 0;
		int64_t sum;
		for (int thread = 0; thread < n_threads; thread++) {
			completed += share(progress[thread].completed, i);
			started += share(progress[thread].started, i);
		}
		if (relay_counters_sum(counters, instances[i], &sum))
			exit(1);
		uint64_t counted = (uint64_t)sum / DELTA;
		if ((uint64_t)sum % DELTA || counted < completed || counted > started) {
			fprintf(stderr, "instance %d: %lld; %llu adjusts completed, %llu started\n", instances[i],
			        (long long)sum, (unsigned long long)completed, (unsigned long long)started);
			return 1;
		}
		all += completed;
	}
	printf("%llu\n", (unsigned long long)all);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	open_all(argv[2]);
	if (strcmp(argv[1], "read") == 0)
		return run_read();
	open_progress(argv[3]);
	if (strcmp(argv[1], "account") == 0)
		return run_account(atoi(argv[4]));
	n_adjusts = strtoull(argv[6], NULL, 10);
	return run_add(atoi(argv[4]), atoi(argv[5]));
}
