/* SPDX-License-Identifier: MIT */
/*
 * What a reader found in shared memory that no honest program leaves there: which word, what it is, and which limit it
 * breaks. Functions that find such a word return -EBADMSG and leave the note to whoever asks for the text.
 */
#ifndef RELAYFS_BASE_DAMAGE_H
#define RELAYFS_BASE_DAMAGE_H

#include <stdbool.h>
#include <stdint.h>

struct relay_damage {
	const char *where; /* "relay_subbuf[].end": the index goes between the brackets. NULL: nothing was found */
	const char *rule; /* what the value is and must not be, "more than", before the limit; NULL: `where` says all */
	uint64_t index, value, limit;
	char text[192]; /* made when it is asked for */
};

/* Note a word. Always -EBADMSG. Async-signal-safe. */
int relay_damage_note(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value, const char *rule,
                      uint64_t limit);

/* Note what one word alone does not show: `where` is the whole sentence. Always -EBADMSG. */
int relay_damage_say(struct relay_damage *damage, const char *sentence);

/* 0, or a note that `value` is more than `most`. */
static inline int relay_damage_above(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value,
                                     uint64_t most)
{
	return value <= most ? 0 : relay_damage_note(damage, where, index, value, "more than", most);
}

/* The same for `value` that is less than `least`. */
static inline int relay_damage_below(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value,
                                     uint64_t least)
{
	return value >= least ? 0 : relay_damage_note(damage, where, index, value, "less than", least);
}

/* 0 and `value` added to *sum, or a note that the sum of all that `where` names would not fit into 63 bits. */
static inline int relay_damage_add(struct relay_damage *damage, const char *where, uint64_t value, uint64_t *sum)
{
	int err = relay_damage_above(damage, where, 0, value, INT64_MAX - *sum);
	*sum += err ? 0 : value;
	return err;
}

/* It was no damage: what was read had changed meanwhile. */
static inline void relay_damage_forget(struct relay_damage *damage)
{
	damage->where = 0;
}

/* "relay_subbuf[0].start_bytes is 9, more than 8"; "": there is no note. Valid until the next call for it. */
const char *relay_damage_text(struct relay_damage *damage);

#endif
