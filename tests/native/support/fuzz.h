/* SPDX-License-Identifier: MIT */
/* What the programs for libFuzzer share. */
#ifndef FUZZ_H
#define FUZZ_H

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

#endif
