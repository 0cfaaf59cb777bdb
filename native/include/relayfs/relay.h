/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/relay.h>: write records into relay channels; the kernel's relay interface for user space.
 *
 *     struct rchan *chan = relay_attach("/mnt/relay/app/cpu");
 *     relay_write(chan, "hello\n", 6);        a copy into shared memory, no system call
 *     relay_close(chan);
 *
 * and in a shell:  cat /mnt/relay/app/cpu*
 *
 * Know before you use it:
 *  - Records stay in order within one buffer (one CPU), not between buffers.
 *  - A full no-overwrite buffer refuses records (-ENOSPC) and counts them; it never blocks.
 *  - A record never straddles two sub-buffers, so none can be larger than one.
 *
 * Who may call what at the same time:
 *
 *                  | relay_write | relay_flush | relay_reset | relay_close | in a signal handler
 *   relay_write    |     yes     |     yes     |     yes     |     no*     |        yes
 *   relay_flush    |     yes     |     yes     |     yes     |     no*     |        no
 *   relay_reset    |     yes     |     yes     |     yes     |     no*     |        no
 *   relay_close    |     no*     |     no*     |     no*     |     no      |        no
 *
 *   * in one process on one struct rchan: relay_close frees it. Other processes, and other handles in
 *     this one, may do anything at any time. After fork() both processes may go on using a channel.
 *
 * Functions return 0 or a negative errno; those that return pointers return NULL and set errno.
 * "Full" is a result, not a failure. The library never prints and never aborts.
 */
#ifndef RELAYFS_RELAY_H
#define RELAYFS_RELAY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rchan;     /* a channel, opened by this process */
struct rchan_buf; /* one of its buffers */

/*
 * What a channel's maker does itself; any may be NULL. The struct must live as long as the channel.
 * Follows struct rchan_callbacks in include/linux/relay.h, with a path in place of a dentry or a struct file.
 */
struct rchan_callbacks {
	/*
	 * A sub-buffer is about to begin: what mode the channel has is up to this function. Without it: no-overwrite.
	 *
	 * subbuf        where it lies
	 * prev_subbuf   the one that was just finished; NULL: this is the buffer's first
	 * prev_padding  bytes at its end that hold nothing
	 *
	 * Returns 1: begin it, whether readers have consumed what lies there or not; 0: not yet. The record that asked
	 * is then refused and counted as lost (-ENOSPC), and the next one asks again, with the same parameters.
	 * The first sub-buffer begins in any case.
	 *
	 * Called by whoever writes (or flushes, or resets) when it is time, under a lock: other writers of the buffer,
	 * in all processes, that come to the same point wait for it, at most a second; those that still fit do not.
	 * Signals are blocked, but for faults. If the process is killed in it, another one's function is called in its
	 * place. It may store to both sub-buffers (to `subbuf` only if it returns 1) and call the functions that are
	 * marked for it below; to write to the channel gives -EDEADLK.
	 */
	int (*subbuf_start)(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding);
	void (*buf_mapped)(struct rchan_buf *buf, const char *file);
	void (*buf_unmapped)(struct rchan_buf *buf, const char *file);
	const char *(*create_buf_file)(const char *filename, const char *parent, int mode, struct rchan_buf *buf,
	                               int *is_global);
	int (*remove_buf_file)(const char *file);
	const char *options; /* further keys of the control file's `create`, e.g. "delivery=packet"; or NULL */
};

/*
 * Make a channel and open it: files `base_filename`0 .. N-1 in `parent`, N the number of possible CPUs.
 *
 * parent        a directory in a relayfs mount, made if it is missing
 * subbuf_size   bytes, 1 or more;  n_subbufs  1 or more;  their product at most 2^40
 * cb            NULL: no-overwrite, the kernel's default
 * private_data  returned by relay_private()
 *
 * relay_close() of a channel opened so removes it, as in the kernel; it outlives a process that dies
 * without. May block. errno: EINVAL an argument is out of range or `cb` is not NULL; ENOENT `parent`
 * lies in no relayfs mount; EEXIST there is such a channel or file; ENOSPC its memory cannot be had;
 * EACCES the mount's permissions. The mount's error_log says more.
 * Follows relay_open() in kernel/relay.c.
 */
struct rchan *relay_open(const char *base_filename, const char *parent, size_t subbuf_size, size_t n_subbufs,
                         const struct rchan_callbacks *cb, void *private_data);

/*
 * Make a channel with the mount's `create` command and attach to it.
 *
 * path     "MNT/app/cpu"
 * options  what may follow `create app/cpu`, e.g. "mode=overwrite subbuf_size=64K"; NULL or "": defaults
 *
 * The channel stays when this process closes it or dies. May block. errno: as relay_open().
 */
