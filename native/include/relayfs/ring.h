/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/ring.h>: record rings: the BPF ring buffer of Linux (Documentation/bpf/ringbuf.rst), for programs.
 *
 * A ring is one file in a store. Producers on all CPUs write records of any length into one ring, in one order; or each
 * CPU has its own ring, which costs less. Records are committed or discarded one by one, and read in the order
 * of their reservations. No function blocks, except relay_ring_wait(): a full ring refuses the record and counts it. If a
 * producer dies with a reservation, it becomes a discarded record. ring_layout.h describes the format.
 *
 *                                   who may call it at once             in a signal handler
 *     output reserve commit discard any threads, any processes          yes, also over one that it interrupted
 *     next release abort read       one thread of one process; others   no
 *     consume                       get -EBUSY
 *     query wait                    any, each with a handle of its own  no
 *
 * Functions return 0 (or as described) or a negative errno; those that return pointers return NULL and set errno.
 *
 * If the ring is NULL, because it could not be opened, functions for producers and consumers do nothing. The error is
 * EBADF, also of relay_ring_fd(); relay_ring_commit() and relay_ring_discard() of NULL return -EINVAL, and
 * relay_ring_query() returns 0.
 */
#ifndef RELAYFS_RING_H
#define RELAYFS_RING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_ring; /* one ring, mapped by this process */

/* --- opening --- */

/*
 * Map one ring. NULL and errno: EPROTO another layout version; EMEDIUMTYPE a relay buffer (store.h); EBADMSG not a
 * ring, truncated or damaged; EMFILE 4096 rings are open; else as open(2), mmap(2). relay_ring_fdopen() maps a file that is
 * open O_RDWR; fd stays the caller's.
 */
struct relay_ring *relay_ring_open(const char *mem_file);
struct relay_ring *relay_ring_fdopen(int fd);
void relay_ring_close(struct relay_ring *ring);   /* NULL is ignored */
int relay_ring_fd(const struct relay_ring *ring); /* of the mem file, O_RDWR */

/* --- producing --- */

/* Flags for committing or discarding a record. By default, sleeping readers are woken if the consumer has consumed all
 * records before this one. FORCE: wake them in any case; NO: do not wake them, even if there is data. */
enum { RELAY_RING_NO_WAKEUP = 1, RELAY_RING_FORCE_WAKEUP = 2 };

/* Flag for relay_ring_output() and relay_ring_reserve(): a record for which there is no room is not counted as lost,
 * because the producer will try again. A producer that gives up makes its last attempt without this flag. The bit is far
 * from the kernel's flags, to which more may be added. If a mount cannot map files, its server counts in any case. */
enum { RELAY_RING_WILL_RETRY = 1 << 30 };

/*
 * Copy a record into the ring, like bpf_ringbuf_output().
 *
 * length  0 .. ring_size - 16 and not above RELAY_RING_RECORD_MAX
 *
 * -EAGAIN full, or larger than the ring allows (counted separately); -EINVAL unknown flags; -EPIPE closed; -ECANCELED
 * disabled; -EPERM a per-CPU ring, and this thread may not run on its CPU; -ENOTSUP a per-CPU ring, and this thread has
 * no rseq(2); -EBADMSG damaged. A per-CPU ring is written from its CPU: this thread moves there for the write.
 */
