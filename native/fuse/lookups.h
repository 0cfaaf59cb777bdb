/* SPDX-License-Identifier: MIT */
/*
 * Lookups that are answered while libfuse reads its next message, without a turn of the server's loop: of programs that look
 * at many files, as ls does, nearly all requests are such.
 */
#ifndef RELAY_TAP_LOOKUPS_H
#define RELAY_TAP_LOOKUPS_H

#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Store the answer to the lookup of a name in the directory with the number `parent`, by a thread, and return 1. 0: the
 * handler of the request is to answer it. */
typedef int relay_tap_lookup(uint64_t parent, const char *name, uint32_t thread);

/* Wait a moment for the next message, and return 1 if there is one. 0: there is none, or another task of the server is to run. */
typedef int relay_tap_next(void);

/* From now on call `lookup` for each lookup of a name, which stores its answers in *entry; and then `next`. */
void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry, relay_tap_next *next);

/* As read(2) of the next message from /dev/fuse, without lookups that could be answered. -1 and EINTR: for a moment there is no
 * other message, or other tasks of the server should run. */
ssize_t relay_tap_read_others(int fd, void *message, size_t room);

#endif
