/* SPDX-License-Identifier: MIT */
/*
 * The tap: two functions that libfuse calls to exchange messages with the kernel. They read members of requests that
 * pyfuse3 does not pass on, and change replies in ways that pyfuse3 cannot.
 *
 *     kernel  -- read -->   tap_read    -->  libfuse  -->  pyfuse3  -->  handler (Python)
 *                            | request, interrupts, isatty(3)                   | relay_tap_*()
 *     kernel  <- writev --  tap_writev  <--  libfuse  <--  pyfuse3  <--  its reply
 *                            | INIT, OPEN: flags that libfuse does not know
 *                            | READ: the bytes, sent from the buffer's memory
 *                            | FALLOCATE: another error
 *                            | READDIRPLUS: names without attributes (replies.c)
 *
 * This library is loaded before pyfuse3 and defines fuse_session_mount(), which calls libfuse's function and then
 * fuse_session_custom_io(). libfuse does not use splice(2) with custom I/O that has no splice functions, so each
 * message passes these two functions.
 *
 * A handler changes its reply by a call of relay_tap_*() and then returns without awaiting anything; pyfuse3 writes the
 * reply next. So there is never more than one changed reply.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include "handover.h"
#include "lookups.h"
#include "protocol.h"
#include "replies.h"
#include "tap.h"

#include <relayfs/store.h>

#include <dlfcn.h>
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	TAP_IOV_MAX = 1024,      /* pieces of one writev(2); the first is the header */
	TAP_SPANS_MAX = 1 << 16, /* pieces of one read: many if sub-buffers are small */
	TAP_TERMINALS_MAX = 64,
	TAP_LAPPED_TRIES = 8, /* to copy bytes before producers overwrite them */
	TAP_LAPPED_FEWER = 16 /* each try has so many times fewer pieces, and at least one */
};

enum tap_reply_kind { TAP_REPLY_NONE, TAP_REPLY_INIT, TAP_REPLY_STREAM, TAP_REPLY_BACKED, TAP_REPLY_READ };

static struct {
	int session_fd;
	int interrupt_fd;
	int passthrough;
	struct relay_tap_request request;
	uint32_t offered, offered2; /* the kernel's flags in INIT */
	uint32_t minor;             /* of FUSE protocol 7: first the kernel's, from the reply to INIT on that in use */
} tap = {.session_fd = -1, .interrupt_fd = -1};

/* The reply that tap_writev() is to change. */
static struct {
	enum tap_reply_kind kind;
	uint64_t unique;
	int32_t backing; /* TAP_REPLY_BACKED */
	/* TAP_REPLY_READ: `total` bytes in pieces[1 .. n_pieces]; tap_writev() stores the header in pieces[0] */
	struct rchan_buf *buf;
	struct relay_handover_reply noted;
	size_t total;
	size_t n_pieces;
	struct iovec pieces[TAP_IOV_MAX];
} reply;

/* A queue of n interrupted requests, the oldest at unique[first]. It grows when it is full, because a process whose
 * interrupt is dropped cannot be killed. */
static struct {
	uint64_t *unique;
	size_t first, n, room;
} interrupts;

/* File handles on which isatty(3) was called. Calls for which there is no room are dropped; then a shell's `read` may
 * take more than its line. */
static struct {
	uint64_t fh[TAP_TERMINALS_MAX];
	size_t n;
} terminals;

static struct relay_span *spans;
static unsigned char *copies; /* copies_room bytes, for replies that cannot be sent from the buffer's memory */
static size_t copies_room;

/* ------------------------------------------------------------------ requests */

static void interrupt_push(uint64_t unique)
{
	if (interrupts.first + interrupts.n == interrupts.room) {
		size_t room = interrupts.n ? 2 * interrupts.n : 64;
		uint64_t *larger = malloc(room * sizeof(*larger));
		if (!larger)
			return;
		if (interrupts.n)
			memcpy(larger, interrupts.unique + interrupts.first, interrupts.n * sizeof(*larger));
		free(interrupts.unique);
		interrupts.unique = larger;
		interrupts.first = 0;
		interrupts.room = room;
	}
	interrupts.unique[interrupts.first + interrupts.n++] = unique;
	eventfd_write(tap.interrupt_fd, 1);
}

uint64_t relay_tap_interrupt_next(void)
{
	eventfd_t ignored;
	if (!interrupts.n) {
		interrupts.first = 0;
		eventfd_read(tap.interrupt_fd, &ignored);
		return 0;
	}
	interrupts.n--;
	return interrupts.unique[interrupts.first++];
}

uint64_t relay_tap_terminal_next(void)
{
	return terminals.n ? terminals.fh[--terminals.n] : 0;
}

