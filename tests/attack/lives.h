/* SPDX-License-Identifier: MIT */
/*
 * The many short lives of a hostile program: each is a child that attacks until its time is over, and ends in order or is
 * killed somewhere.
 *
 * The program prints "attacking" first, and when its input ends "lives N stores N broke N", with a line for each thing that
 * must be impossible and was done.
 */
#ifndef ATTACK_LIVES_H
#define ATTACK_LIVES_H

#include <stdbool.h>
#include <stdint.h>

/* Let child after child call `live`, each with random numbers of its own, until the standard input ends. Returns the
 * program's exit status. */
int lives_run(uint64_t seed, void (*live)(void));

/* False once the time of this life is over. */
bool lives_goes_on(void);

/* Count `n` stores, or whatever else this program attacks with. */
void stored(uint64_t n);

/* Report `what`, which must be impossible, if it was done. */
void must_fail(bool done, const char *what);

uint64_t now_us(void);

/* Random numbers, which follow from the seed. */
uint64_t random_word(void);
uint64_t random_below(uint64_t limit);

#endif
