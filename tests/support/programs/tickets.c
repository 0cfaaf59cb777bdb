/* SPDX-License-Identifier: MIT */
/*
 * tickets PROCESSES THREADS N [FILE]: in each process each thread writes N events, each with the next ticket of all, also
 * of the other programs that share FILE, which begins with the next ticket. The lock that gives out tickets is held while
 * an event is written, so the times of events are in the order of their tickets. A thread that is killed may have taken a
 * ticket and not written the event.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/trace.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

RELAY_TRACE_EVENT(tickets, taken, (u64, ticket), (u32, thread))

static struct shared {
	uint64_t next;
	pthread_mutex_t lock;
} * shared;
static unsigned long n_tickets;

static void *take_tickets(void *thread)
{
	for (unsigned long i = 0; i < n_tickets; i++) {
		if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
			pthread_mutex_consistent(&shared->lock);
		trace_tickets_taken(shared->next++, (uint32_t)(uintptr_t)thread);
		pthread_mutex_unlock(&shared->lock);
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

/* A file that is new is locked while its mutex is made. */
static void share(const char *path)
{
	int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : memfd_create("tickets", 0);
	pthread_mutexattr_t attributes;

	if (fd < 0 || lockf(fd, F_LOCK, 0) != 0)
		exit(1);
	const bool is_new = lseek(fd, 0, SEEK_END) == 0;
	if (ftruncate(fd, sizeof(*shared)) != 0)
		exit(1);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		exit(1);
	if (is_new) {
		pthread_mutexattr_init(&attributes);
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&shared->lock, &attributes);
	}
	close(fd);
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
