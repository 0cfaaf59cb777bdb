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
 * and end with a footer, written by callbacks. For the file server and its tools it is a channel as others are.
 *
 * The names of 2003 are those of <relayfs/relay.h>, with other parameters: a file includes one of the two. Here they
 * are macros for names that begin with relay_classic_ (rchan_ for two); define RELAYFS_CLASSIC_LONG_NAMES to have only
 * these.
 *
 * Functions return what they say or a negative errno. They are thread-safe; relay_write(), rchan_get(), relay_reserve(),
 * relay_commit() and rchan_put() are async-signal-safe (but a write that begins a sub-buffer calls the callbacks). After
 * fork() both processes may use a channel. The types are ours where the announcement names none: counters of 64 bits, for
 * a TSC of 32 would come round within seconds.
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
#define RELAY_USAGE_SMP 0x04u       /* with the locking scheme: one CPU at a time. Locked all the same: nothing here */
#define RELAY_USAGE_GLOBAL 0x08u    /* can keep a thread on its CPU. Without either: global */
#define RELAY_DELIVERY_BULK 0x10u   /* deliver() for each finished sub-buffer */
#define RELAY_DELIVERY_PACKET 0x20u /* deliver() for each write of this process, and each write(2) */
#define RELAY_TIMESTAMP_TSC 0x40u   /* the counter, where there is one of constant rate; else, and without, the clock */

enum { RELAY_MAX_BUFS = 256 }; /* nbufs, at most: what struct rchan_info has room for */

struct rchan; /* a channel that is held by rchan_get() */

/*
 * What a channel's maker is told; any may be NULL, and so may the table. It must live as long as the channel.
 *
 * buffer_start, buffer_end, buffers_full and deliver in bulk are called by whoever writes when it is time, under a lock:
 * writers that come to the same point wait for it, at most a second; those that still fit do not. Signals are blocked,
 * but for faults. If the process is killed in one, another process's is called in its place: a child's of fork(), that
 * is. What other programs write (by write(2) on the file, by relay_attach()) makes a thread of the library, in
 * the process that opened the channel, call them.
 *
 * They may call relay_info(), relay_buffers_consumed() and relay_resume(); a write is refused with -EDEADLK if it would
 * need a callback. relay_close() they may not call.
 */
struct relay_classic_callbacks {
	/*
	 * A sub-buffer begins; the first of them in relay_open().
	 *
	 * channel_id         in relay_open(): what it is about to return
	 * current_write_pos  start_reserve bytes that are the client's, in the first one channel_start_reserve more
	 * buffer_id          counts sub-buffers, from 0
	 * start_time         wall clock; records' deltas are counted from here
	 * start_tsc          the TSC at the same moment; 0 if using_tsc is 0
	 *
	 * Returns how many bytes it wrote; the rest of what is reserved is zero. Readers get all of it.
	 */
	int (*buffer_start)(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
	                    uint64_t start_tsc, int using_tsc);

	/*
	 * A sub-buffer is full, or the channel is being closed. What lies from current_write_pos to end_of_buffer is
	 * unused: end_reserve bytes at least. Writers may still be filling what they reserved before it.
	 *
	 * Returns how many bytes it wrote at current_write_pos: readers get them. What it leaves or stores further behind,
	 * read(2) leaves out, and relay_info() counts as unused.
	 */
	int (*buffer_end)(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
	                  uint64_t end_tsc, int using_tsc);

	/* Data is ready: a sub-buffer, with header and footer, in order, as soon as it is finished and all that was
	 * reserved in it committed; or, in packet delivery, what this thread has just written, or, in the
	 * library's thread, what a write(2) on the file has just brought: later, if the process is slow, and not at all
	 * what is overwritten by then. (What other programs write by relay_attach() is not told.) */
	void (*deliver)(int channel_id, char *from, uint32_t len);

	/*
	 * To write on would overwrite what nobody has consumed. Returns 0: do; else: the channel is suspended, and this
	 * record and all further ones are lost, and counted, until relay_resume(). NULL: as if it returned 0.
	 */
	int (*buffers_full)(int channel_id);
};

