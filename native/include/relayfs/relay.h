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
 *  - relay_write() waits only for another program's subbuf_start, or lock (scheme=locking), and at most a second;
 *    where that was in vain, some milliseconds from then on, until it helps again.
 *  - A record never straddles two sub-buffers, so none can be larger than one.
 *
 * Who may call what at the same time:
 *
 *                          | relay_write | flush, reset, consumed, late_setup | relay_close | in a signal handler
 *   relay_write, _reserve, |             |                                    |             |
 *   _commit, _discard      |     yes     |                yes                 |     no*     |        yes
 *   relay_flush, _reset,   |             |                                    |             |
 *   _subbufs_consumed,     |     yes     |                yes                 |     no*     |        no
 *   _late_setup_files      |             |                                    |             |
 *   relay_close            |     no*     |                no*                 |     no      |        no
 *   relay_private,         |     yes     |                yes                 |     no*     |        yes
 *   relay_buf_chan, _cpu   |             |                                    |             |
 *
 *   * in one process on one struct rchan: relay_close frees it. Other processes, and other handles in
 *     this one, may do anything at any time. After fork() both processes may go on using a channel.
 *
 *   From create_buf_file and remove_buf_file: relay_create_file, relay_remove_file, relay_private, relay_buf_chan,
 *   relay_buf_cpu, and nothing else of this channel. From buf_mapped and buf_unmapped: all but relay_close.
 *
 * Functions return 0 or a negative errno; those that return pointers return NULL and set errno.
 * "Full" is a result, not a failure. The library never prints and never aborts.
 *
 * With NULL for a channel, as relay_open() returns it when it fails, functions do nothing. relay_write(), _write_batch(),
 * _reserve(), _flush(), _reset() and _subbufs_consumed() fail with EBADF, because nothing is written; relay_private() is NULL.
 */
#ifndef RELAYFS_RELAY_H
#define RELAYFS_RELAY_H

#if defined(RELAYFS_CLASSIC_H) && !defined(RELAYFS_CLASSIC_LONG_NAMES)
#error "include either <relayfs/classic.h> or <relayfs/relay.h>"
#endif

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

	/*
	 * Somebody else has opened a file with which he can map the buffer: .channels/PATH/memN, or the relay file
	 * for reading and writing. And: the last descriptor of such an open has gone and, if this library maps it,
	 * the last mapping. Each open gets both. `file` is the relay file. Runs in a thread of the library, all signals blocked, in the process that
	 * made the channel; soon after it happened, and no more once relay_close() has begun.
	 * (Differs: Linux tells a FUSE server of opens, not of mmap(2). Opens of a process that has ended before the
	 * server could ask whose it was count as somebody else's.)
	 */
	void (*buf_mapped)(struct rchan_buf *buf, const char *file);
	void (*buf_unmapped)(struct rchan_buf *buf, const char *file);

	/*
	 * Name the relay file of a buffer: its path, usually by relay_create_file(), which is copied; NULL, and errno:
	 * refuse, and the channel is not opened. Runs in relay_open() and relay_late_setup_files(), once for each
	 * buffer, or once in all if it sets *is_global: then one buffer serves all CPUs.
	 *
	 * filename   base_filename and the buffer's number;  parent  as relay_open() was given it, perhaps NULL
	 * mode       0600, what the kernel proposes
	 *
	 * The files come to be afterwards and together, as one channel's: DIR/BASE0 .. DIR/BASEN-1, all of one mode;
	 * DIR and BASE may be other ones than proposed, a global file may have any name. Of a channel without files
	 * relay_open() asks with filename and parent NULL for is_global alone: return NULL.
	 * (Differs: without this callback there are files all the same, made by the library with the mode 0640.)
	 */
	const char *(*create_buf_file)(const char *filename, const char *parent, int mode, struct rchan_buf *buf,
	                               int *is_global);

	/* Remove what create_buf_file named; the result is ignored. Runs in relay_close(), or when opening fails. The
	 * channel goes in any case, with all its files. */
	int (*remove_buf_file)(const char *file);

	/* Further keys of the control file's `create`, e.g. "delivery=packet perm=0644"; or NULL. Not those that the
	 * arguments and callbacks decide: sizes, mode with subbuf_start, buffers with create_buf_file. Without delivery= it is bulk, as in the
	 * kernel: poll(2) tells of finished sub-buffers. */
	const char *options;
};

