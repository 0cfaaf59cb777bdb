/* SPDX-License-Identifier: MIT */
/*
 * What stress_producer writes and stress_verify expects.
 *
 *    63        52 51      42 41             16 15      0
 *   +------------+----------+-----------------+---------+------------------------------+
 *   | length - 1 |  stream  |    sequence     |  check  | length - 8 bytes of payload  |
 *   +------------+----------+-----------------+---------+------------------------------+
 *
 * Eight bytes are the smallest record, so everything that names a record must fit them. The payload is a
 * function of that word, check included: comparing it finds every foreign, stale or missing byte, which no
 * checksum of that size could. Length is a function of stream and sequence, so who knows how many records
 * were written knows how many bytes.
 *
 * A stream is one writer's series of records: each thread has one, each thread's signal handler another.
 * The sequence goes on only when a record was taken: the records of a stream are 0 .. written - 1.
 *
 * The ledger is a file that all map. A writer says there what it is about to write, and then that it has
 * written it: when it is killed, the records between are in doubt, those that it had reserved and one more.
 *
 * Resets. Whoever resets the channel notes before it what was surely written, and after it what had been begun.
 * Who reads after the reset may not get what was written before it, and must get what was begun after it. Several
 * may do so at once: each raises the numbers.
 *
 * With a callback, each sub-buffer begins with a word like a record's, of stream STRESS_SUBBUF, whose sequence
 * is the padding at its end, or STRESS_UNFINISHED.
 */
#ifndef STRESS_H
#define STRESS_H

#include <stdint.h>
#include <string.h>

enum {
	STRESS_LENGTH_MIN = 8,
	STRESS_LENGTH_MAX = 4096,
	STRESS_N_STREAMS = 1024,
	STRESS_SEQUENCE_BITS = 26,
	STRESS_CHECK_BITS = 16,
	STRESS_SUBBUF = STRESS_N_STREAMS - 1,
	STRESS_UNFINISHED = (1 << STRESS_SEQUENCE_BITS) - 1
};
#define STRESS_N_SEQUENCES (1ull << STRESS_SEQUENCE_BITS)

/* Writer: the stream's own thread or handler, alone. */
struct stress_slot {
	uint64_t tried;        /* records begun: stored before the write, taken back if it is refused */
	uint64_t written;      /* all records below this are written and committed: stored after it */
	uint64_t full_records; /* refused with ENOSPC */
	uint64_t full_bytes;
	uint64_t other; /* refused with anything else: never expected */
	uint64_t other_errno;
	uint64_t discarding; /* reservations begun that are not to become records, taken back if refused */
	uint64_t discarded;  /* ... discarded */
	uint64_t discarded_bytes;
	uint64_t disabled_records; /* refused with ECANCELED */
	uint64_t disabled_bytes;
	uint64_t unused[5];
};

/* Of one stream. Writers: whoever resets, upwards only. */
struct stress_reset {
	uint64_t written, discarded; /* when a reset began that has ended */
	uint64_t tried, discarding;  /* when it ended */
};

struct stress_ledger {
	struct stress_slot slot[STRESS_N_STREAMS];
	struct stress_reset reset[STRESS_N_STREAMS];
	uint64_t n_resets; /* ended: stored after their numbers */
	uint64_t n_calls;  /* of all who control */
};

struct stress_record {
	uint32_t stream, sequence, length;
};

/* The finaliser of splitmix64: every bit of the result depends on every bit of x. */
static inline uint64_t stress_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline uint64_t stress_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* 8 .. 4096, small ones more often: they make the most switches of writer and the most work per byte. */
static inline uint32_t stress_length(uint32_t stream, uint32_t sequence)
{
	uint64_t h = stress_mix((uint64_t)stream << 32 | sequence);
	uint32_t above_min = (uint32_t)(h & 0xffffffff) % (STRESS_LENGTH_MAX - STRESS_LENGTH_MIN + 1);

	return STRESS_LENGTH_MIN + (above_min >> (h >> 61));
}

static inline uint64_t stress_header(uint32_t stream, uint32_t sequence, uint32_t length)
{
	uint64_t word = (uint64_t)(length - 1) << 52 | (uint64_t)stream << 42 | (uint64_t)sequence << STRESS_CHECK_BITS;

	return word | (stress_mix(word) & ((1u << STRESS_CHECK_BITS) - 1));
}

static inline uint64_t stress_payload(uint64_t key, uint32_t at)
{
	return key + at * 0x9e3779b97f4a7c15ull;
}

static inline void stress_fill(char *record, uint32_t stream, uint32_t sequence)
{
	uint32_t length = stress_length(stream, sequence), at;
	uint64_t word = stress_header(stream, sequence, length), key = stress_mix(word);

	memcpy(record, &word, 8);
	for (at = 8; at + 8 <= length; at += 8) {
		word = stress_payload(key, at);
		memcpy(record + at, &word, 8);
	}
	word = stress_payload(key, at);
	memcpy(record + at, &word, length - at);
}

/* What a sub-buffer begins with. */
static inline uint64_t stress_subbuf(uint32_t padding)
{
	return stress_header(STRESS_SUBBUF, padding, STRESS_LENGTH_MIN);
}

/* NULL: a whole record stands at `data`. Otherwise what is wrong with it; "cut" if only more bytes are missing. */
static inline const char *stress_parse(const char *data, size_t available, struct stress_record *record)
{
	uint64_t word, key, expected, differs = 0;
	uint32_t at;

	if (available < 8)
		return "cut";
	memcpy(&word, data, 8);
	record->length = (uint32_t)(word >> 52) + 1;
	record->stream = (uint32_t)(word >> 42) & (STRESS_N_STREAMS - 1);
	record->sequence = (uint32_t)(word >> STRESS_CHECK_BITS) & (STRESS_N_SEQUENCES - 1);
	if (word != stress_header(record->stream, record->sequence, record->length))
		return "not a header";
	if (record->stream == STRESS_SUBBUF)
		return record->length == STRESS_LENGTH_MIN ? NULL : "wrong length";
	if (record->length != stress_length(record->stream, record->sequence))
		return "wrong length";
	if (record->length > available)
		return "cut";
	key = stress_mix(word);
	for (at = 8; at + 8 <= record->length; at += 8) {
		memcpy(&word, data + at, 8);
		differs |= word ^ stress_payload(key, at);
	}
	expected = stress_payload(key, at);
	if (differs || memcmp(data + at, &expected, record->length - at) != 0)
		return "wrong payload";
	return NULL;
}

#endif
