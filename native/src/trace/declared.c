/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/declared.h"

#include "trace/event_copy.h"
#include "trace/field_types.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { N_CHAINS = 1024 };

static struct relay_declared *chains[N_CHAINS];
static uint64_t n_declared;

static bool has_same_labels(const struct relay_trace_enum *one, const struct relay_trace_enum *other)
{
	bool same = one->n_labels == other->n_labels && strcmp(one->field, other->field) == 0;
	for (uint32_t i = 0; same && i < one->n_labels; i++)
		same = one->labels[i].value == other->labels[i].value &&
		       strcmp(one->labels[i].name, other->labels[i].name) == 0;
	return same;
}

static bool is_same(const struct relay_trace_event *one, const struct relay_trace_event *other)
{
	bool same = one->n_fields == other->n_fields && one->level == other->level &&
	            strcmp(one->provider, other->provider) == 0 && strcmp(one->name, other->name) == 0;
	for (uint32_t i = 0; same && i < one->n_fields; i++)
		same = one->fields[i].type == other->fields[i].type &&
		       strcmp(one->fields[i].name, other->fields[i].name) == 0;
	same = same && relay_event_n_enums(one) == relay_event_n_enums(other);
	for (uint32_t i = 0; same && i < relay_event_n_enums(one); i++)
		same = has_same_labels(&one->enums[i], &other->enums[i]);
	return same;
}

/* FNV-1a. */
static uint64_t add_to_hash(uint64_t sum, const char *text)
{
	/* The null byte is hashed, too, so that "ab", "c" and "a", "bc" differ. */
	do
		sum = (sum ^ (unsigned char)*text) * 0x100000001b3u;
	while (*text++);
	return sum;
}

static uint64_t hash_of(const struct relay_trace_event *event)
{
	uint64_t sum = add_to_hash(add_to_hash(0xcbf29ce484222325u + event->level, event->provider), event->name);
	for (uint32_t i = 0; i < event->n_fields; i++)
		sum = add_to_hash(sum + event->fields[i].type, event->fields[i].name);
	return sum;
}

/* Return a copy in one allocation: the event, its fields, all names. NULL: no memory. */
static struct relay_declared *copy_of(const struct relay_trace_event *event)
{
	struct relay_declared *copy = calloc(1, sizeof(*copy) + relay_event_copy_bytes(event));
	if (copy)
		relay_event_copy(&copy->event, copy + 1, event);
	return copy;
}

struct relay_declared *relay_declared_get(const struct relay_trace_event *event)
{
	struct relay_declared **chain = &chains[hash_of(event) % N_CHAINS], *found = *chain;
	while (found && !is_same(&found->event, event))
		found = found->other;
	if (found)
		return found;
	if (n_declared > RELAY_TRACE_ID_MAX) {
		errno = ENOSPC;
		return NULL;
	}
	found = copy_of(event);
	if (!found) {
		errno = ENOMEM;
		return NULL;
	}
	found->number = ++n_declared;
	found->other = *chain;
	*chain = found;
	return found;
}
