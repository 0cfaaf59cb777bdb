/* SPDX-License-Identifier: MIT */
/*
 * tickets PROCESSES THREADS N [FILE]: in each process each thread writes N events, each with the next ticket of all, also
 * of the other programs that share FILE, which begins with the next ticket. The lock that gives out tickets is held while
 * an event is written, so the times of events are in the order of their tickets. A thread that is killed may have taken a
 * ticket and not written the event.
 */
#define _GNU_SOURCE
#include "tickets.h"

#include <relayfs/trace.h>
#include <sched.h>
#include <sys/wait.h>

RELAY_TRACE_EVENT(tickets, taken, (u64, ticket), (u32, thread))

static unsigned long n_tickets;

static void *take_tickets(void *thread)
{
	for (unsigned long i = 0; i < n_tickets; i++) {
		lock_tickets();
		trace_tickets_taken(shared->next++, (uint32_t)(uintptr_t)thread);
		unlock_tickets();
		sched_yield(); /* otherwise one thread might take all its tickets before another takes one */
	}
	return NULL;
}

static int run_threads(unsigned long n_threads)
{
	pthread_t threads[64];

	for (unsigned long i = 0; i < n_threads; i++)
		if (pthread_create(&threads[i], NULL, take_tickets, (void *)(uintptr_t)i))
			return 1;
	for (unsigned long i = 0; i < n_threads; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

int main(int argc, char **argv)
{
	int status, failed = 0;

	if (argc < 4 || strtoul(argv[2], NULL, 10) > 64)
		return 2;
	n_tickets = strtoul(argv[3], NULL, 10);
	share(argv[4]);
	for (unsigned long i = strtoul(argv[1], NULL, 10); i; i--)
		if (fork() == 0)
			return run_threads(strtoul(argv[2], NULL, 10));
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
