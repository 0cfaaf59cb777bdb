/* SPDX-License-Identifier: MIT */
/* The command lines of the stress programs: a table says where each option's value goes. */
#ifndef STRESS_OPTIONS_H
#define STRESS_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* --NAME, one of them not NULL: a flag has no value, all others have one. */
struct stress_option {
	const char *name;
	bool *flag;
	const char **text;
	uint64_t *number;
	void (*call)(const char *value);
};

enum { STRESS_MAX_OPTIONS = 32 };

/* Options end with one without a name; `optind` is that of the first word behind them. */
static inline void stress_parse_options(int argc, char **argv, const struct stress_option *known)
{
	struct option names[STRESS_MAX_OPTIONS] = {0};
	int at, found;

	for (at = 0; known[at].name; at++)
		names[at] = (struct option){known[at].name, !known[at].flag, NULL, 0};
	while ((found = getopt_long(argc, argv, "", names, &at)) != -1) {
		if (found != 0)
			exit(2);
		if (known[at].flag)
			*known[at].flag = true;
		else if (known[at].text)
			*known[at].text = optarg;
		else if (known[at].number)
			*known[at].number = strtoull(optarg, NULL, 0);
		else
			known[at].call(optarg);
	}
}

#endif
