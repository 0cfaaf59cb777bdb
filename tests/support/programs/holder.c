/* SPDX-License-Identifier: MIT */
/*
 *     holder MEM CPU MOST     reserve records in a buffer of that CPU, as many as there can be, but MOST at most; tell how many
 *
 * They are committed when the standard input ends.
 */
#define _GNU_SOURCE
#include <relayfs/store.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 1000 };

int main(int argc, char **argv)
{
	struct rchan_buf *buf;
	cpu_set_t set;
	void *to[MOST];
	int n = 0;
	char byte;

	if (argc != 4)
		return 2;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[2]), &set);
	buf = sched_setaffinity(0, sizeof(set), &set) ? NULL : relay_buf_open(argv[1]);
	if (!buf)
		return 1;
	while (n < MOST && n < atoi(argv[3]) && relay_buf_reserve(buf, 32, &to[n]) == 0)
		n++;
	printf("%d\n", n);
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	while (n--)
		relay_buf_commit(buf, to[n]);
	return 0;
}
