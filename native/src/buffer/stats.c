/* SPDX-License-Identifier: MIT */
/*
 * Statistics and state of a buffer, from its shared memory to the numbers that a file server shows. Each field of the
 * result is checked and fits 63 bits; a value that cannot be right yields -EBADMSG and a note in buf->damage.
 *
 * Readers and producers continue meanwhile. Consumer and producer positions are loaded separately. If a consumer moved
 * in between, producers may be a lap ahead of the stale value, which cannot be told from damage. So damage is reported
 * only if no reader has moved meanwhile, and nothing that was loaded during a reset is used.
 */
#define _GNU_SOURCE
#include "base/shown.h"
#include "buffer/claims.h"
#include "buffer/consume.h"
#include "buffer/head.h"
#include "buffer/open.h"
#include "buffer/subbuf_start.h"
#include "store/options.h"

#include <poll.h>
#include <relayfs/check_store.h>
#include <stddef.h>
#include <unistd.h>

/* The numbers of tries. Only hostile readers or writers can change the buffer during so many tries in a row. */
enum { RESET_TRIES = 10, MOVE_TRIES = 200, LAPPED_TRIES = 200, PRODUCED_TRIES = 1000 };

/* If one of these counters changes, what was loaded meanwhile may be inconsistent. */
struct moment {
	uint32_t resets, readers;
};

static struct moment load_moment(const struct rchan_buf *buf)
{
	struct moment begin;
	/* Pairs with start_again() in buffer/control.c: this thread sees all changes by the last reset. */
	begin.resets = __atomic_load_n(&buf->control->resets, __ATOMIC_ACQUIRE);
	/* Relaxed: relay_consumer_read() loads it again with acquire before it loads the state. */
	begin.readers = __atomic_load_n(&buf->control->current, __ATOMIC_RELAXED);
	return begin;
}

