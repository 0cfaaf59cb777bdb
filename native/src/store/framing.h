/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_STORE_FRAMING_H
#define RELAYFS_STORE_FRAMING_H

#include <relayfs/ring_layout.h>

/*
 * All framings of records:
 *
 *     enum relay_framing, word, bytes of the record's length before it, bytes that may be added to end it
 *
 * With a length of 4 bytes, and nothing behind, a ring can be read through the mount alone (ring/remote.c).
 */
#define RELAY_FRAMINGS(ROW)                       \
	ROW(RELAY_FRAMING_RAW, "raw", 0, 0)       \
	ROW(RELAY_FRAMING_LENGTH, "length", 4, 0) \
	ROW(RELAY_FRAMING_LINE, "line", 0, 1)

#endif
