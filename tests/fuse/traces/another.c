/* SPDX-License-Identifier: MIT */
/* A traced program with other events than traced.c, which that becomes: writes four of each, and reads its input to its end. */
#include <relayfs/trace.h>
#include <stdio.h>

RELAY_TRACE_EVENT(another, step, (u64, seq))
RELAY_TRACE_EVENT(another, one, (u64, seq))

int main(void)
{
	uint64_t seq;

	for (seq = 0; seq < 4; seq++) {
		trace_another_step(seq);
		trace_another_one(seq);
	}
	puts("0");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
