/* SPDX-License-Identifier: MIT */
/* struct rchan: a channel that this process has opened. */
#ifndef RELAYFS_CHANNEL_CHANNEL_H
#define RELAYFS_CHANNEL_CHANNEL_H

#include "buffer/buffer.h"
#include "store/place.h"

/* The relay file that create_buf_file chose for a buffer. */
struct relay_name {
	char *path; /* of its relay file */
	int mode;   /* its permissions */
};

struct rchan {
	struct relay_inline_chan fast; /* what programs know of it */
	struct rchan_buf *bufs;        /* n_places of them; never moves, because callbacks get pointers to them */
	uint32_t n_buffers;            /* mapped ones in bufs */
	uint32_t n_places;
	uint32_t scheme;
	bool is_shared; /* neither scheme rseq nor `times`: all write by relay_write_shared() */
	bool is_timed;  /* records have heads: fast.n_rseq is 0 */
	bool has_files; /* or relay_late_setup_files() is making them */
	uint64_t maker; /* owner word of the process that made it by relay_open(); 0: by other means */
	struct relay_place place;
	struct relay_spec spec;           /* the parameters of a channel without files */
	const struct rchan_callbacks *cb; /* NULL: none */
	void *private_data;
	struct relay_name *names; /* n_names of them, if create_buf_file was called */
	uint32_t n_names;
	struct relay_callback_thread *callback_thread; /* the library's thread; or NULL */
	struct relay_reported *reported;               /* for each buffer, the calls of buf_mapped so far; or NULL */
	struct relay_remote *remote; /* for writing through the server, without buffers; NULL: the buffers are mapped */
};

/* Allocate a channel with n_places buffers that are not mapped yet. NULL and errno. */
struct rchan *relay_chan_new(uint32_t n_places, const struct rchan_callbacks *cb, void *private_data);
void relay_chan_free(struct rchan *chan);

/* Unmap its buffers and close their descriptors. */
void relay_chan_unmap(struct rchan *chan);

/* True if relay_close() in this process removes the channel: relay_open() made it in this process, or in one that is
 * dead and of which this process is a child by fork(). */
bool relay_chan_is_ours(const struct rchan *chan);

/* Remove the files of a channel for which relay_chan_is_ours() is true. */
void relay_chan_remove(struct rchan *chan);

/* Map the buffers of the channel at chan->place; or from open files. 0 or -errno. */
int relay_chan_attach(struct rchan *chan);
int relay_chan_map(struct rchan *chan, int *fds, uint32_t n);

struct relay_record_time;

/* As relay_write(), for a record of `length` bytes that begins with its time; the other bytes are at time->rest
 * (buffer/write.h). Also returns -ENOTSUP: this thread has no rseq; or RELAY_TIME_IS_LONG. */
int relay_chan_write_timed(struct rchan *chan, size_t length, struct relay_record_time *time);

/* Write as many of n records, which lie one after the other at *at, as buffer/write.h allows together. Returns how many,
 * and adds their bytes to *at; 0: none was written so. */
size_t relay_chan_write_together(struct rchan *chan, const unsigned char **at, const size_t *lengths, size_t n);

/* Return the path of a buffer's relay file. NULL: no memory. */
char *relay_chan_file(const struct rchan *chan, const struct rchan_buf *buf);

/* Called when the buffers have got files at chan->place: keep those of a mount open, so that the server notices the end
 * of this process; and close the descriptors of the unnamed files. */
void relay_chan_show(struct rchan *chan);

#endif
