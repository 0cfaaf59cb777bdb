/* SPDX-License-Identifier: MIT */
/* As relayfs_fuse/fs/control.py has them: a channel is the same whoever makes it. */
#define _GNU_SOURCE
#include "store/options.h"

#include <errno.h>
#include <relayfs/ring_layout.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUE = 32 };

struct key {
	const char *name;
	int (*parse)(const char *value, const struct key *key, uint64_t *number);
	const char *const *words; /* of parse_word(): numbered from 0 */
	uint64_t most;
	size_t offset, bytes; /* in the spec; 0 bytes: not there */
};

static const char *const relay_types[] = {"relay", NULL}, *const ring_types[] = {"ring", NULL};
static const char *const modes[] = {"no-overwrite", "overwrite", "callback", NULL};
static const char *const buffers[] = {"percpu", "global", "single", NULL};
static const char *const schemes[] = {"any", "rseq", "lockless", "locking", NULL};
static const char *const deliveries[] = {"bulk", "packet", NULL};
static const char *const reads[] = {"nowait", "wait", NULL};
static const char *const reserves[] = {"commit", "visible", NULL};
static const char *const timestamps[] = {"none", "mono", "tsc", NULL};
static const char *const framings[] = {"raw", "length", "line", NULL};

static int parse_word(const char *value, const struct key *key, uint64_t *number)
{
	for (*number = 0; key->words[*number]; ++*number)
		if (strcmp(value, key->words[*number]) == 0)
			return 0;
	return -EINVAL;
}

/* Digits of this base up to `end`, which it sets. */
static int parse_digits(const char *value, int base, char **end, uint64_t *number)
{
	if (*value < '0' || *value > '9')
		return -EINVAL;
	errno = 0;
	*number = strtoull(value, end, base);
	return -errno;
}

static int parse_number(const char *value, const struct key *key, uint64_t *number)
{
	char *end;
	int err = parse_digits(value, 10, &end, number);
	return err || *end || *number > key->most ? -EINVAL : 0;
}

static int parse_size(const char *value, const struct key *key, uint64_t *number)
{
	static const char units[] = "kmg";
	char *end;
	if (parse_digits(value, 10, &end, number))
		return -EINVAL;
	const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
	if (*(end + !!unit) || *number > key->most >> shift)
		return -EINVAL;
	*number <<= shift;
	return 0;
}

static int parse_mode(const char *value, const struct key *key, uint64_t *number)
{
	char *end;
	int err = parse_digits(value, 8, &end, number);
	return err || *end || *number & ~key->most ? -EINVAL : 0;
}

#define FIELD(field) offsetof(struct relay_spec, field), sizeof(((struct relay_spec *)0)->field)

static const struct key relay_keys[] = {
    {"type", parse_word, relay_types, 0, 0, 0},
    {"subbuf_size", parse_size, NULL, UINT32_MAX, FIELD(subbuf_size)},
    {"n_subbufs", parse_number, NULL, UINT32_MAX, FIELD(n_subbufs)},
    {"mode", parse_word, modes, 0, FIELD(mode)},
    {"buffers", parse_word, buffers, 0, FIELD(buffers)},
    {"scheme", parse_word, schemes, 0, FIELD(scheme)},
    {"delivery", parse_word, deliveries, 0, FIELD(delivery)},
    {"read", parse_word, reads, 0, FIELD(read)},
    {"reserve", parse_word, reserves, 0, FIELD(reserve)},
    {"start_reserve", parse_size, NULL, UINT32_MAX, FIELD(start_reserve)},
    {"end_reserve", parse_size, NULL, UINT32_MAX, FIELD(end_reserve)},
    {"channel_start_reserve", parse_size, NULL, UINT32_MAX, FIELD(channel_start_reserve)},
    {"timestamp", parse_word, timestamps, 0, FIELD(timestamp)},
    {"flush_interval", parse_number, NULL, INT32_MAX, FIELD(flush_interval_ms)},
    {"perm", parse_mode, NULL, 0666, FIELD(file_mode)},
    {"uid", parse_number, NULL, UINT32_MAX - 1, FIELD(uid)},
    {"gid", parse_number, NULL, UINT32_MAX - 1, FIELD(gid)},
};
#define RING_FIELD(field) offsetof(struct relay_ring_spec, field), sizeof(((struct relay_ring_spec *)0)->field)

