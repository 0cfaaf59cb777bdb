/* SPDX-License-Identifier: MIT */
/*
 * READs of relay files that are answered without Python: those of a descriptor that reads on, while there are bytes.
 * relayfs_fuse/fs/kinds/queues.py and records.py say for which open files. All functions are called in the thread that runs the
 * FUSE loop.
 *
 * Python answers all other READs, of the same files, too: those that have to wait, that seek, that a server before this
 * one was asked for, or that find no bytes or an error. It always begins anew.
 */
#ifndef RELAY_TAP_LANE_H
#define RELAY_TAP_LANE_H

#include <linux/fuse.h>
#include <relayfs/store.h>
#include <stddef.h>
#include <stdint.h>

struct rchan_buf;
struct relay_ring;

/* Where a reader is of a file with offsets, or of one that gives whole records, which has `end` only. */
struct relay_lane_place {
	uint64_t end;      /* the offset of the next byte to consume; of records: how many bytes were given */
	uint64_t consumed; /* the stream position before which all was consumed when it read last */
	uint64_t kept_end; /* how many bytes were kept since the file was opened */
	uint64_t n_kept;   /* so many of them, the last ones, can be read again */
};

/* The same in memory that the next server has, too (relayfs_fuse/fs/kinds/place.py). */
struct relay_lane_noted {
	uint64_t unique; /* of a READ: `next` counts if the kernel has its answer, else `now`; 0: `now` */
	struct relay_lane_place now, next;
};

/* What is noted before records are consumed (relayfs_fuse/fs/taking.py). */
struct relay_lane_taking {
	struct relay_taken
	    taken; /* Writers: the library, which knows it by relay_taken_store(), and those of the other words */
	uint64_t unique, fh; /* the READ that the records are for */
	uint64_t place;      /* where they are copied: RELAY_LANE_AREA */
};

enum { RELAY_LANE_AREA = 1 };

/* An open file. It belongs to Python, which changes it between two calls of functions of this file. */
struct relay_lane {
	uint64_t fh;                    /* the kernel's number of the file */
	struct rchan_buf *buf;          /* is mapped while the file is open */
	uint64_t number;                /* of the buffer, as relay_tap_read() takes it */
	uint64_t most;                  /* the most bytes of one reply */
	const uint32_t *is_told;        /* not 0: Python is to know of each READ of the buffer */
	struct relay_lane_noted *noted; /* NULL: the file is a stream of bytes, and has no place */
	/* Only of files with offsets: */
	unsigned char *kept; /* byte n that was kept is at n modulo kept_room */
	uint64_t kept_room;
	uint64_t kept_most; /* the most bytes that are kept */
	uint64_t large; /* of a READ of so many bytes only kept_of_large bytes are kept, unless none were kept before */
	uint64_t kept_of_large;
	/* Only of files that give whole records: */
	struct relay_lane_taking *taking; /* NULL: the file gives bytes */
	unsigned char *area;              /* room for `most` bytes, which the next server has, too */
	struct relay_ring *ring;          /* NULL: `buf` has the records */
	uint32_t overwrite;               /* the buffer is in overwrite mode */
	uint32_t is_off;                  /* Python is to answer the next READ of the file */
	struct relay_lane *next;
};

/* Answer READs of this file from now on, until relay_tap_lane_close(). */
void relay_tap_lane_open(struct relay_lane *lane);
void relay_tap_lane_close(uint64_t fh);

/* ---- for at_once.c ---- */

/* Answer a message of the kernel, and return 1. 0: it is not one that is answered here. */
int relay_lane_answer(int fd, const struct fuse_in_header *in, size_t length);

#endif
