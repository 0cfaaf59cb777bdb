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

/* Store the answer to the lookup of a name in the directory with the number `parent`, by a thread, and return 1. 0: the
 * handler of the request is to answer it. */
typedef int relay_tap_lookup(uint64_t parent, const char *name, uint32_t thread);

/* From now on call `lookup` for each lookup of a name, which stores its answers in *entry. */
void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry);

/* ---- for at_once.c ---- */

/* Answer a message of the kernel, and return 1. 0: it is not one that is answered here. */
int relay_lookups_answer(int fd, const struct fuse_in_header *in, size_t length);

#endif
