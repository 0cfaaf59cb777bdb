/* SPDX-License-Identifier: MIT */
/* The buffers of one channel: open, choose the one to write to, flush, reset, close. */
#define _GNU_SOURCE
#include "channel.h"

#include "bench.h"
#include "reserve.h"
#include "write.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BUFFERS = 1 << 16 };

static void *fail(int err)
{
	errno = -err;
	return NULL;
}

/* The relay file that shows a buffer. */
static char *file_of(const struct rchan *chan, const struct rchan_buf *buf)
{
	char *path;
	int n = buf->control->geometry.buffers == RELAY_SINGLE
	            ? asprintf(&path, "%s/%s", chan->place.mount, chan->place.channel)
	            : asprintf(&path, "%s/%s%u", chan->place.mount, chan->place.channel, buf->cpu);
	return n < 0 ? NULL : path;
}

static int attach_buffer(const struct rchan *chan, struct rchan_buf *buf, uint32_t cpu)
{
	char *mem = relay_place_mem(&chan->place, cpu);
	int err = mem ? relay_buf_attach(buf, mem) : -ENOMEM;
	free(mem);
	if (!err && buf->cpu != cpu) {
		relay_buf_fini(buf);
		err = -EBADMSG;
	}
	if (!err)
		buf->relay_file = file_of(chan, buf);
	return err;
}

/* The first buffer says how many there are. */
static int attach_buffers(struct rchan *chan)
{
	struct rchan_buf first;
	int err = attach_buffer(chan, &first, 0);
	if (err)
		return err;
	uint32_t n = first.n_buffers;
	chan->bufs = n <= MAX_BUFFERS ? calloc(n, sizeof(*chan->bufs)) : NULL;
	if (!chan->bufs) {
		relay_buf_fini(&first);
		return n <= MAX_BUFFERS ? -ENOMEM : -EBADMSG;
	}
	chan->bufs[0] = first;
	for (chan->n_buffers = 1; chan->n_buffers < n; chan->n_buffers++) {
		err = attach_buffer(chan, &chan->bufs[chan->n_buffers], chan->n_buffers);
		if (err)
			return err;
	}
	return 0;
}

static void free_channel(struct rchan *chan)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		relay_buf_fini(&chan->bufs[i]);
	relay_place_free(&chan->place);
	free(chan->bufs);
	free(chan);
}

static struct rchan *attach(const char *path, bool owned, void *private_data)
{
	struct rchan *chan = calloc(1, sizeof(*chan));
	if (!chan)
		return NULL;
	int err = relay_place_channel(&chan->place, path);
	if (!err)
		err = attach_buffers(chan);
	if (err) {
		free_channel(chan);
		return fail(err);
	}
	chan->scheme = chan->bufs[0].scheme;
	chan->owned = owned;
	chan->private_data = private_data;
	return chan;
}

struct rchan *relay_attach(const char *path)
{
	return attach(path, false, NULL);
}

static int make(const char *path, const char *options)
{
	struct relay_place place;
	int err = relay_place_new(&place, path);
	if (err)
		return err;
	err = relay_place_control(&place, "create", options);
	relay_place_free(&place);
	return err;
}

struct rchan *relay_create(const char *path, const char *options)
{
	int err = make(path, options ? options : "");
	return err ? fail(err) : attach(path, false, NULL);
}

struct rchan *relay_open(const char *base_filename, const char *parent, size_t subbuf_size, size_t n_subbufs,
                         const struct rchan_callbacks *cb, void *private_data)
{
	char *path = NULL, options[96];
	if (!base_filename || !parent || cb)
		return fail(-EINVAL);
	if (asprintf(&path, "%s/%s", parent, base_filename) < 0)
		return fail(-ENOMEM);
	snprintf(options, sizeof(options), "subbuf_size=%zu n_subbufs=%zu", subbuf_size, n_subbufs);
	int err = make(path, options);
	struct rchan *chan = err ? fail(err) : attach(path, true, private_data);
	int saved = errno;
	free(path);
	errno = saved;
	return chan;
}

void *relay_private(const struct rchan *chan)
{
	return chan->private_data;
}

