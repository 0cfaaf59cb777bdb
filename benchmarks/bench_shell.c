/* SPDX-License-Identifier: MIT */
/* Write records of equal length to a channel, without looking for lines or reading them from anywhere: nothing but the
 * library's calls. Prints megabytes for each second of CPU time.
 *
 *     bench_shell CHANNEL relay|ring LENGTH MEGABYTES
 */
#define _GNU_SOURCE
#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int is_ring = !strcmp(argv[2], "ring");
	struct rchan *chan = is_ring ? NULL : relay_attach(argv[1]);
	struct relay_rings *rings = is_ring ? relay_rings_attach(argv[1]) : NULL;
	size_t length = strtoul(argv[3], NULL, 10), n = (1 << 20) / length;
	char *records = calloc(n, length);
	if ((!chan && !rings) || !records)
		return perror(argv[1]), 1;
	double begin = cpu_s();
	for (unsigned long block = 0; block < strtoul(argv[4], NULL, 10); block++)
		for (size_t i = 0; i < n; i++) {
			const char *record = records + i * length;
			int err =
			    is_ring ? relay_rings_output(rings, record, length, 0) : relay_write(chan, record, length);
			if (err)
				return fprintf(stderr, "%s: %s\n", argv[1], strerror(-err)), 1;
		}
	printf("%.1f\n", (double)strtoul(argv[4], NULL, 10) * (double)(n * length) / 1e6 / (cpu_s() - begin));
	return 0;
}
