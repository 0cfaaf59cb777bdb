/* SPDX-License-Identifier: MIT */
/* Reading counters (<relayfs/counters.h>), and the file server's functions (<relayfs/counters_store.h>). */
#define _GNU_SOURCE
#include <relayfs/counters_store.h>

#include "counters/copy.h"
#include "counters/files.h"
#include "counters/names.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { CHANGE_PAUSE_NS = 1000000, CHANGE_PAUSES = 1000 };

/* Two words, copied by one instruction that tears neither: the proposal's readers copy single words. */
typedef int64_t pair __attribute__((vector_size(16)));
enum { PAIRS = RELAY_PAGE_BYTES / sizeof(pair) };

/* ------------------------------------------------------------------ generations */

/* Load the header. 1: it has another generation; 0: the same; -EAGAIN: a change is under way. */
static int look(const struct relay_counters *counters, struct relay_perf_header *header)
{
	const struct relay_perf_header *mapped = counters->header;
	/* Pairs with the release in end() in counters/add_delete.c: all of that change. */
	uint64_t gen2 = __atomic_load_n(&mapped->gen2, __ATOMIC_ACQUIRE);
	uint64_t gen1 = __atomic_load_n(&mapped->gen1, __ATOMIC_RELAXED);
	if (gen1 != gen2)
		return -EAGAIN;
	if (gen1 == counters->seen.gen1)
		return 0;
	*header = counters->seen;
	header->gen1 = header->gen2 = gen1;
	header->nr_chunks = __atomic_load_n(&mapped->nr_chunks, __ATOMIC_RELAXED);
	/* Pairs with the release fence in begin() in counters/add_delete.c: gen1 shows whether another change began
	 * meanwhile. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&mapped->gen1, __ATOMIC_RELAXED) == gen1 ? 1 : -EAGAIN;
}

static int check(const struct relay_counters *counters, const struct relay_perf_header *header)
{
	if (counters->header->magic != RELAY_PERF_MAGIC || header->nr_chunks > counters->chunks_max ||
	    !relay_perf_is_whole(&counters->main) || !relay_perf_is_whole(&counters->names))
		return -EBADMSG;
	return 0;
}

/* As relay_counters_refresh(), without waiting for a change that is under way. */
static int refresh_now(struct relay_counters *counters)
{
	struct relay_perf_header header;
	int result = counters->copies ? relay_perf_copy_refresh(counters) : 0;
	if (!result)
		result = look(counters, &header);
	int err = result > 0 ? check(counters, &header) : 0;
	if (err || result <= 0)
		return err ? err : result;
	counters->seen = header;
	return 1;
}

int relay_counters_refresh(struct relay_counters *counters)
{
	int result = refresh_now(counters);
	for (int tries = 0; result == -EAGAIN && tries < CHANGE_PAUSES; tries++) {
		nanosleep(&(struct timespec){.tv_nsec = CHANGE_PAUSE_NS}, NULL);
		result = refresh_now(counters);
	}
	return result;
}

const struct relay_perf_header *relay_counters_header(const struct relay_counters *counters)
{
	return counters->header;
}

uint64_t relay_counters_mapped_bytes(const struct relay_counters *counters)
{
	return relay_perf_file_bytes(&counters->seen);
}

int relay_counters_fd(const struct relay_counters *counters)
{
	return counters->main.file.fd;
}

/* ------------------------------------------------------------------ values */

/* Return an instance's word in block 0, or NULL. */
static int64_t *word_in_view(const struct relay_counters *counters, int instance)
{
	uint32_t chunk = (uint32_t)instance / RELAY_PERF_SLOTS, slot = (uint32_t)instance % RELAY_PERF_SLOTS;
	if (chunk >= counters->seen.nr_chunks || slot == 0)
		return NULL;
	return (int64_t *)(counters->main.base + relay_perf_chunk_offset(&counters->seen, chunk)) + slot;
}

/* Relaxed: no other data depends on a value. */
static int64_t load(const int64_t *word, uint32_t block)
{
	return __atomic_load_n(word + (size_t)block * RELAY_PERF_SLOTS, __ATOMIC_RELAXED);
}

int relay_counters_read(const struct relay_counters *counters, uint32_t block, int instance, int64_t *value)
{
	const int64_t *word = word_in_view(counters, instance);
	if (!word || block >= counters->seen.nr_blocks)
		return -ENOENT;
	*value = load(word, block);
	return 0;
}

int relay_counters_sum(const struct relay_counters *counters, int instance, int64_t *value)
{
	const int64_t *word = word_in_view(counters, instance);
	if (!word)
		return -ENOENT;
	uint64_t sum = 0; /* wraps around as counters do */
	for (uint32_t block = 0; block < counters->seen.nr_blocks; block++)
		sum += (uint64_t)load(word, block);
	*value = (int64_t)sum;
	return 0;
}

#if defined(__x86_64__)
/* The same with four words, of CPUs that can: to store two at once is what limits the copy. Only `to` may be less aligned. */
typedef int64_t four __attribute__((vector_size(32), aligned(16)));

__attribute__((target("avx"))) static size_t copy_fours(pair *to, const volatile pair *from, size_t n)
{
#pragma GCC unroll 4
	for (size_t i = 0; i < n / 2; i++)
		((four *)to)[i] = ((const volatile four *)from)[i];
	return n / 2 * 2;
}
#endif

static void copy_pairs(pair *to, const volatile pair *from, size_t n)
{
	size_t i = 0;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx"))
		i = copy_fours(to, from, n);
#endif
#pragma GCC unroll 8
	for (; i < n; i++)
		to[i] = from[i];
}

long relay_counters_copy(const struct relay_counters *counters, int64_t *values, size_t n_instances)
{
	const struct relay_perf_header *seen = &counters->seen;
	if ((uintptr_t)values % sizeof(pair) || n_instances % 2)
		return -EINVAL;
	for (uint32_t chunk = 0; chunk < seen->nr_chunks && chunk * (size_t)RELAY_PERF_SLOTS < n_instances; chunk++) {
		const unsigned char *from = counters->main.base + relay_perf_chunk_offset(seen, chunk);
		size_t room = (n_instances - chunk * (size_t)RELAY_PERF_SLOTS) / 2;
		for (uint32_t block = 0; block < seen->nr_blocks; block++)
			copy_pairs((pair *)(values + block * n_instances + chunk * (size_t)RELAY_PERF_SLOTS),
			           (const volatile pair *)(from + block * seen->block_bytes),
			           room < PAIRS ? room : PAIRS);
	}
	return (long)seen->nr_chunks * RELAY_PERF_SLOTS;
}

/* ------------------------------------------------------------------ names */

static uint32_t domain_of(const struct relay_counters *counters, uint32_t n)
{
	uint32_t domain = relay_perf_chunk_record(counters, n / RELAY_PERF_SLOTS)->domain;
	return domain < RELAY_PERF_DOMAINS ? domain : 0;
}

static void tell(const struct relay_counters *counters, uint32_t n, struct relay_perf_info *info)
{
	const struct relay_perf_record *record = &counters->records[n];
	const struct relay_perf_domain *domain = &counters->table->domains[domain_of(counters, n)];
	*info = (struct relay_perf_info){.instance = (int)n,
	                                 .kind = record->kind,
	                                 .uid = domain->uid,
	                                 .gid = domain->gid,
	                                 .mode = domain->mode & 0222};
	memcpy(info->name, record->name, sizeof(info->name) - 1);
	memcpy(info->unit, record->unit, sizeof(info->unit) - 1);
	memcpy(info->help, record->help, sizeof(info->help) - 1);
}

int relay_counters_next(const struct relay_counters *counters, int after, struct relay_perf_info *info)
{
	uint32_t end = counters->seen.nr_chunks * RELAY_PERF_SLOTS;
	for (uint32_t n = after < 0 ? 0 : (uint32_t)after + 1; n < end; n++) {
		if (n % RELAY_PERF_SLOTS == 0)
			continue;
		if (!relay_perf_has_number(counters, n)) {
			n |= RELAY_PERF_SLOTS - 1; /* this chunk has no further ones */
			continue;
		}
		/* Pairs with the release in relay_perf_set_state(). */
		if (__atomic_load_n(&counters->records[n].state, __ATOMIC_ACQUIRE) != RELAY_PERF_LIVE)
			continue;
		tell(counters, n, info);
		return 1;
	}
	return 0;
}

int relay_counters_find(const struct relay_counters *counters, const char *name)
{
	int err = relay_perf_check_name(name);
	return err ? err : relay_perf_look_up(counters, name);
}

/* ------------------------------------------------------------------ the server's copies */

static int64_t *main_chunk(const struct relay_counters *counters, uint32_t chunk)
{
	return (int64_t *)(counters->main.base + relay_perf_chunk_offset(&counters->seen, chunk));
}

/* Copy all blocks of a chunk, without flags. 1: a value had changed. */
static int mirror_chunk(struct relay_counters *counters, uint32_t chunk, const struct relay_mapping *from)
{
	const int64_t *source = (const int64_t *)(from->base + relay_perf_chunk_offset(&counters->seen, chunk));
	int64_t *target = main_chunk(counters, chunk);
	uint32_t used = relay_perf_chunk_record(counters, chunk)->used;
	int changed = 0;
	for (uint32_t block = 0; block < counters->seen.nr_blocks; block++)
		for (uint32_t slot = 1; slot <= used && slot < RELAY_PERF_SLOTS; slot++) {
			size_t at = (size_t)block * RELAY_PERF_SLOTS + slot;
			/* Relaxed: no other data depends on a value. */
			int64_t value = __atomic_load_n(&source[at], __ATOMIC_RELAXED);
			if (value == target[at])
				continue;
			__atomic_store_n(&target[at], value, __ATOMIC_RELAXED);
			changed = 1;
		}
	return changed;
}

/* A domain whose file was truncated is not copied, so its values in the file to map stay as they were. */
static int mirror(struct relay_counters *counters)
{
	bool whole[RELAY_PERF_DOMAINS] = {false};
	uint32_t n_domains = counters->table->n_domains;
	int changed = 0;
	for (uint32_t i = 1; i < n_domains && i < RELAY_PERF_DOMAINS; i++)
		whole[i] = relay_perf_map_domain(counters, i) == 0 && relay_perf_is_whole(&counters->domains[i]);
	for (uint32_t chunk = 0; n_domains > 1 && chunk < counters->seen.nr_chunks; chunk++) {
		/* For a free chunk, domain_of() returns 0, and domain 0 is not copied. */
		uint32_t domain = domain_of(counters, chunk * RELAY_PERF_SLOTS);
		if (whole[domain])
			changed |= mirror_chunk(counters, chunk, &counters->domains[domain]);
	}
	return changed;
}

int relay_counters_mirror(struct relay_counters *counters)
{
	if (!counters->direct)
		return -EACCES;
	pthread_mutex_lock(&counters->mutex);
	int result = refresh_now(counters);
	/* An instance that is being added has no values yet. */
	if (result >= 0 || result == -EAGAIN)
		result = mirror(counters);
	pthread_mutex_unlock(&counters->mutex);
	return result;
}

int relay_counters_set(struct relay_counters *counters, uint32_t block, int instance, int64_t value)
{
	if (!counters->direct)
		return -EACCES;
	int64_t *word = word_in_view(counters, instance);
	if (!word || block >= counters->seen.nr_blocks)
		return -ENOENT;
	/* Relaxed: no other data depends on the value. */
	__atomic_store_n(word + (size_t)block * RELAY_PERF_SLOTS, value, __ATOMIC_RELAXED);
	return 0;
}
