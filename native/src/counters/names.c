/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "counters/names.h"

#include "store/place.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { CHANGE_PAUSE_NS = 1000000, CHANGE_PAUSES = 1000 };

/* Return the length of the UTF-8 sequence at `text`; 0: it is not valid. Overlong sequences and surrogates are not. */
static size_t utf8_length(const unsigned char *text)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	/* The number of leading 1 bits is the length of the sequence; ASCII has none. */
	size_t length = (size_t)__builtin_clz(~((uint32_t)text[0] << 24));
	if (length == 0)
		return 1;
	if (length == 1 || length > 4)
		return 0;
	uint32_t code = text[0] & (0x7f >> length);
	for (size_t i = 1; i < length; i++) {
		/* The null byte at the end is not a continuation byte either. */
		if (text[i] >> 6 != 2)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	return code < smallest[length] || code >> 11 == 0xd800 >> 11 || code > 0x10ffff ? 0 : length;
}

bool relay_perf_is_utf8(const char *text)
{
	const unsigned char *at = (const unsigned char *)(text ? text : "");
	for (size_t length; *at; at += length) {
		length = utf8_length(at);
		if (!length)
			return false;
	}
	return true;
}

int relay_perf_check_name(const char *name)
{
	return name ? relay_check_name(name, RELAY_PERF_NAME_BYTES - 1, RELAY_PERF_NAME_BYTES - 1) : -EINVAL;
}

bool relay_perf_is_text(const char *text, size_t bytes, bool spaces)
{
	size_t length = text ? strnlen(text, bytes) : 0;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)text[i] < ' ' + !spaces || text[i] == 127)
			return false;
	return length < bytes;
}

size_t relay_perf_group_length(const char *name)
{
	return (size_t)(strchrnul(name, '/') - name);
}

/* FNV-1a. A group's name is distinguished from an instance's by the slash behind it. */
static uint32_t hash(const char *name, size_t length, bool group)
{
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)name[i]) * 16777619u;
	return group ? (hash ^ '/') * 16777619u : hash;
}

bool relay_perf_has_number(const struct relay_counters *counters, uint32_t n)
{
	uint32_t chunk = n / RELAY_PERF_SLOTS, slot = n % RELAY_PERF_SLOTS;
	/* Pairs with the release in new_chunk() in counters/read.c. */
	uint32_t n_chunks = __atomic_load_n(&counters->header->nr_chunks, __ATOMIC_ACQUIRE);
	if (chunk >= n_chunks || chunk >= counters->chunks_max || slot == 0)
		return false;
	/* Pairs with the release in relay_perf_take_number(): memory for the record. */
	return slot <= __atomic_load_n(&relay_perf_chunk_record(counters, chunk)->used, __ATOMIC_ACQUIRE);
}

static bool is_named(const struct relay_counters *counters, uint32_t n, const char *name, size_t length, bool group)
{
	if (!relay_perf_has_number(counters, n))
		return false;
	const char *other = counters->records[n].name;
	if (strncmp(other, name, length) != 0)
		return false;
	return other[length] == 0 || (group && other[length] == '/');
}

static uint32_t find(const struct relay_counters *counters, const char *name, size_t length, bool group)
{
	uint32_t mask = counters->n_index - 1, at = hash(name, length, group) & mask;
	for (uint32_t tries = 0; tries < counters->n_index; tries++, at = (at + 1) & mask) {
		/* Pairs with the release in relay_perf_enter(): the record. */
		uint32_t entry = __atomic_load_n(&counters->index[at], __ATOMIC_ACQUIRE);
		uint32_t n = entry & ~RELAY_PERF_IS_GROUP;
		if (!entry)
			return 0;
		/* RELAY_PERF_REMOVED is not a number. */
		if ((n != entry) == group && is_named(counters, n, name, length, group))
			return n;
	}
	return 0;
}

bool relay_perf_has_entry(const struct relay_counters *counters, uint32_t n, const char *name, bool group)
{
	size_t length = group ? relay_perf_group_length(name) : strlen(name);
	uint32_t mask = counters->n_index - 1, at = hash(name, length, group) & mask;
	uint32_t wanted = group ? n | RELAY_PERF_IS_GROUP : n;
	for (uint32_t tries = 0; tries < counters->n_index; tries++, at = (at + 1) & mask) {
		/* Relaxed: as in relay_perf_leave(). */
		uint32_t entry = __atomic_load_n(&counters->index[at], __ATOMIC_RELAXED);
		if (entry == wanted || !entry)
			return entry == wanted;
	}
	return false;
}

