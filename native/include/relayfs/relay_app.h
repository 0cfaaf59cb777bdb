/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/relay_app.h>: stream a channel to disk, or to a function of the program, with one thread for each buffer.
 * Follows the relay-apps.
 *
 *     reader                                                 producer
 *
 *     struct relay_app_options options = {                   chan = relay_app_attach("/mnt/relay/app/cpu",
 *             .size = sizeof(options),                                               "subbuf_size=64K");
 *             .create = "subbuf_size=64K",                   relay_write(chan, record, length);
 *             .output = "trace"};                            relay_close(chan);
 *     app = relay_app_open("/mnt/relay/app/cpu", &options);
 *     relay_app_start(app);                                  in any order, in any number of programs
 *     ... trace0, trace1 grow ...
 *     relay_app_stop(app);                                   from here on writes fail with -ECANCELED
 *     relay_app_close(app);
 *
 * Every byte that is in the channel while the app runs is delivered once, in the order of its buffer. Data that could
 * not be written, because the disk was full or the program was killed, is still in the channel.
 *
 * Thread-safety: an app may be used by one thread at a time, except for relay_app_stats(), which any thread may
 * call. process_subbuf() runs in the app's own threads, with all signals blocked, and may call
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

/* How the app reads the channel. */
enum relay_app_way {
	/* In shared memory. A piece is consumed after it is written, so nothing is lost if the program is killed.
	 * Pieces that were read and not consumed are then read again: at most a sub-buffer for each buffer, or, of files, a
	 * quarter of the buffer, 1 to 8 MiB. If the next program appends to the same files, they contain the data once,
	 * provided that the file system has extended attributes. */
	RELAY_APP_MMAP = 0,
	/* With poll(2) and read(2) on the relay file. A piece is consumed before it is written: if the program is killed,
	 * at most 1 MiB for each buffer is lost. Pieces do not correspond to sub-buffers, and have no padding. */
	RELAY_APP_READ = 1
};

struct relay_app_options {
	size_t size;        /* sizeof(struct relay_app_options): later versions add fields at the end */
	const char *create; /* keys of `create`, "": defaults, but delivery=bulk; NULL: the channel must exist */
	/* Exactly one of these two: */
	const char *output; /* files output0 .. outputN-1, one for each buffer */
	/* Called with each piece: a finished sub-buffer, all of whose records are committed, or with `times` one record without
	 * its time. It is a part of a sub-buffer
	 * if other readers consume a part, if records in it were discarded or torn, if the app is stopped while a record
	 * is not committed or the channel cannot be flushed, and with delivery=packet.
	 *
	 * data, length  the records, valid until it returns; in overwrite modes a copy, never torn
	 * padding       unused bytes of the sub-buffer behind them
	 *
	 * Returns 0: the piece is consumed. A negative errno: the piece stays in the channel, and the buffer's reader ends. */
	int (*process_subbuf)(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding);
	void *private_data; /* returned by relay_app_private() */
	uint32_t way;       /* enum relay_app_way */
	uint32_t append;    /* 1: append to output files that exist; 0: truncate them first */
	/* 1: stop() leaves the channel enabled, and later records stay in it. 0: stop() disables it, and
	 * start() enables it again: producers can write only while the app runs. */
	uint32_t keep_enabled;
};

/*
 * Open a channel's buffers, after making the channel if it does not exist and options->create permits it; open the output.
 *
 * path  "MNT/app/cpu"
 *
 * errno: as relay_attach() and relay_create(); EINVAL the options are not valid together; EOPNOTSUPP this user can map
 * neither the mount nor the store; as open(2) of the output and the relay files. May block.
 */
struct relay_app *relay_app_open(const char *path, const struct relay_app_options *options);

void *relay_app_private(const struct relay_app *app);

/*
 * Limit by how many bytes, counted in blocks of 4096, the output files may grow from the next relay_app_start() to
 * relay_app_stop(). A reader ends with -EDQUOT before it writes a piece that would take more; the piece stays in the channel.
 * UINT64_MAX: no limit, as after relay_app_open().
 *
 * -EALREADY: the app is running; -EINVAL: it has no output files.
 */
int relay_app_limit(struct relay_app *app, uint64_t bytes);

/*
 * Start the readers, each on the CPU of its buffer if it may run there, and enable the channel. Data that is in the channel
 * already is read, too. The app may be started again after it was stopped.
 *
 * -EALREADY: it is running; -EBADMSG: damaged memory; else as pthread_create(3). On failure it is not running.
 */
int relay_app_start(struct relay_app *app);

/*
 * Disable the channel, flush it, read all data written until then, and end the readers. The flush does not call the
 * subbuf_start of a producer, so data that this stores at the end of a sub-buffer is missing in the last one. Waits for the
 * output, and up to a second for records that are reserved and not committed.
 *
 * Returns 0; -EALREADY: the app is not running; or the reason why a reader ended early: the error of write(2) or
 * process_subbuf(); -EDQUOT: relay_app_limit(); -EBUSY: a reservation, or another reader, blocked it all the time;
 * -EBADMSG: damaged memory; or an error of read(2) or poll(2). Data that was not written is still in the channel, and is
 * read after the next start.
 */
int relay_app_stop(struct relay_app *app);

/*
 * Return a descriptor that becomes readable, for poll(2), when the channel was removed and all data has been written, or
 * when a reader has failed. Call relay_app_stop() then. The descriptor belongs to the app.
 */
int relay_app_fd(const struct relay_app *app);

/* Statistics of one buffer's reader since the last start. */
struct relay_app_stats {
	uint64_t bytes;       /* written, or passed to process_subbuf() */
	uint64_t pieces;      /* number of these pieces; of files: how often many were written at once */
	uint64_t max_backlog; /* the most finished sub-buffers that were unread at once; in overwrite modes possibly
	                       * more than n_subbufs: those were overwritten */
	uint64_t lost_records,
	    lost_bytes; /* will never be read; without those refused while the channel was disabled */
};

/* The number of buffers, and so of output files. */
unsigned relay_app_n_buffers(const struct relay_app *app);

/* cpu: a buffer's number. 0; -EINVAL: there is no such buffer; -EBADMSG: damaged memory. */
int relay_app_stats(struct relay_app *app, unsigned cpu, struct relay_app_stats *stats);

/* Stop the app if it runs, and free it. The channel remains. NULL is ignored. */
void relay_app_close(struct relay_app *app);

/*
 * For producers: open the channel, and make it if it does not exist and `create` is not NULL. May block.
 * errno: as relay_attach() and relay_create(). Records written before the first start are kept for it.
 */
struct rchan *relay_app_attach(const char *path, const char *create);

#ifdef __cplusplus
}
#endif
#endif
