/* SPDX-License-Identifier: MIT */
/*
 * buf_mapped and buf_unmapped.
 *
 *     another process   file server                      the channel's maker
 *     open(memN)   ->   memN's control page: mapped++
 *                       mem0's: map_seq++, futex wake -> thread: callbacks for opens and closes since the last time
 *
 * A FUSE server does not learn of mmap(2), so it counts the opens with which a file can be mapped. It learns that an
 * open file is released when the last descriptor is closed, although a mapping, which is of the store's file, may
 * remain. Therefore this library keeps a file open as long as it maps it; see relay_buf_hold().
 */
#define _GNU_SOURCE
#include "channel/buf_mapped.h"

#include "buffer/open.h"
#include "buffer/wake.h"
#include "channel/callback_thread.h"

#include <relayfs/store.h>
#include <stdlib.h>

/* The counts are in shared memory, which may be corrupted. If a count has grown by more than this since the last
 * report, the growth is not reported. */
enum { MOST_AT_ONCE = 1 << 16 };

/* Opens and closes of one buffer for which the callbacks have been called. */
struct relay_reported {
	uint64_t mapped, unmapped;
	char *file;
};

static uint64_t delta(const uint64_t *count, uint64_t *reported)
{
	/* Pairs with the release in relay_buf_count_mapped(). */
	uint64_t now = __atomic_load_n(count, __ATOMIC_ACQUIRE), n = now - *reported;
	*reported = now;
	return n > MOST_AT_ONCE ? 0 : n;
}

static void report(struct rchan_buf *buf, struct relay_reported *reported)
{
	const struct rchan_callbacks *cb = buf->chan->cb;
	/* Load the closes first. They are never more than the opens, so each close that is reported follows its open. */
	uint64_t closes = delta(&buf->control->unmapped, &reported->unmapped);
	uint64_t opens = delta(&buf->control->mapped, &reported->mapped);
	for (; opens && cb->buf_mapped; opens--)
		cb->buf_mapped(buf, reported->file);
	for (; closes && cb->buf_unmapped; closes--)
		cb->buf_unmapped(buf, reported->file);
}

static void report_all(struct rchan *chan)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		report(&chan->bufs[i], &chan->reported[i]);
}

int relay_buf_mapped_start(struct rchan *chan)
{
	if (!chan->cb || chan->remote || (!chan->cb->buf_mapped && !chan->cb->buf_unmapped))
		return 0;
	chan->reported = calloc(chan->n_buffers, sizeof(*chan->reported));
	int err = chan->reported ? 0 : -ENOMEM;
	for (uint32_t i = 0; !err && i < chan->n_buffers; i++) {
		chan->reported[i].file = relay_chan_file(chan, &chan->bufs[i]);
		err = chan->reported[i].file ? 0 : -ENOMEM;
	}
	if (!err)
		err = relay_callback_thread_start(chan, report_all);
	if (err)
		relay_buf_mapped_stop(chan);
	return err;
}

void relay_buf_mapped_stop(struct rchan *chan)
{
	relay_callback_thread_stop(chan);
	for (uint32_t i = 0; chan->reported && i < chan->n_buffers; i++)
		free(chan->reported[i].file);
	free(chan->reported);
	chan->reported = NULL;
}

void relay_buf_count_mapped(struct rchan_buf *buf, struct rchan_buf *first, int opened)
{
	struct relay_control *control = buf->control;
	__atomic_add_fetch(opened ? &control->mapped : &control->unmapped, 1, __ATOMIC_RELEASE);
	relay_wake_maker(first);
}

void relay_buf_forget_mapped(struct rchan_buf *buf, struct rchan_buf *first)
{
	struct relay_control *control = buf->control;
	__atomic_store_n(&control->unmapped, __atomic_load_n(&control->mapped, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
	relay_wake_maker(first);
}
