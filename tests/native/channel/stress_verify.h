/* SPDX-License-Identifier: MIT */
/* What the two halves of stress_verify share: what is read as a stream, and what is taken from the memory. */
#ifndef STRESS_VERIFY_H
#define STRESS_VERIFY_H

#include <pthread.h>
#include <stdbool.h>

#include "stress_account.h"

enum { REOPEN_SECONDS = 60, WAIT_MS = 50 };

/* One buffer and its thread. */
struct source {
	struct tally tally;
	pthread_t thread;
	struct rchan_buf *buf; /* for the statistics, and for `consume` */
	char *data;            /* read(2): what has come; `held` bytes of it belong to a cut record */
	size_t held;
	char *previous; /* --reopen: what the last read gave */
	size_t previous_length;
	bool is_opened;
	bool unnoted; /* the buffer does not know that `previous` was read, from unnoted_at on */
	size_t unnoted_at;
};

struct verify_options {
	const char *ledger_file, *reader, *callback;
	struct account_options account;
	bool reopen;
	uint64_t max_bytes;
};

extern struct verify_options options;

/* Whoever removes the channel from now on takes nothing away from this source. */
void tell_opened(struct source *s);
bool no_more_writers(void);
/* Complain of the bytes at data + at, which are no record. */
void complain_of(const struct source *s, const char *problem, const char *data, size_t length, size_t at);
/* Enter the records in the next `length` bytes at s->data + s->held; the rest is held. */
void take_stream(struct source *s, size_t length);

/* Each reads all that there is, until nobody writes any more: zero copy; as a file server; the memory as it lies there. */
void read_zero_copy(struct source *s);
void consume(struct source *s);
void read_mapped(struct source *s);

#endif
