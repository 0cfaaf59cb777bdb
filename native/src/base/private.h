/* SPDX-License-Identifier: MIT */
/*
 * Reservations in private memory: of records that the file server will write, because this process cannot map what they
 * go to. All calls but close() are async-signal-safe.
 */
#ifndef RELAYFS_BASE_PRIVATE_H
#define RELAYFS_BASE_PRIVATE_H

#include <stddef.h>

/* Reservations that can be open at a time in one table. */
enum { RELAY_PRIVATE_MAX = 256 };

struct relay_private {
	struct relay_private_slot {
		/* What is reserved. Writers: reserve, from NULL, and whoever ends it, to NULL. */
		void *data;
		const void *owner; /* valid while data is an address. Writer: reserve */
	} slots[RELAY_PRIVATE_MAX];
};

/* Before the data of a reservation. */
struct relay_private_record {
	const void *owner; /* what it is reserved in: the caller's to say */
	size_t length;
	size_t bytes; /* mapped */
};

/* Memory for a record of 1 byte or more. 0; -ENOMEM: there is none, or all slots are in use. */
int relay_private_reserve(struct relay_private *table, const void *owner, size_t length, void **data);

/* End the reservation at this address, whose memory stays until free(); NULL: there is none, or somebody else ends it. */
struct relay_private_record *relay_private_end(struct relay_private *table, void *data);
void relay_private_free(struct relay_private_record *record);

/* End all reservations of an owner that nobody uses any more. */
void relay_private_close(struct relay_private *table, const void *owner);

#endif
