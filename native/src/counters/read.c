/* SPDX-License-Identifier: MIT */
/* Allocating, counting and freeing numbers, chunks and domains. */
#define _GNU_SOURCE
#include "counters/read.h"

#include "counters/files.h"
#include "counters/names.h"

#include <errno.h>
#include <relayfs/store.h>
#include <string.h>

static struct relay_perf_record *record_of_chunk(const struct relay_counters *counters, uint32_t n)
{
	return relay_perf_chunk_record(counters, n / RELAY_PERF_SLOTS);
}

static uint32_t n_chunks(const struct relay_counters *counters)
{
	uint32_t n = counters->header->nr_chunks;
	return n < counters->chunks_max ? n : counters->chunks_max;
}

static uint32_t n_used(const struct relay_perf_record *of_chunk)
{
	return of_chunk->used < RELAY_PERF_SLOTS ? of_chunk->used : RELAY_PERF_SLOTS - 1;
}

static bool is_owner(const struct relay_counters *counters, uint32_t uid)
{
	return uid == 0 || uid == counters->table->domains[0].uid;
}

/* ------------------------------------------------------------------ domains */

static bool may_adjust(const struct relay_perf_domain *domain, uint32_t uid, uint32_t gid)
{
	if (uid == 0)
		return true;
	if (uid == domain->uid)
		return domain->mode & 0200;
	return domain->mode & (gid == domain->gid ? 0020 : 0002);
}

static bool domain_exists(const struct relay_perf_domain *domain)
{
	return domain->use % 2;
}

/* Return a free entry for a domain in the table, or -errno. */
static int room_for(const struct relay_counters *counters, uint32_t uid)
{
	const struct relay_perf_table *table = counters->table;
	uint32_t n_his = 0, n_existing = 0, first_free = 0;
	for (uint32_t i = 1; i < table->n_domains && i < RELAY_PERF_DOMAINS; i++) {
		const struct relay_perf_domain *domain = &table->domains[i];
		n_existing += domain_exists(domain);
		n_his += domain_exists(domain) && domain->uid == uid;
		if (!domain_exists(domain) && !first_free)
			first_free = i;
	}
	bool limited = !is_owner(counters, uid);
	if (limited && n_his >= RELAY_PERF_USER_DOMAINS)
		return -EDQUOT;
	if (n_existing + 1 + (limited ? RELAY_PERF_OWNERS_DOMAINS : 0) >= RELAY_PERF_DOMAINS)
		return -ENOSPC;
	return (int)(first_free ? first_free : table->n_domains);
}

static int new_domain(struct relay_counters *counters, const struct relay_perf_domain *wanted)
{
	struct relay_perf_table *table = counters->table;
	int n = room_for(counters, wanted->uid);
	int err = n < 0 ? n : relay_perf_make_domain(counters, wanted);
	if (err)
		return err;
	struct relay_perf_domain *domain = &table->domains[n];
	uint32_t use = domain->use + 1;
	*domain = *wanted;
	domain->use = use;
	/* Pairs with the acquire in relay_perf_map_domain(). */
	if ((uint32_t)n == table->n_domains)
		__atomic_store_n(&table->n_domains, (uint32_t)n + 1, __ATOMIC_RELEASE);
	return n;
}

/* Make the domain of a new group. Returns its number or -errno. */
static int domain_for_group(struct relay_counters *counters, const struct relay_perf_spec *spec)
{
	const struct relay_perf_table *table = counters->table;
	uint32_t write = spec->mode & 0222, mode = write | write << 1;
	if (spec->uid == table->domains[0].uid && !(write & RELAY_PERM_STRANGERS))
		return 0;
	for (uint32_t i = 1; i < table->n_domains && i < RELAY_PERF_DOMAINS; i++) {
		const struct relay_perf_domain *domain = &table->domains[i];
		if (domain_exists(domain) && domain->uid == spec->uid && domain->gid == spec->gid &&
		    domain->mode == mode)
			return (int)i;
	}
	return new_domain(counters, &(struct relay_perf_domain){.uid = spec->uid, .gid = spec->gid, .mode = mode});
}

int relay_perf_domain_for(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	uint32_t n = relay_perf_find_group(counters, name);
	if (!n)
		return domain_for_group(counters, spec);
	uint32_t domain = record_of_chunk(counters, n)->domain;
	if (domain >= RELAY_PERF_DOMAINS)
		return -EBADMSG;
	return may_adjust(&counters->table->domains[domain], spec->uid, spec->gid) ? (int)domain : -EACCES;
}