/*
 * Make a channel and open it: files `base_filename`0 .. N-1 in `parent`, N the number of possible CPUs.
 *
 * parent        a directory in a relayfs mount, made if it is missing; NULL: the root of the default mount, which is
 *               $RELAYFS, else the first relayfs in /proc/self/mountinfo in which this process may make channels
 * subbuf_size   bytes, 1 .. 2^32-1;  n_subbufs  1 .. 2^32-1;  their product at most 2^40
 * cb            NULL: no-overwrite, the kernel's default
 * private_data  returned by relay_private()
 *
 * Without a mount (parent NULL and none found, or below $RELAYFS where nothing is mounted) the channel is made in the
 * store itself, $RELAYFS_STORE or else where this user's server has it, and the next mount of the store shows it;
 * meanwhile programs find it under the same path.
 *
 * base_filename and parent both NULL: a buffer-only channel, in memory of this process (and children of fork()), to
 * which one can write at once. It goes with the process unless relay_late_setup_files() gives it files.
 *
 * relay_close() of a channel opened so removes it, as in the kernel; one with files outlives a process that dies
 * without. May block. errno: EINVAL an argument, a key of cb->options or what create_buf_file said is not allowed;
 * what create_buf_file left in errno, or EACCES; ENOENT `parent` lies in no relayfs mount; EEXIST there is such a
 * channel or file; ENOSPC its memory cannot be had; EACCES the mount's or the store's permissions; EBUSY the store is
 * held by a server that cannot be reached. The mount's error_log says more. On failure nothing is left behind.
 * Follows relay_open() in kernel/relay.c.
 */
struct rchan *relay_open(const char *base_filename, const char *parent, size_t subbuf_size, size_t n_subbufs,
                         const struct rchan_callbacks *cb, void *private_data);

/*
 * Give a buffer-only channel files, in which everything is that was written so far, while threads go on writing.
 *
 * base_filename, parent  as for relay_open(); create_buf_file is asked as there
 *
 * In a mount of this user the very memory gets names: nothing is copied. The server of another user copies it, and the
 * copy is mapped at the same addresses: writers wait meanwhile, and nobody may flush, reset or consume. Children of
 * fork() that have the memory find the channel closed then. The server opens the memory through /proc, so it must see
 * this process.
 * May block. Returns 0 or an error as relay_open() has; -EEXIST: it has files already, or there is such a channel;
 * -EXDEV: the mount's store lies in another file system than the memory, see $RELAYFS_STORE. In a mount of another user
 * also -EBUSY: a record is reserved and not committed; -EOPNOTSUPP: reserve=visible; -ENODEV: it maps no files. On failure the channel
 * is as before, and one can try again. Follows relay_late_setup_files() in kernel/relay.c.
 */
int relay_late_setup_files(struct rchan *chan, const char *base_filename, const char *parent);

/*
 * In create_buf_file: the file `filename` in `parent` (NULL: the default mount's root) with these permissions.
 * Returns its path, which lives as long as the channel, or NULL: EINVAL, ENOMEM. Takes the place of
 * debugfs_create_file(..., &relay_file_operations).
 */
const char *relay_create_file(const char *filename, const char *parent, int mode, struct rchan_buf *buf);

/* In remove_buf_file: remove the channel that a relay file belongs to. 0, also if it is gone or has never come to be,
 * and somebody else's has its name; or -errno. */
int relay_remove_file(const char *file);