static void note_request(const struct fuse_in_header *in, size_t length)
{
	const void *body = in + 1;
	tap.request = (struct relay_tap_request){
	    .unique = in->unique, .opcode = in->opcode, .pid = in->pid, .uid = in->uid, .gid = in->gid};
	length -= sizeof(*in);
	if (in->opcode == FUSE_READ && length >= sizeof(struct fuse_read_in)) {
		tap.request.io_flags = ((const struct fuse_read_in *)body)->read_flags;
		tap.request.file_flags = ((const struct fuse_read_in *)body)->flags;
	} else if (in->opcode == FUSE_WRITE && length >= sizeof(struct fuse_write_in)) {
		tap.request.io_flags = ((const struct fuse_write_in *)body)->write_flags;
		tap.request.file_flags = ((const struct fuse_write_in *)body)->flags;
	} else if (in->opcode == FUSE_GETATTR && length >= sizeof(struct fuse_getattr_in)) {
		tap.request.io_flags = ((const struct fuse_getattr_in *)body)->getattr_flags;
	} else if (in->opcode == FUSE_POLL && length >= sizeof(struct fuse_poll_in)) {
		const struct fuse_poll_in *poll = body;
		tap.request.poll_handle = poll->flags & FUSE_POLL_SCHEDULE_NOTIFY ? poll->kh : 0;
	} else if (in->opcode == FUSE_IOCTL && length >= sizeof(struct fuse_ioctl_in)) {
		if (((const struct fuse_ioctl_in *)body)->cmd == TCGETS && terminals.n < TAP_TERMINALS_MAX)
			terminals.fh[terminals.n++] = ((const struct fuse_ioctl_in *)body)->fh;
	} else if (in->opcode == FUSE_INTERRUPT && length >= sizeof(struct fuse_interrupt_in)) {
		interrupt_push(((const struct fuse_interrupt_in *)body)->unique);
	} else if (in->opcode == FUSE_INIT && length >= sizeof(struct fuse_init_in)) {
		tap.offered = ((const struct fuse_init_in *)body)->flags;
		tap.minor = ((const struct fuse_init_in *)body)->minor;
		tap.offered2 = tap.offered & FUSE_INIT_EXT ? ((const struct fuse_init_in *)body)->flags2 : 0;
		reply.kind = TAP_REPLY_INIT;
		reply.unique = in->unique;
		relay_handover_keep_init(in, sizeof(*in) + length);
	}
}

static ssize_t tap_read(int fd, void *message, size_t room, void *userdata)
{
	ssize_t length = relay_handover_replay_init(message, room);
	(void)userdata;
	if (!length)
		length = relay_tap_read_others(fd, message, room);
	if (length >= (ssize_t)sizeof(struct fuse_in_header))
		note_request(message, (size_t)length);
	return length;
}

const struct relay_tap_request *relay_tap_request(void)
{
	return &tap.request;
}

/* ------------------------------------------------------------------ replies */

static int has_sys_admin(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
	return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1u << CAP_SYS_ADMIN);
}

static void extend_init(struct iovec *iov, int count)
{
	struct tap_init_out *out;
	if (count < 2 || iov[1].iov_len < sizeof(*out))
		return;
	out = iov[1].iov_base;
	tap.minor = out->minor < tap.minor ? out->minor : tap.minor;
	/* Without this flag the kernel sends a GETXATTR before each WRITE, to find capabilities to be removed. */
	out->flags |= tap.offered & FUSE_HANDLE_KILLPRIV_V2;
	if (!(tap.offered2 & TAP_PASSTHROUGH_FLAG2) || !has_sys_admin())
		return;
	out->flags |= FUSE_INIT_EXT;
	out->flags2 |= TAP_PASSTHROUGH_FLAG2;
	out->max_stack_depth = 1; /* the store's file system is not stacked on another one */
	tap.passthrough = 1;
}

static void extend_open(struct iovec *iov, int count)
{
	struct tap_open_out *out;
	if (count < 2 || iov[1].iov_len < sizeof(*out))
		return;
	out = iov[1].iov_base;
	if (reply.kind == TAP_REPLY_STREAM) {
		out->open_flags = FOPEN_DIRECT_IO | FOPEN_STREAM;
	} else {
		out->open_flags = FOPEN_DIRECT_IO | TAP_FOPEN_PASSTHROUGH;
		out->backing_id = reply.backing;
	}
}

static void forget_reply(void)
{
	if (reply.kind == TAP_REPLY_READ)
		relay_consume_abort(reply.buf);
	reply.kind = TAP_REPLY_NONE;
}