struct rchan *relay_create(const char *path, const char *options);

/*
 * Open an existing channel for writing.
 *
 * path  "MNT/app/cpu": the path of its relay files without the number
 *
 * May block. errno: ENOENT no such channel, or no relayfs is mounted there; EACCES its files may not be
 * written; EPROTO its memory has another layout version; EBADMSG its memory is damaged.
 */
struct rchan *relay_attach(const char *path);

/* What was given to relay_open(); NULL for other channels. */
void *relay_private(const struct rchan *chan);

/*
 * Write one record into the current CPU's buffer.
 *
 * length  bytes, up to the channel's subbuf_size; 0 writes nothing and returns 0
 *
 * Returns 0: the record is in the buffer, whole, and will be read once or be counted as overwritten.
 * Otherwise the record is not in the buffer and, except for -EPIPE, is counted as lost:
 *   -ENOSPC     the buffer is full (no-overwrite), or a slow writer still owns the memory (overwrite)
 *   -EMSGSIZE   longer than a sub-buffer
 *   -ECANCELED  the channel is disabled
 *   -EPIPE      the channel has been removed
 * Thread-safe, async-signal-safe, never blocks: no system call unless a sleeping reader must be woken, or
 * this thread has no restartable sequences while the channel needs them (then the record goes through
 * write(2) on the relay file). Follows relay_write() in kernel/relay.c, which returns nothing.
 */
int relay_write(struct rchan *chan, const void *data, size_t length);

/* The same: the kernel's form for those who never write from interrupt context. */
int __relay_write(struct rchan *chan, const void *data, size_t length);

/*
 * Write n records that lie one behind the other in `data`; lengths[i] is the size of the i-th.
 *
 * Returns how many were written, in order. The first that is refused ends the batch with that count; if it
 * is the very first one, its error as relay_write() returns it. What is not tried is not counted as lost.
 */
long relay_write_batch(struct rchan *chan, const void *data, const size_t *lengths, size_t n);

/*
 * Reserve space for one record in the current CPU's buffer, to be filled and then committed or discarded.
 *
 * length  bytes, up to the channel's subbuf_size; with 0, the address of nothing, for which there is nothing to do
 *
 * Readers wait at a record until it is committed; later ones are written meanwhile. A thread may hold several
 * reservations, and another one may commit them, while the reserving thread lives: what a dead thread had reserved is
 * skipped and counted as torn. In overwrite mode a reservation that is held for a whole lap stops the buffer (-ENOSPC).
 * In a channel with reserve=visible it is as in the kernel: readers see the record at once, filled or not.
 *
 * Returns where to store the record, or NULL, counted as relay_write() does it. errno: ENOSPC, EMSGSIZE, ECANCELED,
 * EPIPE as there; ENOSPC also if all 256 reservations of the buffer are in use, or half of them for discarded
 * records of less than 16 bytes; ENOTSUP this thread has no restartable sequences. Thread-safe,
 * async-signal-safe. Follows relay_reserve() in kernel/relay.h.
 */
void *relay_reserve(struct rchan *chan, size_t length);

/* The record at `reserved` is complete: readers may have it. Thread-safe, async-signal-safe. */
void relay_commit(struct rchan *chan, void *reserved);

/* Readers skip the record at `reserved`; counted as discarded. Nothing happens with reserve=visible. */
void relay_discard(struct rchan *chan, void *reserved);

/* For subbuf_start: 1 if all sub-buffers are finished and none of them has been consumed. */
int relay_buf_full(struct rchan_buf *buf);

/* For subbuf_start: keep the first `length` bytes of the new sub-buffer for the client, at most all of it. Readers get
 * them with the data. */
void subbuf_start_reserve(struct rchan_buf *buf, size_t length);

/*
 * Force a switch to the next sub-buffer in every buffer: readers that wait for whole sub-buffers see what has
 * been written so far. An empty sub-buffer is switched from too, as in the kernel.
 *
 * Returns 0, or -EPIPE: the channel has been removed; -EPERM: this thread may not run on the CPU a buffer
 * belongs to (the other buffers are switched). Moves the calling thread to each CPU for a moment.
 */
int relay_flush(struct rchan *chan);

/*
 * Bring every buffer to its initial state, in the same memory: nothing produced, consumed or lost.
 * What is unread is gone. Returns as relay_flush().
 */
int relay_reset(struct rchan *chan);

/*
 * Let go of the channel; NULL is ignored. A channel made by relay_open() is removed: its files go, who has
 * them open reads on to the end.
 */
void relay_close(struct rchan *chan);

#ifdef __cplusplus
}
#endif
#endif
