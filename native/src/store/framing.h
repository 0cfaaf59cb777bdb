/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_STORE_FRAMING_H
#define RELAYFS_STORE_FRAMING_H

#include <relayfs/ring_layout.h>

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

#endif
