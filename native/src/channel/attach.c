/* SPDX-License-Identifier: MIT */
/* Mapping the buffers of one channel into this process. */
#define _GNU_SOURCE
#include "buffer/open.h"
#include "channel/channel.h"

#include "channel/remote.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char *relay_chan_file(const struct rchan *chan, const struct rchan_buf *buf)
{
	char *path;
	const struct relay_place *place = &chan->place;
	int n = buf->geometry.buffers == RELAY_SINGLE
	            ? asprintf(&path, "%s/%s", place->root, place->channel)
	            : asprintf(&path, "%s/%s%u", place->root, place->channel, buf->cpu);
	return n < 0 ? NULL : path;
}

static int alloc_bufs(struct rchan *chan, uint32_t n)
{
	if (n > RELAY_MAX_BUFFERS)
		return -EBADMSG;
	chan->bufs = calloc(n, sizeof(*chan->bufs));
	chan->fast.buf = calloc(n, sizeof(*chan->fast.buf));
	if (!chan->bufs || !chan->fast.buf)
		return -ENOMEM;
	for (chan->n_places = 0; chan->n_places < n; chan->n_places++) {
		struct rchan_buf *buf = &chan->bufs[chan->n_places];
		*buf = (struct rchan_buf){.cpu = chan->n_places};
		chan->fast.buf[chan->n_places] = &buf->fast;
		buf->chan = chan;
	}
	return 0;
}

/* All buffers are mapped: set the fields that they have in common, and begin the first sub-buffers with callbacks. */
static void init_shared(struct rchan *chan)
{
	chan->scheme = chan->bufs[0].scheme;
	chan->is_timed = chan->bufs[0].is_timed;
	chan->is_shared = chan->scheme != RELAY_RSEQ && !chan->is_timed;
	chan->fast.n_rseq[RELAY_INLINE_VERSION] = chan->scheme == RELAY_RSEQ && !chan->is_timed ? chan->n_buffers : 0;
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		chan->bufs[i].chan = chan;
	for (uint32_t i = 0; chan->cb && i < chan->n_buffers; i++)
		relay_buf_set_callbacks(&chan->bufs[i], chan->cb);
}

struct rchan *relay_chan_new(uint32_t n_places, const struct rchan_callbacks *cb, void *private_data)
{
	struct rchan *chan = calloc(1, sizeof(*chan));
	if (!chan)
		return NULL;
	chan->cb = cb;
	chan->private_data = private_data;
	int err = n_places ? alloc_bufs(chan, n_places) : 0;
	if (!err)
		return chan;
	relay_chan_free(chan);
	errno = -err;
	return NULL;
}

void relay_chan_unmap(struct rchan *chan)
{
	chan->fast.n_rseq[RELAY_INLINE_VERSION] = 0;
	while (chan->n_buffers)
		relay_buf_fini(&chan->bufs[--chan->n_buffers]);
}

void relay_chan_free(struct rchan *chan)
{
	relay_chan_unmap(chan);
	for (uint32_t i = 0; chan->names && i < chan->n_places; i++)
		free(chan->names[i].path);
	relay_remote_close(chan->remote);
	relay_place_free(&chan->place);
	free(chan->names);
	free(chan->fast.buf);
	free(chan->bufs);
	free(chan);
}

static int attach_buffer(const struct rchan *chan, struct rchan_buf *buf, uint32_t cpu)
{
	char *mem = relay_place_mem(&chan->place, cpu);
	int err = mem ? relay_buf_attach(buf, mem, !chan->place.in_store) : -ENOMEM;
	free(mem);
	if (!err && buf->cpu != cpu) {
		relay_buf_fini(buf);
		err = -EBADMSG;
	}
	if (!err && !chan->place.in_store)
		buf->relay_file = relay_chan_file(chan, buf);
	return err;
}

/* The geometry of buffer 0 contains the number of buffers. */
int relay_chan_attach(struct rchan *chan)
{
	struct rchan_buf first;
	int err = attach_buffer(chan, &first, 0);
	if (err)
		return err == -ENODEV ? relay_remote_open(chan) : err;
	uint32_t n = first.geometry.n_buffers;
	if (!chan->bufs)
		err = alloc_bufs(chan, n);
	else if (n > chan->n_places)
		err = -EBADMSG;
	if (err) {
		relay_buf_fini(&first);
		return err;
	}
	chan->bufs[0] = first;
	for (chan->n_buffers = 1; chan->n_buffers < n; chan->n_buffers++) {
		struct rchan_buf *buf = &chan->bufs[chan->n_buffers];
		err = attach_buffer(chan, buf, chan->n_buffers);
		if (err)
			return err;
	}
	chan->has_files = true;
	init_shared(chan);
	return 0;
}

int relay_chan_map(struct rchan *chan, int *fds, uint32_t n)
{
	int err = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct rchan_buf *buf = &chan->bufs[i];
		if (!err)
			err = relay_buf_init(buf, fds[i]);
		else
			close(fds[i]);
		buf->may_block = true;
		chan->n_buffers += !err;
	}
	if (!err)
		init_shared(chan);
	return err;
}

/* Threads may be writing, so each field that they load is changed by one store. */
static void show_in_mount(struct rchan *chan)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		struct rchan_buf *buf = &chan->bufs[i];
		/* Pairs with the acquire in write_through_file() in channel/produce.c. */
		__atomic_store_n(&buf->relay_file, relay_chan_file(chan, buf), __ATOMIC_RELEASE);
		char *mem = relay_place_mem(&chan->place, i);
		int fd = mem ? relay_mapping_open(mem, O_RDWR, true) : -1;
		if (fd >= 0) {
			relay_buf_hold(buf, mem, fd);
			close(fd);
		}
		free(mem);
	}
}

void relay_chan_show(struct rchan *chan)
{
	if (!chan->place.in_store)
		show_in_mount(chan);
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		relay_buf_close_fd(&chan->bufs[i]);
}

static void *fail_to_attach(struct rchan *chan, int err)
{
	if (chan)
		relay_chan_free(chan);
	errno = -err;
	return NULL;
}

static struct rchan *attach(const char *path, const struct rchan_callbacks *cb, void *private_data)
{
	struct rchan *chan = relay_chan_new(0, cb, private_data);
	if (!chan)
		return NULL;
	int err = relay_place_channel(&chan->place, path);
	if (!err)
		err = relay_chan_attach(chan);
	return err ? fail_to_attach(chan, err) : chan;
}

struct rchan *relay_attach(const char *path)
{
	return attach(path, NULL, NULL);
}

struct rchan *relay_attach_callbacks(const char *path, const struct rchan_callbacks *cb, void *private_data)
{
	return cb ? attach(path, cb, private_data) : fail_to_attach(NULL, -EINVAL);
}
