/* SPDX-License-Identifier: MIT */
/*
 * The tap: two functions that libfuse calls to exchange messages with the kernel. They read members of requests that
 * pyfuse3 does not pass on, and change replies in ways that pyfuse3 cannot.
 *
 *     kernel  -- read -->   tap_read    -->  libfuse  -->  pyfuse3  -->  handler (Python)
 *                            | request, interrupts, isatty(3)                   | relay_tap_*()
 *                            | READs that need no handler are answered (lane.c)
 *     kernel  <- writev --  tap_writev  <--  libfuse  <--  pyfuse3  <--  its reply
 *                            | INIT, OPEN: flags that libfuse does not know
 *                            | READ: the bytes, sent from the buffer's memory (reading.c)
 *                            | FALLOCATE: another error
 *                            | READDIRPLUS: names without attributes (replies.c)
 *
 * This library is loaded before pyfuse3 and defines fuse_session_mount(), which calls libfuse's function and then
 * fuse_session_custom_io(). libfuse does not use splice(2) with custom I/O that has no splice functions, so each
 * message passes these two functions. The library also defines fuse_session_fd(), whose descriptor pyfuse3 waits for (at_once.h).
 *
 * A handler changes its reply by a call of relay_tap_*() and then returns without awaiting anything; pyfuse3 writes the
 * reply next. So there is never more than one changed reply.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include "at_once.h"
#include "handover.h"
#include "protocol.h"
#include "reading.h"
#include "replies.h"
#include "tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TAP_TERMINALS_MAX = 64 };

enum tap_reply_kind { TAP_REPLY_NONE, TAP_REPLY_INIT, TAP_REPLY_STREAM, TAP_REPLY_BACKED };

static struct {
	int session_fd;
	int messages_fd; /* is readable while there are messages for tap_read() */
	int interrupt_fd;
	int passthrough;
	struct relay_tap_request request;
	uint32_t offered, offered2; /* the kernel's flags in INIT */
	uint32_t minor;             /* of FUSE protocol 7: first the kernel's, from the reply to INIT on that in use */
	uint16_t pages;             /* the most of one request; 0: as libfuse says */
} tap = {.session_fd = -1, .messages_fd = -1, .interrupt_fd = -1};

/* The reply that tap_writev() is to change, unless it is one to READ (reading.c). */
static struct {
	enum tap_reply_kind kind;
	uint64_t unique;
	int32_t backing; /* TAP_REPLY_BACKED */
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
		length = relay_at_once_read(fd, message, room, terminals.n > 0);
	if (length < 0 && errno == EAGAIN)
		errno = EINTR; /* pyfuse3 waits for the next request then */
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
	/* The kernel takes fs.fuse.max_pages_limit if that is less. WRITEs are limited by max_write, too. */
	if (tap.pages && out->flags & FUSE_MAX_PAGES)
		out->max_pages = tap.pages;
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
		else if (!out->error)
			extend_open(iov, count);
		reply.kind = TAP_REPLY_NONE;
	}
	if (unique && relay_reading_is_of(unique) && out->error)
		relay_reading_forget();
	if (unique && relay_reading_is_of(unique))
		sent = relay_reading_send(fd, iov);
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
	relay_reading_forget();
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

/* ------------------------------------------------------------------ session */

int relay_tap_session_fd(void)
{
	return tap.session_fd;
}

int fuse_session_fd(struct fuse_session *se)
{
	(void)se;
	return tap.messages_fd;
}

int relay_tap_wait(int timeout_ms)
{
	return relay_at_once_wait(tap.session_fd, timeout_ms, terminals.n > 0);
}

int relay_tap_interrupt_fd(void)
{
	return tap.interrupt_fd;
}

unsigned relay_tap_protocol_minor(void)
{
	return tap.minor;
}

void relay_tap_allow_reads(size_t bytes)
{
	tap.pages = (uint16_t)(bytes / (size_t)sysconf(_SC_PAGESIZE));
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

/* Have libfuse exchange its messages through this file, on a descriptor of /dev/fuse. Returns 0, or as
 * fuse_session_custom_io() or fcntl(2). */
static int use_device(struct fuse_session *se, int fd)
{
	static const struct fuse_custom_io io = {.read = tap_read, .writev = tap_writev};
	int result = fuse_session_custom_io(se, &io, fd);
	if (result)
		return result;
	tap.session_fd = fd;
	tap.messages_fd = relay_at_once_open(fd);
	if (tap.messages_fd < 0)
		return -1;
	/* A request that poll(2) has told of may be gone: its program was killed. The loop must not sleep then. */
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Use the descriptor that an earlier server had, and begin the session with the FUSE_INIT that the kernel sent to the
 * first server. */
static int take_over(struct fuse_session *se, int fd)
{
	struct fuse_buf message = {0};
	int result = use_device(se, fd);
	if (result)
		return result;
	result = fuse_session_receive_buf(se, &message);
	if (result > 0)
		fuse_session_process_buf(se, &message);
	free(message.mem);
	return result > 0 ? 0 : -1;
}

int fuse_session_mount(struct fuse_session *se, const char *mountpoint)
{
	int (*mount)(struct fuse_session *, const char *);
	int (*device_of)(struct fuse_session *);
	int result;
	/* ISO C does not convert an object pointer into a function pointer; POSIX allows this form for dlsym(3). */
	*(void **)&mount = dlsym(RTLD_NEXT, "fuse_session_mount");
	*(void **)&device_of = dlsym(RTLD_NEXT, "fuse_session_fd");
	if (!mount || !device_of)
		return -1;
	/* Before the mount, because eventfd(2) may fail, and a mount without a server blocks each process that uses
	 * it. */
	tap.interrupt_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (tap.interrupt_fd < 0)
		return -1;
	if (relay_handover_fd() >= 0)
		return take_over(se, relay_handover_fd());
	result = mount(se, mountpoint);
	if (result)
		return result;
	result = use_device(se, device_of(se));
	if (result)
		fuse_session_unmount(se);
	return result;
}
