/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/private.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

/* Room for struct relay_private_record in front of the data, which is then aligned to 64 bytes. */
enum { HEADER_BYTES = 64 };

/* Its address in relay_private_slot.data: the slot is in use, but its owner is not stored yet. */
static char taken;

/* Allocated by mmap(2), because a signal handler, which may not call malloc(), may reserve. */
static struct relay_private_record *map_record(const void *owner, size_t length)
{
	if (length > SIZE_MAX - HEADER_BYTES)
		return NULL;
	size_t bytes = HEADER_BYTES + length;
	struct relay_private_record *record =
	    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (record == MAP_FAILED)
		return NULL;
	*record = (struct relay_private_record){.owner = owner, .length = length, .bytes = bytes};
	return record;
}

void relay_private_free(struct relay_private_record *record)
{
	munmap(record, record->bytes);
}

static bool change_slot(struct relay_private_slot *slot, void *from, void *to)
{
	/* Pairs with itself and with the release in relay_private_reserve(): a thread that ends a reservation sees its
	 * header. */
	return __atomic_compare_exchange_n(&slot->data, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

int relay_private_reserve(struct relay_private *table, const void *owner, size_t length, void **data)
{
	struct relay_private_record *record = map_record(owner, length);
	if (!record)
		return -ENOMEM;
	for (int i = 0; i < RELAY_PRIVATE_MAX; i++) {
		struct relay_private_slot *slot = &table->slots[i];
		if (!change_slot(slot, NULL, &taken))
			continue;
		*data = (char *)record + HEADER_BYTES;
		/* Relaxed: published by the store of the address. */
		__atomic_store_n(&slot->owner, owner, __ATOMIC_RELAXED);
		/* Pairs with the acquires in change_slot() and relay_private_close(): header and owner before the
		 * address. */
		__atomic_store_n(&slot->data, *data, __ATOMIC_RELEASE);
		return 0;
	}
	relay_private_free(record);
	return -ENOMEM;
}

static struct relay_private_record *free_slot(struct relay_private_slot *slot, void *data)
{
	return change_slot(slot, data, NULL) ? (struct relay_private_record *)((char *)data - HEADER_BYTES) : NULL;
}

struct relay_private_record *relay_private_end(struct relay_private *table, void *data)
{
	struct relay_private_record *record = NULL;
	for (int i = 0; data && data != &taken && !record && i < RELAY_PRIVATE_MAX; i++)
		record = free_slot(&table->slots[i], data);
	return record;
}

void relay_private_close(struct relay_private *table, const void *owner)
{
	for (int i = 0; i < RELAY_PRIVATE_MAX; i++) {
		struct relay_private_slot *slot = &table->slots[i];
		/* Pairs with the release in relay_private_reserve(). The owner is read from the slot and not from the
		 * header, because another thread may unmap the header of its own reservation at this moment. */
		void *data = __atomic_load_n(&slot->data, __ATOMIC_ACQUIRE);
		if (!data || data == &taken || __atomic_load_n(&slot->owner, __ATOMIC_RELAXED) != owner)
			continue;
		struct relay_private_record *record = free_slot(slot, data);
		if (record)
			relay_private_free(record);
	}
}