int relay_ring_output(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

/*
 * Reserve a record, like bpf_ringbuf_reserve(): `length` bytes, aligned to 8, to be filled in place. Readers stop before
 * it until it is committed or discarded. flags: 0 or RELAY_RING_WILL_RETRY. Errors as relay_ring_output(); EAGAIN also if
 * 256 reservations are open.
 */
void *relay_ring_reserve(struct relay_ring *ring, size_t length, uint64_t flags);

/* Commit or discard a reservation, in the process that made it, while the reserving thread lives. -EINVAL: no reservation
 * at this address, or unknown flags. */
int relay_ring_commit(void *record, uint64_t flags);
int relay_ring_discard(void *record, uint64_t flags);

/* Like bpf_ringbuf_query(): a value at one moment; 0 for unknown `what`. AVAIL_DATA is the number of bytes from
 * CONS_POS or OVERWRITE_POS, whichever is larger, to PROD_POS; at most the ring's size; 0 if the positions are
 * inconsistent. Except in overwrite mode, OVERWRITE_POS is 0. */
enum {
	RELAY_RING_AVAIL_DATA = 0,
	RELAY_RING_RING_SIZE = 1,
	RELAY_RING_CONS_POS = 2,
	RELAY_RING_PROD_POS = 3,
	RELAY_RING_OVERWRITE_POS = 4
};
uint64_t relay_ring_query(const struct relay_ring *ring, uint64_t what);

/* Return the number of one of n rings (1 or more), the same for the same key, so that records of one key stay in order. */
unsigned relay_ring_hash(uint64_t key, unsigned n);

/* --- the rings of one channel, by its path --- */

/*
 * ring[0 .. n-1]: one ring for all CPUs, or (buffers=percpu) one for each possible CPU, by its number. The rings of
 * relay_rings_attach() and relay_rings_create() are closed with the struct. A program that opened the files itself, with
 * relay_ring_open(), may fill in a struct of its own, and closes each ring.
 */
struct relay_rings {
	unsigned n;
	struct relay_ring **ring;
};

/*
 * Open the rings of an existing channel, "MNT/app/ring" as for relay_attach(); or make a channel first, which remains
 * when it is closed. NULL and errno: ENOENT no such channel; EISDIR a directory; EMEDIUMTYPE a channel of relay buffers
 * (relay.h); EBADMSG it is damaged; for relay_rings_create(), the errors of the control file for
 * `create PATH type=ring OPTIONS`.
 *
 * If the mount cannot map files and the store is another user's, each record is one write(2), a reservation is
 * private memory until then, and only rings with framing=length and without mode=overwrite can be consumed; see
 * relay_ring(3) for other differences.
 *
 * options: further keys, such as "size=64K buffers=percpu mode=overwrite"; NULL: none
 */
struct relay_rings *relay_rings_attach(const char *path);
struct relay_rings *relay_rings_create(const char *path, const char *options);
void relay_rings_close(struct relay_rings *rings); /* of these two functions; NULL is ignored */

/* As relay_ring_output() and relay_ring_reserve(), in the ring of the current CPU or the one for all CPUs. EINVAL also if
 * there is no ring for this CPU. */
int relay_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags);
void *relay_rings_reserve(struct relay_rings *rings, size_t length, uint64_t flags);

/* --- consuming --- */

/*
 * Return the next committed record in place, without a copy. May be called again before relay_ring_release(), which
 * consumes all records returned until then.
 *
 * In a ring with `times` the record's time (ring_layout.h) is in the 8 bytes before it.
 *
 * 1: `*length` bytes at `*data`, valid until release() or abort(); 0: there is none; -EPIPE: there is none, and the ring is
 * closed; -EBUSY: another thread consumes; -EBADMSG: damaged, see relay_ring_damaged_at(); -EOPNOTSUPP: overwrite mode.
 */
int relay_ring_next(struct relay_ring *ring, const void **data, size_t *length);
void relay_ring_release(struct relay_ring *ring); /* consume the records that next() returned since the last release */
void relay_ring_abort(struct relay_ring *ring);   /* do not consume them: next() returns them again */

/*
 * Call `each` for up to `max` records (0: for all there are). Each record is consumed when the function returns; if it
 * returns a negative value, stop and return this value. Returns the number of records; or an error of
 * relay_ring_next(), with -EPIPE and 0 as there; -EALREADY: records returned by next() are neither released nor
 * aborted.
 */
int relay_ring_consume(struct relay_ring *ring, int (*each)(void *context, const void *data, size_t length),
                       void *context, unsigned max);

/*
 * Copy the next record and consume it, in any mode; in overwrite mode, too, the copy is never torn. Returns its length;
 * -EAGAIN: there is none; -EMSGSIZE: it is longer than `size`, and stays; -EALREADY as relay_ring_consume(); else as
 * relay_ring_next().
 *
 * missed  receives the number of records that were overwritten between the previous record and this one; or NULL
 */
ssize_t relay_ring_read(struct relay_ring *ring, void *to, size_t size, uint64_t *missed);

/* Return the time of the record that next() or read() has returned last with this handle, in a ring with `times`: ticks of the
 * clock that `times` names. 0: the ring has no times, or is used through the server. Programs that write to the ring can
 * store any time. */
uint64_t relay_ring_time(const struct relay_ring *ring);

/* After -EBADMSG: the position of the first inconsistent byte; and a text that says which value contradicts which, "" if
 * there is no damage. The text is valid until the next call with this ring. */
uint64_t relay_ring_damaged_at(const struct relay_ring *ring);
const char *relay_ring_damage(struct relay_ring *ring);

/*
 * Sleep until one of up to 127 rings has a record to return or to skip, is closed or damaged. 1; 0: timeout_ms (-1: none)
 * has passed; -EINTR: a signal was caught; -EINVAL: n; -EALREADY: records of a ring have been returned by next() and neither
 * released nor aborted.
 *
 * It has producers wake it at most 2,000 times a second, as relay_reader_next() (reader.h) does. As there, next(), consume()
 * and read() wait for some microseconds if they have found little several times in a row.
 *
 * After 1, next(), consume() or read() may still find no record, because they only skipped discarded records, which makes
 * room for producers.
 */
int relay_ring_wait(struct relay_ring *const *rings, size_t n, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
