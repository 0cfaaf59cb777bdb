/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/selection.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static bool matches_term(const char *term, const char *program, uint32_t pid, uint32_t uid)
{
	unsigned long number;
	char rest;
	if (sscanf(term, "pid:%lu%c", &number, &rest) == 1)
		return number == pid;
	if (sscanf(term, "uid:%lu%c", &number, &rest) == 1)
		return number == uid;
	return fnmatch(term, program, 0) == 0;
}

bool relay_selects_process(const struct relay_trace *trace, const char *program, uint32_t pid, uint32_t uid)
{
	char filter[RELAY_TRACE_FILTER_BYTES], *next = filter, *term;
	memcpy(filter, trace->filter, sizeof(filter));
	if (!*filter)
		return true;
	while ((term = strsep(&next, ",")))
		if (matches_term(term, program, pid, uid))
			return true;
	return false;
}

bool relay_selects_event(const struct relay_trace *trace, const char *event, int *condition)
{
	char rules[RELAY_TRACE_RULES_BYTES], *next = rules, *rule;
	int n_conditions = 0;
	memcpy(rules, trace->rules, sizeof(rules));
	bool selects = rules[0] != '+';
	*condition = -1;
	while ((rule = strsep(&next, "\n"))) {
		const char *glob = strsep(&rule, " ");
		const int own = rule ? n_conditions++ : -1;
		if (!*glob || fnmatch(glob + 1, event, 0) != 0)
			continue;
		selects = *glob == '+';
		*condition = own;
	}
	return selects;
}

int relay_trace_takes(const struct relay_trace *trace, const char *program, uint32_t pid, uint32_t uid,
                      const char *event)
{
	int condition;
	return trace->is_started && relay_selects_process(trace, program, pid, uid) &&
	       relay_selects_event(trace, event, &condition);
}
