/* SPDX-License-Identifier: MIT */
/*
 *     trace_long LENGTH ...      an event for each, with a string of that length; the letter tells which
 *     trace_long -t LENGTH N     the same in two threads at once, N events each
 */
#include <pthread.h>
#include <relayfs/trace.h>
#include <stdlib.h>
#include <string.h>

RELAY_TRACE_EVENT(long, text, (u32, n), (string, text), (u32, after))

static size_t length;
static uint32_t n_events;

static void emit(uint32_t n, size_t n_letters)
{
	char *text = malloc(n_letters + 1);

	if (!text)
		exit(1);
	memset(text, 'a' + (int)(n % 26), n_letters);
	text[n_letters] = 0;
	trace_long_text(n, text, ~n);
	free(text);
}

static void *emit_all(void *first)
{
	uint32_t n;

	for (n = 0; n < n_events; n++)
		emit(*(const uint32_t *)first + n, length);
	return NULL;
}

static int emit_in_threads(void)
{
	pthread_t thread;
	uint32_t first = 0, second = n_events;

	if (pthread_create(&thread, NULL, emit_all, &second) != 0)
		return 1;
	emit_all(&first);
	return pthread_join(thread, NULL) != 0;
}

int main(int argc, char **argv)
{
	int i;

	if (argc == 4 && strcmp(argv[1], "-t") == 0) {
		length = strtoull(argv[2], NULL, 0);
		n_events = (uint32_t)strtoul(argv[3], NULL, 0);
		return emit_in_threads();
	}
	for (i = 1; i < argc; i++)
		emit((uint32_t)i - 1, strtoull(argv[i], NULL, 0));
	return 0;
}
