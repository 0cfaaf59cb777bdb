/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/damage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int relay_damage_note(struct relay_damage *damage, const char *where, uint64_t index, uint64_t value, const char *rule,
                      uint64_t limit)
{
	damage->where = where;
	damage->rule = rule;
	damage->index = index;
	damage->value = value;
	damage->limit = limit;
	return -EBADMSG;
}

int relay_damage_say(struct relay_damage *damage, const char *sentence)
{
	return relay_damage_note(damage, sentence, 0, 0, NULL, 0);
}

int relay_damage_loss(struct relay_damage *damage, const char *where, const struct relay_latch *lost, uint64_t *records,
                      uint64_t *bytes)
{
	if (!relay_latch_read(lost, records, bytes))
		return relay_damage_say(damage, "the counters of lost records keep changing");
	return relay_damage_above(damage, where, 0, *bytes, INT64_MAX);
}

const char *relay_damage_text(struct relay_damage *damage)
{
	char index[24] = "";
	const char *where = damage->where, *bracket;
	if (!where)
		return "";
	if (!damage->rule)
		return where;
	bracket = strstr(where, "[]");
	int before = bracket ? (int)(bracket - where) + 1 : (int)strlen(where);
	if (bracket)
		snprintf(index, sizeof(index), "%" PRIu64, damage->index);
	snprintf(damage->text, sizeof(damage->text), "%.*s%s%s is %" PRIu64 ", %s %" PRIu64, before, where, index,
	         where + before, damage->value, damage->rule, damage->limit);
	return damage->text;
}
