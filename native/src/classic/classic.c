/* SPDX-License-Identifier: MIT */
/* The functions of <relayfs/classic.h>. relay_create() makes and maps the channels; classic/callbacks.c calls the
 * callbacks. */
#define _GNU_SOURCE
#include "base/futex.h"
#include "base/owner.h"
#include "buffer/claims.h"
#include "buffer/deliveries.h"
#include "buffer/head.h"
#include "buffer/subbuf_start.h"
#include "buffer/try_reserve.h"
#include "buffer/write.h"
#include "channel/callback_thread.h"
#include "channel/create_buf_file.h"
#include "channel/ids.h"
#include "classic/callbacks.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCKING_N_BUFS = 2, CONSUME_WAIT_MS = 1000 };

static const struct relay_classic_callbacks no_callbacks;

/* --- opening --- */

/* The requested parameters of a channel, then the chosen ones. */
struct shape {
	uint32_t bufsize, nbufs, flags;
	uint32_t start_reserve, end_reserve, channel_start_reserve;
};

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* Return the one of two flags that is set, or `none` if neither is. 0: both are set. */
static uint32_t choose(uint32_t flags, uint32_t one, uint32_t other, uint32_t none)
{
	uint32_t given = flags & (one | other);
	return given == (one | other) ? 0 : given ? given : none;
}

static int settle_scheme(struct shape *shape, uint32_t *scheme)
{
	bool can_be_lockless = is_power_of_two(shape->bufsize) && is_power_of_two(shape->nbufs);
	*scheme = shape->flags & RELAY_SCHEME_ANY;
	if (*scheme == RELAY_SCHEME_ANY) {
		*scheme = can_be_lockless ? RELAY_SCHEME_LOCKLESS : RELAY_SCHEME_LOCKING;
		if (!can_be_lockless)
			shape->nbufs = LOCKING_N_BUFS;
	}
	bool allowed = *scheme == RELAY_SCHEME_LOCKLESS ? can_be_lockless : *scheme && shape->nbufs == LOCKING_N_BUFS;
	return allowed ? 0 : -EINVAL;
}

static int settle(struct shape *shape)
{
	uint32_t scheme, all = RELAY_SCHEME_ANY | RELAY_USAGE_SMP | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK |
	                       RELAY_DELIVERY_PACKET | RELAY_TIMESTAMP_TSC;
	uint32_t usage = choose(shape->flags, RELAY_USAGE_SMP, RELAY_USAGE_GLOBAL, RELAY_USAGE_GLOBAL);
	uint32_t delivery = choose(shape->flags, RELAY_DELIVERY_BULK, RELAY_DELIVERY_PACKET, 0);
	if (shape->flags & ~all || !usage || !delivery || shape->bufsize > INT_MAX ||
	    shape->nbufs - 1 >= RELAY_MAX_BUFS)
		return -EINVAL;
	int err = settle_scheme(shape, &scheme);
	uint32_t tsc = relay_clock_is_available(RELAY_TSC) ? shape->flags & RELAY_TIMESTAMP_TSC : 0;
	shape->flags = scheme | usage | delivery | tsc;
	return err;
}

/* Format the keys for `create PATH`. NULL: no memory. */
static char *options_of(const struct shape *shape, bool has_callbacks)
{
	char *options;
	int n =
	    asprintf(&options,
	             "buffers=single read=wait subbuf_size=%u n_subbufs=%u scheme=%s delivery=%s timestamp=%s mode=%s "
	             "start_reserve=%u end_reserve=%u channel_start_reserve=%u",
	             shape->bufsize, shape->nbufs, shape->flags & RELAY_SCHEME_LOCKLESS ? "lockless" : "locking",
	             shape->flags & RELAY_DELIVERY_BULK ? "bulk" : "packet",
	             shape->flags & RELAY_TIMESTAMP_TSC ? "tsc" : "mono", has_callbacks ? "callback" : "overwrite",
	             shape->start_reserve, shape->end_reserve, shape->channel_start_reserve);
	return n < 0 ? NULL : options;
}

static int create(struct relay_classic *classic, const char *channel_path, const char *options)
{
	char *path = channel_path[0] == '/' ? relay_name_below(NULL, channel_path + strspn(channel_path, "/")) : NULL;
	if (!path)
		return channel_path[0] == '/' ? -ENOMEM : -EINVAL;
	classic->chan = relay_create(path, options);
	free(path);
	return classic->chan ? 0 : -errno;
}

