/* SPDX-License-Identifier: MIT */
/*
 * The account of a stress run: each record that came is entered, then everything is held against the
 * producers' ledger and the buffers' own counts.
 */
#ifndef STRESS_ACCOUNT_H
#define STRESS_ACCOUNT_H

#include <relayfs/store.h>
#include <stdbool.h>

#include "stress.h"

/* What one reader got out of one buffer. Owner: its thread. */
struct tally {
	const char *relay_file, *mem_file;
	uint64_t records, bytes;
	uint64_t repeated; /* records given again by a file server that died before it noted the first time */
	uint64_t unnoted_records, unnoted_bytes; /* ... and not given again but overwritten */
	uint64_t lapped;                         /* pieces thrown away: overwritten while they were read */
	uint64_t reopened;
	uint64_t headers, header_bytes; /* what sub-buffers begin with, and end with in channels of 2003 */
	struct {
		uint64_t records, bytes, headers, header_bytes;
	} before;          /* of these: before the buffer's last reset that came to be known */
	uint64_t n_resets; /* those whose `floor` is known */
	uint64_t resets_met;
	uint64_t floor[STRESS_N_STREAMS]; /* what is below was written before they began */
	int64_t last[STRESS_N_STREAMS];   /* last sequence + 1 seen here */
};

void account_open(const char *ledger_file);

/* What the ledger says of one run. */
struct account_options {
	bool overwrite;
	bool killed;           /* producers were */
	bool resets;           /* somebody resets the buffers */
	bool passed;           /* others than the reader call `consumed`, too */
	uint64_t client_bytes; /* what the client put around the records of a channel of 2003 */
	uint32_t tail_bytes;   /* behind each record; the length of those that are entered has it, too */
};

/* Before a read: what is read next was not written before the resets that have ended by now. */
void account_before_read(struct tally *tally);

/* With the reader's lock held, so that no reset comes between: does the buffer know what its reader got? */
void account_during_read(struct tally *tally, struct rchan_buf *buf, const struct account_options *options);

/* Enter a record. Thread-safe; `tally` belongs to the caller. */
void account_enter(struct tally *tally, const struct stress_record *record);

/* Add what one buffer says of itself to what its reader got. */
void account_add(struct tally *tally, struct rchan_buf *buf, const struct account_options *options);

/* After all account_add(): check, print one JSON object. Returns the number of complaints. */
unsigned account_close(const struct account_options *options);

/* Something is wrong. The first 20 are printed. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die(const char *what);

#endif
