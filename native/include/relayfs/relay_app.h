/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/relay_app.h>: stream a channel to disk, or to a function of yours: one thread for each buffer, without
 * the housekeeping. Follows the relay-apps.
 *
 *     the reader's side                                      the producer's side
 *
 *     struct relay_app_options options = {                   chan = relay_app_attach("/mnt/relay/app/cpu",
 *             .size = sizeof(options),                                               "subbuf_size=64K");
 *             .create = "subbuf_size=64K",                   relay_write(chan, record, length);
 *             .output = "trace"};                            relay_close(chan);
 *     app = relay_app_open("/mnt/relay/app/cpu", &options);
 *     relay_app_start(app);                                  in any order, in any number of programs
 *     ... trace0, trace1 grow ...
 *     relay_app_stop(app);                                   from here on: -ECANCELED
 *     relay_app_close(app);
 *
 * Every byte that is in the channel while the app runs goes to one place once, in the order of its buffer. What
 * could not be written out, as the disk was full, or the program was killed, is still in the channel.
 *
 * Who may call what at the same time: an app is for one thread at a time, except relay_app_stats(), which any may
 * call. process_subbuf() runs in the app's own threads, in which all signals are blocked, and may call
 * relay_app_stats(), relay_app_private() and relay_app_n_buffers() only.
 *
 * Functions return 0 or a negative errno; those that return pointers return NULL and set errno.
 */
#ifndef RELAYFS_RELAY_APP_H
#define RELAYFS_RELAY_APP_H

#include <relayfs/relay.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_app;

/* How the data gets here. */
enum relay_app_way {
	/* Out of the shared memory. Written out first, then consumed: a killed program loses nothing. What it had in
	 * hand, at most a sub-buffer for each buffer, comes again; who appends to its files gets it once, if they
	 * can have extended attributes. */
	RELAY_APP_MMAP = 0,
	/* With poll(2) and read(2) on the relay file. Consumed first: what a killed program had in hand is gone, at
	 * most 1 MiB for each buffer. Pieces know no sub-buffers, and no padding. */
	RELAY_APP_READ = 1
};

struct relay_app_options {
	size_t size;        /* sizeof(struct relay_app_options): later versions add fields at the end */
	const char *create; /* keys of `create`, "": defaults, but delivery=bulk; NULL: the channel must exist */
	/* Just one of these two: */
	const char *output; /* files output0 .. outputN-1, one for each buffer */
	/* Gets a sub-buffer that is finished, all its records committed. Or a part of one: if others read a part, if
	 * records in it were discarded or torn, if the app stops while one is not committed or the channel cannot
	 * be flushed, and with delivery=packet.
	 *
	 * data, length  the records, until it returns; in overwrite modes a copy, never torn
	 * padding       bytes of the sub-buffer behind them that hold nothing
	 *
	 * Returns 0: the piece is consumed. A negative errno: it stays, and the buffer's reader ends. */
	int (*process_subbuf)(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding);
	void *private_data; /* returned by relay_app_private() */
	uint32_t way;       /* enum relay_app_way */
	uint32_t append;    /* 1: go on at the end of output files; 0: empty them first */
	/* 1: stop() leaves the channel enabled; records that come later stay in it. 0: stop() disables it, and
	 * start() enables it again: nobody logs unless the app runs. */
	uint32_t keep_enabled;
};

/*
 * Open a channel's buffers, make the channel if it is missing and options->create says so, and open the output.
 *
 * path  "MNT/app/cpu"
 *
 * errno: as relay_attach() and relay_create(); EINVAL the options contradict themselves; as open(2) of the output
 * and the relay files. May block.
 */
struct relay_app *relay_app_open(const char *path, const struct relay_app_options *options);

void *relay_app_private(const struct relay_app *app);

/*
 * Start the readers, each on the CPU of its buffer if it may run there, and enable the channel. What the channel
 * holds already is read, too. The app may be started again after it was stopped.
 *
 * -EALREADY: it runs; -EAGAIN, -EPERM: as pthread_create(3); else as poll(2). On failure it does not run.
 */
int relay_app_start(struct relay_app *app);

/*
 * Disable the channel, flush it, read all that was written until then, and end the readers. The flush does not call the
 * subbuf_start of a producer: what that stores at the end of a sub-buffer is missing in the last. Waits for writing out,
 * and up to a second for records that are reserved and not committed.
 *
 * Returns 0; -EALREADY: it does not run; or why a reader ended early, and all it did not write out is still in the
 * channel, to be read after the next start: what write(2) or process_subbuf() returned; -EBUSY: a reservation, or
 * another reader, stood in the way all the time; -EBADMSG: damaged memory; as read(2).
 */
int relay_app_stop(struct relay_app *app);

/*
 * A descriptor that becomes readable, for poll(2), when there is nothing to wait for: the channel was removed and
 * everything has been written out, or a reader has failed. Call stop() then. Belongs to the app.
 */
int relay_app_fd(const struct relay_app *app);

/* What one buffer's reader did since the last start. */
struct relay_app_stats {
	uint64_t bytes;       /* written out, or processed */
	uint64_t pieces;      /* in as many pieces */
	uint64_t max_backlog; /* finished sub-buffers that waited for the reader at once, at most; in overwrite
	                       * modes it may exceed the number there are: those were overwritten */
	uint64_t lost_records, lost_bytes; /* will never be read, but for those refused while it was disabled */
};

/* The number of buffers, and so of output files. */
unsigned relay_app_n_buffers(const struct relay_app *app);

/* cpu: a buffer's number. 0; -EINVAL: there is no such buffer; -EBADMSG: damaged memory. */
int relay_app_stats(struct relay_app *app, unsigned cpu, struct relay_app_stats *stats);

/* Stop the app if it runs, and let go of all. The channel stays. NULL is ignored. */
void relay_app_close(struct relay_app *app);

/*
 * The producer's side: open the channel, and make it if it is missing and `create` is not NULL. May block.
 * errno: as relay_attach() and relay_create(). Records written before the first start are kept for it.
 */
struct rchan *relay_app_attach(const char *path, const char *create);

#ifdef __cplusplus
}
#endif
#endif
