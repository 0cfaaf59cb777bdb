/* SPDX-License-Identifier: MIT */
/* A channel, opened by this process: what its parts share. */
#ifndef RELAYFS_CHANNEL_CHANNEL_H
#define RELAYFS_CHANNEL_CHANNEL_H

#include "buffer/buffer.h"
#include "store/place.h"

/* What create_buf_file said of a buffer. */
struct relay_name {
	char *path; /* of its relay file */
	int mode;   /* its permissions */
};

struct rchan {
	struct rchan_buf *bufs; /* never moves: callbacks are given pointers to them */
	uint32_t n_buffers;     /* of bufs, mapped */
	uint32_t n_rseq;        /* n_buffers in scheme rseq, 0 in the others: one comparison for relay_write() */
	uint32_t n_places;      /* of bufs, in all */
	uint32_t scheme;
	bool has_files; /* or is getting them */
	uint64_t maker; /* owner word of the process that made it by relay_open(); 0: by other means */
	struct relay_place place;
	struct relay_spec spec;           /* of a channel without files: what it was made from */
	const struct rchan_callbacks *cb; /* NULL: none */
	void *private_data;
	struct relay_name *names; /* n_names of them, if create_buf_file was called */
	uint32_t n_names;
	struct relay_callback_thread *callback_thread; /* the library's thread; or NULL */
	struct relay_reported *reported; /* what buf_mapped has been called for, of each buffer; or NULL */
	struct relay_remote *remote; /* writes through the server, without buffers; or NULL: the buffers are mapped */
};

/* A channel without buffers yet, but with a place for so many. NULL and errno. */
struct rchan *relay_chan_new(uint32_t n_places, const struct rchan_callbacks *cb, void *private_data);
void relay_chan_free(struct rchan *chan);

/* Let go of its buffers, their descriptors included. */
void relay_chan_unmap(struct rchan *chan);

/* Is it this process that removes it? The one that made it by relay_open() or, if that is dead, who inherited it by
 * fork(). */
bool relay_chan_is_ours(const struct rchan *chan);

/* What others see of a channel that is ours goes. */
void relay_chan_remove(struct rchan *chan);

/* Map the buffers of the channel that chan->place says; or the open files of one. 0 or -errno. */
int relay_chan_attach(struct rchan *chan);
int relay_chan_map(struct rchan *chan, int *fds, uint32_t n);

struct relay_record_time;

/* relay_write() of a record with its time in it (buffer/write.h). -ENOTSUP: this thread has no rseq; RELAY_TIME_IS_LONG. */
int relay_chan_write_timed(struct rchan *chan, const void *data, size_t length, struct relay_record_time *time);

/* The relay file that shows a buffer. NULL: no memory. */
char *relay_chan_file(const struct rchan *chan, const struct rchan_buf *buf);

/* Its buffers are in chan->place now: let the server know who we are. */
void relay_chan_show(struct rchan *chan);

#endif
