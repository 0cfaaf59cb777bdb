/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/ring.h>: record rings: the BPF ring buffer of Linux (Documentation/bpf/ringbuf.rst), for programs.
 *
 * A ring is one file in a store. Producers of all CPUs put records of any length into one ring, in one order; or each
 * CPU has a ring of its own, which costs less. Records are committed or discarded one by one, and come out in the order
 * of their reservations. Nothing blocks: a full ring refuses the record and counts it. A producer may die anywhere; a
 * reservation that it leaves behind becomes a discarded record. ring_layout.h tells the format.
 *
 *                                   who may call it at once             in a signal handler
 *     output reserve commit discard any threads, any processes          yes, also over one that it interrupted
 *     next release abort read       one thread of one process; others   no
 *     consume                       get -EBUSY
 *     query stats state wait        any, each with a handle of its own  no
 *
 * Functions return 0 (or what they say) or a negative errno; those that return pointers, NULL and errno.
 *
 * Functions of producers and consumers to which NULL is given for a ring, because it could not be opened, do nothing. The
 * error is EBADF, also of relay_ring_fd(); relay_ring_commit() and relay_ring_discard() of NULL say EINVAL, query() says 0.
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

/* --- making and opening --- */

/* What rings are made from. The enums are in layout.h. */
struct relay_ring_spec {
	size_t size;        /* sizeof(struct relay_ring_spec): later versions add fields at the end */
	uint64_t ring_size; /* bytes of data in each: a power of two, 4096 or more */
	uint32_t n_rings;   /* 1, or, with RELAY_PERCPU, relay_n_possible_cpus() */
	uint32_t mode;      /* RELAY_NO_OVERWRITE, RELAY_OVERWRITE */
	uint32_t scheme;    /* RELAY_ANY_SCHEME; RELAY_RSEQ, per CPU only; RELAY_LOCKLESS */
	uint32_t buffers;   /* RELAY_PERCPU, RELAY_GLOBAL, RELAY_SINGLE */
	uint32_t file_mode; /* permission bits of the mem files */
	uint32_t uid, gid;  /* of the mem files */
	/* For file servers: enum relay_read, enum relay_framing (ring_layout.h). */
	uint32_t read, framing;
};

/* The bytes that one ring takes in the store; 0: the size is not allowed. */
uint64_t relay_ring_file_bytes(uint64_t ring_size);

/*
 * Make directory `dir`, whose parent exists, with a ring in each of the files mem0 .. memN-1; relay_store_remove()
 * takes it away. -EEXIST `dir` exists; -EINVAL the spec is out of range, or scheme rseq is asked for where it is not to
 * be had; -ENOSPC no memory. On failure nothing is left behind.
 */
int relay_ring_create(const char *dir, const struct relay_ring_spec *spec);

/*
 * Map one ring. NULL and errno: EPROTO another layout version; EMEDIUMTYPE a buffer of relay files (store.h); EBADMSG not a
 * ring, truncated or damaged; EMFILE 4096 are open; else as open(2), mmap(2). fdopen: the file is open, O_RDWR; fd stays the caller's.
 */
struct relay_ring *relay_ring_open(const char *mem_file);
struct relay_ring *relay_ring_fdopen(int fd);
void relay_ring_close(struct relay_ring *ring);   /* NULL is ignored */
int relay_ring_fd(const struct relay_ring *ring); /* of the mem file, O_RDWR */

/* --- producing --- */

/* When a record is committed or discarded: by default, whoever sleeps is woken if the consumer has come to this very
 * record. FORCE: woken in any case; NO: not at all, and they may sleep on beside data. */
enum { RELAY_RING_NO_WAKEUP = 1, RELAY_RING_FORCE_WAKEUP = 2 };

/* For relay_ring_output() and relay_ring_reserve(): a record for which there is no room is not counted as lost, because the
 * producer will try again. One that gives up tries the last time without this flag. The bit is far from those of the
 * kernel, which may get more. Where a mount maps no files its server counts all the same. */
enum { RELAY_RING_WILL_RETRY = 1 << 30 };

/*
 * Copy a record into the ring, as bpf_ringbuf_output().
 *
 * length  0 .. ring_size - 16 and not above RELAY_RING_RECORD_MAX
 *
 * -EAGAIN full, or larger than any record can be (counted apart); -EINVAL other flags; -EPIPE closed; -ECANCELED
 * disabled; -EPERM a per-CPU ring, and this thread may not run on its CPU; -ENOTSUP a per-CPU ring, and this thread has
 * no rseq(2); -EBADMSG damaged. A per-CPU ring is written from its CPU: this thread goes there for the moment.
 */
