/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/faults.h"

#include "base/owner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add(struct relay_faults *faults, const struct relay_fault *fault)
{
	for (uint32_t i = 0; i < faults->n; i++)
		if (faults->fault[i].at == fault->at && strcmp(faults->fault[i].name, fault->name) == 0)
			return;
	if (faults->n < RELAY_N_FAULTS)
		faults->fault[faults->n++] = *fault;
	else
		faults->n_more++;
}

__attribute__((format(printf, 3, 0))) static void add_text(struct relay_faults *faults, struct relay_fault *fault,
                                                           const char *format, va_list arguments)
{
	vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	add(faults, fault);
}

static struct relay_fault named(uint32_t kind, uint64_t at, uint64_t value, const char *name)
{
	struct relay_fault fault = {.kind = kind, .has_value = 1, .at = at, .value = value};
	snprintf(fault.name, sizeof(fault.name), "%s", name);
	return fault;
}

int relay_fault_value(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, const char *allowed,
                      ...)
{
	if (faults) {
		struct relay_fault fault = named(RELAY_FAULT_DAMAGE, at, value, name);
		va_list arguments;
		va_start(arguments, allowed);
		add_text(faults, &fault, allowed, arguments);
		va_end(arguments);
	}
	return -EBADMSG;
}

void relay_fault_dead(struct relay_faults *faults, uint64_t at, uint64_t owner, const char *name, const char *text, ...)
{
	if (!owner || relay_owner_alive(owner))
		return;
	struct relay_fault fault = named(RELAY_FAULT_DEAD, at, owner & ((1ull << RELAY_OWNER_TID_BITS) - 1), name);
	va_list arguments;
	va_start(arguments, text);
	add_text(faults, &fault, text, arguments);
	va_end(arguments);
}

void relay_fault_left(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, const char *text)
{
	struct relay_fault fault = named(RELAY_FAULT_DEAD, at, value, name);
	snprintf(fault.text, sizeof(fault.text), "%s", text);
	add(faults, &fault);
}

void relay_fault_bits(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t known)
{
	if (value & ~known)
		relay_fault_value(faults, at, value, name, "bits of %" PRIu64, known);
}

void relay_fault_above(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t most)
{
	if (value > most)
		relay_fault_value(faults, at, value, name, "at most %" PRIu64, most);
}

int relay_fault_version(struct relay_faults *faults, uint64_t at, uint64_t value, const char *name, uint64_t known)
{
	if (faults) {
		struct relay_fault fault = named(RELAY_FAULT_VERSION, at, value, name);
		snprintf(fault.text, sizeof(fault.text), "%" PRIu64, known);
		add(faults, &fault);
	}
	return -EPROTO;
}

/* --- notes --- */

/* What a rule of a note forbids, and what is allowed instead. */
static const struct {
	const char *rule, *allowed;
} rules[] = {
    {"more than", "at most"},
    {"less than", "at least"},
    {"not less than a ring's size after the consumer position", "less than a ring's size after the consumer position,"},
    {"not less than", "less than"},
    {"not a position in sub-buffers of so many bytes:", "a position in sub-buffers of so many bytes:"},
    {"not a position in sub-buffer", "a position in sub-buffer"},
    {"not 1 or more and at most", "1 or more and at most"},
    {"not", "only"},
    {"no multiple of", "a multiple of"},
    {"too long for a record that ends at or before", "that of a record that ends at or before"},
};

static const char *allowed_by(const char *rule)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (strcmp(rules[i].rule, rule) == 0)
			return rules[i].allowed;
	return rule;
}

static uint64_t place_of(const struct relay_damage *damage, const struct relay_fault_place *place)
{
	while (place->where && strncmp(place->where, damage->where, strlen(place->where)) != 0)
		place++;
	return place->at + place->each * damage->index;
}

void relay_fault_note(struct relay_faults *faults, struct relay_damage *damage, const struct relay_fault_place *places)
{
	const char *where = damage->where, *bracket = where ? strstr(where, "[]") : NULL;
	if (!where)
		return;
	struct relay_fault fault = {
	    .has_value = !!damage->rule, .at = place_of(damage, places), .value = damage->value};
	int before = bracket ? (int)(bracket - where) + 1 : (int)strlen(where);
	if (!damage->rule)
		snprintf(fault.text, sizeof(fault.text), "%s", where);
	else if (bracket)
		snprintf(fault.name, sizeof(fault.name), "%.*s%" PRIu64 "%s", before, where, damage->index,
		         where + before);
	else
		snprintf(fault.name, sizeof(fault.name), "%s", where);
	if (damage->rule)
		snprintf(fault.text, sizeof(fault.text), "%s %" PRIu64, allowed_by(damage->rule), damage->limit);
	add(faults, &fault);
	relay_damage_forget(damage);
}
