/* SPDX-License-Identifier: MIT */
/* What the two halves of stress_classic have in common: the channel, its writers and callbacks, and its reader. */
#ifndef STRESS_CLASSIC_H
#define STRESS_CLASSIC_H

#define RELAYFS_CLASSIC_LONG_NAMES
#include <relayfs/classic.h>

#include "classic_marks.h"
#include "stress_account.h"

enum { PAUSE_NS = 50000 };

#define CHANNEL_PATH "/stress/classic"

extern struct options {
	const char *mode, *relay_file;
	bool mapped, packet;
	uint32_t flags;
	uint64_t n_records;
} options;

/* What all processes have in common. */
extern struct channel {
	int id; /* 0 is one, too */
	uint32_t bufsize, n_bufs;
	struct stress_ledger *ledger;
} channel;

/* Count it, and say what it is. */
void wrong(const char *what, uint64_t left, uint64_t right);

/* Does buffers_full? */
bool suspends(void);

struct rchan_info info_of_channel(void);
bool writers_are_done(void);

/* --- stress_classic_reader.c --- */

void open_reader(void);

/* As the options say, until all writers are done. */
void read_while_written(void);

/* What is left; nobody writes meanwhile. */
void read_all(void);

/* Where it stands in the stream. */
const struct walk *reader_walk(void);

/* Hold what was read against the ledger; `client_bytes` of it are the callbacks'. Returns the number of complaints. */
unsigned close_reader(uint64_t client_bytes);

#endif
