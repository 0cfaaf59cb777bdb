/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/split_store.h>: cut a stream of bytes into records and write them, for tools; symbols as in <relayfs/store.h>.
 *
 *     struct relay_split split = {.chan = relay_attach("/mnt/relay/app/cpu"), .by = RELAY_SPLIT_LINES};
 *     relay_split_start(&split);
 *     passed = relay_split_write(&split, bytes, length, 0);        bytes from `passed` on: a part of a record, or refused
 */
#ifndef RELAYFS_SPLIT_STORE_H
#define RELAYFS_SPLIT_STORE_H

#include <relayfs/relay.h>
#include <relayfs/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

enum relay_split_by {
	RELAY_SPLIT_LINES = 0, /* a record is a line, with its newline */
	RELAY_SPLIT_FIXED = 1, /* a record has `fixed` bytes */
	RELAY_SPLIT_PREFIXED =
	    2, /* a record follows its length, 4 bytes, little endian, as rings with framing=length return it */
	RELAY_SPLIT_SEPARATED = 3 /* a record ends with the byte `separator`, which belongs to it */
};

/* What a full buffer means. */
enum relay_split_full {
	RELAY_SPLIT_LOSES = 0, /* the record is lost, and the next one is written */
	RELAY_SPLIT_WAITS = 1, /* the call ends, because the caller tries again */
	RELAY_SPLIT_ENDS = 2   /* the record is lost, and the call ends */
};

/* Where records go, and what has happened to them. */
struct relay_split {
	/* Set by the caller: */
	struct rchan *chan;        /* one of these two, */
	struct relay_rings *rings; /* the other is NULL */
	uint32_t by;               /* enum relay_split_by */
	uint32_t waits;            /* enum relay_split_full */
	size_t fixed;              /* 1 or more */
	uint32_t separator;        /* 0 to 255 */
	uint64_t flags;            /* of relay_rings_output() */
	/* Set by relay_split_start(): */
	size_t largest; /* no longer record can be written */
	/* Changed by relay_split_write(): */
	uint64_t records, bytes; /* that were written, */
	uint64_t full;           /* records that were lost because a buffer was full, and the call went on */
	size_t searched;         /* bytes at the start of the next call's data in which there is no separator */
	int error;     /* 0, or why the next record was refused, a negative errno; -ENOSPC: full; -EMSGSIZE: too long */
	int result;    /* the same as the function of the channel, or of rings, has returned it */
	size_t length; /* the length of this record; of a line without an end so far, that part */
	size_t extent; /* the bytes that it takes in the stream; 0: up to the next separator */
};

/* Set `largest`. Returns 0; -EINVAL: the caller's fields are not valid. */
int relay_split_start(struct relay_split *split);

/*
 * Write the records that `data` begins with, in order, up to the first that is refused (split->error) or not complete.
 *
 * ends  1: the stream ends behind `data`, so that a last line needs no newline
 *
 * Returns the number of bytes of the records that were written or lost. If the next record was refused, the caller skips
 * split->extent bytes, or calls again with the same bytes.
 */
size_t relay_split_write(struct relay_split *split, const void *data, size_t length, int ends);

/*
 * Start, and write the records of all of `data`, up to the first that is refused. `waits` is RELAY_SPLIT_ENDS, so that this one
 * is counted as lost.
 *
 * Returns the number of records written. If the very first one is refused, returns its error as relay_write() or
 * relay_rings_output() does; -EINVAL: the caller's fields are not valid.
 */
long relay_split_all(struct relay_split *split, const void *data, size_t length);

#ifdef __cplusplus
}
#endif
#endif
