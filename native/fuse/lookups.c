/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "lookups.h"

#include "protocol.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { TAP_LOOKUPS_NS = 4000000 }; /* for so long at most other tasks of the server do not run */

static relay_tap_lookup *answer;
static const struct fuse_entry_out *answered;
static relay_tap_next *comes_soon;

void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry, relay_tap_next *next)
{
	answer = lookup;
	answered = entry;
	comes_soon = next;
}

static int is_answered(int fd, const struct fuse_in_header *in, size_t length)
{
	const char *name = (const char *)(in + 1);
	/* A request that is sent again may be one of which a server before has answered a part. */
	if (!answer || length <= sizeof(*in) || in->opcode != FUSE_LOOKUP || in->unique & TAP_RESENT ||
	    !memchr(name, 0, length - sizeof(*in)) || !answer(in->nodeid, name, in->pid))
		return 0;
	struct fuse_out_header out = {.len = sizeof(out) + sizeof(*answered), .unique = in->unique};
	struct iovec reply[] = {{&out, sizeof(out)}, {(void *)answered, sizeof(*answered)}};
	ssize_t sent = writev(fd, reply, 2);
	/* ENOENT: the program was killed meanwhile. After another error, too, the kernel has the request no more. */
	(void)sent;
	return 1;
}

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

ssize_t relay_tap_read_others(int fd, void *message, size_t room)
{
	for (int64_t begun_ns = now_ns();;) {
		ssize_t length = read(fd, message, room);
		if (length < 0 || !is_answered(fd, message, (size_t)length))
			return length;
		if (now_ns() - begun_ns > TAP_LOOKUPS_NS || !comes_soon()) {
			errno = EINTR;
			return -1;
		}
	}
}
