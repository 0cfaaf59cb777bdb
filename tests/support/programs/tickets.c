/* SPDX-License-Identifier: MIT */
/*
 * tickets PROCESSES THREADS N: in each process each thread writes N events, each with the next ticket of all. The lock that
 * gives out tickets is held while an event is written, so the times of events are in the order of their tickets.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <relayfs/trace.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

RELAY_TRACE_EVENT(tickets, taken, (u64, ticket), (u32, thread))

static struct shared {
	pthread_mutex_t lock;
	uint64_t next;
} * shared;
static unsigned long n_tickets;

static void *take_tickets(void *thread)
{
	for (unsigned long i = 0; i < n_tickets; i++) {
		pthread_mutex_lock(&shared->lock);
		trace_tickets_taken(shared->next++, (uint32_t)(uintptr_t)thread);
		pthread_mutex_unlock(&shared->lock);
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
	pthread_mutexattr_t attributes;
	int status, failed = 0;

	if (argc != 4 || strtoul(argv[2], NULL, 10) > 64)
		return 2;
	n_tickets = strtoul(argv[3], NULL, 10);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->lock, &attributes);
	for (unsigned long i = strtoul(argv[1], NULL, 10); i; i--)
		if (fork() == 0)
			return run_threads(strtoul(argv[2], NULL, 10));
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
