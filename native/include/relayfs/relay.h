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
 *    after such a timeout, only for some milliseconds until a write succeeds again.
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
 *     this process, are not affected. After fork() both processes may continue to use a channel.
 *
 *   From create_buf_file and remove_buf_file: relay_create_file, relay_remove_file, relay_private, relay_buf_chan,
 *   relay_buf_cpu, and nothing else of this channel. From buf_mapped and buf_unmapped: all but relay_close.
 *
 * Functions return 0 or a negative errno; those that return pointers return NULL and set errno.
 * "Full" is a result, not a failure. The library never prints and never aborts.
 *
 * If the channel is NULL, as relay_open() returns it when it fails, functions do nothing. relay_write(), _write_batch(),
 * _reserve(), _flush(), _reset() and _subbufs_consumed() fail with EBADF; relay_private() returns NULL, and
 * relay_largest_record() 0.
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
 * Callbacks of the program that makes a channel; any may be NULL. The struct must live as long as the channel.
 * Follows struct rchan_callbacks in include/linux/relay.h, with a path in place of a dentry or a struct file.
 */
struct rchan_callbacks {
	/*
	 * Called when a sub-buffer is about to begin; the return value decides what happens when the buffer is full.
	 * Without it, the mode is no-overwrite.
	 *
	 * subbuf        start of the new sub-buffer
	 * prev_subbuf   start of the previous sub-buffer, which was just finished; NULL: this is the buffer's first
	 * prev_padding  unused bytes at the end of prev_subbuf
	 *
	 * Returns 1: begin the sub-buffer, even if its data has not been consumed; 0: not yet. The record that needed
	 * the sub-buffer is then refused and counted as lost (-ENOSPC), and the next record calls the function again,
	 * with the same parameters. The first sub-buffer begins in any case.
	 *
	 * Called by the thread that writes (or flushes, or resets), under a lock: other writers of the buffer that need
	 * a new sub-buffer, in all processes, wait for it, at most a second; writers whose record still fits do not.
	 * All signals but those of faults are blocked. If the process is killed in it, the function of another process
	 * is called instead. It may store to both sub-buffers (to `subbuf` only if it returns 1) and call the functions
	 * that are marked for it below; a write to the channel fails with -EDEADLK.
	 */
	int (*subbuf_start)(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding);

	/*
	 * buf_mapped: another process has opened a file with which it can map the buffer: .channels/PATH/memN, or the
	 * relay file for reading and writing. buf_unmapped: the last descriptor of such an open is closed and, if this
	 * library mapped it, the last mapping has gone. Each open is reported by both. `file` is the relay file.
	 * Called in a thread of the library, with all signals blocked, in the process that made the channel; soon after
	 * the event, and not after relay_close() has begun.
	 * (Differs: a FUSE server learns of opens, not of mmap(2). If the opening process ends before the server has
	 * identified it, its open is reported even if it was this process.)
	 */
	void (*buf_mapped)(struct rchan_buf *buf, const char *file);
	void (*buf_unmapped)(struct rchan_buf *buf, const char *file);

	/*
	 * Return the path of a buffer's relay file, usually from relay_create_file(); the path is copied. NULL, with
	 * errno set: the channel is not opened. Called in relay_open() and relay_late_setup_files(), once for each
	 * buffer, or only once if it sets *is_global: then one buffer serves all CPUs.
	 *
	 * filename   base_filename and the buffer's number
	 * parent     as given to relay_open(), possibly NULL
	 * mode       0600, the kernel's default
	 *
	 * All files are made together afterwards: DIR/BASE0 .. DIR/BASEN-1, all of one mode. DIR and BASE may differ
	 * from those proposed, and a global file may have any name. For a channel without files relay_open() calls this
	 * with filename and parent NULL, only for is_global: return NULL.
	 * (Differs: without this callback the library makes files, with the mode 0640.)
	 */
	const char *(*create_buf_file)(const char *filename, const char *parent, int mode, struct rchan_buf *buf,
	                               int *is_global);

	/* Remove a file that create_buf_file named; the result is ignored. Called in relay_close(), or when opening fails.
	 * The channel is removed in any case, with all its files. */
	int (*remove_buf_file)(const char *file);

