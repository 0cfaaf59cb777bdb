/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/reader.h>: read one relay file without copying it.
 *
 *     struct relay_reader *r = relay_reader_open("/mnt/relay/app/cpu0");
 *     while (relay_reader_next(r, &data, &length, -1) == 1) {
 *             use(data, length);
 *             if (relay_reader_done(r) == -EOVERFLOW)
 *                     forget_what_was_made_of_it();
 *     }
 *     relay_reader_close(r);
 *
 * It consumes, as read(2) does: each byte goes to exactly one reader, whichever kind it is. While a reader
 * stands between next() and done(), others of the same buffer wait; if it dies there, they get the data.
 * It writes to the buffer's memory and so needs write permission on the relay file.
 * A reader belongs to one thread at a time.
 */
#ifndef RELAYFS_READER_H
#define RELAYFS_READER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_reader;

/*
 * relay_file  "MNT/app/cpu0"
 *
 * errno: ENOENT no such relay file; EISDIR it is a directory; EMEDIUMTYPE it is that of a record ring (ring.h); EACCES it may
 * not be read and written; EPROTO, EBADMSG its memory has another layout version or is damaged. May block.
 */
struct relay_reader *relay_reader_open(const char *relay_file);

/*
 * Wait for data and show the next piece: part of one sub-buffer, whole records, padding left out.
 *
 * data, length  span the piece, inside the shared memory, until relay_reader_done()
 * timeout_ms    -1: wait for ever; 0: only look
 *
 * Returns 1: there is a piece. 0: none within the time, or the channel is closed and drained. -EBUSY: another
 * reader stood between next() and done() all the time. -EINTR: a signal came. -EALREADY: the last piece is
 * not done yet. Sleeps on a futex; does not spin.
 *
 * Where neither the mount nor the store can be mapped by this user, the piece is what read(2) gave, in private memory:
 * consumed already, and of as many bytes as there were, up to 1 MiB less 4 KiB, so that the last record can be cut.
 */
int relay_reader_next(struct relay_reader *reader, const void **data, size_t *length, int timeout_ms);

/*
 * The piece is consumed: producers may use its memory again.
 *
 * Returns 0, or -EOVERFLOW: in overwrite mode producers lapped the reader, the piece may have changed under
 * its eyes and must be thrown away (it is counted as overwritten). -EINVAL: there is no piece.
 */
int relay_reader_done(struct relay_reader *reader);

/* 1: the channel was removed and everything has been read; next() will return 0 at once. */
int relay_reader_finished(struct relay_reader *reader);

/* An unfinished piece stays unread. NULL is ignored. */
void relay_reader_close(struct relay_reader *reader);

#ifdef __cplusplus
}
#endif
#endif
