/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/classic.h>: relayfs as it was announced in March 2003, for user space.
 *
 *     int channel_id = relay_open("/xlog/9", 65536, 4,
 *                                 RELAY_SCHEME_ANY | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK | RELAY_TIMESTAMP_TSC,
 *                                 &callbacks, sizeof(struct header), sizeof(struct footer), 0);
 *     relay_write(channel_id, &event, sizeof(event), offsetof(struct event, time_delta));
 *     relay_close(channel_id);
 *
 * and in a shell:  cat /mnt/relay/xlog/9
 *
 * A channel is one buffer and one file, into which every thread on every CPU writes; sub-buffers may begin with a header
 * and end with a footer, written by callbacks. The file server and its tools treat it as any other channel.
 *
 * <relayfs/relay.h> has functions of the same names, with other parameters: a source file includes one of the two. Here the
 * names are macros for names that begin with relay_classic_ (rchan_ for two). With RELAYFS_CLASSIC_LONG_NAMES defined there
 * are no macros.
 *
 * Functions return values as described or a negative errno. They are thread-safe; relay_write(), rchan_get(),
 * relay_reserve(), relay_commit() and rchan_put() are async-signal-safe (but a write that begins a sub-buffer calls the
 * callbacks). After fork() both processes may use a channel. Where the announcement gives no types, this header chooses
 * them: times have 64 bits, because a TSC of 32 bits would wrap around within seconds.
 */
#ifndef RELAYFS_CLASSIC_H
#define RELAYFS_CLASSIC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* channel_flags: one of each group; RELAY_TIMESTAMP_TSC or not. */
#define RELAY_SCHEME_LOCKLESS 0x01u /* compare-and-swap; sizes are powers of two */
#define RELAY_SCHEME_LOCKING 0x02u  /* a lock around each write; exactly two sub-buffers of any size */
#define RELAY_SCHEME_ANY 0x03u      /* lockless if the sizes allow it, else locking with two sub-buffers */
#define RELAY_USAGE_SMP 0x04u       /* one buffer for each CPU; each has a lock, because threads may migrate */
#define RELAY_USAGE_GLOBAL 0x08u    /* one buffer. Without either flag: global */
#define RELAY_DELIVERY_BULK 0x10u   /* deliver() for each finished sub-buffer */
#define RELAY_DELIVERY_PACKET 0x20u /* deliver() for each write of this process, and for each write(2) */
#define RELAY_TIMESTAMP_TSC 0x40u   /* the TSC, if it has a constant rate; otherwise as without it: CLOCK_MONOTONIC */

enum { RELAY_MAX_BUFS = 256 }; /* the largest nbufs: the length of the arrays in struct rchan_info */

struct rchan; /* a channel referenced by rchan_get() */

/*
 * Callbacks of the process that opens a channel; any may be NULL, and so may the table. It must live as long as the channel.
 *
 * buffer_start, buffer_end, buffers_full and deliver in bulk are called by the writer that needs a new sub-buffer, under a
 * lock: other writers that need it wait, at most a second; writers whose record still fits do not. All signals but those of
 * faults are blocked. If the process is killed in a callback, the callback is called in another process that has the
 * channel by fork(). When other programs write (by write(2) on the file, or by relay_attach()), a thread of the library
 * in the process that opened the channel calls the callbacks.
 *
 * They may call relay_info(), relay_buffers_consumed() and relay_resume(); a write fails with -EDEADLK if it would
 * need a callback. They must not call relay_close().
 */
struct relay_classic_callbacks {
	/*
	 * A sub-buffer begins; relay_open() begins the first one.
	 *
	 * channel_id         in relay_open(): the id that it is about to return
	 * current_write_pos  start_reserve bytes for the callback, in the first sub-buffer channel_start_reserve more
	 * buffer_id          counts sub-buffers, from 0
	 * start_time         wall clock; time deltas of records are counted from here
	 * start_tsc          the TSC at the same moment; 0 if using_tsc is 0
	 *
	 * Returns the number of bytes it wrote; the remaining reserved bytes are zero. Readers get all of them.
	 */
	int (*buffer_start)(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
	                    uint64_t start_tsc, int using_tsc);

