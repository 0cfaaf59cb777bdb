/* SPDX-License-Identifier: MIT */
/*
 * READs of relay files that are answered without Python: those of a descriptor that reads on, while there are bytes.
 * relayfs_fuse/fs/kinds/queues.py says for which open files. All functions are called in the thread that runs the FUSE loop.
 *
 * Python answers all other READs, of the same files, too: those that have to wait, that seek, that a server before this
 * one was asked for, or that find no bytes or an error. It always begins anew.
 */
#ifndef RELAY_TAP_LANE_H
#define RELAY_TAP_LANE_H

#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>

struct rchan_buf;

/* Where a reader of a file with offsets is. */
struct relay_lane_place {
	uint64_t end;      /* the offset of the next byte to consume */
	uint64_t consumed; /* the stream position before which all was consumed when it read last */
	uint64_t kept_end; /* how many bytes were kept since the file was opened */
	uint64_t n_kept;   /* so many of them, the last ones, can be read again */
};

/* The same in memory that the next server has, too (relayfs_fuse/fs/kinds/place.py). */
struct relay_lane_noted {
	uint64_t unique; /* of a READ: `next` counts if the kernel has its answer, else `now`; 0: `now` */
	struct relay_lane_place now, next;
};

/* An open file. It belongs to Python, which changes it between two calls of functions of this file. */
struct relay_lane {
	uint64_t fh;             /* the kernel's number of the file */
	struct rchan_buf *buf;   /* is mapped while the file is open */
	uint64_t number;         /* of the buffer, as relay_tap_read() takes it */
	uint64_t most;           /* the most bytes of one reply */
	const uint32_t *is_told; /* not 0: Python is to know of each READ of the buffer */
	/* Only of files with offsets: */
	struct relay_lane_noted *noted; /* NULL: the file has no offsets */
	unsigned char *kept;            /* byte n that was kept is at n modulo kept_room */
	uint64_t kept_room;
	uint64_t kept_most; /* the most bytes that are kept */
	uint64_t large; /* of a READ of so many bytes only kept_of_large bytes are kept, unless none were kept before */
	uint64_t kept_of_large;
	uint32_t overwrite; /* the buffer is in overwrite mode */
	uint32_t is_off;    /* Python is to answer the next READ of the file */
	struct relay_lane *next;
};

/* Answer READs of this file from now on, until relay_tap_lane_close(). */
void relay_tap_lane_open(struct relay_lane *lane);
void relay_tap_lane_close(uint64_t fh);

/* ---- for at_once.c ---- */

/* Answer a message of the kernel, and return 1. 0: it is not one that is answered here. */
int relay_lane_answer(int fd, const struct fuse_in_header *in, size_t length);

#endif
