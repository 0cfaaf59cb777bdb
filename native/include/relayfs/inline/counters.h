/* SPDX-License-Identifier: MIT */
/* Adjusting a counter, for <relayfs/producer.h> and the library. */
#ifndef RELAYFS_INLINE_COUNTERS_H
#define RELAYFS_INLINE_COUNTERS_H

#include <relayfs/counters.h>
#include <relayfs/inline/rseq.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>. */
int relay_perf_adjust_anyhow(struct relay_counters *counters, int instance, int64_t delta);

/* The first fields of struct relay_counters. */
struct relay_inline_counters {
	/* Of each chunk: the address of block 0; NULL: this handle has added no name in it, or it has no block for each CPU. */
	int64_t **at;
	uint32_t n_chunks[RELAY_INLINE_VERSIONS]; /* at RELAY_INLINE_VERSION: the limit of chunks */
};

/* Return an instance's word in block 0; NULL: there is none in the chunks `at`. */
RELAY_INLINE int64_t *relay_inline_word(const struct relay_inline_counters *counters, int64_t *const *at, int instance)
{
	uint32_t chunk = (uint32_t)instance / RELAY_PERF_SLOTS, slot = (uint32_t)instance % RELAY_PERF_SLOTS;
	if (__builtin_expect(chunk >= counters->n_chunks[RELAY_INLINE_VERSION] || slot == 0, 0))
		return NULL;
	/* Pairs with the release in take() in counters/counters.c. */
	int64_t *block = __atomic_load_n(&at[chunk], __ATOMIC_ACQUIRE);
	return __builtin_expect(block != NULL, 1) ? block + slot : NULL;
}

/* Add to the word of this thread's CPU. Returns false: nothing was done. */
RELAY_INLINE bool relay_inline_add(int64_t *word, int64_t delta)
{
	uint32_t cpu = relay_rseq_cpu();
	return relay_rseq_add(word + (size_t)cpu * RELAY_PERF_SLOTS, delta, cpu) == RELAY_RSEQ_DONE;
}

RELAY_INLINE int relay_inline_adjust(struct relay_counters *counters, int instance, int64_t delta)
{
	const struct relay_inline_counters *fast = (const struct relay_inline_counters *)(const void *)counters;
	if (__builtin_expect(!fast, 0))
		return 0;
	int64_t *word = relay_inline_word(fast, fast->at, instance);
	if (__builtin_expect(word && relay_inline_add(word, delta), 1))
		return 0;
	return relay_perf_adjust_anyhow(counters, instance, delta);
}

#ifdef __cplusplus
}
#endif
#endif