/* What relay_info() tells, at one moment. */
struct rchan_info {
	uint32_t flags;         /* as given to relay_open(), but with the one scheme and the clock that were chosen */
	uint32_t buf_size;      /* of a sub-buffer, bytes */
	uint32_t n_bufs;        /* sub-buffers */
	uint64_t alloc_size;    /* all of them and the library's own, bytes */
	char *buf_addr;         /* where this process sees sub-buffer 0; the others follow */
	uint64_t bufs_produced; /* finished sub-buffers */
	uint64_t bufs_consumed; /* by readers of the file, relay_buffers_consumed() and relay_resume() */
	uint32_t buf_id;        /* the current one, from 0; it lies at place buf_id % n_bufs */
	uint32_t cur_idx;       /* current write position from buf_addr, bytes */
	uint64_t events_lost;   /* writes that were discarded because all buffers were full */
	uint32_t suspended;     /* 0 or 1 */
	/* For each place: */
	int32_t unused_bytes[RELAY_MAX_BUFS];    /* at the end of the finished sub-buffer there; 0 for others */
	int32_t buffer_complete[RELAY_MAX_BUFS]; /* 1: finished, and all that was reserved in it is committed */
};

/*
 * Make a channel.
 *
 * channel_path           absolute on relayfs: "/xlog/9" is MNT/xlog/9, MNT being $RELAYFS or the first mount in
 *                        /proc/self/mountinfo in which this process may make channels. Its directory comes by itself
 * bufsize, nbufs         of sub-buffers; see the schemes above
 * start_reserve, ...     bytes; together less than bufsize
 *
 * Returns a channel id, 0 or more; else: -EINVAL a flag, size or reserve is not allowed; -EEXIST there is such a file;
 * -EMFILE 1024 channels are open; or as relay_open() in relay.h, also where nothing is mounted.
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
 * a slow writer still owns the memory; -EMSGSIZE larger than bufsize less the reserves; -ECANCELED disabled through the
 * control file; -EPIPE removed. All but the first two and the last are counted as lost.
 */
int relay_classic_write(int channel_id, const void *data_ptr, size_t count, int time_delta_offset);

/* The client is done with the next sub-buffers: nobody else will be given them. */
void relay_classic_buffers_consumed(int channel_id, uint32_t buffers_consumed);

/* Let a suspended channel be written to again, over what is unread; readers get what is not overwritten yet. */
void relay_classic_resume(int channel_id);

/* 0, -EBADF; -EBUSY: another process's callback takes more than a second; -EBADMSG: the memory is damaged. */
int relay_classic_info(int channel_id, struct rchan_info *channel_info);

/*
 * Finish the last sub-buffer and remove the file: who has it open reads on to the end. The memory is freed
 * when the last program, and the last rchan_get() in this one, has let go of it. A child of fork() does so only if who
 * opened it is dead; else it lets go of it. 0 or -EBADF.
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

/* Hold a channel, also beyond relay_close(). NULL: there is none of that id. */
struct rchan *rchan_get(int channel_id);
void rchan_put(struct rchan *rchan);

/* Scheme locking: be the only writer, with signals blocked. 0; -EBUSY: somebody else is for more than a second; -EDEADLK:
 * this thread is. With the lockless scheme, nothing. Hold it briefly. */
int relay_lock_channel(struct rchan *rchan);
void relay_unlock_channel(struct rchan *rchan);

/*
 * Reserve space for a record.
 *
 * time_stamp   receives the wall clock of the reservation; NULL: not wanted
 * time_delta   receives what relay_write() would store; NULL: not wanted
 * errcode      receives 0 or an error of relay_write(); NULL: not wanted
 *
 * Returns where to store the record; NULL: there is no space, see errcode.
 */
char *relay_classic_reserve(struct rchan *rchan, size_t len, struct timeval *time_stamp, uint64_t *time_delta,
                            int *errcode);

/* The record is complete: deliver it. `len` as it was reserved. */
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