	/* Further keys of the control file's `create`, e.g. "delivery=packet perm=0644"; or NULL. Keys that the
	 * arguments and callbacks determine are not allowed: sizes, mode with subbuf_start, buffers with create_buf_file.
	 * The default of delivery is bulk, as in the kernel: poll(2) reports finished sub-buffers. */
	const char *options;
};

/*
 * Make a channel and open it: files `base_filename`0 .. N-1 in `parent`, N the number of possible CPUs.
 *
 * parent        a directory in a relayfs mount, made if it does not exist; NULL: the root of the default mount, which is
 *               $RELAYFS, or else the first relayfs in /proc/self/mountinfo in which this process may make channels
 * subbuf_size   bytes, 1 .. 2^32-1;  n_subbufs  1 .. 2^32-1;  their product at most 2^40
 * cb            NULL: no-overwrite, the kernel's default
 * private_data  returned by relay_private()
 *
 * Without a mount (parent NULL and none found, or below $RELAYFS where nothing is mounted) the channel is made in the
 * store itself ($RELAYFS_STORE, or else the default store of this user's server), and the next mount of the store shows
 * it; until then programs find it under the same path.
 *
 * If base_filename and parent are both NULL, this makes a buffer-only channel, in memory of this process (and children of
 * fork()), to which the process can write at once. It lasts as long as these processes unless relay_late_setup_files()
 * gives it files.
 *
 * relay_close() removes a channel made by relay_open(), as in the kernel; if the process dies before, a channel with files
 * remains. May block. errno: EINVAL an argument, a key of cb->options or a path from create_buf_file is not allowed;
 * the errno that create_buf_file left, or EACCES; ENOENT `parent` lies in no relayfs mount; EEXIST the channel or a file
 * exists; ENOSPC there is not enough memory; EACCES the mount's or the store's permissions; EBUSY the store is
 * held by a server that cannot be reached. The mount's error_log has the reason. On failure nothing is left behind.
 * Follows relay_open() in kernel/relay.c.
 */
struct rchan *relay_open(const char *base_filename, const char *parent, size_t subbuf_size, size_t n_subbufs,
                         const struct rchan_callbacks *cb, void *private_data);

/*
 * Give a buffer-only channel files, which contain all data written so far, while threads continue to write.
 *
 * base_filename, parent  as for relay_open(); create_buf_file is called as there
 *
 * In a mount of this user the memory itself gets names, and nothing is copied. The server of another user copies it, and
 * the copy is mapped at the same addresses: writers wait meanwhile, and no thread may flush, reset or consume. In children
 * of fork() that have the memory the channel is then closed. The server opens the memory through /proc, so it must see
 * this process.
 * May block. Returns 0 or an error as relay_open(); -EEXIST: the channel has files already, or a channel of that name
 * exists; -EXDEV: the mount's store lies in another file system than the memory, see $RELAYFS_STORE; -EBADF: the
 * program has closed the library's descriptors. In a mount of another user also -EBUSY: a record is reserved and not
 * committed; -EOPNOTSUPP: reserve=visible; -ENODEV: the mount cannot map files. On failure the channel is unchanged,
 * and the call may be repeated. Follows relay_late_setup_files() in kernel/relay.c.
 */
int relay_late_setup_files(struct rchan *chan, const char *base_filename, const char *parent);

/*
 * For create_buf_file: name the file `filename` in `parent` (NULL: the default mount's root) with the permissions `mode`.
 * Returns its path, which is valid as long as the channel, or NULL: EINVAL, ENOMEM. Replaces
 * debugfs_create_file(..., &relay_file_operations).
 */
const char *relay_create_file(const char *filename, const char *parent, int mode, struct rchan_buf *buf);

/* For remove_buf_file: remove the channel that a relay file belongs to. Returns 0, also if the channel has been removed
 * before, even if another channel, which stays, has its name now; or -errno. */
int relay_remove_file(const char *file);

/*
 * Make a channel with the mount's `create` command and attach to it.
 *
 * path     "MNT/app/cpu"; where nothing is mounted, as for relay_open()
 * options  what may follow `create app/cpu`, e.g. "mode=overwrite subbuf_size=64K"; NULL or "": defaults
 *
 * The channel remains when this process closes it or dies. May block. errno: as relay_open().
 */