int relay_ring_output(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

/* The same for the one of n per-CPU rings that is this CPU's. -EINVAL: the CPU's number is not below n. */
int relay_ring_output_here(struct relay_ring *const *rings, unsigned n, const void *data, size_t length,
                           uint64_t flags);

/*
 * Reserve a record, as bpf_ringbuf_reserve(): `length` bytes, aligned to 8, to be filled in place. Readers stop before
 * it until it is committed or discarded. flags: 0 or RELAY_RING_WILL_RETRY. Errors as relay_ring_output(), and as there EAGAIN when 256
 * reservations are under way.
 */
void *relay_ring_reserve(struct relay_ring *ring, size_t length, uint64_t flags);
void *relay_ring_reserve_here(struct relay_ring *const *rings, unsigned n, size_t length, uint64_t flags);

/* End a reservation, in the process that made it, while the thread that did lives. -EINVAL: there is none at this
 * address, or other flags. */
int relay_ring_commit(void *record, uint64_t flags);
int relay_ring_discard(void *record, uint64_t flags);

/* As bpf_ringbuf_query(): a moment's value, 0 for all other `what`. In overwrite mode AVAIL_DATA is what still stands, and
 * OVERWRITE_POS where that begins; without it, 0. AVAIL_DATA is at most the ring's size; where the positions contradict
 * each other, 0. */
enum {
	RELAY_RING_AVAIL_DATA = 0,
	RELAY_RING_RING_SIZE = 1,
	RELAY_RING_CONS_POS = 2,
	RELAY_RING_PROD_POS = 3,
	RELAY_RING_OVERWRITE_POS = 4
};
uint64_t relay_ring_query(const struct relay_ring *ring, uint64_t what);

/* Choose one of n rings (1 or more), the same for the same key: order is kept among records of one key. */
unsigned relay_ring_hash(uint64_t key, unsigned n);

/* --- the rings of one channel, by its path --- */

/* ring[0 .. n-1]: one for all CPUs, or (buffers=percpu) one for each that may exist. They belong to the struct. */
struct relay_rings {
	unsigned n;
	struct relay_ring **ring;
};

/*
 * Open the rings of an existing channel, "MNT/app/ring" as relay_attach() has it; or make a channel first, which stays
 * when it is closed. NULL and errno: ENOENT no such channel; EISDIR it is a directory; EMEDIUMTYPE it is one of relay files
 * (relay.h); EBADMSG it is damaged; for create, what the control file says of `create PATH type=ring OPTIONS`.
 *
 * Where the mount cannot map files and the store is another user's, each record is one write(2), a reservation is
 * private memory until then, and only rings with framing=length and without mode=overwrite are consumed: relay_ring(3)
 * tells what else is different.
 *
 * options: what may follow, "size=64K buffers=percpu mode=overwrite"; NULL: nothing
 */
struct relay_rings *relay_rings_attach(const char *path);
struct relay_rings *relay_rings_create(const char *path, const char *options);
void relay_rings_close(struct relay_rings *rings); /* NULL is ignored */

/* As relay_ring_output() and relay_ring_reserve(), in the ring of this CPU or the one for all. */
int relay_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags);
void *relay_rings_reserve(struct relay_rings *rings, size_t length, uint64_t flags);

/* --- consuming --- */

/*
 * The next committed record, in place, no copy. May be called again before release(): records are held until then.
 *
 * 1: `*length` bytes at `*data`, valid until release() or abort(); 0: none now; -EPIPE: none, and closed; -EBUSY: somebody
 * else consumes; -EBADMSG: damaged, relay_ring_damaged_at() says where; -EOPNOTSUPP: overwrite mode.
 */
int relay_ring_next(struct relay_ring *ring, const void **data, size_t *length);
void relay_ring_release(struct relay_ring *ring); /* what next() gave since the last one is consumed */
void relay_ring_abort(struct relay_ring *ring);   /* ... is not: next() gives it again */

/*
 * Call `each` with up to `max` records (0: as many as there are), each consumed when it returns; negative: stop there,
 * and return that. Returns how many; or an error of relay_ring_next(), -EPIPE and 0 as there.
 */
int relay_ring_consume(struct relay_ring *ring, int (*each)(void *context, const void *data, size_t length),
                       void *context, unsigned max);

/*
 * Copy the next record and consume it. Any mode; in overwrite mode it is whole, or it is not given. Returns its length;
 * -EAGAIN: none now; -EMSGSIZE: longer than `size`, it stays; else as relay_ring_next().
 *
 * missed  if not NULL: how many records were overwritten before this one, since the one before
 */
ssize_t relay_ring_read(struct relay_ring *ring, void *to, size_t size, uint64_t *missed);

/* After -EBADMSG: the position of the first byte that contradicts itself; and in words which value contradicts what, ""
 * if nothing does. The text is valid until the next call with this ring. */
uint64_t relay_ring_damaged_at(const struct relay_ring *ring);
const char *relay_ring_damage(struct relay_ring *ring);