/* In packet delivery, call deliver() for records written by write(2). */
static void deliver_noted(const struct relay_classic *classic, struct rchan_buf *buf)
{
	char *data;
	uint32_t length;
	if (!(classic->flags & RELAY_DELIVERY_PACKET))
		return;
	/* Limit the loop, because corrupted memory could seem to have new records for ever. */
	for (int n = 0; n < RELAY_N_NOTES && relay_deliveries_take(buf, &data, &length); n++)
		if (data && classic->cb->deliver)
			classic->cb->deliver(classic->id, data, length);
}

/* A step of the library's thread: call the callbacks for other programs, which do not have them. */
static void attend(struct rchan *chan)
{
	struct rchan_buf *buf = &chan->bufs[0];
	uint64_t header, pos, second, self = relay_owner_self();
	__atomic_store_n(&buf->control->maker, self, __ATOMIC_RELAXED);
	/* Start a sub-buffer only if a writer has asked for it: starting one early would overwrite unread data. */
	if (!relay_head(buf, &pos, &second) && !relay_has_begun(buf, pos) &&
	    __atomic_load_n(&buf->control->wanted, __ATOMIC_RELAXED) == relay_pos_number(buf, pos) + 1)
		relay_subbuf_start(buf, &header);
	deliver_noted(relay_classic_of(chan), buf);
}

static int begin(struct relay_classic *classic)
{
	uint64_t header;
	struct rchan_buf *buf = &classic->chan->bufs[0];
	if (buf->mode == RELAY_CALLBACK) {
		buf->begin = relay_subbuf_start_by_callback;
		/* Until the library's thread stores its own owner word. */
		__atomic_store_n(&buf->control->maker, relay_owner_self(), __ATOMIC_RELAXED);
	}
	if (relay_subbuf_start(buf, &header) == RELAY_SUBBUF_START_DAMAGED)
		return -EBADMSG;
	return buf->mode == RELAY_CALLBACK ? relay_callback_thread_start(classic->chan, attend) : 0;
}

int relay_classic_open(const char *channel_path, uint32_t bufsize, uint32_t nbufs, uint32_t channel_flags,
                       const struct relay_classic_callbacks *callbacks, uint32_t start_reserve, uint32_t end_reserve,
                       uint32_t channel_start_reserve)
{
	struct shape shape = {bufsize, nbufs, channel_flags, start_reserve, end_reserve, channel_start_reserve};
	int err = channel_path ? settle(&shape) : -EINVAL;
	if (err)
		return err;
	struct relay_classic *classic = relay_ids_take();
	if (!classic)
		return -EMFILE;
	classic->cb = callbacks ? callbacks : &no_callbacks;
	classic->flags = shape.flags;
	classic->fenced = relay_fence_writers();
	classic->closing = false;
	classic->locked_by = 0;
	char *options = options_of(&shape, memcmp(classic->cb, &no_callbacks, sizeof(no_callbacks)) != 0);
	err = options ? create(classic, channel_path, options) : -ENOMEM;
	free(options);
	if (!err) {
		classic->chan->maker = relay_owner_process();
		classic->chan->private_data = classic;
		relay_ids_publish(classic);
		/* Time deltas and callbacks need the mapped memory. */
		err = classic->chan->remote ? -EOPNOTSUPP : begin(classic);
	}
	if (!err)
		return classic->id;
	if (classic->chan) {
		relay_ids_withdraw(classic);
		relay_chan_remove(classic->chan);
	}
	relay_ids_drop(classic);
	return err;
}

static void finish(struct rchan_buf *buf)
{
	__atomic_fetch_or(&buf->control->flags, RELAY_FINALIZED, __ATOMIC_SEQ_CST);
	/* The last callbacks may call relay_info(). */
	relay_buf_flush(buf);
}

int relay_classic_close(int channel_id)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	if (!classic)
		return -EBADF;
	bool first = !__atomic_exchange_n(&classic->closing, true, __ATOMIC_RELAXED);
	if (first) {
		relay_callback_thread_stop(classic->chan);
		if (relay_chan_is_ours(classic->chan)) {
			deliver_noted(classic, &classic->chan->bufs[0]);
			finish(&classic->chan->bufs[0]);
		}
		relay_ids_withdraw(classic);
		relay_chan_remove(classic->chan);
		relay_ids_drop(classic); /* the reference of relay_classic_open() */
	}
	relay_ids_drop(classic);
	return first ? 0 : -EBADF;
}

/* --- writing --- */

