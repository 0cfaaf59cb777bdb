/* SPDX-License-Identifier: MIT */
/*
 * What a mapped set of counters is. Its files, in STORE/.counters:
 *
 *     counters       the file to map, counters.h; also holds what only the store's owner may adjust: domain 0
 *     names          what there is, below
 *     UID-GID-MODE   a domain: the counters of others, at the same offsets as in `counters`
 *     lock           held (flock) by who changes something
 *
 *   names, 0          4096                                                   records_at
 *   +-----------------+--------------------------------------------------+------------------------------
 *   | table, domains  | index[n_index]: a hash of names to numbers       | record[chunks_max * 512]
 *   +-----------------+--------------------------------------------------+------------------------------
 *
 * Record n tells of instance n; that of a chunk's slot 0, of the chunk. A name never loses its number: records and index
 * are only ever added to, each step by one store after what it publishes is complete. So whoever dies in the middle
 * leaves at most a number that nobody will get. The files are as long as they can get from the beginning on, and
 * sparse: memory is allocated before it is used.
 *
 * Only the store's owner may write to `counters` and `names`. All others check what they read there all the same.
 */
#ifndef RELAYFS_PERF_H
#define RELAYFS_PERF_H

#include "shm.h"

#include <pthread.h>
#include <relayfs/counters.h>
#include <stdbool.h>

#define RELAY_PERF_NAMES_MAGIC 0x31304d414e504c52ull /* "RLPNAM01" */

enum { RELAY_PERF_DOMAINS = 64, RELAY_PERF_MAX_CPUS = 8192 };

/* Who may adjust; what open(2) of the domain's file says, too. */
struct relay_perf_domain {
	uint32_t uid, gid, mode; /* mode: of the file, each write permission with that to read */
	uint32_t unused;
};

struct relay_perf_table {
	uint64_t magic;       /* RELAY_PERF_NAMES_MAGIC */
	uint32_t version;     /* RELAY_PERF_VERSION */
	uint32_t limit;       /* how many names there can be */
	uint32_t n_index;     /* a power of two */
	uint32_t chunks_max;  /* how many chunks there can be */
	uint32_t n_instances; /* how many there were ever added */
	uint32_t n_domains;
	struct relay_perf_domain domains[RELAY_PERF_DOMAINS];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_table) <= RELAY_PAGE_BYTES, "the table has a page");

/* The index: linear probing, by name. An instance whose first component is a group's name has the group's entry, too. */
#define RELAY_PERF_IS_GROUP (1u << 31)

enum relay_perf_state { RELAY_PERF_FREE, RELAY_PERF_LIVE, RELAY_PERF_DELETED, RELAY_PERF_CHUNK };

struct relay_perf_record {
	uint32_t state; /* stored last */
	uint32_t kind;
	uint32_t domain; /* of a chunk */
	uint32_t used;   /* of a chunk: its last slot in use */
	char name[RELAY_PERF_NAME_BYTES], unit[RELAY_PERF_UNIT_BYTES], help[RELAY_PERF_HELP_BYTES];
	uint64_t unused[2];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_record) == 512, "struct relay_perf_record is part of the format");

struct relay_counters {
	/* Of each chunk: block 0, if this handle has added something in it. `at`: and there are blocks for all CPUs. */
	int64_t **at, **all;
	uint32_t chunks_max, n_index;                 /* checked */
	struct relay_shm main, names;                 /* writable: if `direct` */
	struct relay_shm domains[RELAY_PERF_DOMAINS]; /* those that were needed; base NULL: not mapped */
	struct relay_perf_header *header;             /* the mapped one */
	struct relay_perf_header seen;                /* as of the last refresh */
	struct relay_perf_table *table;
	uint32_t *index;
	struct relay_perf_record *records;
	int dir_fd;
	bool direct;           /* this process may change everything */
	char *file;            /* "MNT/counters.names": where others ask the server; NULL: there is none */
	pthread_mutex_t mutex; /* one thread at a time adds, deletes, refreshes, mirrors */
};

static inline uint32_t relay_perf_n_index(uint32_t limit)
{
	uint32_t n = RELAY_PAGE_BYTES / 4;
	while (n < 3 * limit)
		n *= 2;
	return n;
}

/* Each domain may have one chunk that is not full. */
static inline uint32_t relay_perf_chunks_max(uint32_t limit)
{
	return (limit + RELAY_PERF_SLOTS - 2) / (RELAY_PERF_SLOTS - 1) + RELAY_PERF_DOMAINS;
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
