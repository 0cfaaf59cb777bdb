/* SPDX-License-Identifier: MIT */
/* Random numbers that are the same in each run: Marsaglia's xorshift64. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* Programs may set it to a seed, which is not 0. */
static uint64_t random_state = 88172645463325252ull;

static inline uint64_t random_word(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static inline uint64_t random_below(uint64_t n)
{
	return (random_word() >> 11) % n;
}

#endif
