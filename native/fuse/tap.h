/* SPDX-License-Identifier: MIT */
/*
 * Functions of the FUSE protocol that the file server needs and pyfuse3 does not have; tap.c says how they work. This
 * header is not installed. relayfs_fuse/fs/tap.py and at_once.py call the functions, only in the thread that runs the FUSE loop.
 * `unique` is the kernel's number of a request.
 */
#ifndef RELAYFS_TAP_H
#define RELAYFS_TAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct rchan_buf;
struct fuse_session;

/* The members of the request that libfuse has read last. */
struct relay_tap_request {
	uint64_t unique;
	uint32_t opcode;      /* FUSE_READ, ... */
	uint32_t pid;         /* the thread that made the request; 0: not in this PID namespace */
	uint32_t uid, gid;    /* its user and group */
	uint32_t io_flags;    /* READ: read_flags, WRITE: write_flags, GETATTR: getattr_flags; else 0 */
	uint32_t file_flags;  /* READ, WRITE: the present flags of the descriptor (F_GETFL); else 0 */
	uint64_t poll_handle; /* POLL: by which the kernel is notified; 0: it need not be */
};

/* Replaces libfuse's function of this name: calls it, and has libfuse exchange its messages with the kernel through
 * tap.c. */
int fuse_session_mount(struct fuse_session *se, const char *mountpoint);

/* Replaces libfuse's function of this name: returns a descriptor that is readable while there are messages for tap.c, which is not
 * that of /dev/fuse. */
int fuse_session_fd(struct fuse_session *se);

/* Return the request that is being handled. A handler must not call it after an await, because then it may be another
 * handler's request. */
const struct relay_tap_request *relay_tap_request(void);

/* The descriptor of /dev/fuse; -1: fuse_session_mount() was not called. */
int relay_tap_session_fd(void);

/* Return an eventfd that is readable while interrupted requests are queued. -1: fuse_session_mount() was not called. */
int relay_tap_interrupt_fd(void);
/* Remove the oldest interrupted request from the queue and return its `unique`. 0: the queue is empty. */
uint64_t relay_tap_interrupt_next(void);

/* Remove one call of isatty(3) by a program from the queue, and return the handle of its file, as in the reply to OPEN.
 * 0: the queue is empty. */
uint64_t relay_tap_terminal_next(void);

/* The N of FUSE protocol 7.N, which the kernel and libfuse use. Valid after INIT. */
unsigned relay_tap_protocol_minor(void);

/* Have the kernel send READs of at most so many bytes, or of fewer if fs.fuse.max_pages_limit is less. Before INIT. */
void relay_tap_allow_reads(size_t bytes);

/* 1: the kernel can map files of the mount by mapping files of the store (FUSE passthrough). Valid after INIT. */
int relay_tap_has_passthrough(void);
/* Register a file of the store with the kernel as a backing file. Returns its id (> 0) or -errno. */
int relay_tap_backing_open(int fd);
/* Undo that; files that are open keep their backing file. */
void relay_tap_backing_close(int backing);

/* Set the flags in the reply to this OPEN, which the handler is about to return: the file is a stream without a
 * position, or its mappings are those of the backing file. */
void relay_tap_open_stream(uint64_t unique);
void relay_tap_open_backed(uint64_t unique, int backing);

/*
 * Have the reply to this READ carry the next unread bytes of `buf`, at most max_bytes, in place of the bytes that the
 * handler returns. They are consumed if the kernel accepts the reply, and stay unread otherwise. The handler must
 * return next, without awaiting anything. number: of the buffer, for the next server if this one is killed between the reply
 * and the consumption. overwrite: the buffer is in overwrite mode.
 *
 * Returns the number of bytes, and in *end the stream position after them. 0: there are none, and the handler's own
 * reply is sent. -EBUSY: another thread or process is consuming; -EAGAIN: producers overwrite the bytes faster than
 * they can be copied; -ENOMEM; or as relay_consume_begin().
 */
ssize_t relay_tap_read(uint64_t unique, struct rchan_buf *buf, uint64_t number, size_t max_bytes, int overwrite,
                       uint64_t *end);
/* After relay_tap_read(): copy `length` of these bytes, those before the last `behind` ones, to `data`. */
void relay_tap_read_copy(void *data, size_t length, size_t behind);

/* Copy unread bytes of `buf`, at most max_bytes and without the first `skip` ones, to `data`. They stay unread. Returns
 * as relay_tap_read(). */
ssize_t relay_tap_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, void *data, uint64_t *end);

#endif