static int reserve(struct relay_classic *classic, size_t len, struct relay_slot *slot)
{
	struct rchan_buf *buf = &classic->chan->bufs[0];
	/* Relaxed: if the word is this thread's, this thread stored it. */
	slot->locked = classic->flags & RELAY_SCHEME_LOCKING &&
	               __atomic_load_n(&classic->locked_by, __ATOMIC_RELAXED) == relay_owner_self();
	return relay_reserve_claimed(buf, len, slot);
}

/* Nanoseconds since the sub-buffer of pos began. */
static uint64_t elapsed_ns(const struct rchan_buf *buf, uint64_t pos, uint64_t clock)
{
	return clock - __atomic_load_n(&relay_pos_entry(buf, pos)->start_clock, __ATOMIC_RELAXED);
}

/* Return the TSC; or the microseconds that, added to start_time in whole microseconds, give the time of the record. */
static uint64_t time_delta_of(const struct rchan_buf *buf, uint64_t pos, uint64_t clock)
{
	if (buf->timestamp == RELAY_TSC)
		return clock;
	uint64_t start_ns = __atomic_load_n(&relay_pos_entry(buf, pos)->start_time_ns, __ATOMIC_RELAXED);
	return (start_ns % 1000 + elapsed_ns(buf, pos, clock)) / 1000;
}

static int write_record(struct relay_classic *classic, const void *data_ptr, size_t count, int time_delta_offset)
{
	struct rchan_buf *buf = &classic->chan->bufs[0];
	struct relay_slot slot = {.stamped = time_delta_offset >= 0};
	uint64_t time_delta;
	if (slot.stamped && (count < sizeof(time_delta) || (size_t)time_delta_offset > count - sizeof(time_delta)))
		return -EINVAL;
	if (count == 0)
		return 0;
	int err = reserve(classic, count, &slot);
	if (err)
		return err;
	uint64_t pos = relay_claim_position(slot.claim);
	memcpy(slot.to, data_ptr, count);
	if (slot.stamped) {
		time_delta = time_delta_of(buf, pos, slot.clock);
		memcpy((char *)slot.to + time_delta_offset, &time_delta, sizeof(time_delta));
	}
	relay_commit_claim(buf, slot.claim);
	relay_events_committed(classic, pos, count);
	return (int)count;
}

int relay_classic_write(int channel_id, const void *data_ptr, size_t count, int time_delta_offset)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	if (!classic)
		return -EBADF;
	int result = write_record(classic, data_ptr, count, time_delta_offset);
	relay_ids_drop(classic);
	return result;
}

struct rchan *rchan_get(int channel_id)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	return classic ? classic->chan : NULL;
}

void rchan_put(struct rchan *rchan)
{
	if (rchan)
		relay_ids_drop(relay_classic_of(rchan));
}

int relay_lock_channel(struct rchan *rchan)
{
	struct relay_classic *classic = relay_classic_of(rchan);
	sigset_t before;
	int err = relay_writers_lock(&rchan->bufs[0], &before);
	if (err || !(classic->flags & RELAY_SCHEME_LOCKING))
		return err;
	classic->before = before;
	__atomic_store_n(&classic->locked_by, relay_owner_self(), __ATOMIC_RELAXED);
	return 0;
}

void relay_unlock_channel(struct rchan *rchan)
{
	struct relay_classic *classic = relay_classic_of(rchan);
	if (__atomic_load_n(&classic->locked_by, __ATOMIC_RELAXED) != relay_owner_self())
		return;
	sigset_t before = classic->before;
	__atomic_store_n(&classic->locked_by, 0, __ATOMIC_RELAXED);
	relay_writers_unlock(&rchan->bufs[0], &before);
}

static struct timeval wall_clock_of(const struct rchan_buf *buf, uint64_t pos, uint64_t clock)
{
	if (buf->timestamp == RELAY_TSC)
		return relay_timeval(relay_clock_ns(CLOCK_REALTIME));
	return relay_timeval(__atomic_load_n(&relay_pos_entry(buf, pos)->start_time_ns, __ATOMIC_RELAXED) +
	                     elapsed_ns(buf, pos, clock));
}

