/* SPDX-License-Identifier: MIT */
/* Adding and deleting, by who may write to all files. */
#define _GNU_SOURCE
#include "perf_change.h"

#include "perf_files.h"
#include "perf_names.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ generations */

/* A change is under way from here ... */
static void begin(struct relay_counters *counters)
{
	struct relay_perf_header *header = counters->header;
	__atomic_store_n(&header->gen1, header->gen1 + 1, __ATOMIC_RELAXED);
	/* Pairs with the acquire fence in relay_counters_refresh(): gen1 before anything that changes. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* ... to here. */
static void end(struct relay_counters *counters)
{
	struct relay_perf_header *header = counters->header;
	/* Pairs with the acquire in relay_counters_refresh(): what has changed before gen2. */
	__atomic_store_n(&header->gen2, header->gen1, __ATOMIC_RELEASE);
}

/* The lock. Whoever had it before may have died in a change: it is over. */
static int lock(struct relay_counters *counters)
{
	/* What somebody truncated is no longer what is mapped. */
	if (!relay_perf_is_whole(&counters->main) || !relay_perf_is_whole(&counters->names) ||
	    counters->header->magic != RELAY_PERF_MAGIC)
		return -EBADMSG;
	int fd = relay_perf_lock(counters->dir_fd);
	if (fd >= 0 && counters->header->gen1 != counters->header->gen2)
		end(counters);
	return fd;
}

int relay_counters_hold(struct relay_counters *counters)
{
	if (!counters->direct)
		return -EACCES;
	pthread_mutex_lock(&counters->mutex);
	int fd = lock(counters);
	pthread_mutex_unlock(&counters->mutex);
	return fd;
}

int relay_counters_repair(struct relay_counters *counters)
{
	int fd = relay_counters_hold(counters);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

/* ------------------------------------------------------------------ who may */

static bool may_adjust(const struct relay_perf_domain *domain, uint32_t uid, uint32_t gid)
{
	if (uid == 0)
		return true;
	if (uid == domain->uid)
		return domain->mode & 0200;
	return domain->mode & (gid == domain->gid ? 0020 : 0002);
}

static int new_domain(struct relay_counters *counters, const struct relay_perf_domain *wanted)
{
	struct relay_perf_table *table = counters->table;
	uint32_t n = table->n_domains;
	if (n >= RELAY_PERF_DOMAINS)
		return -ENOSPC;
	int err = relay_perf_make_domain(counters, wanted);
	if (err)
		return err;
	table->domains[n] = *wanted;
	/* Pairs with the acquire in relay_perf_map_domain(). */
	__atomic_store_n(&table->n_domains, n + 1, __ATOMIC_RELEASE);
	return (int)n;
}

/* The domain of a new group, or -errno. */
static int domain_for(struct relay_counters *counters, const struct relay_perf_spec *spec)
{
	const struct relay_perf_table *table = counters->table;
	uint32_t write = spec->mode & 0222;
	struct relay_perf_domain wanted = {.uid = spec->uid, .gid = spec->gid, .mode = write | write << 1};
	if (wanted.uid == table->domains[0].uid && !(write & 0022))
		return 0;
	for (uint32_t i = 1; i < table->n_domains && i < RELAY_PERF_DOMAINS; i++)
		if (memcmp(&table->domains[i], &wanted, sizeof(wanted)) == 0)
			return (int)i;
	return new_domain(counters, &wanted);
}

/* The domain of the group of `name`, which may be new. */
static int domain_of(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	uint32_t n = relay_perf_find_group(counters, name);
	if (!n)
		return domain_for(counters, spec);
	uint32_t domain = relay_perf_chunk_record(counters, n / RELAY_PERF_SLOTS)->domain;
	if (domain >= RELAY_PERF_DOMAINS)
		return -EBADMSG;
	return may_adjust(&counters->table->domains[domain], spec->uid, spec->gid) ? (int)domain : -EACCES;
}

/* ------------------------------------------------------------------ numbers */

static int allocate_record(struct relay_counters *counters, uint32_t n)
{
	struct relay_perf_record *record = &counters->records[n];
	return relay_perf_allocate(&counters->names, (uint64_t)((unsigned char *)record - counters->names.base),
	                           sizeof(*record));
}

static int allocate_chunk(struct relay_counters *counters, uint32_t chunk, uint32_t domain)
{
	uint64_t offset = relay_perf_chunk_offset(&counters->seen, chunk), bytes = counters->seen.chunk_bytes;
	int err = relay_perf_allocate(&counters->main, offset, bytes);
	if (!err && domain)
		err = relay_perf_map_domain(counters, domain);
	if (!err && domain)
		err = relay_perf_allocate(&counters->domains[domain], offset, bytes);
	return err ? err : allocate_record(counters, chunk * RELAY_PERF_SLOTS);
}

static int new_chunk(struct relay_counters *counters, uint32_t domain)
{
	uint32_t chunk = counters->header->nr_chunks;
	if (chunk >= counters->chunks_max)
		return -ENOSPC;
	int err = allocate_chunk(counters, chunk, domain);
	if (err)
		return err;
	struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
	*record = (struct relay_perf_record){.state = RELAY_PERF_CHUNK, .domain = domain};
	/* Pairs with the acquire in relay_perf_has_number() and relay_counters_refresh(). */
	__atomic_store_n(&counters->header->nr_chunks, chunk + 1, __ATOMIC_RELEASE);
	return (int)chunk;
}

/* A chunk of this domain in which there is room. */
static int chunk_for(struct relay_counters *counters, uint32_t domain)
{
	for (uint32_t chunk = counters->header->nr_chunks; chunk-- > 0;) {
		const struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
		if (record->domain == domain && record->used < RELAY_PERF_SLOTS - 1)
			return (int)chunk;
	}
	return new_chunk(counters, domain);
}

static int take_number(struct relay_counters *counters, uint32_t domain)
{
	if (counters->table->n_instances >= counters->table->limit)
		return -ENOSPC;
	int chunk = chunk_for(counters, domain);
	if (chunk < 0)
		return chunk;
	struct relay_perf_record *of_chunk = relay_perf_chunk_record(counters, (uint32_t)chunk);
	uint32_t slot = of_chunk->used + 1, n = (uint32_t)chunk * RELAY_PERF_SLOTS + slot;
	int err = allocate_record(counters, n);
	if (err)
		return err;
	/* Pairs with the acquire in relay_perf_has_number(). */
	__atomic_store_n(&of_chunk->used, slot, __ATOMIC_RELEASE);
	counters->table->n_instances++;
	return (int)n;
}

/* ------------------------------------------------------------------ changes */

static void set_state(struct relay_counters *counters, uint32_t n, uint32_t state)
{
	/* Pairs with the acquire in relay_counters_next(): the record is complete. */
	__atomic_store_n(&counters->records[n].state, state, __ATOMIC_RELEASE);
}

static int add_new(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec, int domain)
{
	int n = take_number(counters, (uint32_t)domain);
	if (n < 0)
		return n;
	struct relay_perf_record *record = &counters->records[n];
	record->kind = spec->kind;
	strcpy(record->name, name);
	strcpy(record->unit, spec->unit ? spec->unit : "");
	strcpy(record->help, spec->help ? spec->help : "");
	int err = relay_perf_find_group(counters, name) ? 0 : relay_perf_enter(counters, (uint32_t)n, true);
	if (!err)
		err = relay_perf_enter(counters, (uint32_t)n, false);
	if (!err)
		set_state(counters, (uint32_t)n, RELAY_PERF_LIVE);
	return err ? err : n;
}

static int add_locked(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	int domain = domain_of(counters, name, spec);
	if (domain < 0)
		return domain;
	uint32_t n = relay_perf_find(counters, name);
	if (n && counters->records[n].state == RELAY_PERF_LIVE)
		return (int)n;
	begin(counters);
	if (n)
		set_state(counters, n, RELAY_PERF_LIVE);
	int result = n ? (int)n : add_new(counters, name, spec, domain);
	end(counters);
	return result;
}

int relay_perf_change_add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	int fd = lock(counters);
	if (fd < 0)
		return fd;
	int n = add_locked(counters, name, spec);
	close(fd);
	return n;
}

int relay_perf_change_del(struct relay_counters *counters, uint32_t n)
{
	int fd = lock(counters);
	if (fd < 0)
		return fd;
	bool is_live = relay_perf_has_number(counters, n) && counters->records[n].state == RELAY_PERF_LIVE;
	if (is_live) {
		begin(counters);
		set_state(counters, n, RELAY_PERF_DELETED);
		end(counters);
	}
	close(fd);
	return is_live ? 0 : -ENOENT;
}
