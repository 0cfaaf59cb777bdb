/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_STORE_FRAMING_H
#define RELAYFS_STORE_FRAMING_H

#include <relayfs/ring_layout.h>
#include <stddef.h>
#include <string.h>

/*
 * All framings of records:
 *
 *     enum relay_framing, word, bytes of the record's length before it, bytes that may be added to end it
 *
 * Only a framing with 4 bytes of length and nothing added at the end lets ring/remote.c read a ring through the mount.
 */
#define RELAY_FRAMINGS(ROW)                       \
	ROW(RELAY_FRAMING_RAW, "raw", 0, 0)       \
	ROW(RELAY_FRAMING_LENGTH, "length", 4, 0) \
	ROW(RELAY_FRAMING_LINE, "line", 0, 1)

/* The bytes that framing adds to a record, at most. */
struct relay_frame {
	size_t before, behind;
};

#define RELAY_FRAME(number, word, before, behind) [number] = {before, behind},
static const struct relay_frame relay_frames[] = {RELAY_FRAMINGS(RELAY_FRAME)};
#undef RELAY_FRAME

/* Frame the record of `length` bytes at `to` + frame.before. Returns the length with what was added. */
static inline size_t relay_frame_put(struct relay_frame frame, unsigned char *to, size_t length)
{
	uint32_t word = (uint32_t)length;
	memcpy(to, &word, frame.before);
	size_t end = frame.before + length;
	if (frame.behind && (!length || to[end - 1] != '\n'))
		to[end++] = '\n';
	return end;
}

#endif
