/* SPDX-License-Identifier: MIT */
/*
 * Lookups that are answered without a turn of the server's loop: of programs that look at many files, as ls does, nearly all
 * requests are such. The server tells the tap of files that nobody has open; what a listing shows of one is looked up in its mem
 * file each time. Other lookups are answered by a function of the server.
 */
#ifndef RELAY_TAP_LOOKUPS_H
#define RELAY_TAP_LOOKUPS_H

#include <linux/fuse.h>
#include <relayfs/store.h>
#include <stddef.h>
#include <stdint.h>

/* relay_buf_show() or relay_ring_show(). */
typedef int relay_tap_show(void *mapped, const char *mem_file, struct relay_shown *shown, struct relay_empty *empty);

/* A relay file that nobody has open. */
struct relay_tap_known {
	uint64_t parent, inode; /* numbers of its directory and of itself */
	uint64_t mem_inode;     /* of the mem file; another one has replaced it if it differs */
	uint64_t written;       /* as long as this is what was written, the data was changed last at `mtime_ns` */
	int64_t mtime_ns;
	relay_tap_show *show;
	uint32_t block_size;   /* st_blksize */
	uint32_t counts_holes; /* 1: discarded records are part of st_size */
};

/* Answer lookups of this name in its directory, until relay_tap_forget(). NULL: no memory. */
struct relay_tap_file *relay_tap_learn(const char *name, const char *mem_file, const struct relay_tap_known *known);
/* Return how many were answered, which the kernel will forget again. */
uint64_t relay_tap_lookups(const struct relay_tap_file *file);
/* Count from 0 again. */
void relay_tap_lookups_taken(struct relay_tap_file *file);
void relay_tap_forget(struct relay_tap_file *file);

enum relay_tap_answer {
	RELAY_TAP_HANDLER,  /* the handler of the request is to answer it */
	RELAY_TAP_ANSWERED, /* the answer is stored */
	RELAY_TAP_LEARNT    /* the name is one of a known file now */
};

/* Answer the lookup of a name in the directory with the number `parent`, by a thread. Returns one of enum relay_tap_answer; to
 * the second call for a lookup, if what it has told of the file was not true any more, not RELAY_TAP_LEARNT. */
typedef int relay_tap_lookup(uint64_t parent, const char *name, uint32_t thread);

/* From now on call `lookup` for each lookup of a name that is not of a known file, which stores its answers in *entry. */
void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry);

/* ---- for at_once.c ---- */

/* Answer a message of the kernel, and return 1. 0: it is not one that is answered here. */
int relay_lookups_answer(int fd, const struct fuse_in_header *in, size_t length);

#endif
