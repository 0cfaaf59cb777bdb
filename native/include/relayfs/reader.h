/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/reader.h>: read one relay file without copying it.
 *
 *     struct relay_reader *r = relay_reader_open("/mnt/relay/app/cpu0");
 *     while (relay_reader_next(r, &data, &length, -1) == 1) {
 *             use(data, length);
 *             if (relay_reader_done(r) == -EOVERFLOW)
 *                     discard_all_results();
 *     }
 *     relay_reader_close(r);
 *
 * A reader consumes, as read(2) does: each byte goes to exactly one reader, of either kind. Between next() and done() of
 * one reader, other readers of the same buffer wait; if it dies there, they get the data.
 * A reader writes to the buffer's memory, and so needs write permission on the relay file.
 * It may be used by one thread at a time.
 */
#ifndef RELAYFS_READER_H
#define RELAYFS_READER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_reader;

/*
 * relay_file  "MNT/app/cpu0"
 *
 * errno: ENOENT no such relay file; EISDIR a directory; EMEDIUMTYPE a relay file of a record ring (ring.h); EACCES no
 * permission to read and write; EPROTO its memory has another layout version; EBADMSG it is damaged. May block.
 */
struct relay_reader *relay_reader_open(const char *relay_file);

/*
 * Wait for data and return the next piece: part of one sub-buffer, whole records, without padding. In a channel with `times` a piece is
 * one record, without its time.
 *
 * data, length  the piece in shared memory, valid until relay_reader_done()
 * timeout_ms    -1: wait for ever; 0: do not wait
 *
 * Returns 1: there is a piece. 0: there was none in time, or the channel is closed and all data has been read. -EBUSY:
 * another reader was between next() and done() all the time. -EINTR: a signal was caught. -EALREADY: done() has not
 * been called for the last piece. -EBADMSG: damaged memory.
 *
 * Sleeps until a writer wakes it. This costs the writer a system call, so the reader asks for it at most 2,000 times a second,
 * and otherwise looks again after 100 us; while much is written, earlier. A reader that has found little at several calls in a
 * row waits for some microseconds before it looks, also if timeout_ms is 0: what is written meanwhile is found at once, and
 * the writer waits less for the cache lines that each look moves to the reader's CPU.
 *
 * If this user can map neither the mount nor the store, the piece is the result of a read(2), in private memory. It is
 * consumed already, and has as many bytes as were available, up to 1 MiB less 4 KiB, so that the last record can be split.
 */
int relay_reader_next(struct relay_reader *reader, const void **data, size_t *length, int timeout_ms);

/*
 * Return the time of the piece, which is one record, in a channel with `times`: ticks of the clock that `times` names. 0: the
 * channel has no times, or the piece is the result of a read(2), or the time was overwritten. Call it after relay_reader_next()
 * has returned 1. Programs that write to the channel can store any time.
 */
uint64_t relay_reader_time(const struct relay_reader *reader);

/*
 * Consume the piece: producers may use its memory again.
 *
 * Returns 0, or -EOVERFLOW: in overwrite mode producers lapped the reader, so the piece may have changed while it was
 * read. Discard all results; the records are counted as overwritten. -EINVAL: there is no piece; -EBADMSG: damaged
 * memory.
 */
int relay_reader_done(struct relay_reader *reader);

/* Leave the piece unread: next() returns it again, or another reader gets it. 0; -EINVAL: there is no piece; -EOPNOTSUPP: it is
 * the result of a read(2), so it is consumed, and done() has to be called. */
int relay_reader_abort(struct relay_reader *reader);

/* 1: next() will return no more data, because the channel was removed and all data has been read, or the memory is
 * damaged; otherwise 0. */
int relay_reader_finished(struct relay_reader *reader);

/* Close the reader. A piece for which done() has not been called stays unread. NULL is ignored. */
void relay_reader_close(struct relay_reader *reader);

#ifdef __cplusplus
}
#endif
#endif
