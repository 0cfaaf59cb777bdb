/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "channel/callback_thread.h"

#include "buffer/wake.h"

#include <pthread.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* The longest time between calls: wake-ups are counted in memory that other processes may corrupt. */
enum { TIMEOUT_MS = 1000 };

struct relay_callback_thread {
	pthread_t thread;
	pid_t process; /* a child of fork() has the struct but not the thread */
	uint32_t stop;
	void (*step)(struct rchan *chan);
};

static void *run(void *arg)
{
	struct rchan *chan = arg;
	uint32_t *word = &chan->bufs[0].control->map_seq;
	/* Pairs with relay_callback_thread_stop(). */
	while (!__atomic_load_n(&chan->callback_thread->stop, __ATOMIC_ACQUIRE)) {
		uint32_t seq = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		chan->callback_thread->step(chan);
		if (!__atomic_load_n(&chan->callback_thread->stop, __ATOMIC_ACQUIRE))
			relay_buf_wait_any(NULL, NULL, 0, word, seq, TIMEOUT_MS);
	}
	return NULL;
}

/* Start the thread with all signals blocked, because they are for the program's own threads. */
static int start_thread(struct rchan *chan)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = -pthread_create(&chan->callback_thread->thread, NULL, run, chan);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

int relay_callback_thread_start(struct rchan *chan, void (*step)(struct rchan *chan))
{
	chan->callback_thread = calloc(1, sizeof(*chan->callback_thread));
	if (!chan->callback_thread)
		return -ENOMEM;
	chan->callback_thread->process = getpid();
	chan->callback_thread->step = step;
	int err = start_thread(chan);
	if (err) {
		free(chan->callback_thread);
		chan->callback_thread = NULL;
	}
	return err;
}

void relay_callback_thread_stop(struct rchan *chan)
{
	if (!chan->callback_thread)
		return;
	if (chan->callback_thread->process == getpid()) {
		__atomic_store_n(&chan->callback_thread->stop, 1, __ATOMIC_RELEASE);
		relay_wake_maker(&chan->bufs[0]);
		pthread_join(chan->callback_thread->thread, NULL);
	}
	free(chan->callback_thread);
	chan->callback_thread = NULL;
}
