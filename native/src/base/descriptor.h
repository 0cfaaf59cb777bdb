/* SPDX-License-Identifier: MIT */
/*
 * A descriptor that the library keeps, together with the identity of the file that it is open on. A program may close
 * descriptors that it has not opened, for example by closefrom(3), and get the same numbers for files of its own, which
 * the library must neither use nor close.
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

/* A descriptor for fd, which is open, or -1. If the file cannot be identified, relay_descriptor_is_ours() is false for
 * it. */
struct relay_descriptor relay_descriptor_keep(int fd);

/* True if the number is still open on the same file. */
bool relay_descriptor_is_ours(const struct relay_descriptor *descriptor);

/* Return a new descriptor of the open file of fd, above those of stdin, stdout and stderr, which an exec closes; or
 * -errno. */
int relay_descriptor_copy(int fd);

/* Close the descriptor if it is ours, and set it to RELAY_NO_DESCRIPTOR. */
void relay_descriptor_close(struct relay_descriptor *descriptor);

#endif