	/*
	 * A sub-buffer is full, or the channel is being closed. The bytes from current_write_pos to end_of_buffer are
	 * unused, at least end_reserve of them. Writers may still be filling records that they reserved earlier in it.
	 *
	 * Returns the number of bytes it wrote at current_write_pos, which readers get. read(2) leaves out the bytes
	 * behind these, and relay_info() counts them as unused.
	 */
	int (*buffer_end)(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
	                  uint64_t end_tsc, int using_tsc);

	/* Data is ready: a sub-buffer, with header and footer, in order, as soon as it is finished and all its
	 * reservations are committed. In packet delivery: the record that this thread has just written, or, in the
	 * library's thread, a record of write(2) on the file. The library's thread may be late, and omits records that
	 * have been overwritten. (Records written through relay_attach() are not reported.) */
	void (*deliver)(int channel_id, char *from, uint32_t len);

	/*
	 * The next write would overwrite data that nobody has consumed. Returns 0: overwrite; else: the channel is
	 * suspended, and this record and all further ones are lost, and counted, until relay_resume(). NULL: as if it
	 * returned 0.
	 */
	int (*buffers_full)(int channel_id);
};

/* The result of relay_info(), at one moment. */
struct rchan_info {
	uint32_t flags;         /* as given to relay_open(), with the scheme and the clock that were chosen */
	uint32_t buf_size;      /* of a sub-buffer, bytes */
	uint32_t n_bufs;        /* sub-buffers */
	uint64_t alloc_size;    /* bytes of all sub-buffers and the library's metadata */
	char *buf_addr;         /* address of sub-buffer 0 in this process; the others follow */
	uint64_t bufs_produced; /* finished sub-buffers */
	uint64_t bufs_consumed; /* by readers of the file, relay_buffers_consumed() and relay_resume() */
	uint32_t buf_id;        /* number of the current sub-buffer, from 0; it is at index buf_id % n_bufs */
	uint32_t cur_idx;       /* current write position relative to buf_addr, bytes */
	uint64_t events_lost;   /* writes that were discarded because all buffers were full */
	uint32_t suspended;     /* 0 or 1 */
	/* For each index: */
	int32_t unused_bytes[RELAY_MAX_BUFS];    /* at the end of the finished sub-buffer; 0 if it is not finished */
	int32_t buffer_complete[RELAY_MAX_BUFS]; /* 1: finished, and all its reservations are committed */
};

/*
 * Make a channel.
 *
 * channel_path           absolute on relayfs: "/xlog/9" is MNT/xlog/9, MNT being $RELAYFS or the first mount in
 *                        /proc/self/mountinfo in which this process may make channels. Its directory is made on demand
 * bufsize, nbufs         bytes of a sub-buffer, number of sub-buffers; see the schemes above
 * start_reserve, ...     bytes; together less than bufsize
 *
 * If nothing is mounted, the channel is made in the store, as by relay_open() in relay.h.
 *
 * Returns a channel id, 0 or more; else: -EINVAL a flag, size or reserve is not allowed; -EEXIST the file exists;
 * -EMFILE 1024 channels are open; -EOPNOTSUPP this user can map neither the mount nor the store; or as relay_open()
 * there.
 */
int relay_classic_open(const char *channel_path, uint32_t bufsize, uint32_t nbufs, uint32_t channel_flags,
                       const struct relay_classic_callbacks *callbacks, uint32_t start_reserve, uint32_t end_reserve,
                       uint32_t channel_start_reserve);

