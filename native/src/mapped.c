/* SPDX-License-Identifier: MIT */
/*
 * buf_mapped and buf_unmapped.
 *
 *     somebody          file server                      the channel's maker
 *     open(memN)   ->   memN's control page: mapped++
 *                       mem0's: map_seq++, futex wake -> thread: compare the counts with those it has told
 *
 * Linux does not tell a FUSE server of mmap(2) itself, but an open file is what it takes; its release comes when the
 * last descriptor and the last mapping have gone.
 */
#define _GNU_SOURCE
#include "mapped.h"

#include <pthread.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* The counts stand in shared memory: more news at once than this are no news but nonsense. */
enum { MOST_NEWS = 1 << 16, LOOK_AGAIN_MS = 1000 };

/* Of one buffer, what its maker has been told. */
struct told {
	uint64_t mapped, unmapped;
	char *file;
};

struct relay_watch {
	pthread_t thread;
	pid_t process; /* a child of fork() has the struct but not the thread */
	uint32_t stop;
	struct told *told;
};

static uint64_t news(const uint64_t *count, uint64_t *told)
{
	/* Pairs with the release in relay_buf_count_mapped(). */
	uint64_t now = __atomic_load_n(count, __ATOMIC_ACQUIRE), n = now - *told;
	*told = now;
	return n > MOST_NEWS ? 0 : n;
}

static void tell(struct rchan_buf *buf, struct told *told)
{
	const struct rchan_callbacks *cb = buf->chan->cb;
	/* First the ends, which are never more than the beginnings: of what is told, each end follows its beginning. */
	uint64_t gone = news(&buf->control->unmapped, &told->unmapped);
	uint64_t come = news(&buf->control->mapped, &told->mapped);
	for (; come && cb->buf_mapped; come--)
		cb->buf_mapped(buf, told->file);
	for (; gone && cb->buf_unmapped; gone--)
		cb->buf_unmapped(buf, told->file);
}

static void *watch(void *arg)
{
	struct rchan *chan = arg;
	uint32_t *word = &chan->bufs[0].control->map_seq;
	/* Pairs with relay_watch_stop(). */
	while (!__atomic_load_n(&chan->watch->stop, __ATOMIC_ACQUIRE)) {
		uint32_t seq = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		for (uint32_t i = 0; i < chan->n_buffers; i++)
			tell(&chan->bufs[i], &chan->watch->told[i]);
		if (!__atomic_load_n(&chan->watch->stop, __ATOMIC_ACQUIRE))
			relay_buf_wait_any(NULL, NULL, 0, word, seq, LOOK_AGAIN_MS);
	}
	return NULL;
}

static void change(struct rchan_buf *first)
{
	/* Pairs with the futex's own comparison. */
	__atomic_add_fetch(&first->control->map_seq, 1, __ATOMIC_SEQ_CST);
	relay_wake_word(&first->control->map_seq);
}

static void free_watch(struct rchan *chan)
{
	for (uint32_t i = 0; chan->watch->told && i < chan->n_buffers; i++)
		free(chan->watch->told[i].file);
	free(chan->watch->told);
	free(chan->watch);
	chan->watch = NULL;
}

/* With all signals blocked: they are for the program's own threads. */
static int start_thread(struct rchan *chan)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = -pthread_create(&chan->watch->thread, NULL, watch, chan);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

int relay_watch_start(struct rchan *chan)
{
	if (!chan->cb || (!chan->cb->buf_mapped && !chan->cb->buf_unmapped))
		return 0;
	chan->watch = calloc(1, sizeof(*chan->watch));
	if (!chan->watch)
		return -ENOMEM;
	chan->watch->process = getpid();
	chan->watch->told = calloc(chan->n_buffers, sizeof(*chan->watch->told));
	int err = chan->watch->told ? 0 : -ENOMEM;
	for (uint32_t i = 0; !err && i < chan->n_buffers; i++) {
		chan->watch->told[i].file = relay_chan_file(chan, &chan->bufs[i]);
		err = chan->watch->told[i].file ? 0 : -ENOMEM;
	}
	if (!err)
		err = start_thread(chan);
	if (err)
		free_watch(chan);
	return err;
}

void relay_watch_stop(struct rchan *chan)
{
	if (!chan->watch)
		return;
	if (chan->watch->process == getpid()) {
		__atomic_store_n(&chan->watch->stop, 1, __ATOMIC_RELEASE);
		change(&chan->bufs[0]);
		pthread_join(chan->watch->thread, NULL);
	}
	free_watch(chan);
}

void relay_buf_count_mapped(struct rchan_buf *buf, struct rchan_buf *first, int opened)
{
	struct relay_control *control = buf->control;
	__atomic_add_fetch(opened ? &control->mapped : &control->unmapped, 1, __ATOMIC_RELEASE);
	change(first);
}

void relay_buf_forget_mapped(struct rchan_buf *buf, struct rchan_buf *first)
{
	struct relay_control *control = buf->control;
	__atomic_store_n(&control->unmapped, __atomic_load_n(&control->mapped, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
	change(first);
}
