/* SPDX-License-Identifier: MIT */
/*
 * The format of a set of counters. Its files, in STORE/.counters:
 *
 *     counters       the file to map, counters.h; also holds the counters that only the store's owner may adjust: domain 0
 *     names          the list of names, below
 *     UID-GID-MODE   a domain: counters of one other owner, group and mode, at the same offsets as in `counters`
 *     lock           held (flock) by the process that makes a change
 *
 * Only the store's owner may open the directory, because a user with a descriptor of a file can truncate it, which kills
 * every program that maps it by SIGBUS. Other users open the same names in MNT/.counters, where they can only map them.
 *
 *   names, 0          4096                                                   records_at
 *   +-----------------+--------------------------------------------------+------------------------------
 *   | table, domains  | index[n_index]: a hash of names to numbers       | record[chunks_max * 512]
 *   +-----------------+--------------------------------------------------+------------------------------
 *
 * Record n describes instance n; the record of a chunk's slot 0 describes the chunk. All changes are made under the
 * lock, between the increments of gen1 and gen2, so that a reader without the lock notices them and reads again. The
 * last store of a change to a record publishes it. If a process dies in the middle, the next one that takes the lock
 * rebuilds the index and the sums from the records.
 *
 * Numbers are reused in two cases. The file server frees those of its own statistics, which only it sets. And if there is no
 * room, a domain whose names are all deleted is freed with its chunks, which other domains then use; a process that still
 * adjusts there does so in the old file, which has no name any more. A chunk of domain 0 is never freed, because its owner's
 * processes adjust it in `counters` itself.
 *
 * The files have their largest size from the beginning, and are sparse: memory is allocated before it is used.
 *
 * Only the store's owner may write to `counters` and `names`. Processes of other users check all that they read there.
 */
#ifndef RELAYFS_COUNTERS_FORMAT_H
#define RELAYFS_COUNTERS_FORMAT_H

#include "base/mapping.h"

#include <pthread.h>
#include <relayfs/check_store.h>
#include <relayfs/counters_store.h>
#include <relayfs/inline/counters.h>
#include <stdbool.h>

#define RELAY_PERF_NAMES_MAGIC 0x31304d414e504c52ull /* "RLPNAM01" */

enum {
	RELAY_PERF_DOMAINS = 250,       /* fill the table's page */
	RELAY_PERF_OWNERS_DOMAINS = 10, /* reserved for root and the store's owner */
	RELAY_PERF_USER_DOMAINS = 4,    /* for each other user */
	RELAY_PERF_MAX_CPUS = 8192
};

/* A domain: owner, group and mode that decide who may adjust; those of the domain's file are the same. */
struct relay_perf_domain {
	uint32_t uid, gid, mode; /* mode: of the file; who may write may also read */
	uint32_t use;            /* incremented when it is made and when it is freed; odd: it exists */
};

struct relay_perf_table {
	uint64_t magic;       /* RELAY_PERF_NAMES_MAGIC */
	uint32_t version;     /* RELAY_FORMAT_NAMES */
	uint32_t limit;       /* of names */
	uint32_t n_index;     /* a power of two */
	uint32_t chunks_max;  /* limit of chunks */
	uint32_t n_instances; /* numbers that are taken */
	uint32_t n_domains;   /* the most that existed at a time */
	struct relay_perf_domain domains[RELAY_PERF_DOMAINS];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_table) <= RELAY_PAGE_BYTES, "the table has a page");

/* The index: linear probing, by name. For each group, one of its instances has a second entry, by the group's name. */
#define RELAY_PERF_IS_GROUP (1u << 31)
#define RELAY_PERF_REMOVED (RELAY_PERF_IS_GROUP - 1) /* a removed entry, behind which others may follow */

#define RELAY_PERF_NO_DOMAIN UINT32_MAX

enum relay_perf_state { RELAY_PERF_FREE, RELAY_PERF_LIVE, RELAY_PERF_DELETED, RELAY_PERF_CHUNK };