uint32_t relay_perf_find(const struct relay_counters *counters, const char *name)
{
	return find(counters, name, strlen(name), false);
}

uint32_t relay_perf_find_group(const struct relay_counters *counters, const char *name)
{
	return find(counters, name, relay_perf_group_length(name), true);
}

static bool is_live(const struct relay_counters *counters, uint32_t n)
{
	/* Pairs with the release in relay_perf_set_state(): the record is complete. */
	return n && __atomic_load_n(&counters->records[n].state, __ATOMIC_ACQUIRE) == RELAY_PERF_LIVE;
}

int relay_perf_look_up(const struct relay_counters *counters, const char *name)
{
	const struct relay_perf_header *header = counters->header;
	for (int tries = 0; tries <= CHANGE_PAUSES; tries++) {
		/* Pairs with the release in end() in counters/add_delete.c: all of that change. */
		uint64_t gen2 = __atomic_load_n(&header->gen2, __ATOMIC_ACQUIRE);
		uint32_t n = relay_perf_find(counters, name);
		bool found = is_live(counters, n);
		/* Pairs with the release fence in begin() in counters/add_delete.c: a number that is used again gets
		 * its name after gen1. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&header->gen1, __ATOMIC_RELAXED) == gen2)
			return found ? (int)n : -ENOENT;
		nanosleep(&(struct timespec){.tv_nsec = CHANGE_PAUSE_NS}, NULL);
	}
	return -EAGAIN;
}

int relay_perf_enter(struct relay_counters *counters, uint32_t n, bool group)
{
	const char *name = counters->records[n].name;
	size_t length = group ? relay_perf_group_length(name) : strlen(name);
	uint32_t mask = counters->n_index - 1, at = hash(name, length, group) & mask;
	for (uint32_t tries = 0; tries < counters->n_index; tries++, at = (at + 1) & mask) {
		/* Relaxed: entries are made under the lock, which the caller has. */
		uint32_t entry = __atomic_load_n(&counters->index[at], __ATOMIC_RELAXED);
		if (entry && entry != RELAY_PERF_REMOVED)
			continue;
		/* Pairs with the acquire in find(). */
		__atomic_store_n(&counters->index[at], group ? n | RELAY_PERF_IS_GROUP : n, __ATOMIC_RELEASE);
		return 0;
	}
	return -ENOSPC;
}

/* Mark removed entries at the end of a search sequence as empty, so that searches end there. */
static void trim(struct relay_counters *counters, uint32_t at)
{
	uint32_t mask = counters->n_index - 1;
	/* Relaxed: a search without the lock ends a little earlier or later. */
	if (__atomic_load_n(&counters->index[(at + 1) & mask], __ATOMIC_RELAXED))
		return;
	while (__atomic_load_n(&counters->index[at], __ATOMIC_RELAXED) == RELAY_PERF_REMOVED) {
		__atomic_store_n(&counters->index[at], 0, __ATOMIC_RELAXED);
		at = (at - 1) & mask;
	}
}

void relay_perf_leave(struct relay_counters *counters, uint32_t n, bool group)
{
	const char *name = counters->records[n].name;
	size_t length = group ? relay_perf_group_length(name) : strlen(name);
	uint32_t wanted = group ? n | RELAY_PERF_IS_GROUP : n;
	uint32_t mask = counters->n_index - 1, at = hash(name, length, group) & mask;
	for (uint32_t tries = 0; tries < counters->n_index; tries++, at = (at + 1) & mask) {
		/* Relaxed: entries are changed under the lock, which the caller has. */
		uint32_t entry = __atomic_load_n(&counters->index[at], __ATOMIC_RELAXED);
		if (!entry)
			return;
		if (entry != wanted)
			continue;
		__atomic_store_n(&counters->index[at], RELAY_PERF_REMOVED, __ATOMIC_RELAXED);
		trim(counters, at);
		return;
	}
}
