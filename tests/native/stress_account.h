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
	int64_t last[STRESS_N_STREAMS]; /* last sequence + 1 seen here */
};

void account_open(const char *ledger_file);

/* Enter a record. Thread-safe; `tally` belongs to the caller. */
void account_enter(struct tally *tally, const struct stress_record *record);

/* Add what one buffer says of itself to what its reader got. */
void account_add(const struct tally *tally, struct rchan_buf *buf);

/* After all account_add(): check, print one JSON object. Returns the number of complaints. */
unsigned account_close(bool overwrite, bool killed);

/* Something is wrong. The first 20 are printed. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die(const char *what);

#endif
