/* SPDX-License-Identifier: MIT */
/* Copying the unread records of a ring beside its consumer, framed as read(2) returns them, without consuming; by
 * ring/follow.c, which says when a copy is intact. */
#define _GNU_SOURCE
#include "ring/follow.h"
#include "store/framing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A change needs another HANDOVER_VERSION (relayfs_fuse/fs/versions.py). */
struct relay_ring_peek {
	struct relay_ring_follow follow, first; /* now, and at the beginning */
	uint64_t end;                           /* the producer position up to which records are copied */
};

struct relay_ring_peek *relay_ring_peek_open(struct relay_ring *ring)
{
	struct relay_ring_peek *peek = ring->remote ? NULL : calloc(1, sizeof(*peek));
	if (!peek) {
		errno = ring->remote ? EOPNOTSUPP : ENOMEM;
		return NULL;
	}
	int err = relay_ring_follow_start(&peek->follow, ring);
	peek->first = peek->follow;
	relay_ring_peek_more(peek);
	if (!err)
		return peek;
	free(peek);
	errno = -err;
	return NULL;
}

void relay_ring_peek_more(struct relay_ring_peek *peek)
{
	peek->end = relay_ring_produced(peek->follow.ring);
}

void relay_ring_peek_rewind(struct relay_ring_peek *peek)
{
	peek->follow = peek->first;
}

int relay_ring_peek_has_skipped(const struct relay_ring_peek *peek)
{
	return peek->follow.counts.missed > 0 || peek->follow.foreign > 0;
}

/* Copy the next record to `to`, which has room for `size` bytes. Returns the number of bytes; -EAGAIN: there is none;
 * -EMSGSIZE; -EINPROGRESS: call again; -EBADMSG. */
static ssize_t copy_record(struct relay_ring_peek *peek, unsigned char *to, size_t size, uint32_t *work)
{
	const struct relay_ring *ring = peek->follow.ring;
	const struct relay_frame frame = relay_frames[ring->geometry.framing];
	struct relay_ring_copy record;
	size_t room = size > frame.before ? size - frame.before : 0;
	int result = relay_ring_follow_copy(&peek->follow, &record, to + (room ? frame.before : 0), room, work);
	if (result == -EAGAIN)
		return -EINPROGRESS;
	if (result != 1)
		return result ? result : -EAGAIN;
	if ((int64_t)(peek->end - peek->follow.counts.position) <= 0)
		return -EAGAIN;
	if (size < frame.before + frame.behind || record.length > size - frame.before - frame.behind)
		return -EMSGSIZE;
	relay_ring_follow_pass(&peek->follow, &record);
	return (ssize_t)relay_frame_put(frame, to, record.length);
}

ssize_t relay_ring_peek_copy(struct relay_ring_peek *peek, void *to, size_t size)
{
	size_t done = 0;
	ssize_t got = 0;
	uint32_t work = RELAY_RING_WORK;
	while (work && (got = copy_record(peek, (unsigned char *)to + done, size - done, &work)) >= 0) {
		done += (size_t)got;
		work -= work > 0;
	}
	if (done || got == -EAGAIN)
		return (ssize_t)done;
	return got == -EINPROGRESS || got >= 0 ? -EBUSY : got;
}

size_t relay_ring_peek_save(const struct relay_ring_peek *peek, void *to, size_t size)
{
	if (size >= sizeof(*peek))
		memcpy(to, peek, sizeof(*peek));
	return sizeof(*peek);
}

int relay_ring_peek_restore(struct relay_ring_peek *peek, const void *from, size_t size)
{
	struct relay_ring *ring = peek->follow.ring;
	if (size != sizeof(*peek))
		return -EINVAL;
	memcpy(peek, from, size);
	peek->follow.ring = peek->first.ring = ring;
	return 0;
}

void relay_ring_peek_close(struct relay_ring_peek *peek)
{
	free(peek);
}