/* ------------------------------------------------------------------ chunks */

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

/* Return a freed chunk (not for domain 0), or else the next one. */
static uint32_t unused_chunk(const struct relay_counters *counters, uint32_t domain)
{
	uint32_t end = n_chunks(counters);
	for (uint32_t chunk = 0; domain && chunk < end; chunk++)
		if (relay_perf_chunk_record(counters, chunk)->domain == RELAY_PERF_NO_DOMAIN)
			return chunk;
	return end;
}

static int new_chunk(struct relay_counters *counters, uint32_t domain)
{
	uint32_t chunk = unused_chunk(counters, domain);
	if (chunk >= counters->chunks_max)
		return -ENOSPC;
	int err = allocate_chunk(counters, chunk, domain);
	if (err)
		return err;
	struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
	*record = (struct relay_perf_record){.state = RELAY_PERF_CHUNK, .domain = domain, .used = n_used(record)};
	/* Pairs with the acquire in relay_perf_has_number() and relay_counters_refresh(). */
	if (chunk == counters->header->nr_chunks)
		__atomic_store_n(&counters->header->nr_chunks, chunk + 1, __ATOMIC_RELEASE);
	return (int)chunk;
}

/* Return a chunk of this domain that has room. */
static int chunk_for(struct relay_counters *counters, uint32_t domain)
{
	for (uint32_t chunk = n_chunks(counters); chunk-- > 0;) {
		const struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
		if (record->domain == domain && record->taken < RELAY_PERF_SLOTS - 1)
			return (int)chunk;
	}
	return new_chunk(counters, domain);
}

/* ------------------------------------------------------------------ numbers */

int relay_perf_check_quota(const struct relay_counters *counters, uint32_t domain, uint32_t uid)
{
	const struct relay_perf_table *table = counters->table;
	uint32_t owner = table->domains[domain].uid, n = 0;
	if (is_owner(counters, uid) || is_owner(counters, owner))
		return table->n_instances >= table->limit ? -ENOSPC : 0;
	if (table->n_instances >= table->limit - relay_perf_owners_names(table->limit))
		return -ENOSPC;
	for (uint32_t chunk = 0; chunk < n_chunks(counters); chunk++) {
		const struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
		if (record->domain < RELAY_PERF_DOMAINS && table->domains[record->domain].uid == owner)
			n += record->taken;
	}
	return n >= relay_perf_user_limit(table->limit) ? -EDQUOT : 0;
}

static bool is_free(const struct relay_perf_record *record)
{
	return record->state == RELAY_PERF_FREE && !record->name[0];
}

/* Return the slot to use in a chunk that has room: one that was freed, or the next. */
static uint32_t slot_in(const struct relay_perf_record *of_chunk)
{
	uint32_t used = n_used(of_chunk);
	for (uint32_t slot = 1; of_chunk->taken < used && slot <= used; slot++)
		if (is_free(of_chunk + slot))
			return slot;
	return used + 1;
}

int relay_perf_take_number(struct relay_counters *counters, uint32_t domain)
{
	int chunk = chunk_for(counters, domain);
	if (chunk < 0)
		return chunk;
	struct relay_perf_record *of_chunk = relay_perf_chunk_record(counters, (uint32_t)chunk);
	uint32_t slot = slot_in(of_chunk), n = (uint32_t)chunk * RELAY_PERF_SLOTS + slot;
	if (slot >= RELAY_PERF_SLOTS)
		return -EBADMSG;
	int err = allocate_record(counters, n);
	if (err)
		return err;
	/* Pairs with the acquire in relay_perf_has_number(). */
	if (slot > of_chunk->used)
		__atomic_store_n(&of_chunk->used, slot, __ATOMIC_RELEASE);
	of_chunk->taken++;
	counters->table->n_instances++;
	return (int)n;
}

