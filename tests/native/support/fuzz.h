/* SPDX-License-Identifier: MIT */
/* What the programs for libFuzzer share. */
#ifndef FUZZ_H
#define FUZZ_H

#include <relayfs/trace_event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void must(bool true_always, const char *what)
{
	if (true_always)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

struct input {
	const uint8_t *at;
	size_t left;
};

/* The next byte; 0: there is none. */
static inline uint8_t take(struct input *input)
{
	if (!input->left)
		return 0;
	input->left--;
	return *input->at++;
}

/* What a field of an event is besides its type: mostly nothing, a sequence, an array, an enum, or what cannot be. */
static inline uint32_t form_of(unsigned byte)
{
	switch (byte % 8) {
	case 0:
		return RELAY_TRACE_IS_SEQUENCE;
	case 1:
		return (byte / 8 + 1) << RELAY_TRACE_COUNT_SHIFT;
	case 2:
		return RELAY_TRACE_IS_ENUM;
	case 3:
		return byte << 8;
	default:
		return 0;
	}
}

#endif
