/* SPDX-License-Identifier: MIT */
/* Adding to the list of faults of a check (<relayfs/check_store.h>). Where a list is an argument, NULL means that nobody
 * wants one. A fault that is in the list already is not added again. */
#ifndef RELAYFS_BASE_FAULTS_H
#define RELAYFS_BASE_FAULTS_H

#include "base/damage.h"

#include <relayfs/check_store.h>

/* Add a value that is not allowed. at: its offset in the file; allowed: as printf(3). Returns -EBADMSG. */
__attribute__((format(printf, 5, 6))) int relay_fault_value(struct relay_faults *faults, uint64_t at, uint64_t value,
                                                            const char *name, const char *allowed, ...);

/* Add a value if it has other bits than `known`, or if it is greater than `most`. */
void relay_fault_bits(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t known);
void relay_fault_above(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t most);

/* Add what a thread has left, if it has died. owner: its owner word; 0: there is none; name: what it is; text: what
 * completes it, as printf(3). */
__attribute__((format(printf, 5, 6))) void relay_fault_dead(struct relay_faults *faults, uint64_t at, uint64_t owner,
                                                            const char *name, const char *text, ...);

/* The same without asking who it was. */
void relay_fault_left(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, const char *text);

/* Add that the file is of another version. Returns -EPROTO. */
int relay_fault_version(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t known);

/* Where in a file the words are that notes name: from `where` on, `each` bytes apart. */
struct relay_fault_place {
	const char *where; /* as relay_damage.where, or its beginning; NULL: the last place, of all others */
	uint64_t at, each;
};

/* Add a note, if there is one, and remove it. The last place has no name. */
void relay_fault_note(struct relay_faults *faults, struct relay_damage *damage, const struct relay_fault_place *places);

#endif
