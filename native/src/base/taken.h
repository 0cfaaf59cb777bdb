/* SPDX-License-Identifier: MIT */
/* relay_taken_store(): what a consumer is about to consume. */
#ifndef RELAY_BASE_TAKEN_H
#define RELAY_BASE_TAKEN_H

#include <relayfs/store.h>
#include <stddef.h>

extern struct relay_taken *relay_taken_where;

/* Called when the data was copied, before the position is published. */
static inline void relay_taken_note(uint64_t position, size_t length)
{
	struct relay_taken *taken = relay_taken_where;
	if (!taken)
		return;
	taken->position = position;
	/* Keeps the stores, and the copy, in this order for another process, which looks after this one has ended. */
	__asm__ volatile("" : : : "memory");
	taken->length = length;
	__asm__ volatile("" : : : "memory");
}

#endif