/* Send the bytes of the buffer with libfuse's header, and consume them if the kernel accepts the reply. */
static ssize_t send_read(int fd, const struct iovec *header)
{
	struct fuse_out_header *out = header->iov_base;
	ssize_t sent;
	int error;
	out->len = (uint32_t)(sizeof(*out) + reply.total);
	reply.pieces[0] = *header;
	relay_handover_begin_reply(reply.noted);
	sent = writev(fd, reply.pieces, (int)reply.n_pieces + 1);
	error = errno;
	if (sent >= 0)
		relay_consume_end(reply.buf);
	else
		relay_consume_abort(reply.buf);
	relay_handover_end_reply();
	reply.kind = TAP_REPLY_NONE;
	errno = error;
	return sent;
}

static ssize_t tap_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fuse_out_header *out = iov[0].iov_base;
	const uint64_t unique = out->unique;
	ssize_t sent;
	(void)userdata;
	if (tap.request.unique == unique)
		relay_tap_change_reply(tap.request.opcode, iov, count);
	if (unique && reply.kind != TAP_REPLY_NONE && unique == reply.unique) {
		if (!out->error && reply.kind == TAP_REPLY_INIT)
			extend_init(iov, count);
		else if (!out->error && reply.kind != TAP_REPLY_READ)
			extend_open(iov, count);
		if (out->error || reply.kind != TAP_REPLY_READ)
			forget_reply();
	}
	if (unique && reply.kind == TAP_REPLY_READ && unique == reply.unique)
		sent = send_read(fd, iov);
	else if (unique && relay_handover_is_answered(unique))
		sent = out->len; /* an earlier server has answered this FUSE_INIT */
	else
		sent = writev(fd, iov, count);
	/* ENOENT: the request was aborted, so the kernel no longer waits for this reply. That is not an error. */
	if (sent < 0 && errno == ENOENT && unique)
		return out->len;
	return sent;
}

static void prepare_reply(uint64_t unique, enum tap_reply_kind kind)
{
	forget_reply();
	reply.unique = unique;
	reply.kind = kind;
}

void relay_tap_open_stream(uint64_t unique)
{
	prepare_reply(unique, TAP_REPLY_STREAM);
}

void relay_tap_open_backed(uint64_t unique, int backing)
{
	prepare_reply(unique, TAP_REPLY_BACKED);
	reply.backing = backing;
}

/* ------------------------------------------------------------------ reading */

/* Allocate `spans`, and `copies` for max_bytes. 1, or 0: no memory. */
static int allocate_memory(size_t max_bytes)
{
	if (!spans)
		spans = malloc(TAP_SPANS_MAX * sizeof(*spans));
	if (copies_room < max_bytes) {
		free(copies);
		copies = malloc(max_bytes);
		copies_room = copies ? max_bytes : 0;
	}
	return spans && copies;
}

/* Return how many of the spans have `total` bytes. */
static size_t count_spans(size_t total)
{
	size_t n = 0;
	for (size_t sum = 0; sum < total; n++)
		sum += spans[n].length;
	return n;
}

static void reply_with_spans(size_t n)
{
	for (size_t i = 0; i < n; i++) {
		reply.pieces[i + 1].iov_base = (void *)spans[i].data;
		reply.pieces[i + 1].iov_len = spans[i].length;
	}
	reply.n_pieces = n;
}

static void reply_with_copy(size_t n)
{
	size_t length = 0;
	for (size_t i = 0; i < n; i++) {
		memcpy(copies + length, spans[i].data, spans[i].length);
		length += spans[i].length;
	}
	reply.pieces[1].iov_base = copies;
	reply.pieces[1].iov_len = length;
	reply.n_pieces = 1;
}

/* As relay_tap_read(), with at most max_pieces pieces. -EOVERFLOW: producers have overwritten the bytes meanwhile. */
static ssize_t try_read(struct rchan_buf *buf, size_t max_bytes, size_t max_pieces, int overwrite, uint64_t *end)
{
	size_t total = 0;
	size_t n;
	int result = relay_consume_begin_behind(buf, 0, max_bytes, spans, max_pieces, &total, end);
	if (result < 0 || !total)
		return result < 0 ? result : 0;
	n = count_spans(total);
	if (!overwrite && n < TAP_IOV_MAX) {
		reply_with_spans(n);
		return (ssize_t)total;
	}
	reply_with_copy(n);
	result = overwrite ? relay_consume_valid(buf) : 0;
	if (result < 0) {
		relay_consume_abort(buf);
		return result;
	}
	return (ssize_t)total;
}