static bool was_reset_since(const struct rchan_buf *buf, struct moment begin)
{
	/* Pairs with the fence in start_again() in buffer/control.c: if this thread has seen a change by a reset,
	 * it sees the odd number now. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return begin.resets & 1 || __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) != begin.resets;
}

static bool has_read_since(const struct rchan_buf *buf, struct moment begin)
{
	/* Pairs with the release in relay_consumer_publish(): if this thread has seen a position of writers that is
	 * possible only because a reader moved, it sees now that `current` has changed. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&buf->control->current, __ATOMIC_RELAXED) != begin.readers;
}

/* Call load(buf, into) until no reset and, if it returns -EBADMSG, no reader has changed the buffer meanwhile.
 * Returns its result, or 1: a reset is under way. */
static int load_consistently(struct rchan_buf *buf, int (*load)(struct rchan_buf *, void *), void *into)
{
	relay_work_begin(buf);
	for (int resets = 0, moves = 0; resets < RESET_TRIES;) {
		struct moment begin = load_moment(buf);
		int err = load(buf, into);
		if (was_reset_since(buf, begin))
			resets++;
		else if (err != -EBADMSG || !has_read_since(buf, begin) || moves++ == MOVE_TRIES)
			return err;
		relay_damage_forget(&buf->damage);
	}
	return 1;
}

static int with_walking(struct rchan_buf *buf, int (*load)(struct rchan_buf *, void *), void *into)
{
	pthread_mutex_lock(&buf->walking);
	int err = load_consistently(buf, load, into);
	pthread_mutex_unlock(&buf->walking);
	return err;
}

static int check_magic(struct rchan_buf *buf)
{
	/* Relaxed: it changes only if the file is truncated, and zero pages are mapped instead (base/mapping.c). */
	uint64_t magic = __atomic_load_n(&buf->control->geometry.magic, __ATOMIC_RELAXED);
	if (magic == RELAY_MAGIC)
		return 0;
	return relay_damage_note(&buf->damage, "relay_geometry.magic", 0, magic, "not", RELAY_MAGIC);
}

/* --- relay_buf_state() --- */

static int read_state(struct rchan_buf *buf, void *into)
{
	int *bits = into;
	struct relay_consumer state;
	uint64_t head, second;
	/* Loaded before head, so that records from before the buffer was closed are still found. Pairs with
	 * relay_buf_stop() in buffer/control.c. */
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	if (check_magic(buf) || relay_head_checked(buf, &head, &second) || relay_consumer_read(buf, &state))
		return -EBADMSG;
	*bits = flags & RELAY_CLOSED ? RELAY_IS_CLOSED : 0;
	if ((int64_t)(relay_produced(buf, head) - relay_pos_number(buf, state.position)) > 0)
		*bits |= RELAY_HAS_FINISHED;
	int data = relay_consume_peek(buf, &state);
	if (data == -EBADMSG)
		return data;
	if (data == -EINPROGRESS)
		*bits |= RELAY_LOOK_AGAIN;
	else if (data)
		*bits |= RELAY_HAS_DATA | (relay_reader_is_held(buf) ? RELAY_IS_HELD : 0);
	return 0;
}

int relay_buf_state(struct rchan_buf *buf)
{
	int bits = 0, err = with_walking(buf, read_state, &bits);
	if (err < 0)
		return RELAY_IS_DAMAGED;
	/* During a reset there is nothing to read, and its end wakes sleeping readers. */
	if (err)
		bits = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED ? RELAY_IS_CLOSED : 0;
	return bits;
}

int relay_buf_has_left(const struct rchan_buf *buf)
{
	/* Pairs with the release in relay_note_left(), buffer/subbuf_start.h. */
	return !!(__atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_LEFT);
}

/* --- relay_buf_stats() --- */

static void fill_in_geometry(const struct rchan_buf *buf, struct relay_stats *stats)
{
	/* Pairs with relay_buf_stop() in buffer/control.c. */
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	*stats = (struct relay_stats){.file_bytes = buf->mapping.bytes,
	                              .cpu = buf->cpu,
	                              .n_buffers = buf->geometry.n_buffers,
	                              .format = buf->geometry.format,
	                              .pid = buf->geometry.pid,
	                              .closed = !!(flags & RELAY_CLOSED),
	                              .disabled = !!(flags & RELAY_DISABLED)};
	relay_options_to_stats(&buf->geometry, stats);
}

/* Read the position of head, and the numbers of records and bytes written before it, as they were at one moment. */
static int read_produced(struct rchan_buf *buf, struct relay_stats *stats)
{
	for (int i = 0; i < PRODUCED_TRIES; i++) {
		uint64_t pos, second;
		if (relay_head_checked(buf, &pos, &second))
			return -EBADMSG;
		relay_claims_help(buf, pos, second);
		uint64_t number = relay_pos_number(buf, pos), most = number * buf->subbuf_size;
		uint64_t start = __atomic_load_n(&relay_pos_entry(buf, pos)->start_bytes, __ATOMIC_ACQUIRE);
		stats->produced = relay_produced(buf, pos);
		stats->suspended = !!(relay_asked(buf, number) & RELAY_ASKED_SUSPENDED);
		/* The acquires above keep the loads of the entry and of `asked` before this load of head. */
		uint64_t again = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
		/* the entry and `asked` may be those of a later sub-buffer */
		if (relay_pos_number(buf, again) != number)
			continue;
		stats->offset = relay_pos_offset(buf, pos);
		stats->records = second & RELAY_RECORDS_MASK;
		stats->bytes = start + stats->offset;
		stats->padding = most - start;
		return relay_damage_above(&buf->damage, "relay_subbuf[].start_bytes", relay_pos_entry_index(buf, pos),
		                          start, most);
	}
	return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
}

static void fill_in_consumer(struct relay_stats *stats, const struct relay_consumer *state)
{
	/* No result is negative, because relay_consumer_read() and relay_consumer_catch_up() have checked the sums. */
	stats->lost_overwritten_records = state->overwritten_records;
	stats->lost_overwritten_bytes = state->overwritten_bytes;
	stats->lost_torn_records = state->torn_records;
	stats->lost_torn_bytes = state->torn_bytes;
	stats->discarded_records = state->discarded_records;
	stats->discarded_bytes = state->discarded_bytes;
	stats->read_records =
	    state->records - state->overwritten_records - state->torn_records - state->discarded_records;
	stats->read_bytes = state->bytes - state->overwritten_bytes - state->torn_bytes - state->discarded_bytes;
	stats->reads = state->reads;
}

/* Check that the consumer is not ahead of the writers, nor behind them by more than the memory,
 * and compute what is unread. */
static int check_positions(struct rchan_buf *buf, struct relay_stats *stats, const struct relay_consumer *state)
{
	struct relay_damage *damage = &buf->damage;
	uint64_t memory = buf->n_subbufs * buf->subbuf_size;
	uint64_t least = stats->bytes > memory ? stats->bytes - memory : 0;
	if (relay_damage_above(damage, "relay_consumer.records", 0, state->records, stats->records) ||
	    relay_damage_above(damage, "relay_consumer.bytes", 0, state->bytes, stats->bytes) ||
	    relay_damage_below(damage, "relay_consumer.bytes", 0, state->bytes, least) ||
	    relay_damage_above(damage, "the number of the consumer's sub-buffer", 0, stats->consumed, stats->produced))
		return -EBADMSG;
	stats->unread_bytes = stats->bytes - state->bytes;
	return relay_damage_above(damage, "the bytes of unread holes", 0, stats->unread_holes, stats->unread_bytes);
}

static int read_positions(struct rchan_buf *buf, struct relay_stats *stats)
{
	for (int i = 0;; i++) {
		struct relay_consumer state;
		int err = relay_consumer_read(buf, &state);
		if (err)
			return err;
		/* The position that the last reader has stored. Losses by overwriting are counted at once, by
		 * relay_consumer_catch_up() below, though a reader stores them at its next read only. */
		stats->consumed = relay_pos_number(buf, state.position);
		err = relay_consumer_catch_up(buf, &state);
		if (err)
			return err;
		/* Read before the written bytes, so that no hole counts that lies behind them. */
		stats->unread_holes = relay_consume_holes(buf, &state);
		err = read_produced(buf, stats);
		if (err)
			return err;
		fill_in_consumer(stats, &state);
		err = check_positions(buf, stats, &state);
		if (!err || i == LAPPED_TRIES || !relay_consumer_is_lapped_now(buf, state.position))
			return err;
		relay_damage_forget(&buf->damage);
	}
}

static int read_losses(struct rchan_buf *buf, struct relay_stats *stats)
{
	const struct relay_control *control = buf->control;
	if (relay_damage_loss(&buf->damage, "relay_control.lost_full.second", &control->lost_full,
	                      &stats->lost_full_records, &stats->lost_full_bytes) ||
	    relay_damage_loss(&buf->damage, "relay_control.lost_too_large.second", &control->lost_too_large,
	                      &stats->lost_too_large_records, &stats->lost_too_large_bytes) ||
	    relay_damage_loss(&buf->damage, "relay_control.lost_disabled.second", &control->lost_disabled,
	                      &stats->lost_disabled_records, &stats->lost_disabled_bytes))
		return -EBADMSG;
	return 0;
}

static int sum_losses(struct rchan_buf *buf, struct relay_stats *stats)
{
	const uint64_t losses[][2] = {
	    {stats->lost_full_records, stats->lost_full_bytes},
	    {stats->lost_too_large_records, stats->lost_too_large_bytes},
	    {stats->lost_disabled_records, stats->lost_disabled_bytes},
	    {stats->lost_overwritten_records, stats->lost_overwritten_bytes},
	    {stats->lost_torn_records, stats->lost_torn_bytes},
	};
	int err = 0;
	for (size_t i = 0; !err && i < sizeof(losses) / sizeof(losses[0]); i++) {
		err = relay_damage_add(&buf->damage, "a part of all lost records", losses[i][0], &stats->lost_records);
		if (!err)
			err = relay_damage_add(&buf->damage, "a part of all lost bytes", losses[i][1],
			                       &stats->lost_bytes);
	}
	return err;
}

static int read_stats(struct rchan_buf *buf, void *into)
{
	struct relay_stats *stats = into;
	const struct relay_control *control = buf->control;
	fill_in_geometry(buf, stats);
	if (check_magic(buf) || read_positions(buf, stats) || read_losses(buf, stats) || sum_losses(buf, stats))
		return -EBADMSG;
	/* Relaxed: these fields do not depend on others. */
	stats->wakeups = __atomic_load_n(&control->wake_seq, __ATOMIC_RELAXED);
	stats->switch_time_ns = __atomic_load_n(&control->switch_time_ns, __ATOMIC_RELAXED);
	return relay_damage_above(&buf->damage, "relay_control.switch_time_ns", 0, stats->switch_time_ns, INT64_MAX);
}

int relay_buf_stats(struct rchan_buf *buf, struct relay_stats *stats)
{
	int err = with_walking(buf, read_stats, stats);
	/* During a reset, report the buffer as empty, as it will be. */
	if (err == 1)
		fill_in_geometry(buf, stats);
	return err < 0 ? err : 0;
}

/* --- relay_buf_ready() --- */

/* True if a record written through the mount would probably be accepted. */
static bool has_room(const struct relay_stats *stats)
{
	const uint64_t largest_offset = stats->subbuf_size - stats->end_reserve;
	if (stats->suspended)
		return false;
	if (stats->mode == RELAY_OVERWRITE)
		return true;
	if (stats->mode == RELAY_NO_OVERWRITE)
		return stats->produced - stats->consumed < stats->n_subbufs - (stats->offset >= largest_offset);
	/* In mode callback the program's subbuf_start() must allow each new sub-buffer, so only the current one can be
	 * filled through the mount. Programs of <relayfs/classic.h>, whose channels have timestamps, are asked when
	 * needed. */
	return stats->timestamp || (stats->offset && stats->offset < largest_offset);
}

int relay_buf_ready(struct rchan_buf *buf, uint64_t *progress)
{
	struct relay_stats stats;
	int state = relay_buf_state(buf);
	int err = relay_buf_stats(buf, &stats);
	if (err || state & RELAY_IS_DAMAGED)
		return -EBADMSG;
	const bool bulk = stats.delivery == RELAY_BULK;
	/* Nothing will finish the last sub-buffer of a closed buffer, so what is in it can be read now. */
	const int readable = bulk && !(state & RELAY_IS_CLOSED) ? RELAY_HAS_FINISHED : RELAY_HAS_DATA;
	*progress = bulk ? stats.produced : stats.bytes;
	int events = state & RELAY_IS_CLOSED ? POLLERR | POLLHUP : 0;
	/* While another reader holds the lock, a read would wait. */
	if (state & readable && !(state & RELAY_IS_HELD))
		events |= POLLIN | POLLRDNORM;
	return events | (has_room(&stats) ? POLLOUT | POLLWRNORM : 0);
}

/* --- relay_buf_show() --- */

/* Whether nothing was written to a file since it was empty. */
static bool is_still_empty(int fd, const struct relay_empty *empty)
{
	struct relay_control control;
	const size_t bytes = offsetof(struct relay_control, consumer);
	off_t end = lseek(fd, 0, SEEK_END);
	/* Each reservation moves head, and readers do not pass it. */
	return end >= RELAY_PAGE_BYTES && pread(fd, &control, bytes, end - RELAY_PAGE_BYTES) == (ssize_t)bytes &&
	       control.geometry.magic == RELAY_MAGIC && control.head.first == empty->head &&
	       control.resets == empty->resets;
}

static struct relay_empty load_empty(const struct rchan_buf *buf)
{
	struct moment begin = load_moment(buf);
	/* Acquire: what relay_buf_stats() loads is loaded after. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_ACQUIRE);
	return (struct relay_empty){.head = head, .resets = begin.resets};
}

static int show_stats(struct rchan_buf *buf, struct relay_shown *shown, struct relay_empty *empty)
{
	struct relay_stats stats;
	*empty = load_empty(buf);
	int err = relay_buf_stats(buf, &stats);
	if (err)
		return err;
	shown->unread = stats.unread_bytes;
	shown->holes = stats.unread_holes;
	shown->written = empty->written = stats.bytes;
	/* If head has not moved since it was loaded, nothing was written before this moment that `stats` does not
	 * have. */
	empty->is_known = !stats.unread_bytes && !was_reset_since(buf, (struct moment){.resets = empty->resets}) &&
	                  __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED) == empty->head;
	return 0;
}