/*
 * Make a channel with the mount's `create` command and attach to it.
 *
 * path     "MNT/app/cpu"; where nothing is mounted, as for relay_open()
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
 * May block. errno: ENOENT no such channel, or no relayfs is mounted there; EISDIR it is a directory; EMEDIUMTYPE it is a
 * channel of record rings (ring.h); EACCES its files may not be written; EPROTO its memory has another layout version; EBADMSG
 * its memory is damaged, or it is no relayfs.
 *
 * Where neither the mount nor the store can be mapped by this user, records go through write(2) on the relay files.
 * Reservations are private memory then; what relay_commit() writes can be refused, and is counted as lost. ENOMEM: 256
 * are open.
 */
struct rchan *relay_attach(const char *path);

/*
 * The same with callbacks, of which subbuf_start is called in this process, too: for programs that take part in a
 * channel whose maker has one. The others are for the maker. errno: also EINVAL, `cb` is NULL.
 */
struct rchan *relay_attach_callbacks(const char *path, const struct rchan_callbacks *cb, void *private_data);

/*
 * What an error of this library means, and what was expected instead; for any other, what strerror(3) says.
 *
 * error  an errno, or the negative one that a function returned
 *
 * Thread-safe for the library's errors; the text is not to be freed.
 */
const char *relay_strerror(int error);

/* What was given to relay_open() or relay_attach_callbacks(); NULL for other channels. The kernel's
 * chan->private_data; and of a buffer that a callback is given, buf->chan and buf->cpu. */
void *relay_private(const struct rchan *chan);
struct rchan *relay_buf_chan(const struct rchan_buf *buf);
unsigned relay_buf_cpu(const struct rchan_buf *buf);

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
 *   -EDEADLK    not counted: the caller is the channel's own subbuf_start
 * Thread-safe, async-signal-safe. Waits for nobody, but for a subbuf_start or the lock of scheme=locking, and makes
 * no system call, but for these, to wake a sleeping reader, or because this thread has no restartable sequences
 * while the channel needs them (then the record goes through write(2) on the relay file). Follows
 * relay_write() in kernel/relay.c, which returns nothing.
 */
int relay_write(struct rchan *chan, const void *data, size_t length);

/*
 * The same for a producer that waits for room and tries again: -ENOSPC does not count the record as lost. One that gives up
 * tries the last time with relay_write(). Records that go through write(2) are counted all the same, by the server.
 */
int relay_try_write(struct rchan *chan, const void *data, size_t length);

/* As relay_write(): the kernel's form for those who never write from interrupt context. */
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
 * EPIPE as there; ENOSPC also if all 248 reservations of the buffer are in use, or 128 of them for discarded
 * records of less than 16 bytes; ENOTSUP this thread has no restartable sequences. Thread-safe,
 * async-signal-safe. Follows relay_reserve() in kernel/relay.h.
 */
void *relay_reserve(struct rchan *chan, size_t length);

/* The same, but ENOSPC does not count the record as lost, because the producer will try again: see relay_try_write(). */
void *relay_try_reserve(struct rchan *chan, size_t length);

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
 * been written so far. An empty sub-buffer is switched from too. A buffer that is full stays as it is; if it
 * was full and has room again, the next sub-buffer begins, and stays empty until a record comes. All as in the kernel.
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
 * Readers that map the memory have consumed the next n sub-buffers of this CPU's buffer; more than n_subbufs is
 * ignored, more than are finished means those that are.
 *
 * Returns 0; -EINVAL: no such buffer; -EBUSY: somebody else is consuming at this moment.
 * Follows relay_subbufs_consumed() in kernel/relay.c.
 */
int relay_subbufs_consumed(struct rchan *chan, unsigned cpu, size_t n);

/*
 * Let go of the channel; NULL is ignored. A channel made by relay_open() is removed: remove_buf_file is called for
 * each file, and its files go. Who has them open reads on to the end, then gets 0, and POLLERR from poll(2). The
 * memory is freed when the last of them is gone. A child of fork() that closes a channel removes it only if who made it
 * is dead.
 */
void relay_close(struct rchan *chan);

#ifdef __cplusplus
}
#endif
#endif
