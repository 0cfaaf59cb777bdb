/* SPDX-License-Identifier: MIT */
/*
 * A descriptor that the library keeps, with the file that it was opened on. A program may close numbers that it does not
 * know, as closefrom(3) does, and get them again for files of its own: those the library must neither use nor close.
 */
#ifndef RELAYFS_BASE_DESCRIPTOR_H
#define RELAYFS_BASE_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

struct relay_descriptor {
	int fd; /* -1: none */
	uint32_t major, minor;
	uint64_t inode;
};

static const struct relay_descriptor RELAY_NO_DESCRIPTOR = {.fd = -1};

/* Keep fd, which is open; or -1. */
struct relay_descriptor relay_descriptor_keep(int fd);

/* Is it still open on that file? */
bool relay_descriptor_is_ours(const struct relay_descriptor *descriptor);

/* Close it, if it is still ours. Afterwards there is none. */
void relay_descriptor_close(struct relay_descriptor *descriptor);

#endif
