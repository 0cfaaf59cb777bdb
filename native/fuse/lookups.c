/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "lookups.h"

#include "protocol.h"

#include <string.h>
#include <sys/uio.h>

static relay_tap_lookup *answer;
static const struct fuse_entry_out *answered;

void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry)
{
	answer = lookup;
	answered = entry;
}

int relay_lookups_answer(int fd, const struct fuse_in_header *in, size_t length)
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