ssize_t relay_tap_read(uint64_t unique, struct rchan_buf *buf, uint64_t number, size_t max_bytes, int overwrite,
                       uint64_t *end)
{
	ssize_t got = -EOVERFLOW;
	size_t max_pieces = TAP_SPANS_MAX;
	forget_reply();
	if (!allocate_memory(max_bytes))
		return -ENOMEM;
	/* The less is copied, the less likely producers overwrite it meanwhile. So each try has fewer pieces; it does
	 * not have fewer bytes, because the rest of a piece that is read in part may be overwritten, which splits a
	 * record. */
	for (int i = 0; i < TAP_LAPPED_TRIES && got == -EOVERFLOW; i++) {
		got = try_read(buf, max_bytes, max_pieces, overwrite, end);
		max_pieces = max_pieces > TAP_LAPPED_FEWER ? max_pieces / TAP_LAPPED_FEWER : 1;
	}
	if (got == -EOVERFLOW)
		return -EAGAIN;
	if (got > 0) {
		reply.kind = TAP_REPLY_READ;
		reply.unique = unique;
		reply.buf = buf;
		reply.noted = (struct relay_handover_reply){unique, number, *end};
		reply.total = (size_t)got;
	}
	return got;
}

void relay_tap_read_copy(void *data, size_t length)
{
	unsigned char *to = (unsigned char *)data + length;
	if (reply.kind != TAP_REPLY_READ)
		return;
	for (size_t i = reply.n_pieces; i && length; i--) {
		const struct iovec *piece = &reply.pieces[i];
		size_t n = piece->iov_len < length ? piece->iov_len : length;
		to -= n;
		length -= n;
		memcpy(to, (const unsigned char *)piece->iov_base + piece->iov_len - n, n);
	}
}

/* As relay_tap_peek(). -EOVERFLOW: producers have overwritten the bytes meanwhile. */
static ssize_t try_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, unsigned char *to, uint64_t *end)
{
	size_t total = 0;
	int result = relay_consume_begin_behind(buf, skip, max_bytes, spans, TAP_SPANS_MAX, &total, end);
	if (result < 0 || !total)
		return result < 0 ? result : 0;
	for (size_t i = 0; i < (size_t)result; to += spans[i++].length)
		memcpy(to, spans[i].data, spans[i].length);
	result = relay_consume_valid(buf);
	relay_consume_abort(buf);
	return result < 0 ? result : (ssize_t)total;
}

ssize_t relay_tap_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, void *data, uint64_t *end)
{
	ssize_t got = -EOVERFLOW;
	forget_reply();
	if (!allocate_memory(max_bytes))
		return -ENOMEM;
	for (int i = 0; i < TAP_LAPPED_TRIES && got == -EOVERFLOW; i++)
		got = try_peek(buf, skip, max_bytes, data, end);
	return got == -EOVERFLOW ? -EAGAIN : got;
}

/* ------------------------------------------------------------------ session */

int relay_tap_session_fd(void)
{
	return tap.session_fd;
}

int relay_tap_interrupt_fd(void)
{
	return tap.interrupt_fd;
}

unsigned relay_tap_protocol_minor(void)
{
	return tap.minor;
}

int relay_tap_has_passthrough(void)
{
	return tap.passthrough;
}

int relay_tap_backing_open(int fd)
{
	struct tap_backing_map map = {.fd = fd};
	int backing = ioctl(tap.session_fd, TAP_BACKING_OPEN, &map);
	return backing < 0 ? -errno : backing;
}

void relay_tap_backing_close(int backing)
{
	uint32_t id = (uint32_t)backing;
	ioctl(tap.session_fd, TAP_BACKING_CLOSE, &id);
}

/* Have libfuse exchange its messages through this file, on the descriptor of /dev/fuse that an earlier server had, and
 * begin the session with the FUSE_INIT that the kernel sent to the first server. */
static int take_over(struct fuse_session *se, const struct fuse_custom_io *io, int fd)
{
	struct fuse_buf message = {0};
	int result = fuse_session_custom_io(se, io, fd);
	if (result)
		return result;
	tap.session_fd = fd;
	result = fuse_session_receive_buf(se, &message);
	if (result > 0)
		fuse_session_process_buf(se, &message);
	free(message.mem);
	return result > 0 ? 0 : -1;
}

int fuse_session_mount(struct fuse_session *se, const char *mountpoint)
{
	static const struct fuse_custom_io io = {.read = tap_read, .writev = tap_writev};
	int (*mount)(struct fuse_session *, const char *);
	int result;
	/* ISO C does not convert an object pointer into a function pointer; POSIX allows this form for dlsym(3). */
	*(void **)&mount = dlsym(RTLD_NEXT, "fuse_session_mount");
	if (!mount)
		return -1;
	/* Before the mount, because eventfd(2) may fail, and a mount without a server blocks each process that uses
	 * it. */
	tap.interrupt_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (tap.interrupt_fd < 0)
		return -1;
	if (relay_handover_fd() >= 0)
		return take_over(se, &io, relay_handover_fd());
	result = mount(se, mountpoint);
	if (result)
		return result;
	tap.session_fd = fuse_session_fd(se);
	result = fuse_session_custom_io(se, &io, tap.session_fd);
	if (result)
		fuse_session_unmount(se);
	return result;
}
