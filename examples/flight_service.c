/* cc -O2 -o flight_service flight_service.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* What the recorder gets of each request: a span, and how long it took. */
RELAY_TRACE_SPAN(web, request, (u64, number))
RELAY_TRACE_EVENT(web, answered, (u64, number), (f64, ms))
/* What was set long before: a state, which is at the front of each snapshot. */
RELAY_TRACE_STATE(web, setting, (string, name), (u64, value))

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void answer(uint64_t number, uint64_t slow)
{
	RELAY_TRACE_SCOPE(web, request)(number);
	if (number == slow)
		nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
}

/* Answer N requests, of which number SLOW takes a quarter of a second: flight_service N SLOW. Then wait for the end of the
 * standard input. */
int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: flight_service N SLOW");
	const uint64_t n = strtoull(argv[1], NULL, 10), slow = strtoull(argv[2], NULL, 10);
	trace_web_setting("slow", slow);
	for (uint64_t number = 0; number < n; number++) {
		const double begin = now_ms();
		answer(number, slow);
		trace_web_answered(number, now_ms() - begin);
	}
	while (getchar() != EOF)
		;
	return 0;
}
