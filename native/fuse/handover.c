/* SPDX-License-Identifier: MIT */
#include "handover.h"
#include "protocol.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The page. A server that is killed while it stores the INIT has not answered it, and is the first one. */
struct kept {
	uint32_t init_length; /* 0: none */
	uint32_t padding;
	unsigned char init[RELAY_HANDOVER_INIT_MAX];
	struct relay_handover_reply reply;
};
_Static_assert(sizeof(struct kept) <= RELAY_HANDOVER_BYTES, "the page has room for it");

static struct kept *kept;
static int inherited_fd = -1;
static int is_to_replay;
static uint64_t answered;

void relay_handover_use(void *memory, int fd)
{
	kept = memory;
	inherited_fd = fd;
	is_to_replay = fd >= 0;
}

int relay_handover_fd(void)
{
	return inherited_fd;
}

void relay_handover_keep_init(const void *message, size_t length)
{
	if (!kept || inherited_fd >= 0 || length > sizeof(kept->init))
		return;
	memcpy(kept->init, message, length);
	kept->init_length = (uint32_t)length;
}

/*
 * Read what waits to be sent again because a server has asked for that, which died before it got it. Until it is sent,
 * relay_handover_awaits() does not find it; relay_handover_resend() has all of it sent once more. The first request that
 * comes for the first time is behind all of them. FORGETs are not sent again: they are of lookups of dead servers.
 */
static void take_back_resent(void *message, size_t room)
{
	const struct fuse_in_header *in = message;
	ssize_t length;
	do
		length = read(inherited_fd, message, room);
	while (length < 0 ? errno == ENOENT || errno == EINTR
	                  : in->unique & TAP_RESENT || in->opcode == FUSE_INTERRUPT || in->opcode == FUSE_FORGET ||
	                        in->opcode == FUSE_BATCH_FORGET);
}

ssize_t relay_handover_replay_init(void *message, size_t room)
{
	size_t length = is_to_replay ? kept->init_length : 0;
	if (length < sizeof(struct fuse_in_header) || length > room)
		return 0;
	is_to_replay = 0;
	take_back_resent(message, room);
	memcpy(message, kept->init, length);
	answered = ((const struct fuse_in_header *)message)->unique;
	return (ssize_t)length;
}

int relay_handover_is_answered(uint64_t unique)
{
	if (unique != answered)
		return 0;
	answered = 0;
	return 1;
}

int relay_handover_is_possible(void)
{
	const struct fuse_in_header *in;
	const struct fuse_init_in *init;
	if (!kept || kept->init_length < sizeof(*in) + sizeof(*init))
		return 0;
	in = (const void *)kept->init;
	init = (const void *)(in + 1);
	return init->flags & FUSE_INIT_EXT && init->flags2 & TAP_HAS_RESEND_FLAG2;
}

static int send_header(int fd, int32_t error, uint64_t unique)
{
	struct fuse_out_header out = {.len = sizeof(out), .error = error, .unique = unique};
	return write(fd, &out, sizeof(out)) == (ssize_t)sizeof(out) ? 0 : -errno;
}

int relay_handover_resend(int fd)
{
	return send_header(fd, TAP_NOTIFY_RESEND, 0);
}

int relay_handover_awaits(int fd, uint64_t unique)
{
	/* The kernel looks for the request, and does nothing to it: this says that its interruption was seen. */
	int result = send_header(fd, 0, unique | TAP_INTERRUPT_BIT);
	return result ? (result == -ENOENT ? 0 : result) : 1;
}

void relay_handover_notify_poll(int fd, uint64_t poll_handle)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_poll_wakeup_out body;
	} out = {.header = {.len = sizeof(out), .error = FUSE_NOTIFY_POLL}, .body = {.kh = poll_handle}};
	/* -ENOENT: the file was closed. */
	(void)!write(fd, &out, sizeof(out));
}

void relay_handover_begin_reply(struct relay_handover_reply reply)
{
	if (!kept)
		return;
	kept->reply.number = reply.number;
	kept->reply.end = reply.end;
	/* The compiler must keep the order of the stores; the other process loads them after this one has ended. */
	__asm__ volatile("" : : : "memory");
	kept->reply.unique = reply.unique;
	__asm__ volatile("" : : : "memory");
}

void relay_handover_end_reply(void)
{
	__asm__ volatile("" : : : "memory");
	if (kept)
		kept->reply.unique = 0;
}

struct relay_handover_reply relay_handover_last_reply(void)
{
	return kept ? kept->reply : (struct relay_handover_reply){0};
}
