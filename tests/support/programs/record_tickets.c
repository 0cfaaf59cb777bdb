/* SPDX-License-Identifier: MIT */
/*
 * record_tickets CHANNEL WAY PROCESSES N FILE: each process, on a CPU of its own as far as there are enough, writes N records with the
 * next ticket of all, also of other programs that share FILE. WAY: write, try, many, reserve, of a ring output, submit. A record is
 * "TICKET PROCESS xxx...\n" with TICKET * 7 % 700 times x. The lock that gives out tickets is held while a record is written, so
 * the times of records are in the order of their tickets. While there is no room, it is tried again. A process that is killed may
 * have taken a ticket and not written the record.
 */
#define _GNU_SOURCE
#include "tickets.h"

#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { RECORD_MAX = 800 };

static struct rchan *chan;
static struct relay_rings *rings;

static int fill_and_commit(const char *record, size_t length)
{
	void *to = rings ? relay_rings_reserve(rings, length, RELAY_RING_WILL_RETRY) : relay_try_reserve(chan, length);

	if (!to)
		return -errno;
	memcpy(to, record, length);
	if (rings)
		return relay_ring_commit(to, 0);
	relay_commit(chan, to);
	return 0;
}

static int write_once(const char *way, const char *record, size_t length)
{
	if (strcmp(way, "write") == 0)
		return relay_write(chan, record, length);
	if (strcmp(way, "try") == 0)
		return relay_try_write(chan, record, length);
	if (strcmp(way, "many") == 0) {
		long n = relay_write_batch(chan, record, &length, 1);
		return n < 0 ? (int)n : 0;
	}
	if (strcmp(way, "output") == 0)
		return relay_rings_output(rings, record, length, RELAY_RING_WILL_RETRY);
	return fill_and_commit(record, length);
}

static size_t format(char *record, uint64_t ticket, unsigned process)
{
	size_t head = (size_t)sprintf(record, "%llu %u ", (unsigned long long)ticket, process), body = ticket * 7 % 700;

	memset(record + head, 'x', body);
	record[head + body] = '\n';
	return head + body + 1;
}

static void run(const char *way, unsigned process, unsigned long n)
{
	const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	char record[RECORD_MAX];
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(process % (unsigned long)n_cpus, &set);
	sched_setaffinity(0, sizeof(set), &set);
	for (unsigned long i = 0; i < n; i++) {
		int err;

		lock_tickets();
		size_t length = format(record, shared->next++, process);
		while ((err = write_once(way, record, length)) == -ENOSPC || err == -EAGAIN)
			usleep(1000);
		unlock_tickets();
		if (err)
			exit(3);
		sched_yield(); /* otherwise one process might take all its tickets before another takes one */
	}
	exit(0);
}

int main(int argc, char **argv)
{
	int status, failed = 0;

	if (argc != 6)
		return 2;
	share(argv[5]);
	for (unsigned i = 0; i < strtoul(argv[3], NULL, 10); i++) {
		if (fork())
			continue;
		if (strcmp(argv[2], "output") == 0 || strcmp(argv[2], "submit") == 0)
			rings = relay_rings_attach(argv[1]);
		else
			chan = relay_attach(argv[1]);
		if (!rings && !chan)
			exit(4);
		run(argv[2], i, strtoul(argv[4], NULL, 10));
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed ? 1 : 0;
}