/*
 * Sleep until one of up to 127 rings has a record to give or to skip, is closed or damaged. 1; 0: timeout_ms (-1: none)
 * has passed; -EINTR: a signal came; -EINVAL: n; -EALREADY: records of one are held.
 *
 * After 1 next(), consume() or read() may still find nothing: then they have skipped discarded records, and producers
 * have their room.
 */
int relay_ring_wait(struct relay_ring *const *rings, size_t n, int timeout_ms);

/* --- for file servers and tools --- */

/* Everything there is to know of a ring, at one moment. Counts are since creation; each is below 2^63. */
struct relay_ring_stats {
	uint64_t ring_size, file_bytes;
	uint32_t cpu, n_rings, mode, scheme, buffers;
	uint32_t closed, disabled; /* 0 or 1 */
	uint64_t producer_position, consumer_position;
	uint64_t unread_bytes;             /* between them: records with their headers, whatever becomes of them */
	uint64_t records;                  /* reserved, ever; output() reserves, too */
	uint64_t read_records, read_bytes; /* given to readers */
	uint64_t skipped_records;          /* discarded or torn, as readers passed them */
	uint64_t torn_records;             /* whose producer died */
	uint64_t lost_records;             /* all that will not be read, torn ones included */
	uint64_t lost_full_records, lost_full_bytes;
	uint64_t lost_too_large_records, lost_too_large_bytes;
	uint64_t lost_disabled_records, lost_disabled_bytes;
	uint64_t lost_overwritten_records; /* that readers will not get any more */
	uint64_t wakeups;
	uint32_t read, framing;
	/* Passed by consumers that know the kernel's format alone, and so count no records. Where it is not 0, read_records,
	 * read_bytes, skipped_records and lost_overwritten_records are those of the others. */
	uint64_t foreign_bytes;
};
int relay_ring_stats(struct relay_ring *ring, struct relay_ring_stats *stats);

/*
 * Copy and consume whole records, one behind the other, each as the ring's framing says: as many as fit, and at most
 * `max` (0: no limit). Returns how many bytes, 0 if all records were empty; -EMSGSIZE: the first does not fit; -EBUSY also
 * if there are so many records to skip that the next call has to go on with it; else as relay_ring_read().
 */
ssize_t relay_ring_read_framed(struct relay_ring *ring, void *to, size_t size, unsigned max);

/* Count a record as too large that was not even tried. Errors as relay_ring_output(): -EAGAIN. */
int relay_ring_refuse(struct relay_ring *ring, size_t length);

/* RELAY_HAS_DATA: next() would give a record; RELAY_HAS_DISCARDED: next() would skip one first; RELAY_IS_CLOSED;
 * RELAY_IS_DAMAGED, RELAY_IS_HELD, RELAY_LOOK_AGAIN (store.h). Reaps the dead. */
int relay_ring_state(struct relay_ring *ring);

/* Skip the discarded records before the next one, as a consumer does, so that producers have their room; in overwrite
 * mode, where they have it anyway, do nothing. 0; -EBUSY: somebody consumes, or the next call has to go on with it;
 * -EBADMSG; -EALREADY: records are held. */
int relay_ring_skip(struct relay_ring *ring);

/* Set or clear RELAY_CLOSED or RELAY_DISABLED. When it returns, no record is reserved any more that was not before,
 * except on a CPU where this thread may not run (-EPERM; the flag is set all the same). Wakes all. */
int relay_ring_stop(struct relay_ring *ring, uint32_t flag, int on);

/* Set RELAY_DISABLED and wait for nobody: for a ring that is damaged, whose records nobody will read. */
void relay_ring_refuse_all(struct relay_ring *ring);

/* Reservations of the dead become discarded: those whose owner this process can see to be gone, and all that were made
 * through the open file that the server called `token` (0: none). Returns how many claims it resolved. */
int relay_ring_resolve(struct relay_ring *ring, uint64_t token);

/* Give all reservations that this process makes in this ring the file server's name for its open file. */
void relay_ring_set_token(struct relay_ring *ring, uint64_t token);

/* As relay_buf_mtime() and relay_buf_keep_mtime() (store.h); what is counted is the producer position. */
void relay_ring_mtime(const struct relay_ring *ring, uint64_t *count, uint64_t *time_ns);
void relay_ring_keep_mtime(struct relay_ring *ring, uint64_t count, uint64_t time_ns);

/* As relay_buf_arm(), relay_buf_wake_seq() and relay_buf_wait_any() (store.h). */
uint32_t relay_ring_arm(struct relay_ring *ring);
uint32_t relay_ring_wake_seq(const struct relay_ring *ring);
int relay_ring_wait_any(struct relay_ring *const *rings, const uint32_t *seqs, size_t n, uint32_t *stop,
                        uint32_t stop_value, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
