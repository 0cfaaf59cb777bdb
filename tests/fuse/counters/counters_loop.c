/* SPDX-License-Identifier: MIT */
/*
 * The reader's loop of the proposal, from its text and <relayfs/counters.h> alone: nothing of the library is linked.
 *
 *     counters_loop MNT/counters MNT/counters.names    until SIGTERM: prints a line after its first copy, and in the
 *                                                      end how many copies it took, in how many generations, and the
 *                                                      sum over all names of the last one
 *
 * What it copies must be as counters_churn.c makes it: the counter churn/K is a multiple of (K + 1) * DELTA, and has
 * the same 32 bits twice.
 */
#include <fcntl.h>
#include <relayfs/counters.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_NAMES = 4096 };
#define DELTA 0x100000001

static const char *perf_counter_filename, *names_filename;
static volatile sig_atomic_t stop;

static volatile struct relay_perf_header *kernel_perf_header;
static struct relay_perf_header user_perf_header;
static volatile uint64_t *p_gen1, *p_gen2;
static int perf_fd = -1;
static uint64_t mapped_bytes;

static struct {
	unsigned instance, k;
} list[MAX_NAMES];
static int n_list;
static int64_t total;

static void end(int number)
{
	(void)number;
	stop = 1;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void map_rest_of_counters_into_user_space(void)
{
	munmap((void *)kernel_perf_header, mapped_bytes);
	mapped_bytes = relay_perf_file_bytes(&user_perf_header);
	kernel_perf_header = mmap(NULL, mapped_bytes, PROT_READ, MAP_SHARED, perf_fd, 0);
	if (kernel_perf_header == MAP_FAILED)
		die("mmap");
	p_gen1 = &kernel_perf_header->gen1;
	p_gen2 = &kernel_perf_header->gen2;
}

/* 0: it is that of another generation. */
static int read_list_of_instances_and_names_into_user_space(void)
{
	char line[1024], name[RELAY_PERF_NAME_BYTES];
	unsigned long long gen = 0;
	FILE *file = fopen(names_filename, "r");
	if (!file || !fgets(line, sizeof(line), file) || sscanf(line, "gen %llu", &gen) != 1)
		die(names_filename);
	for (n_list = 0; n_list < MAX_NAMES && fgets(line, sizeof(line), file);)
		if (sscanf(line, "%u %255s", &list[n_list].instance, name) == 2 &&
		    sscanf(name, "churn/%u", &list[n_list].k) == 1)
			n_list++;
	fclose(file);
	return gen == user_perf_header.gen1;
}

static int64_t copy_desired_counter_value(unsigned block, unsigned instance)
{
	const char *base = (const char *)kernel_perf_header;
	const volatile int *p_flag =
	    (const volatile int *)(base + relay_perf_flag_offset(&user_perf_header, block, instance));
	const volatile int64_t *p_counter =
	    (const volatile int64_t *)(base + relay_perf_offset(&user_perf_header, block, instance));
	int64_t counter;
	/* As the proposal explains it, not as it prints it: see <relayfs/counters.h>. */
	do {
		counter = *p_counter;
	} while (*p_flag || counter != *p_counter);
	return counter;
}

static void copy_desired_counter_values(void)
{
	total = 0;
	for (int i = 0; i < n_list; i++) {
		int64_t sum = 0, unit = (int64_t)(list[i].k + 1) * DELTA;
		if (relay_perf_offset(&user_perf_header, user_perf_header.nr_cpus, list[i].instance) >= mapped_bytes)
			die("an instance is not in the mapping");
		for (unsigned block = 0; block < user_perf_header.nr_blocks; block++) {
			int64_t value = copy_desired_counter_value(block, list[i].instance);
			if (value % unit) {
				fprintf(stderr, "churn/%u is %llx\n", list[i].k, (long long)value);
				exit(1);
			}
			sum += value;
		}
		total += sum / DELTA;
	}
}

int main(int argc, char **argv)
{
	const size_t minimum_header_size = sizeof(user_perf_header);
	uint64_t copies = 0, generations = 0, last_gen = 0;
	if (argc != 3)
		return 2;
	perf_counter_filename = argv[1];
	names_filename = argv[2];
	signal(SIGTERM, end);
	for (int last = 0; !last;) {
		int agree = 1, stopping = stop;
		if (perf_fd < 0) {
			perf_fd = open(perf_counter_filename, O_RDONLY);
			mapped_bytes = minimum_header_size;
			kernel_perf_header = mmap(NULL, mapped_bytes, PROT_READ, MAP_SHARED, perf_fd, 0);
			if (kernel_perf_header == MAP_FAILED)
				die(perf_counter_filename);
			if (kernel_perf_header->version != RELAY_PERF_VERSION)
				return 1;
			p_gen1 = &kernel_perf_header->gen1;
			p_gen2 = &kernel_perf_header->gen2;
			/* The generation before all else: memcpy(3) may load it last, beside sizes of the one before. */
			uint64_t gen = *p_gen1;
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			memcpy(&user_perf_header, (const void *)kernel_perf_header, minimum_header_size);
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			agree = gen == user_perf_header.gen1 && gen == *p_gen1 && gen == *p_gen2;
			if (agree) {
				map_rest_of_counters_into_user_space();
				agree = read_list_of_instances_and_names_into_user_space();
			}
		}
		if (!agree || user_perf_header.gen1 != *p_gen1 || user_perf_header.gen1 != *p_gen2) {
			/* instance metadata has changed or is changing */
			while (*p_gen1 != *p_gen2)
				; /* spin while metadata update is in progress */
			munmap((void *)kernel_perf_header, mapped_bytes);
			close(perf_fd);
			perf_fd = -1;
			continue; /* reopen file to get new instance metadata */
		}
		copy_desired_counter_values();
		if (*p_gen1 != user_perf_header.gen1)
			continue; /* metadata has changed */
		if (!copies++) {
			puts("copied");
			fflush(stdout);
		}
		generations += user_perf_header.gen1 != last_gen;
		last_gen = user_perf_header.gen1;
		last = stopping; /* what was there when it was told to end is in this copy */
	}
	printf("%llu %llu %lld\n", (unsigned long long)copies, (unsigned long long)generations, (long long)total);
	return 0;
}
