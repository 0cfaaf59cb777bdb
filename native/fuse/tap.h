/* SPDX-License-Identifier: MIT */
/*
 * What the file server needs of FUSE and pyfuse3 does not offer: see tap.c. Not installed; called by
 * relayfs_fuse/fs/tap.py. Everything here belongs to the one thread that runs the FUSE loop.
 */
#ifndef RELAYFS_TAP_H
#define RELAYFS_TAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct rchan_buf;
struct fuse_session;

/* What is known of the request that was read last. A handler sees its own until it first awaits something. */
struct relay_tap_request {
	uint64_t unique;     /* the kernel's name for the request */
	uint32_t opcode;     /* FUSE_READ, ... */
	uint32_t pid;        /* the thread that made it; 0: not visible from here */
	uint32_t uid, gid;   /* its user and group */
	uint32_t io_flags;   /* READ: read_flags, WRITE: write_flags, GETATTR: getattr_flags; else 0 */
	uint32_t file_flags; /* READ, WRITE: the descriptor's flags now, fcntl(2) included; else 0 */
};

/* libfuse's function of this name, plus the tap. */
int fuse_session_mount(struct fuse_session *se, const char *mountpoint);

const struct relay_tap_request *relay_tap_request(void);

/* An eventfd, readable while interrupts are queued; -1: the tap was not installed. */
int relay_tap_interrupt_fd(void);
/* Take the oldest interrupted request off the queue; 0: there is none. */
uint64_t relay_tap_interrupt_next(void);

/* Take an open file (the handle that OPEN returned) of which a program asked, with isatty(3), whether it is a
 * terminal; 0: there is none. */
uint64_t relay_tap_terminal_next(void);

/* 1: the kernel maps files through to the store's. Known once the first request has been handled. */
int relay_tap_has_passthrough(void);
/* Register a file for mapping: its number (> 0), or a negative errno. */
int relay_tap_backing_open(int fd);
void relay_tap_backing_close(int backing);

/* The reply to this OPEN makes the file a stream without a position ... */
void relay_tap_open_stream(uint64_t unique);
/* ... or one whose mappings are those of the registered file. */
void relay_tap_open_backed(uint64_t unique, int backing);

/*
 * Let the reply to this READ, whatever bytes the handler returns, carry what is next in `buf`, up to max_bytes;
 * it is consumed if and only if the kernel takes the reply. The handler must return without awaiting.
 *
 * Returns how many bytes, and in *end the stream position behind them; 0: there is nothing, reply as you like;
 * -EBUSY: somebody else is consuming; -EAGAIN: producers overwrite faster than it can be copied; or another
 * negative errno.
 */
ssize_t relay_tap_read(uint64_t unique, struct rchan_buf *buf, size_t max_bytes, int overwrite, uint64_t *end);
/* The last `length` of the bytes that the reply described last will carry, copied to `data`. */
void relay_tap_read_copy(void *data, size_t length);

/*
 * Copy up to max_bytes of what is unread in `buf`, behind the next `skip` bytes, to `data`, and leave it unread.
 * Returns what relay_tap_read() does.
 */
ssize_t relay_tap_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, void *data, uint64_t *end);

#endif
