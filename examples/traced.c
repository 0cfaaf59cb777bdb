/* cc -O2 -o traced traced.c $(pkg-config --cflags --libs relayfs) */
#include <inttypes.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>

/* Each declaration defines a function, such as trace_collatz_begin(number), which costs nothing while no trace wants it. */
RELAY_TRACE_EVENT(collatz, begin, (u64, number))
RELAY_TRACE_EVENT(collatz, end, (u64, number), (u32, steps), (f64, steps_per_digit), (string, verdict))

static uint32_t count_steps(uint64_t number)
{
	uint32_t steps = 0;
	for (; number > 1; steps++)
		number = number % 2 ? 3 * number + 1 : number / 2;
	return steps;
}

/* Print how many steps the numbers up to N take to become 1: traced N. The steps are traced. */
int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 10, longest = 0;
	uint32_t most = 0;
	for (uint64_t number = 1; number <= n; number++) {
		trace_collatz_begin(number);
		uint32_t steps = count_steps(number);
		int digits = snprintf(NULL, 0, "%" PRIu64, number);
		trace_collatz_end(number, steps, (double)steps / digits, steps > most ? "a record" : "as others");
		if (steps > most) {
			most = steps;
			longest = number;
		}
	}
	printf("%" PRIu64 "\n", longest);
	return 0;
}