struct relay_perf_record {
	uint32_t state; /* stored last */
	uint32_t kind;
	uint32_t domain; /* of a chunk; RELAY_PERF_NO_DOMAIN: it is free */
	uint32_t used;   /* of a chunk: the highest slot used so far */
	char name[RELAY_PERF_NAME_BYTES], unit[RELAY_PERF_UNIT_BYTES], help[RELAY_PERF_HELP_BYTES];
	uint32_t taken; /* of a chunk: the number of instances that have a name */
	uint32_t live;  /* of a chunk: the number of these that are listed */
	uint64_t unused;
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_record) == 512, "struct relay_perf_record is part of the format");

/* Programs that were compiled before it call the library for each adjustment. */
RELAY_STATIC_ASSERT(RELAY_PERF_VERSION == 1, "a new version of a format needs a new RELAY_INLINE_VERSION");

struct relay_counters {
	struct relay_inline_counters fast; /* what programs know of it */
	int64_t **all;                     /* as fast.at, but of all chunks in which this handle has added a name */
	uint32_t chunks_max, n_index;      /* checked */
	struct relay_mapping main, names;  /* writable: if `direct` */
	struct relay_mapping domains[RELAY_PERF_DOMAINS]; /* those that were needed; base NULL: not mapped */
	uint32_t uses[RELAY_PERF_DOMAINS];                /* of the domain that is mapped there */
	struct relay_perf_header *header;                 /* the mapped one */
	struct relay_perf_header seen;                    /* as of the last refresh */
	struct relay_perf_table *table;
	uint32_t *index;
	struct relay_perf_record *records;
	int dir_fd;
	char *dir;       /* its path: in the store, or "MNT/.counters" */
	char *main_file; /* where `counters` lies in the store, as the mount says; NULL: `dir` is in the store */
	bool direct;     /* this process may change everything */
	bool copies;     /* main and names are copies: the mount maps nothing (counters/copy.h) */
	struct relay_faults *faults; /* of a check (counters/check.c); else NULL */
	char *file;                  /* "MNT/counters.names": where others ask the server; NULL: there is none */
	pthread_mutex_t mutex;       /* one thread at a time adds, deletes, refreshes, mirrors */
};

static inline uint32_t relay_perf_n_index(uint32_t limit)
{
	uint32_t n = RELAY_PAGE_BYTES / 4;
	while (n < 3 * limit)
		n *= 2;
	return n;
}

/* The limit of chunks: each domain may have one chunk that is not full, and chunks of domain 0 are not reused by others. */
static inline uint32_t relay_perf_chunks_max(uint32_t limit)
{
	return (2 * limit + RELAY_PERF_SLOTS - 2) / (RELAY_PERF_SLOTS - 1) + RELAY_PERF_DOMAINS;
}

/* Limits of names: of each user other than root and the store's owner; and those reserved for these two. */
static inline uint32_t relay_perf_user_limit(uint32_t limit)
{
	return limit / 16 < 16 ? 16 : limit / 16;
}

static inline uint32_t relay_perf_owners_names(uint32_t limit)
{
	return limit / 8;
}

static inline uint64_t relay_perf_records_at(uint32_t n_index)
{
	return RELAY_PAGE_BYTES + n_index * sizeof(uint32_t);
}

static inline uint64_t relay_perf_names_bytes(uint32_t n_index, uint32_t chunks_max)
{
	return relay_perf_records_at(n_index) +
	       (uint64_t)chunks_max * RELAY_PERF_SLOTS * sizeof(struct relay_perf_record);
}

/* `counters` and the domains' files. */
static inline uint64_t relay_perf_main_bytes(const struct relay_perf_header *header, uint32_t chunks_max)
{
	return header->data_at + chunks_max * header->chunk_bytes;
}

static inline uint64_t relay_perf_chunk_offset(const struct relay_perf_header *header, uint32_t chunk)
{
	return header->data_at + chunk * header->chunk_bytes;
}

static inline struct relay_perf_record *relay_perf_chunk_record(const struct relay_counters *counters, uint32_t chunk)
{
	return &counters->records[chunk * RELAY_PERF_SLOTS];
}

#endif
