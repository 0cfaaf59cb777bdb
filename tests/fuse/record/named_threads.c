/* SPDX-License-Identifier: MIT */
/* named_threads NAME...: a thread for each name. For each line of the standard input each thread writes an event with its name; then
 * a line is printed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <relayfs/trace.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>

RELAY_TRACE_EVENT(named, said, (string, name))

enum { MOST = 8 };

static sem_t go[MOST], done;
static const char *names[MOST];
static bool has_ended;

static void *work(void *number)
{
	const long n = (long)number;
	pthread_setname_np(pthread_self(), names[n]);
	while (sem_wait(&go[n]) == 0 && !has_ended) {
		trace_named_said(names[n]);
		sem_post(&done);
	}
	return NULL;
}

static void wake(int n)
{
	for (int i = 0; i < n; i++)
		sem_post(&go[i]);
}

int main(int argc, char **argv)
{
	const int n = argc - 1;
	pthread_t threads[MOST];

	if (n > MOST || sem_init(&done, 0, 0))
		return 2;
	for (long i = 0; i < n; i++) {
		names[i] = argv[i + 1];
		if (sem_init(&go[i], 0, 0) || pthread_create(&threads[i], NULL, work, (void *)i))
			return 2;
	}
	while (getchar() == '\n') {
		trace_named_said("main");
		wake(n);
		for (int i = 0; i < n; i++)
			sem_wait(&done);
		puts("");
		fflush(stdout);
	}
	has_ended = true;
	wake(n);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
