/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/ring_store.h>: functions on record rings for file servers and tools; symbols as in <relayfs/store.h>. Programs that produce
 * or consume need <relayfs/ring.h> alone.
 *
 * relay_ring_read_framed(), relay_ring_next_framed(), relay_ring_parts_begin(), relay_ring_parts_consume() and relay_ring_skip() are
 * consumers; the others may be called at any time, by each thread with a
 * handle of its own. None may be called in a signal handler. Functions return a negative errno if they fail.
 */
#ifndef RELAYFS_RING_STORE_H
#define RELAYFS_RING_STORE_H

#include <relayfs/ring_layout.h>
#include <relayfs/ring.h>
#include <relayfs/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The parameters of new rings. The enums are in layout.h. */
struct relay_ring_spec {
	size_t size;        /* sizeof(struct relay_ring_spec): later versions add fields at the end */
	uint64_t ring_size; /* bytes of data in each: a power of two, 4096 or more */
	uint32_t n_rings;   /* 1, or, with RELAY_PERCPU, relay_n_possible_cpus() */
	uint32_t file_mode; /* permission bits of the mem files */
	uint32_t uid, gid;  /* of the mem files */
	RELAY_RING_OPTION_FIELDS;
};

/* The size in bytes of one ring's file in the store; 0: the ring size is not allowed. */
uint64_t relay_ring_file_bytes(uint64_t ring_size);

/*
 * Make directory `dir`, whose parent exists, with a ring in each of the files mem0 .. memN-1; relay_store_remove()
 * removes it. -EEXIST `dir` exists; -EINVAL the spec is out of range, or scheme rseq is not available;
 * -ENOSPC no memory. On failure nothing is left behind.
 */
int relay_ring_create(const char *dir, const struct relay_ring_spec *spec);

/* All statistics of a ring, at one moment. Counts are since creation; each is below 2^63. */
struct relay_ring_stats {
	uint64_t ring_size, file_bytes;
	uint32_t cpu, n_rings;
	uint32_t closed, disabled; /* 0 or 1 */
	uint64_t producer_position, consumer_position;
	uint64_t unread_bytes; /* between them: all records with their headers, also those to be discarded */
	uint64_t records;      /* reserved since creation; output() reserves, too */
	uint64_t read_records, read_bytes; /* returned to readers */
	uint64_t skipped_records;          /* discarded or torn records that readers skipped */
	uint64_t torn_records;             /* records whose producer died before it committed them */
	uint64_t lost_records;             /* records that will never be read, torn ones included */
	uint64_t lost_full_records, lost_full_bytes;
	uint64_t lost_too_large_records, lost_too_large_bytes;
	uint64_t lost_disabled_records, lost_disabled_bytes;
	uint64_t lost_overwritten_records; /* overwritten before they were read */
	uint64_t wakeups;
	RELAY_RING_OPTION_FIELDS;
	/* Bytes consumed by programs that know only the kernel's format, and so count no records. If it is not 0, read_records,
	 * read_bytes, skipped_records and lost_overwritten_records cover only the other consumers. */
	uint64_t foreign_bytes;
};
int relay_ring_stats(struct relay_ring *ring, struct relay_ring_stats *stats);

/* As relay_buf_show() (store.h); *empty stays as it is. */
struct relay_shown;
struct relay_empty;
int relay_ring_show(struct relay_ring *ring, const char *mem_file, struct relay_shown *shown,
                    struct relay_empty *empty);

/*
 * Copy and consume whole records, one after the other, each with the ring's framing: as many as fit, and at most
 * `max` (0: no limit). Returns the number of bytes, 0 if all records were empty; -EMSGSIZE: the first does not fit; -EBUSY
 * also if there are so many records to skip that the next call has to continue; else as relay_ring_read().
 */
ssize_t relay_ring_read_framed(struct relay_ring *ring, void *to, size_t size, unsigned max);

/* What to copy instead of a ring's framing: each record after its length, 4 bytes, and with freq after its time, 8 bytes:
 * ns since 1970, 0 if it has none, which is offset_s seconds and offset + relay_ring_time() ticks of the channel's clock. */
struct relay_ring_form {
	uint64_t freq; /* ticks a second; 0: no times */
	uint64_t offset_s, offset;
};

/* As relay_ring_read_framed(), but the records are consumed by relay_ring_release(), or left by relay_ring_abort(), as those of
 * relay_ring_next(). In overwrite mode they are consumed at once. form: NULL: the ring's framing */
ssize_t relay_ring_next_framed(struct relay_ring *ring, const struct relay_ring_form *form, void *to, size_t size);

