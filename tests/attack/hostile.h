/* SPDX-License-Identifier: MIT */
/*
 * What the hostile program knows of the file that it attacks: where the words are that others believe.
 *
 * The tables come from the structures of layout.h and ring_layout.h, so that a value lands in a field and not beside it:
 * a chosen store into a position, a lock or a count gets farther than noise does.
 */
#ifndef ATTACK_HOSTILE_H
#define ATTACK_HOSTILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_FIELDS = 8192, MAX_AREAS = 4 };

enum kind { KIND_RELAY, KIND_RING, KIND_WORDS };

/* One word that others read. */
struct field {
	uint64_t at;    /* in the file */
	uint32_t bytes; /* 4 or 8 */
	bool is_owner;  /* it names a thread */
};

/* A stretch of the file that can be put back as it was. */
struct area {
	uint64_t at, bytes;
	unsigned char *image;
};

struct target {
	enum kind kind;
	int fd;
	unsigned char *memory;
	uint64_t bytes;
	struct field field[MAX_FIELDS];
	unsigned n_fields;
	struct area area[MAX_AREAS];
	unsigned n_areas;
	uint64_t subbuf_size, n_subbufs; /* relay */
	unsigned offset_bits;
	uint64_t offset_mask, index_mask;
	uint64_t ledger_at, claims_at, control_at;
	uint64_t ring_size, state_at; /* ring */
};

/* Fill in the tables from the file's geometry; false: it is none of this kind. */
bool target_learn(struct target *target);

/* Things to do to it. Each returns how many words it has stored. */
uint64_t target_restore(struct target *target);
uint64_t target_list_holes(struct target *target);
uint64_t target_fill_with_discards(struct target *target);

#endif