char *relay_classic_reserve(struct rchan *rchan, size_t len, struct timeval *time_stamp, uint64_t *time_delta,
                            int *errcode)
{
	struct rchan_buf *buf = &rchan->bufs[0];
	struct relay_slot slot = {.stamped = time_stamp || time_delta};
	int err = len ? reserve(relay_classic_of(rchan), len, &slot) : -EINVAL;
	if (errcode)
		*errcode = err;
	if (err)
		return NULL;
	uint64_t pos = relay_claim_position(slot.claim);
	if (time_delta)
		*time_delta = time_delta_of(buf, pos, slot.clock);
	if (time_stamp)
		*time_stamp = wall_clock_of(buf, pos, slot.clock);
	return slot.to;
}

void relay_classic_commit(struct rchan *rchan, char *reserved, size_t len)
{
	struct rchan_buf *buf = &rchan->bufs[0];
	struct relay_claim *claim = relay_claim_at(buf, reserved);
	if (!claim)
		return;
	uint64_t pos = relay_claim_position(claim);
	relay_commit_claim(buf, claim);
	relay_events_committed(relay_classic_of(rchan), pos, len);
}

/* --- consuming --- */

void relay_classic_buffers_consumed(int channel_id, uint32_t buffers_consumed)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	if (!classic)
		return;
	/* -EBUSY: a reader of the file is consuming, which does not take long. */
	for (int waited = 0; waited < CONSUME_WAIT_MS; waited++) {
		if (relay_buf_subbufs_consumed(&classic->chan->bufs[0], buffers_consumed) != -EBUSY)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	relay_ids_drop(classic);
}

void relay_classic_resume(int channel_id)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	if (!classic)
		return;
	relay_buf_resume(&classic->chan->bufs[0]);
	relay_ids_drop(classic);
}

/* Fill in the entries of the finished sub-buffers that are not overwritten. */
static void fill_places(struct rchan_buf *buf, struct rchan_info *info, uint64_t head)
{
	uint64_t number = relay_pos_number(buf, head) < buf->n_subbufs ? 0 : relay_oldest(buf, head);
	for (; number < info->bufs_produced; number++) {
		uint64_t start = relay_pos_start(buf, number), place = relay_pos_index(buf, start);
		uint64_t end = __atomic_load_n(&relay_pos_entry(buf, start)->end, __ATOMIC_RELAXED);
		info->unused_bytes[place] = (int32_t)(buf->subbuf_size - relay_pos_offset(buf, end));
		info->buffer_complete[place] = !relay_claims_fill(buf, start);
	}
}

/* The caller has the switch lock, so no sub-buffer begins meanwhile. */
static int fill_info(const struct relay_classic *classic, struct rchan_buf *buf, struct rchan_info *info)
{
	uint64_t head, second, lost, lost_bytes;
	if (relay_head(buf, &head, &second) || !relay_latch_read(&buf->control->lost_full, &lost, &lost_bytes))
		return -EBADMSG;
	relay_claims_help(buf, head, second);
	uint64_t number = relay_pos_number(buf, head), at = head;
	/* A sub-buffer that has not begun is not the current one yet. */
	if (number && !relay_has_begun(buf, head))
		at = __atomic_load_n(&relay_pos_entry(buf, relay_pos_start(buf, number - 1))->end, __ATOMIC_RELAXED);
	*info = (struct rchan_info){
	    .flags = classic->flags,
	    .buf_size = (uint32_t)buf->subbuf_size,
	    .n_bufs = (uint32_t)buf->n_subbufs,
	    .alloc_size = buf->mapping.bytes,
	    .buf_addr = (char *)buf->data,
	    .bufs_produced = relay_produced(buf, head),
	    .bufs_consumed = relay_bufs_consumed(buf),
	    .buf_id = (uint32_t)relay_pos_number(buf, at),
	    .cur_idx = (uint32_t)(relay_pos_index(buf, at) * buf->subbuf_size + relay_pos_offset(buf, at)),
	    .events_lost = lost,
	    .suspended = !!(relay_asked(buf, number) & RELAY_ASKED_SUSPENDED),
	};
	if (info->bufs_produced > number)
		return -EBADMSG;
	fill_places(buf, info, head);
	return 0;
}

int relay_classic_info(int channel_id, struct rchan_info *channel_info)
{
	struct relay_classic *classic = relay_ids_hold(channel_id);
	if (!classic)
		return -EBADF;
	struct rchan_buf *buf = &classic->chan->bufs[0];
	sigset_t before;
	int locked = relay_switch_lock(buf, &before);
	/* -EDEADLK: from a callback. */
	int err = !locked || locked == -EDEADLK ? fill_info(classic, buf, channel_info) : locked;
	if (!locked)
		relay_switch_unlock(buf, &before);
	relay_ids_drop(classic);
	return err;
}