/* modes, up to callback; schemes, up to lockless: the ring's own check refuses the others. */
static const struct key ring_keys[] = {
    {"type", parse_word, ring_types, 0, 0, 0},
    {"size", parse_size, NULL, RELAY_RING_SIZE_MAX, RING_FIELD(ring_size)},
    {"mode", parse_word, modes, 0, RING_FIELD(mode)},
    {"buffers", parse_word, buffers, 0, RING_FIELD(buffers)},
    {"scheme", parse_word, schemes, 0, RING_FIELD(scheme)},
    {"read", parse_word, reads, 0, RING_FIELD(read)},
    {"framing", parse_word, framings, 0, RING_FIELD(framing)},
    {"perm", parse_mode, NULL, 0666, RING_FIELD(file_mode)},
    {"uid", parse_number, NULL, UINT32_MAX - 1, RING_FIELD(uid)},
    {"gid", parse_number, NULL, UINT32_MAX - 1, RING_FIELD(gid)},
};

/* The keys of one type of channel, and the struct that they fill. */
struct target {
	const struct key *keys;
	unsigned n_keys;
	void *spec;
	unsigned given; /* bits */
};

static void store(void *spec, const struct key *key, uint64_t number)
{
	void *field = (char *)spec + key->offset;
	if (key->bytes == sizeof(uint64_t))
		*(uint64_t *)field = number;
	else if (key->bytes)
		*(uint32_t *)field = (uint32_t)number;
}

static int parse_one(const char *word, size_t length, struct target *target)
{
	const char *equals = memchr(word, '=', length);
	size_t name_length = equals ? (size_t)(equals - word) : 0, value_length = length - name_length - 1;
	for (unsigned i = 0; equals && i < target->n_keys; i++) {
		const struct key *key = &target->keys[i];
		char value[MAX_VALUE] = "";
		uint64_t number;
		if (strlen(key->name) != name_length || memcmp(key->name, word, name_length) != 0)
			continue;
		if (target->given & 1u << i || value_length >= sizeof(value))
			return -EINVAL;
		target->given |= 1u << i;
		memcpy(value, equals + 1, value_length);
		int err = key->parse(value, key, &number);
		if (!err)
			store(target->spec, key, number);
		return err;
	}
	return -EINVAL;
}

static const char *next_word(const char *at, size_t *length)
{
	at += strspn(at, " \t");
	*length = strcspn(at, " \t");
	return *length ? at : NULL;
}

static int parse_all(const char *options, struct target *target)
{
	size_t length;
	for (const char *word = options; (word = next_word(word, &length)); word += length) {
		int err = parse_one(word, length, target);
		if (err)
			return err;
	}
	return 0;
}

#define N_OF(keys) (sizeof(keys) / sizeof((keys)[0]))

int relay_options_parse(const char *options, struct relay_spec *spec)
{
	int err = parse_all(options, &(struct target){relay_keys, N_OF(relay_keys), spec, 0});
	spec->n_buffers = spec->buffers == RELAY_PERCPU ? relay_n_possible_cpus() : 1;
	return err;
}

int relay_options_parse_rings(const char *options, struct relay_ring_spec *spec)
{
	int err = parse_all(options, &(struct target){ring_keys, N_OF(ring_keys), spec, 0});
	spec->n_rings = spec->buffers == RELAY_PERCPU ? relay_n_possible_cpus() : 1;
	return err;
}

bool relay_options_have(const char *options, const char *key)
{
	size_t length;
	for (const char *word = options; word && (word = next_word(word, &length)); word += length)
		if (strncmp(word, key, strlen(key)) == 0)
			return true;
	return false;
}
