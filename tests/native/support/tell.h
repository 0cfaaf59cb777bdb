/* SPDX-License-Identifier: MIT */
/* Answers of programs that tests talk to through pipes. */
#ifndef TELL_H
#define TELL_H

#include <stdio.h>

/* One line, whole, whichever thread it comes from. */
#define TELL(...)                    \
	do {                         \
		flockfile(stdout);   \
		printf(__VA_ARGS__); \
		fflush(stdout);      \
		funlockfile(stdout); \
	} while (0)

#endif