/* Map a file that is open for as long as it takes to show it; fd is closed. */
static int show_mapped(int fd, struct relay_shown *shown, struct relay_empty *empty)
{
	struct rchan_buf *buf = relay_buf_glance(fd);
	if (!buf)
		return -errno;
	int err = show_stats(buf, shown, empty);
	/* There are more holes than one call counts, and the next one would begin anew. */
	if (!err && !buf->work)
		err = -EAGAIN;
	relay_buf_release(buf);
	return err;
}

int relay_buf_show(struct rchan_buf *buf, const char *mem_file, struct relay_shown *shown, struct relay_empty *empty)
{
	struct relay_empty unknown = {0};
	if (!empty)
		empty = &unknown;
	if (buf) {
		int err = relay_show_status(&buf->mapping, mem_file, shown);
		return err ? err : show_stats(buf, shown, empty);
	}
	int fd = relay_show_open(mem_file, shown);
	if (fd < 0)
		return fd;
	if (!empty->is_known || !is_still_empty(fd, empty))
		return show_mapped(fd, shown, empty);
	close(fd);
	shown->written = empty->written;
	return 0;
}

/* --- time of the last change --- */

void relay_buf_mtime(const struct rchan_buf *buf, uint64_t *count, uint64_t *time_ns)
{
	relay_latch_read_or_zero(&buf->control->mtime, count, time_ns);
	if (*time_ns > INT64_MAX)
		*count = *time_ns = 0;
}

void relay_buf_keep_mtime(struct rchan_buf *buf, uint64_t count, uint64_t time_ns)
{
	relay_latch_store(&buf->control->mtime, count, time_ns);
}
