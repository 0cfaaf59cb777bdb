/* SPDX-License-Identifier: MIT */
/* Tickets for programs that write one number after the other: whoever holds the lock has shared->next. */
#ifndef TICKETS_H
#define TICKETS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct shared {
	uint64_t next;
	pthread_mutex_t lock;
} * shared;

/* Share tickets with all programs that name the same file; NULL: only with children. A file that is new is locked while
 * its mutex is made. */
static inline void share(const char *path)
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

/* Also after another thread that held the lock was killed. */
static inline void lock_tickets(void)
{
	if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&shared->lock);
}

static inline void unlock_tickets(void)
{
	pthread_mutex_unlock(&shared->lock);
}

#endif
