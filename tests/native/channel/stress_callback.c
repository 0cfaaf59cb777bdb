/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "stress_callback.h"

#include <string.h>
#include <unistd.h>

#include "stress.h"

volatile sig_atomic_t stress_die_in_callback;

static void store(void *subbuf, uint32_t padding)
{
	uint64_t word = stress_subbuf(padding);

	__atomic_store(&(*(uint64_t *)subbuf), &word, __ATOMIC_RELAXED);
}

static int begin(struct rchan_buf *buf, void *subbuf)
{
	if (stress_die_in_callback) {
		memset(subbuf, '#', 64);
		kill(getpid(), SIGKILL);
	}
	store(subbuf, STRESS_UNFINISHED);
	subbuf_start_reserve(buf, sizeof(uint64_t));
	return 1;
}

static int keep(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	if (prev_subbuf)
		store(prev_subbuf, prev_padding);
	return relay_buf_full(buf) ? 0 : begin(buf, subbuf);
}

static int replace(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	if (prev_subbuf)
		store(prev_subbuf, prev_padding);
	return begin(buf, subbuf);
}

const struct rchan_callbacks *stress_callbacks(const char *name)
{
	static const struct rchan_callbacks keeping = {.subbuf_start = keep};
	static const struct rchan_callbacks replacing = {.subbuf_start = replace};

	if (!name)
		return NULL;
	return strcmp(name, "keep") == 0 ? &keeping : strcmp(name, "replace") == 0 ? &replacing : NULL;
}