/*
 * Write one record of `count` bytes.
 *
 * time_delta_offset  >= 0: where in the record to store its time delta, a uint64_t: the TSC (using_tsc), or the
 *                    microseconds since start_time of its sub-buffer. They never decrease within a sub-buffer. < 0: nowhere
 *
 * Returns count, or: -EBADF no such channel; -EINVAL the delta does not fit into the record; -ENOSPC suspended, or
 * another writer still fills the memory; -EMSGSIZE larger than bufsize less the reserves; -ECANCELED disabled through
 * the control file; -EPIPE removed; -EDEADLK called in a callback; -EBADMSG damaged memory. Records refused with
 * -ENOSPC, -EMSGSIZE and -ECANCELED are counted as lost.
 */
int relay_classic_write(int channel_id, const void *data_ptr, size_t count, int time_delta_offset);

/* Mark the next sub-buffers as consumed: other readers will not get them. */
void relay_classic_buffers_consumed(int channel_id, uint32_t buffers_consumed);

/* Resume a suspended channel. Writes overwrite its unread data; readers get the part that is not overwritten yet. */
void relay_classic_resume(int channel_id);

/* 0, -EBADF; -EBUSY: another process's callback takes more than a second; -EBADMSG: the memory is damaged. */
int relay_classic_info(int channel_id, struct rchan_info *channel_info);

/*
 * Finish the last sub-buffer and remove the file; a process that has it open can read to the end. The memory is freed
 * when the last program has closed it, and the last reference from rchan_get() in this program is dropped. A child of
 * fork() removes the file only if the process that opened the channel is dead; otherwise it only closes its own handle.
 * 0 or -EBADF.
 */
int relay_classic_close(int channel_id);

/*
 * Writing without a copy:
 *
 *     struct rchan *rchan = rchan_get(channel_id);
 *     if (!rchan || relay_lock_channel(rchan)) ...
 *     char *reserved = relay_reserve(rchan, len, NULL, &time_delta, &err);
 *     if (reserved) {
 *             ... fill it ...
 *             relay_commit(rchan, reserved, len);
 *     }
 *     relay_unlock_channel(rchan);
 *     rchan_put(rchan);
 *
 * A reservation whose thread dies is skipped by readers and counted as torn.
 */

/* Get a reference to a channel, which stays valid after relay_close(). NULL: there is no channel of that id. */
struct rchan *rchan_get(int channel_id);
void rchan_put(struct rchan *rchan);

/* Scheme locking: take the lock of writers, and block signals. 0; -EBUSY: another thread has had it for more than a second;
 * -EDEADLK: this thread has it. With the lockless scheme it does nothing. Hold it briefly. */
int relay_lock_channel(struct rchan *rchan);
void relay_unlock_channel(struct rchan *rchan);

/*
 * Reserve space for a record.
 *
 * time_stamp   receives the wall clock of the reservation; NULL: not wanted
 * time_delta   receives what relay_write() would store; NULL: not wanted
 * errcode      receives 0 or an error of relay_write(); NULL: not wanted
 *
 * Returns the address of the record; NULL: there is no room, see errcode.
 */
char *relay_classic_reserve(struct rchan *rchan, size_t len, struct timeval *time_stamp, uint64_t *time_delta,
                            int *errcode);

/* Commit the record: deliver it. `len` is the reserved length. */
void relay_classic_commit(struct rchan *rchan, char *reserved, size_t len);

#ifndef RELAYFS_CLASSIC_LONG_NAMES
#ifdef RELAYFS_RELAY_H
#error "include either <relayfs/classic.h> or <relayfs/relay.h>"
#endif
#define rchan_callbacks relay_classic_callbacks
#define relay_open relay_classic_open
#define relay_write relay_classic_write
#define relay_buffers_consumed relay_classic_buffers_consumed
#define relay_resume relay_classic_resume
#define relay_info relay_classic_info
#define relay_close relay_classic_close
#define relay_reserve relay_classic_reserve
#define relay_commit relay_classic_commit
#endif

#ifdef __cplusplus
}
#endif
#endif
