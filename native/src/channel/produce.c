/* SPDX-License-Identifier: MIT */
/* Writing to a channel: choosing the buffer. Flush and reset of all buffers. */
#define _GNU_SOURCE
#include "channel/channel.h"

#include "base/quiet.h"
#include "buffer/reserve.h"
#include "buffer/timed.h"
#include "buffer/write.h"
#include "channel/remote.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *relay_private(const struct rchan *chan)
{
	return chan ? chan->private_data : NULL;
}

struct rchan *relay_buf_chan(const struct rchan_buf *buf)
{
	return buf->chan;
}

unsigned relay_buf_cpu(const struct rchan_buf *buf)
{
	return buf->cpu;
}

/* Write through the file server, one write(2) for each record, because this thread may not store into the buffers. */
__attribute__((noinline)) static int write_through_file(struct rchan *chan, const void *data, size_t length)
{
	if (chan->remote)
		return relay_remote_write(chan->remote, data, length);
	int cpu = sched_getcpu();
	struct rchan_buf *buf = &chan->bufs[cpu < 0 ? 0 : (uint32_t)cpu % chan->n_buffers];
	/* Pairs with the release in show_in_mount() in channel/attach.c. */
	const char *file = __atomic_load_n(&buf->relay_file, __ATOMIC_ACQUIRE);
	int saved = errno;
	int fd = file ? open(file, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
	int err = 0;
	if (fd < 0 || write(fd, data, length) < 0)
		err = file ? -errno : -ENOTSUP;
	if (fd >= 0)
		close(fd);
	errno = saved;
	return err;
}

/* Write to the buffer of the CPU that this thread ran on. Not inlined, so that a write to a single buffer needs no frame. */
static __attribute__((noinline)) int write_to_cpu(struct rchan *chan, const void *data, size_t length,
                                                  struct relay_record_time *time, bool will_retry)
{
	uint32_t cpu = (uint32_t)sched_getcpu() % chan->n_buffers;
	return relay_write_shared(&chan->bufs[cpu], data, length, time, will_retry);
}

/* The number of the buffer to write to. n_buffers or more: this thread may not store into the buffers. */
static uint32_t choose_buffer(const struct rchan *chan)
{
	return chan->scheme == RELAY_RSEQ ? relay_rseq_cpu()
	       : chan->n_buffers == 1     ? 0
	                                  : (uint32_t)sched_getcpu() % chan->n_buffers;
}

/* Write a record with its time before it. -ENOTSUP: as write_record(). */
static int write_timed(struct rchan *chan, const void *data, size_t length, bool will_retry)
{
	for (;;) {
		uint32_t number = choose_buffer(chan);
		if (number >= chan->n_buffers)
			return -ENOTSUP;
		int err = relay_timed_write(&chan->bufs[number], data, length, will_retry);
		if (err != RELAY_WRONG_CPU)
			return err;
	}
}

/* Write a record in scheme lockless or locking. */
static inline int write_shared(struct rchan *chan, const void *data, size_t length, struct relay_record_time *time,
                               bool will_retry)
{
	if (chan->n_buffers == 1)
		return relay_write_shared(chan->bufs, data, length, time, will_retry);
	return write_to_cpu(chan, data, length, time, will_retry);
}

/* For channels with `times`, and for threads without restartable sequences, which only scheme rseq needs. -ENOTSUP: as
 * write_record(). */
static __attribute__((noinline)) int write_without_rseq(struct rchan *chan, const void *data, size_t length,
                                                        struct relay_record_time *time, bool will_retry)
{
	if (chan->is_shared)
		return write_shared(chan, data, length, time, will_retry);
	return chan->is_timed ? write_timed(chan, data, length, will_retry) : -ENOTSUP;
}

int relay_write_wake(struct rchan *chan, unsigned cpu)
{
	if (chan && cpu < chan->n_buffers)
		relay_wake(&chan->bufs[cpu], RELAY_ARM_RECORD);
	return 0;
}

/* -ENOTSUP: this thread may not store into the buffers. will_retry: -ENOSPC is not counted. */
static inline __attribute__((always_inline)) int write_record(struct rchan *chan, const void *data, size_t length,
                                                              struct relay_record_time *time, bool will_retry)
{
	for (;;) {
		uint32_t cpu = relay_rseq_cpu();
		if (__builtin_expect(cpu >= chan->fast.n_rseq[RELAY_INLINE_VERSION], 0))
			return write_without_rseq(chan, data, length, time, will_retry);
		int err = relay_write_rseq(&chan->bufs[cpu], data, length, time, will_retry);
		if (__builtin_expect(err != RELAY_WRONG_CPU, 1))
			return err;
	}
}

static __attribute__((noinline)) int write_here_or_through_file(struct rchan *chan, const void *data, size_t length)
{
	int err = write_record(chan, data, length, NULL, false);
	return err == -ENOTSUP ? write_through_file(chan, data, length) : err;
}

/* Not inlined, so that relay_write() saves few registers. It saves none itself: in a shared buffer the locked instruction
 * would wait until they are stored. */
__attribute__((noinline)) int relay_write_anyhow(struct rchan *chan, const void *data, size_t length)
{
	if (!chan)
		return -EBADF;
	return chan->is_shared ? write_shared(chan, data, length, NULL, false)
	                       : write_here_or_through_file(chan, data, length);
}

int relay_write(struct rchan *chan, const void *data, size_t length)
{
	return relay_inline_write(chan, data, length);
}

int relay_try_write(struct rchan *chan, const void *data, size_t length)
{
	int err = chan ? write_record(chan, data, length, NULL, true) : -EBADF;
	return err == -ENOTSUP ? write_through_file(chan, data, length) : err;
}

/* Write a record in a blind thread (base/quiet.h) without the fast path, which reads a clock that the thread may not
 * read. */
static int write_blind(struct rchan *chan, size_t length, struct relay_record_time *time)
{
	int err = RELAY_WRONG_CPU;
	while (err == RELAY_WRONG_CPU) {
		uint32_t cpu = relay_rseq_cpu();
		err = cpu < chan->n_buffers ? relay_write_rseq_slow(&chan->bufs[cpu], NULL, length, time, false)
		                            : -ENOTSUP;
	}
	return err;
}

int relay_chan_write_timed(struct rchan *chan, size_t length, struct relay_record_time *time)
{
	if (relay_is_blind() && chan->scheme == RELAY_RSEQ)
		return write_blind(chan, length, time);
	return write_record(chan, NULL, length, time, false);
}

int __relay_write(struct rchan *chan, const void *data, size_t length)
{
	return relay_write(chan, data, length);
}

/* The buffer to which this thread may write several records at once; NULL: none. */
static struct rchan_buf *buffer_here(struct rchan *chan)
{
	uint32_t cpu = relay_rseq_cpu();
	if (chan && cpu < chan->fast.n_rseq[RELAY_INLINE_VERSION])
		return &chan->bufs[cpu];
	return chan && chan->is_shared ? &chan->bufs[choose_buffer(chan)] : NULL;
}

size_t relay_chan_write_together(struct rchan *chan, const unsigned char **at, const size_t *lengths, size_t n)
{
	struct rchan_buf *buf = n > 1 ? buffer_here(chan) : NULL;
	size_t room = buf ? relay_together_room(buf) : 0, length = 0, fit = 0;
	while (fit < n && lengths[fit] && lengths[fit] <= room - length)
		length += lengths[fit++];
	if (fit < 2 || !relay_write_together(buf, *at, length, fit))
		return 0;
	*at += length;
	return fit;
}

long relay_write_batch(struct rchan *chan, const void *data, const size_t *lengths, size_t n)
{
	const unsigned char *at = data;
	for (size_t i = 0, together; i < n; i += together) {
		together = relay_chan_write_together(chan, &at, lengths + i, n - i);
		int err = together ? 0 : relay_write(chan, at, lengths[i]);
		if (err)
			return i ? (long)i : err;
		if (!together) {
			at += lengths[i];
			together = 1;
		}
	}
	return (long)n;
}

size_t relay_largest_record(const struct rchan *chan)
{
	if (!chan)
		return 0;
	if (chan->remote)
		return relay_remote_largest(chan->remote);
	return chan->n_buffers ? chan->bufs->largest - (chan->is_timed ? RELAY_HEAD_BYTES : 0) : 0;
}

/* Reserve in the current CPU's buffer. */
static int reserve(struct rchan *chan, size_t length, bool will_retry, void **to)
{
	for (;;) {
		uint32_t number = choose_buffer(chan);
		if (number >= chan->n_buffers)
			return -ENOTSUP;
		int err = relay_reserve_here(&chan->bufs[number], length, will_retry, to);
		if (err != RELAY_WRONG_CPU)
			return err;
	}
}

static void *reserve_or_tell(struct rchan *chan, size_t length, bool will_retry)
{
	void *to = NULL;
	int err = chan ? reserve(chan, length, will_retry, &to) : -EBADF;
	if (!err)
		return to;
	if (err == -ENOTSUP && chan->remote && !(err = relay_remote_reserve(chan->remote, length, &to)))
		return to;
	errno = -err;
	return NULL;
}

__attribute__((noinline)) void *relay_reserve_anyhow(struct rchan *chan, size_t length)
{
	return reserve_or_tell(chan, length, false);
}

__attribute__((noinline)) void *relay_try_reserve_anyhow(struct rchan *chan, size_t length)
{
	return reserve_or_tell(chan, length, true);
}

void *relay_reserve(struct rchan *chan, size_t length)
{
	void *to = relay_inline_reserve(chan, length);
	return to ? to : relay_reserve_anyhow(chan, length);
}

void *relay_try_reserve(struct rchan *chan, size_t length)
{
	void *to = relay_inline_reserve(chan, length);
	return to ? to : relay_try_reserve_anyhow(chan, length);
}

/* Return the buffer that contains an address; NULL: none of this channel's. */
static struct rchan_buf *buf_of(const struct rchan *chan, const void *reserved)
{
	for (uint32_t i = 0; chan && i < chan->n_buffers; i++) {
		struct rchan_buf *buf = &chan->bufs[i];
		if ((uintptr_t)reserved - (uintptr_t)buf->data < buf->subbuf_size * buf->n_subbufs)
			return buf;
	}
	return NULL;
}

__attribute__((noinline)) void relay_commit_anyhow(struct rchan *chan, void *reserved)
{
	struct rchan_buf *buf = buf_of(chan, reserved);
	if (buf)
		relay_buf_commit(buf, reserved);
	else if (chan && chan->remote)
		relay_remote_commit(chan->remote, reserved);
}

void relay_commit_wake(struct rchan *chan, unsigned cpu, uint64_t pos)
{
	if (chan && cpu < chan->n_buffers)
		relay_wake_commit(&chan->bufs[cpu], pos);
}

void relay_commit(struct rchan *chan, void *reserved)
{
	relay_inline_commit(chan, reserved);
}

void relay_discard(struct rchan *chan, void *reserved)
{
	struct rchan_buf *buf = buf_of(chan, reserved);
	if (buf)
		relay_buf_discard(buf, reserved);
	else if (chan && chan->remote)
		relay_remote_discard(chan->remote, reserved);
}

/* Call a function for every buffer; return the first error, after all calls. */
static int for_each(struct rchan *chan, int (*step)(struct rchan_buf *))
{
	int result = 0;
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		int err = step(&chan->bufs[i]);
		if (err && !result)
			result = err;
	}
	return result;
}

int relay_flush(struct rchan *chan)
{
	if (!chan)
		return -EBADF;
	return chan->remote ? relay_place_control(&chan->place, "flush", "") : for_each(chan, relay_buf_flush);
}

int relay_reset(struct rchan *chan)
{
	if (!chan)
		return -EBADF;
	return chan->remote ? relay_place_control(&chan->place, "reset", "") : for_each(chan, relay_buf_reset);
}

int relay_subbufs_consumed(struct rchan *chan, unsigned cpu, size_t n)
{
	char words[64];
	if (!chan)
		return -EBADF;
	if (chan->remote) {
		snprintf(words, sizeof(words), "%u %zu", cpu, n);
		return relay_place_control(&chan->place, "consumed", words);
	}
	return cpu < chan->n_buffers ? relay_buf_subbufs_consumed(&chan->bufs[cpu], n) : -EINVAL;
}
