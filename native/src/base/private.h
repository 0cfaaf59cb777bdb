/* SPDX-License-Identifier: MIT */
/*
 * Reservations of records that this process cannot write itself, because it cannot map the buffer or ring: the record
 * is made in private memory, and the caller then writes it to a file of the mount. All functions but
 * relay_private_close() are async-signal-safe.
 */
#ifndef RELAYFS_BASE_PRIVATE_H
#define RELAYFS_BASE_PRIVATE_H

#include <stddef.h>

/* Reservations that can be open at the same time in one table. */
enum { RELAY_PRIVATE_MAX = 256 };

struct relay_private {
	struct relay_private_slot {
		/* The reserved memory; NULL: the slot is free. relay_private_reserve() stores the address,
		 * relay_private_end() and relay_private_close() store NULL. */
		void *data;
		const void *owner; /* valid while data is an address. Writer: relay_private_reserve() */
	} slots[RELAY_PRIVATE_MAX];
};

/* The header in front of the data of a reservation. */
struct relay_private_record {
	const void *owner; /* the caller's name for the buffer or ring */
	size_t length;     /* of the data, bytes */
	size_t bytes;      /* mapped, with this header */
};

/* Allocate memory for a record of 1 byte or more. Returns 0; -ENOMEM: there is no memory, or all slots are in use. */
int relay_private_reserve(struct relay_private *table, const void *owner, size_t length, void **data);

/* End the reservation whose data is at this address. The caller reads the record and then frees it by
 * relay_private_free(). Returns NULL if there is no such reservation, or another thread has ended it. */
struct relay_private_record *relay_private_end(struct relay_private *table, void *data);
void relay_private_free(struct relay_private_record *record);

/* End and free all reservations of an owner. No other thread may use them. */
void relay_private_close(struct relay_private *table, const void *owner);

#endif