struct rchan *relay_create(const char *path, const char *options);

/*
 * Open an existing channel for writing.
 *
 * path  "MNT/app/cpu": the path of its relay files without the number
 *
 * May block. errno: ENOENT no such channel, or no relayfs is mounted there; EISDIR a directory; EMEDIUMTYPE a
 * channel of record rings (ring.h); EACCES its files may not be written; EPROTO its memory has another layout version;
 * EBADMSG its memory is damaged, or is not a relay buffer.
 *
 * If this user can map neither the mount nor the store, records go through write(2) on the relay files.
 * Reservations are then private memory; the write in relay_commit() can be refused, and the record is counted as lost.
 * ENOMEM: 256 reservations are open.
 */
struct rchan *relay_attach(const char *path);

/*
 * The same with callbacks, of which only subbuf_start is called: for programs that write to a channel whose maker has a
 * subbuf_start. errno: also EINVAL `cb` is NULL; EOPNOTSUPP this user can map neither the mount nor the store, so its
 * subbuf_start could not be called.
 */
struct rchan *relay_attach_callbacks(const char *path, const struct rchan_callbacks *cb, void *private_data);

/*
 * Return the meaning of an error of this library, and what was expected instead; for any other, the text of
 * strerror(3).
 *
 * error  an errno, or the negative one that a function returned
 *
 * Thread-safe for the library's errors; the caller must not free the text.
 */
const char *relay_strerror(int error);

/* The private_data given to relay_open() or relay_attach_callbacks(); NULL for other channels. The kernel's
 * chan->private_data. For a buffer that a callback is given: the kernel's buf->chan and buf->cpu. */
void *relay_private(const struct rchan *chan);
struct rchan *relay_buf_chan(const struct rchan_buf *buf);
unsigned relay_buf_cpu(const struct rchan_buf *buf);

/*
 * Write one record into the current CPU's buffer.
 *
 * length  bytes, up to the channel's subbuf_size; 0 writes nothing and returns 0
 *
 * Returns 0: the whole record is in the buffer, and will be read once or be counted as overwritten.
 * Otherwise the record is not in the buffer and, with the first three errors, is counted as lost:
 *   -ENOSPC     the buffer is full (no-overwrite), or a slow writer still owns the memory (overwrite)
 *   -EMSGSIZE   longer than a sub-buffer
 *   -ECANCELED  the channel is disabled
 *   -EPIPE      the channel has been removed
 *   -EDEADLK    the caller is the channel's own subbuf_start
 *   -EBADMSG    the memory is damaged
 * Thread-safe, async-signal-safe. Waits only for a subbuf_start or the lock of scheme=locking. Makes a system call only
 * for these, to wake a sleeping reader, or if this thread has no restartable sequences and the channel needs them (then
 * the record goes through write(2) on the relay file). Follows relay_write() in kernel/relay.c, which returns nothing.
 */
int relay_write(struct rchan *chan, const void *data, size_t length);

/*
 * The same for a producer that waits for room and tries again: -ENOSPC does not count the record as lost. A producer that
 * gives up makes its last attempt with relay_write(). Records that go through write(2) are counted by the server in any case.
 */
int relay_try_write(struct rchan *chan, const void *data, size_t length);

/* As relay_write(). In the kernel, this variant is for callers outside interrupt context. */
int __relay_write(struct rchan *chan, const void *data, size_t length);

/*
 * Write n records that lie one after the other in `data`; lengths[i] is the length of the i-th, in bytes.
 *
 * Returns the number of records written, in order. The first record that is refused ends the batch; if it is the very
 * first one, returns its error as relay_write() does. Records that were not tried are not counted as lost.
 *
 * In a channel of scheme rseq or lockless without times, records of together 4 KiB are written as one, which costs a
 * fraction of single records. If the program dies while it copies them, then with scheme lockless (buffers=single or global)
 * all of them are torn.
 */
long relay_write_batch(struct rchan *chan, const void *data, const size_t *lengths, size_t n);

