/* SPDX-License-Identifier: MIT */
/*
 * A traced program that writes over the events in its own buffers, so that they are not what it has declared, and traces on.
 *
 *     trace_scribbler SEED ROUNDS DATA_BYTES
 *
 * DATA_BYTES: how much of each buffer is events; what follows that tells where they are, and stays as it is. Each round
 * traces some events and changes some words of them. Then it prints "scribbled" and waits for its end.
 */
#define _GNU_SOURCE
#include "random.h"

#include <inttypes.h>
#include <relayfs/trace.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

RELAY_TRACE_EVENT(scribbler, plain, (u64, seq), (u8, small), (f64, real))
RELAY_TRACE_EVENT(scribbler, text, (string, path), (u32, n), (string, more))
RELAY_TRACE_EVENT(scribbler, blob, (bytes, data), (i16, n), (bytes, other))

enum { MAX_BUFFERS = 256, EVENTS_A_ROUND = 60, WORDS_A_ROUND = 12, WORDS_AT_END = 300 };

static unsigned char *buffers[MAX_BUFFERS];
static unsigned n_buffers;
static void find_buffers(void)
{
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t start;

	while (maps && n_buffers < MAX_BUFFERS && fgets(line, sizeof(line), maps))
		if (strstr(line, " rw-s ") && strstr(line, "/mem") && sscanf(line, "%" SCNxPTR "-", &start) == 1)
			buffers[n_buffers++] = (unsigned char *)start;
	if (maps)
		fclose(maps);
}

static void trace_some(uint64_t round)
{
	static const char bytes[300] = "bytes";
	unsigned i;

	for (i = 0; i < EVENTS_A_ROUND; i++) {
		trace_scribbler_plain(round * EVENTS_A_ROUND + i, (uint8_t)i, i / 2.0);
		trace_scribbler_text("/some/where", i, i % 2 ? "" : "else");
		trace_scribbler_blob(bytes, random_word() % sizeof(bytes), (int16_t)-i, bytes, i % 5);
	}
}

/* Zeros, ones, small numbers and what is a little off get further than noise. */
static uint64_t spoilt(uint64_t word)
{
	switch (random_word() % 6) {
	case 0:
		return 0;
	case 1:
		return ~0ull;
	case 2:
		return word + random_word() % 16 - 8;
	case 3:
		return random_word() % 256;
	case 4:
		return word ^ 1ull << random_word() % 64;
	}
	return random_word();
}

static void scribble(unsigned char *data, uint64_t data_bytes, unsigned n_words)
{
	uint64_t word;
	unsigned i;

	for (i = 0; i < n_words; i++) {
		unsigned char *at = data + random_word() % (data_bytes - sizeof(word));
		memcpy(&word, at, sizeof(word));
		word = spoilt(word);
		memcpy(at, &word, sizeof(word));
	}
}

int main(int argc, char **argv)
{
	uint64_t round, rounds, data_bytes;
	unsigned i;

	if (argc != 4)
		return 2;
	random_state = strtoull(argv[1], NULL, 0) * 2 + 1;
	rounds = strtoull(argv[2], NULL, 0);
	data_bytes = strtoull(argv[3], NULL, 0);
	trace_some(0);
	find_buffers();
	for (round = 1; round <= rounds; round++) {
		trace_some(round);
		for (i = 0; i < n_buffers; i++)
			scribble(buffers[i], data_bytes, WORDS_A_ROUND);
		usleep(1000); /* so that the recorder comes by */
	}
	/* What is there now is not overwritten any more: some of it is to be wrong for certain. */
	for (i = 0; i < n_buffers; i++)
		scribble(buffers[i], data_bytes, WORDS_AT_END);
	printf("scribbled %u\n", n_buffers);
	fflush(stdout);
	pause();
	return 0;
}
