/* SPDX-License-Identifier: MIT */
/*
 * Counters that come and go: counters_churn PATH CHANGES
 *
 * Adds and deletes churn/0 .. churn/699, and adds (K + 1) * DELTA to churn/K. Prints the sum over what is there in the
 * end, in DELTAs.
 */
#define _GNU_SOURCE
#include <relayfs/counters.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_NAMES = 700, CHANGES_AT_ONCE = 500 };
#define DELTA 0x100000001

static int numbers[N_NAMES]; /* 0: it is not there */

static int change(struct relay_counters *counters, int k)
{
	char name[32];
	if (numbers[k]) {
		int err = relay_perf_del(counters, numbers[k]);
		numbers[k] = 0;
		return err;
	}
	snprintf(name, sizeof(name), "churn/%d", k);
	numbers[k] = relay_perf_add(counters, name);
	return numbers[k] < 0 ? numbers[k] : relay_perf_adjust(counters, numbers[k], (k + 1) * DELTA);
}

int main(int argc, char **argv)
{
	struct relay_counters *counters = argc == 3 ? relay_counters_open(argv[1]) : NULL;
	if (!counters) {
		perror("counters_churn");
		return 2;
	}
	for (int i = 0; i < atoi(argv[2]); i++) {
		int err = change(counters, (int)((unsigned)i * 37u % N_NAMES + (unsigned)i / 5000u) % N_NAMES);
		if (err) {
			fprintf(stderr, "change %d: %d\n", i, err);
			return 1;
		}
		if (i % CHANGES_AT_ONCE == 0) /* so that readers see more than the end */
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
	int64_t total = 0, value = 0;
	if (relay_counters_refresh(counters) < 0)
		return 1;
	for (int k = 0; k < N_NAMES; k++)
		if (numbers[k] && relay_counters_sum(counters, numbers[k], &value) == 0)
			total += value / DELTA;
	printf("%lld\n", (long long)total);
	relay_counters_close(counters);
	return 0;
}
