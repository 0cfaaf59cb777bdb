/* SPDX-License-Identifier: MIT */
/*
 * buf_mapped and buf_unmapped.
 *
 *     somebody          file server                      the channel's maker
 *     open(memN)   ->   memN's control page: mapped++
 *                       mem0's: map_seq++, futex wake -> thread: call back for what has been added
 *
 * Linux does not tell a FUSE server of mmap(2) itself, but an open file is what it takes; its release comes when the
 * last descriptor has gone. (A mapping is of the store's file.) What this library maps, it keeps open without a
 * descriptor; see relay_buf_hold().
 */
#define _GNU_SOURCE
#include "channel/buf_mapped.h"

#include "buffer/open.h"
#include "buffer/wake.h"
#include "channel/callback_thread.h"

#include <relayfs/store.h>
#include <stdlib.h>

/* The counts stand in shared memory: a count that has grown by more than this at once is nonsense. */
enum { MOST_AT_ONCE = 1 << 16 };

/* How much of one buffer's counts its maker's callbacks have been called for. */
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
	/* First the ends, which are never more than the beginnings: of what is reported, each end follows its beginning. */
	uint64_t gone = delta(&buf->control->unmapped, &reported->unmapped);
	uint64_t come = delta(&buf->control->mapped, &reported->mapped);
	for (; come && cb->buf_mapped; come--)
		cb->buf_mapped(buf, reported->file);
	for (; gone && cb->buf_unmapped; gone--)
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
