/* SPDX-License-Identifier: MIT */
/* The part of struct relay_shown that stat(2) tells. */
#ifndef RELAYFS_BASE_SHOWN_H
#define RELAYFS_BASE_SHOWN_H

#include "base/mapping.h"

struct relay_shown;

/* Open a mem file to look at it; an immutable one stays so. Fills in owner, mode, inode number and ctime. Returns its
 * descriptor, or -errno. */
int relay_show_open(const char *path, struct relay_shown *shown);

/* Fill in owner, mode, inode number and ctime of a mapped file, by its path if its descriptor is closed. 0 or -errno. */
int relay_show_status(const struct relay_mapping *mapping, const char *path, struct relay_shown *shown);

#endif
