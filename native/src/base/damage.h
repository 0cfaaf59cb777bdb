/* SPDX-License-Identifier: MIT */
/*
 * A note of a word in shared memory that cannot be right: which word, its value, and the limit that it exceeds. A
 * function that finds such a word fills in the note and returns -EBADMSG; relay_damage_text() makes a sentence of the
 * note.
 */
#ifndef RELAYFS_BASE_DAMAGE_H
#define RELAYFS_BASE_DAMAGE_H

#include "base/latch.h"

#include <stdbool.h>
#include <stdint.h>

struct relay_damage {
	const char *where; /* name of the word, as "relay_subbuf[].end", whose brackets get the index; NULL: no note */
	const char *rule;  /* how value and limit relate, as "more than"; NULL: `where` is the whole sentence */
	uint64_t index, value, limit;
	char text[192]; /* of relay_damage_text() */
};

/* Fill in the note; the strings must be constants. Returns -EBADMSG. Async-signal-safe. */
int relay_damage_note(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value, const char *rule,
                      uint64_t limit);

/* Note a contradiction between several words as a whole sentence, a constant. Returns -EBADMSG. */
int relay_damage_say(struct relay_damage *damage, const char *sentence);

/* Returns 0, or -EBADMSG with a note that `value` is more than `most`. */
static inline int relay_damage_above(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value,
                                     uint64_t most)
{
	return value <= most ? 0 : relay_damage_note(damage, where, index, value, "more than", most);
}

/* Returns 0, or -EBADMSG with a note that `value` is less than `least`. */
static inline int relay_damage_below(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value,
                                     uint64_t least)
{
	return value >= least ? 0 : relay_damage_note(damage, where, index, value, "less than", least);
}

/* Add `value` to *sum and return 0; or -EBADMSG with a note if the sum of all words that `where` names exceeds 63
 * bits. */
static inline int relay_damage_add(struct relay_damage *damage, const char *where, uint64_t value, uint64_t *sum)
{
	int err = relay_damage_above(damage, where, 0, value, INT64_MAX - *sum);
	*sum += err ? 0 : value;
	return err;
}

/* Load a latch of {lost records, their bytes}. Returns 0, or -EBADMSG with a note if the bytes exceed 63 bits, or the latch
 * kept changing. */
int relay_damage_loss(struct relay_damage *damage, const char *where, const struct relay_latch *lost, uint64_t *records,
                      uint64_t *bytes);

/* Remove the note: the words contradicted each other only because they had changed while they were read. */
static inline void relay_damage_forget(struct relay_damage *damage)
{
	damage->where = 0;
}

/* The note as a sentence, "relay_subbuf[0].start_bytes is 9, more than 8"; "" if there is none. Valid until the next
 * call for the same note. */
const char *relay_damage_text(struct relay_damage *damage);

#endif
