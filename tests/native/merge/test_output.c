/* SPDX-License-Identifier: MIT */
/* Numbers are written as printf() writes them. */
#define _GNU_SOURCE
#include "check.h"

#include <merge/output.h>
#include <stdio.h>
#include <stdlib.h>

LIBRARY(static);

enum { NUMBERS = 60000 };

/* As few digits as tell the double from all others: 15, or else 17. */
static void check(struct relay_output *output, double number)
{
	char expected[40];

	snprintf(expected, sizeof(expected), "%.15g", number);
	if (strtod(expected, NULL) != number)
		snprintf(expected, sizeof(expected), "%.17g", number);
	output->length = 0;
	relay_put_double(output, number, false, "");
	relay_put_byte(output, 0);
	CHECK_TEXT(output->at, expected);
}

static double next(double number)
{
	uint64_t bits;

	memcpy(&bits, &number, sizeof(bits));
	bits++;
	memcpy(&number, &bits, sizeof(bits));
	return number;
}

TEST(doubles)
{
	struct relay_output output = {0};

	srand48(1);
	for (int i = 0; i < NUMBERS; i++) {
		const double digits = (double)(mrand48() * (i % 3 ? 1 : 1000003));
		double scale = 1;
		for (int n = i % 13; n > 0; n--)
			scale *= 10;
		check(&output, digits / scale);
		check(&output, next(digits / scale));
		check(&output, drand48() / scale);
	}
	/* Around the least number that has 16 digits with nine decimals. */
	for (int i = 0; i < 2000; i++)
		check(&output, 999999.5 + drand48());
	for (double least = 1e-5; least < 1e-3; least *= 1.01)
		check(&output, least);
	free(output.at);
}