/* The bytes of the longest record that the channel takes; 0: the channel is NULL. Through write(2) at most 1 MiB less
 * 4 KiB. */
size_t relay_largest_record(const struct rchan *chan);

/*
 * Reserve space for one record in the current CPU's buffer, to be filled and then committed or discarded.
 *
 * length  bytes, up to the channel's subbuf_size; 0: returns an address to which nothing may be written, and which need not
 *         be committed
 *
 * Readers wait at a record until it is committed; later records can be written meanwhile. A thread may hold several
 * reservations, and another thread may commit them while the reserving thread lives: reservations of a dead thread are
 * skipped and counted as torn. In overwrite mode a reservation that is held for a whole lap stops the buffer (-ENOSPC).
 * With reserve=visible readers see the record at once, filled or not, as in the kernel.
 *
 * Returns the record's address, or NULL, counted as by relay_write(). errno: ENOSPC, EMSGSIZE, ECANCELED,
 * EPIPE as there; ENOSPC also if all 248 reservations of the buffer are in use, or 128 of them for discarded
 * records of less than 16 bytes; ENOTSUP this thread has no restartable sequences. Thread-safe,
 * async-signal-safe. Follows relay_reserve() in kernel/relay.h.
 */
void *relay_reserve(struct rchan *chan, size_t length);

/* The same, but ENOSPC does not count the record as lost, because the producer will try again: see relay_try_write(). */
void *relay_try_reserve(struct rchan *chan, size_t length);

/* Commit the record at `reserved`: readers may now read it. Thread-safe, async-signal-safe. */
void relay_commit(struct rchan *chan, void *reserved);

/* Discard the record at `reserved`: readers skip it, and it is counted as discarded. No effect with reserve=visible. */
void relay_discard(struct rchan *chan, void *reserved);

/* For subbuf_start: 1 if all sub-buffers are finished and none of them has been consumed. */
int relay_buf_full(struct rchan_buf *buf);

/* For subbuf_start: reserve the first `length` bytes of the new sub-buffer, at most all of it, for the program. Readers get
 * these bytes with the data. */
void subbuf_start_reserve(struct rchan_buf *buf, size_t length);

/*
 * Force a switch to the next sub-buffer in every buffer, so that readers that wait for whole sub-buffers see all data
 * written so far. An empty sub-buffer is switched from too. A full buffer is not changed; if it was full and has room
 * again, the next sub-buffer begins, and stays empty until a record is written. All as in the kernel.
 *
 * Returns 0, or the first error of a buffer; the other buffers are switched. -EPIPE: the channel has been removed;
 * -EPERM: this thread may not run on the buffer's CPU; -EBUSY: another thread keeps a lock, or a record of the previous
 * lap is not committed; -EDEADLK: called in subbuf_start; -EBADMSG: damaged memory. Moves the calling thread to each
 * CPU for a moment.
 */
int relay_flush(struct rchan *chan);

/*
 * Bring every buffer to its initial state, in the same memory, with all counters 0.
 * Unread data is discarded. Returns as relay_flush(); -EBUSY also while a reader is between next() and done(), or if a
 * record is reserved and not committed within a second.
 */
int relay_reset(struct rchan *chan);

/*
 * For readers that map the memory: mark the next n sub-buffers of this CPU's buffer as consumed. n above n_subbufs is
 * ignored; n above the number of finished sub-buffers consumes all of these.
 *
 * Returns 0; -EINVAL: no such buffer; -EBUSY: another process is consuming at this moment, or, in overwrite mode, the
 * sub-buffers were overwritten at each of many tries; -EBADMSG: damaged memory.
 * Follows relay_subbufs_consumed() in kernel/relay.c.
 */
int relay_subbufs_consumed(struct rchan *chan, unsigned cpu, size_t n);

/*
 * Close the channel; NULL is ignored. A channel made by relay_open() is removed: remove_buf_file is called for
 * each file, and its files disappear. A process that has a file open can read to the end; then it gets 0, and POLLERR from
 * poll(2). The memory is freed when the last of them has closed it. A child of fork() that closes a channel removes it only
 * if the process that made it is dead.
 */
void relay_close(struct rchan *chan);

#ifdef __cplusplus
}
#endif
#endif