/*
 * As relay_ring_read_framed() for one record, in parts, so that a file server can answer other requests in between; nothing is
 * consumed before the end.
 *
 * begin() finds the next record, and returns the most bytes that it takes with its framing. copy() copies the next bytes of it, at
 * most `most`, to where they belong in `to`, and returns their number; 0: all are there. consume() consumes the record, completes
 * its framing, and returns the number of bytes. Errors as relay_ring_read_framed(); -ESTALE: the record was overwritten or consumed
 * meanwhile, begin anew.
 */
struct relay_ring_parts {
	uint64_t position; /* of the record */
	uint64_t copied;   /* bytes */
	uint32_t length;   /* of the record, with its time */
};
ssize_t relay_ring_parts_begin(struct relay_ring *ring, struct relay_ring_parts *parts);
ssize_t relay_ring_parts_copy(const struct relay_ring *ring, struct relay_ring_parts *parts, void *to, size_t most);
ssize_t relay_ring_parts_consume(struct relay_ring *ring, const struct relay_ring_parts *parts, void *to);

/*
 * Copying the unread records, up to the end that they had at peek_open(), framed as above, without consuming, beside consumers
 * and producers. As relay_buf_peek_open() and so on in <relayfs/store.h>; records that are consumed before they were copied are
 * skipped, without `times` also those that are consumed meanwhile. -EOPNOTSUPP: the ring is not mapped.
 */
struct relay_ring_peek;
struct relay_ring_peek *relay_ring_peek_open(struct relay_ring *ring);
ssize_t relay_ring_peek_copy(struct relay_ring_peek *peek, void *to, size_t size);
void relay_ring_peek_more(struct relay_ring_peek *peek);
void relay_ring_peek_rewind(struct relay_ring_peek *peek);
int relay_ring_peek_has_skipped(const struct relay_ring_peek *peek);
size_t relay_ring_peek_save(const struct relay_ring_peek *peek, void *to, size_t size);
int relay_ring_peek_restore(struct relay_ring_peek *peek, const void *from, size_t size);
void relay_ring_peek_close(struct relay_ring_peek *peek);

/* Count a record as too large without trying to write it. Errors as relay_ring_output(): -EAGAIN. */
int relay_ring_refuse(struct relay_ring *ring, size_t length);

/* Return a combination of RELAY_HAS_DATA: next() would return a record; RELAY_HAS_DISCARDED: next() would skip one first;
 * RELAY_IS_CLOSED; RELAY_IS_DAMAGED, RELAY_IS_HELD, RELAY_LOOK_AGAIN (store.h). Reaps claims of dead threads. */
int relay_ring_state(struct relay_ring *ring);

/* Skip the discarded records before the next one, as a consumer does, which makes room for producers; does nothing in
 * overwrite mode, where producers need no room. 0; -EBUSY: another thread consumes, or the next call has to continue;
 * -EBADMSG; -EALREADY: records returned by next() are not released yet. */
int relay_ring_skip(struct relay_ring *ring);

/* Set or clear RELAY_CLOSED or RELAY_DISABLED. After it returns, no further record is reserved,
 * except on a CPU where this thread may not run (-EPERM; the flag is set anyway). Wakes all sleeping readers. */
int relay_ring_stop(struct relay_ring *ring, uint32_t flag, int on);

/* Set RELAY_DISABLED without waiting for producers: for a damaged ring, whose records will not be read. */
void relay_ring_refuse_all(struct relay_ring *ring);

/* Discard reservations of dead threads: those whose owner this process can see to be dead, and all that were made
 * through the open file to which the server gave the number `token` (0: none). Returns the number of claims resolved. */
int relay_ring_resolve(struct relay_ring *ring, uint64_t token);

/* Store the server's number of its open file in all reservations that this process makes in this ring. */
void relay_ring_set_token(struct relay_ring *ring, uint64_t token);

/* As relay_buf_mtime() and relay_buf_keep_mtime() (store.h); `count` is the producer position. */
void relay_ring_mtime(const struct relay_ring *ring, uint64_t *count, uint64_t *time_ns);
void relay_ring_keep_mtime(struct relay_ring *ring, uint64_t count, uint64_t time_ns);

/* As relay_buf_close_fd() (store.h). */
void relay_ring_close_fd(struct relay_ring *ring);

/* As relay_buf_arm(), relay_buf_wake_seq() and relay_buf_wait_any() (store.h). */
uint32_t relay_ring_arm(struct relay_ring *ring);
uint32_t relay_ring_wake_seq(const struct relay_ring *ring);
int relay_ring_wait_any(struct relay_ring *const *rings, const uint32_t *seqs, size_t n, uint32_t *stop,
                        uint32_t stop_value, int timeout_ms);

/* As relay_wait_set_put_buf() (store.h). */
struct relay_wait_set;
void relay_wait_set_put_ring(struct relay_wait_set *set, uint32_t slot, struct relay_ring *ring, uint32_t seq);

#ifdef __cplusplus
}
#endif
#endif