void relay_perf_set_state(struct relay_counters *counters, uint32_t n, uint32_t state)
{
	struct relay_perf_record *of_chunk = record_of_chunk(counters, n);
	of_chunk->live += (state == RELAY_PERF_LIVE) - (counters->records[n].state == RELAY_PERF_LIVE);
	/* Pairs with the acquire in relay_counters_next() and in is_live() in counters/names.c: the record is
	 * complete. */
	__atomic_store_n(&counters->records[n].state, state, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------ freeing */

/* Set the values of a freed number to 0, for its next name. */
static void clear_values(struct relay_counters *counters, uint32_t n)
{
	int64_t *word = (int64_t *)(counters->main.base + relay_perf_offset(&counters->seen, 0, n));
	/* Relaxed: no other data depends on the value. */
	for (uint32_t block = 0; block < counters->seen.nr_blocks; block++)
		__atomic_store_n(word + (size_t)block * RELAY_PERF_SLOTS, 0, __ATOMIC_RELAXED);
}

/* The name is removed last: if the process dies before, relay_perf_mend() completes this. */
static void forget_name(struct relay_counters *counters, uint32_t n)
{
	struct relay_perf_record *record = &counters->records[n];
	relay_perf_set_state(counters, n, RELAY_PERF_FREE);
	relay_perf_leave(counters, n, false);
	relay_perf_leave(counters, n, true);
	clear_values(counters, n);
	record->name[0] = 0;
}

void relay_perf_free_number(struct relay_counters *counters, uint32_t n)
{
	struct relay_perf_record *of_chunk = record_of_chunk(counters, n);
	if (relay_perf_find_group(counters, counters->records[n].name) == n) {
		relay_perf_set_state(counters, n, RELAY_PERF_DELETED);
		return;
	}
	forget_name(counters, n);
	of_chunk->taken--;
	counters->table->n_instances--;
}

static void free_chunk(struct relay_counters *counters, uint32_t chunk)
{
	struct relay_perf_record *of_chunk = relay_perf_chunk_record(counters, chunk);
	for (uint32_t slot = 1; slot <= n_used(of_chunk); slot++)
		if (of_chunk[slot].name[0])
			forget_name(counters, chunk * RELAY_PERF_SLOTS + slot);
	counters->table->n_instances -= of_chunk->taken;
	of_chunk->taken = 0;
	of_chunk->domain = RELAY_PERF_NO_DOMAIN;
}

static bool is_empty(const struct relay_counters *counters, uint32_t domain)
{
	for (uint32_t chunk = 0; chunk < n_chunks(counters); chunk++) {
		const struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
		if (record->domain == domain && record->live)
			return false;
	}
	return true;
}

static void free_domain(struct relay_counters *counters, uint32_t domain)
{
	for (uint32_t chunk = 0; chunk < n_chunks(counters); chunk++)
		if (relay_perf_chunk_record(counters, chunk)->domain == domain)
			free_chunk(counters, chunk);
	/* Do this first: if the process dies in between, it leaves a file, which does no harm. */
	counters->table->domains[domain].use++;
	relay_perf_remove_domain(counters, domain);
}

bool relay_perf_has_empty_domain(const struct relay_counters *counters)
{
	const struct relay_perf_table *table = counters->table;
	for (uint32_t i = 1; i < table->n_domains && i < RELAY_PERF_DOMAINS; i++)
		if (domain_exists(&table->domains[i]) && is_empty(counters, i))
			return true;
	return false;
}

void relay_perf_free_domains(struct relay_counters *counters)
{
	const struct relay_perf_table *table = counters->table;
	for (uint32_t i = 1; i < table->n_domains && i < RELAY_PERF_DOMAINS; i++)
		if (domain_exists(&table->domains[i]) && is_empty(counters, i))
			free_domain(counters, i);
}

/* ------------------------------------------------------------------ after a death */

static void mend_chunk(struct relay_counters *counters, uint32_t chunk)
{
	struct relay_perf_record *of_chunk = relay_perf_chunk_record(counters, chunk);
	uint32_t used = n_used(of_chunk), taken = 0, live = 0;
	for (uint32_t slot = 1; slot <= used; slot++) {
		const struct relay_perf_record *record = &of_chunk[slot];
		bool is_taken = record->state == RELAY_PERF_LIVE || record->state == RELAY_PERF_DELETED;
		if (!is_taken && record->name[0])
			forget_name(counters, chunk * RELAY_PERF_SLOTS + slot);
		taken += is_taken;
		live += record->state == RELAY_PERF_LIVE;
	}
	of_chunk->taken = taken;
	of_chunk->live = live;
}

void relay_perf_mend(struct relay_counters *counters)
{
	counters->table->n_instances = 0;
	for (uint32_t chunk = 0; chunk < n_chunks(counters); chunk++) {
		mend_chunk(counters, chunk);
		counters->table->n_instances += relay_perf_chunk_record(counters, chunk)->taken;
	}
}