/* This thread may not store into the buffers: the file server does it, one write(2) a record. */
__attribute__((noinline)) static int write_through_file(struct rchan *chan, const void *data, size_t length)
{
	int cpu = sched_getcpu();
	const char *file = chan->bufs[cpu < 0 ? 0 : (uint32_t)cpu % chan->n_buffers].relay_file;
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

int relay_write(struct rchan *chan, const void *data, size_t length)
{
	if (__builtin_expect(chan->scheme != RELAY_SCHEME_RSEQ, 0)) {
		uint32_t cpu = chan->n_buffers == 1 ? 0 : (uint32_t)sched_getcpu() % chan->n_buffers;
		return relay_write_claimed(&chan->bufs[cpu], data, length);
	}
	for (;;) {
		uint32_t cpu = relay_rseq_cpu();
		if (__builtin_expect(cpu >= chan->n_buffers, 0))
			return write_through_file(chan, data, length);
		int err = relay_write_rseq(&chan->bufs[cpu], data, length);
		if (__builtin_expect(err == 0, 1))
			return 0;
		if (err == -ENOTSUP)
			return write_through_file(chan, data, length);
		if (err != RELAY_WRONG_CPU)
			return err;
	}
}

int __relay_write(struct rchan *chan, const void *data, size_t length)
{
	return relay_write(chan, data, length);
}

long relay_write_batch(struct rchan *chan, const void *data, const size_t *lengths, size_t n)
{
	const unsigned char *at = data;
	for (size_t i = 0; i < n; at += lengths[i++]) {
		int err = relay_write(chan, at, lengths[i]);
		if (err)
			return i ? (long)i : err;
	}
	return (long)n;
}

/* On the current CPU's buffer. */
static int reserve(struct rchan *chan, size_t length, void **to)
{
	for (;;) {
		uint32_t cpu = chan->scheme == RELAY_SCHEME_RSEQ ? relay_rseq_cpu()
		               : chan->n_buffers == 1            ? 0
		                                                 : (uint32_t)sched_getcpu() % chan->n_buffers;
		if (cpu >= chan->n_buffers)
			return -ENOTSUP;
		int err = relay_reserve_here(&chan->bufs[cpu], length, to);
		if (err != RELAY_WRONG_CPU)
			return err;
	}
}

void *relay_reserve(struct rchan *chan, size_t length)
{
	void *to = NULL;
	int err = reserve(chan, length, &to);
	if (!err)
		return to;
	errno = -err;
	return NULL;
}

/* Whose memory is it? NULL: none of this channel's. */
static struct rchan_buf *buf_of(const struct rchan *chan, const void *reserved)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		struct rchan_buf *buf = &chan->bufs[i];
		if ((uintptr_t)reserved - (uintptr_t)buf->data < buf->subbuf_size * buf->n_subbufs)
			return buf;
	}
	return NULL;
}

void relay_commit(struct rchan *chan, void *reserved)
{
	struct rchan_buf *buf = buf_of(chan, reserved);
	if (buf)
		relay_buf_commit(buf, reserved);
}

void relay_discard(struct rchan *chan, void *reserved)
{
	struct rchan_buf *buf = buf_of(chan, reserved);
	if (buf)
		relay_buf_discard(buf, reserved);
}

/* Do it to every buffer; the first error is the result, the others are done all the same. */
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
	return for_each(chan, relay_buf_flush);
}

int relay_reset(struct rchan *chan)
{
	return for_each(chan, relay_buf_reset);
}

void relay_close(struct rchan *chan)
{
	if (!chan)
		return;
	if (chan->owned)
		relay_place_control(&chan->place, "remove", "");
	free_channel(chan);
}

int relay_bench_copy(struct rchan *chan, const void *data, size_t length)
{
	struct rchan_buf *buf = &chan->bufs[0];
	uint64_t at = chan->bench_at;
	if (__builtin_expect(length > buf->subbuf_size * buf->n_subbufs - at, 0))
		at = 0;
	memcpy(buf->data + at, data, length);
	chan->bench_at = at + length;
	return 0;
}
