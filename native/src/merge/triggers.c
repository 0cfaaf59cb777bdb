/* SPDX-License-Identifier: MIT */
/*
 * Triggers are evaluated on the events that a merge gives out, in the order of their times. Which triggers wait for an
 * event is found out at the first one of its id in a process, and kept with the process (chosen.h): an event that no
 * trigger waits for then costs a look at an array. A condition that compares an integer of the event is a range of its values.
 * So many triggers on a field cost a subtraction and a comparison if none is met because the value is far from all of theirs, and
 * otherwise one each. Many events in a row at which the limits of the same triggers forbid all of these to fire are counted
 * together (struct run).
 */
#define _GNU_SOURCE
#include "merge/export.h"
#include "merge/grown.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	/* The most firings, and bytes of lines, that are kept before one more event is evaluated. */
	FIRINGS_MAX = 1024,
	LINES_BYTES = 1 << 20,
	TEXT_BYTES = 2048, /* of an event's text; the rest is cut off */
};
_Static_assert(RELAY_TRIGGERS_MAX <= 8 * sizeof(uint32_t), "take_event() has a bit for each trigger");
static const uint64_t NS = 1000000000, NS_IN_MS = 1000000;

struct trigger {
	struct relay_trigger given;
	char *name, *glob;
	struct relay_conditions *conditions;
};

/* Events in a row that meet the conditions of the same triggers. */
struct run {
	uint32_t taken; /* a bit for each of the triggers, by its index */
	uint64_t n;     /* events that are not counted in the states of the triggers yet */
	uint64_t time;  /* of the last event */
	uint64_t until; /* before, none of the triggers is due, and all are of RELAY_TRIGGER_EVENT; 0: not all */
};

struct relay_triggers {
	struct relay_merge *merge;
	uint64_t generation;
	uint32_t n;
	bool has_failed; /* there was no memory in the last relay_triggers_gather() */
	struct trigger at[RELAY_TRIGGERS_MAX];
	struct run latest;
	struct relay_encoder *encoder;
	struct relay_output lines;
	struct relay_output text; /* of the event that is evaluated; empty: no trigger has fired at it so far */
	struct relay_firing firings[FIRINGS_MAX + RELAY_TRIGGERS_MAX];
	size_t n_firings, n_told;
};

/* --- making --- */

void relay_triggers_free(struct relay_triggers *triggers)
{
	if (!triggers)
		return;
	for (uint32_t i = 0; i < triggers->n; i++) {
		free(triggers->at[i].name);
		free(triggers->at[i].glob);
		free(triggers->at[i].conditions);
	}
	free(triggers->encoder);
	free(triggers->lines.at);
	free(triggers->text.at);
	free(triggers);
}

static bool waits_for_events(const struct relay_trigger *trigger)
{
	return trigger->kind < RELAY_TRIGGER_LOST;
}

/* 0; -EINVAL; -ENOMEM: what `trigger` owns is to be freed all the same. */
static int copy_trigger(struct trigger *trigger, const struct relay_trigger *given)
{
	const struct relay_conditions *conditions = given->conditions;
	*trigger = (struct trigger){.given = *given};
	if (given->kind > RELAY_TRIGGER_OTHER || waits_for_events(given) != (given->glob != NULL) ||
	    (conditions && (!relay_conditions_are_sound(conditions) || !conditions->n_conditions)))
		return -EINVAL;
	trigger->name = strdup(given->name ? given->name : "");
	trigger->glob = given->glob ? strdup(given->glob) : NULL;
	if (!trigger->name || (given->glob && !trigger->glob))
		return -ENOMEM;
	if (!conditions)
		return 0;
	trigger->conditions = malloc(sizeof(*conditions));
	if (!trigger->conditions)
		return -ENOMEM;
	*trigger->conditions = *conditions;
	return 0;
}

struct relay_triggers *relay_triggers_new(struct relay_merge *merge, const struct relay_trigger *triggers, uint32_t n)
{
	const struct relay_export_options options = {
	    .format = RELAY_EXPORT_TEXT, .times = RELAY_EXPORT_DATE, .marks_late = 1};
	if (n > RELAY_TRIGGERS_MAX) {
		errno = EINVAL;
		return NULL;
	}
	struct relay_triggers *made = calloc(1, sizeof(*made));
	if (!made)
		return NULL;
	made->merge = merge;
	made->generation = relay_merge_next_generation(merge);
	made->encoder = relay_encoder_text(&options);
	int err = made->encoder ? 0 : -ENOMEM;
	for (; !err && made->n < n; made->n++)
		err = copy_trigger(&made->at[made->n], &triggers[made->n]);
	if (!err)
		return made;
	relay_triggers_free(made);
	errno = -err;
	return NULL;
}

/* --- firing --- */

/* Why a trigger fires: an event, or a text; both are NULL: silence. */
struct cause {
	const struct relay_event *event;
	const char *text;
};

/* Return how many of the first bytes of UTF-8 are kept, so that no character is cut. */
static size_t kept_bytes(const char *text, size_t length)
{
	const size_t is_within_mask = 0xc0, is_within = 0x80;
	size_t n = length < TEXT_BYTES ? length : TEXT_BYTES;
	while (n > 0 && n < length && ((unsigned char)text[n] & is_within_mask) == is_within)
		n--;
	return n;
}

/* Write an event as text, without its time. */
static void put_event(struct relay_triggers *triggers, const struct relay_event *event)
{
	struct relay_output *text = &triggers->text;
	if (!text->length)
		triggers->encoder->event(triggers->encoder, text, event);
	if (text->has_failed)
		return;
	const char *begin = (const char *)memchr(text->at, ']', text->length) + strlen("] ");
	const size_t length = (size_t)(text->at + text->length - strlen("\n") - begin);
	relay_put(&triggers->lines, begin, kept_bytes(begin, length));
}

static void put_silence(struct relay_output *output, uint64_t time)
{
	relay_put_number(output, "no event for ", time % NS ? time / NS_IN_MS : time / NS);
	relay_put_text(output, time % NS ? "ms" : "s");
}

/* Write the line of a firing, which state->fired counts already. */
static void put_line(struct relay_triggers *triggers, const struct trigger *trigger, uint64_t time, struct cause cause)
{
	struct relay_output *lines = &triggers->lines;
	const struct relay_trigger_state *state = &trigger->given.state;
	relay_put_line_time(triggers->encoder, lines, time);
	relay_put_byte(lines, ' ');
	relay_put_text(lines, trigger->name);
	relay_put_number(lines, " ", state->fired);
	relay_put_text(lines, ": ");
	if (cause.event)
		put_event(triggers, cause.event);
	else if (cause.text)
		relay_put_text(lines, cause.text);
	else
		put_silence(lines, trigger->given.quiet);
	if (state->limited) {
		relay_put_number(lines, " (", state->limited);
		relay_put_number(lines, " more since firing ", state->fired - 1);
		relay_put_byte(lines, ')');
	}
	relay_put_byte(lines, '\n');
}

static void add_firing(struct relay_triggers *triggers, uint32_t number, uint64_t time, struct cause cause)
{
	struct trigger *trigger = &triggers->at[number];
	struct relay_trigger_state *state = &trigger->given.state;
	state->fired++;
	if (!trigger->given.is_only_told)
		triggers->firings[triggers->n_firings++] =
		    (struct relay_firing){.trigger = number, .number = state->fired, .time = time};
	put_line(triggers, trigger, time, cause);
	state->limited = 0;
	state->due = time + trigger->given.limit;
}

/* Fire a trigger if its limit allows it. Inline, because a limit may forbid it at each of many events. */
static inline bool fire(struct relay_triggers *triggers, uint32_t number, uint64_t time, struct cause cause)
{
	const struct relay_trigger *given = &triggers->at[number].given;
	struct relay_trigger_state *state = &triggers->at[number].given.state;
	if (time < given->since)
		return false;
	if (time < state->due) {
		state->limited++;
		return false;
	}
	add_firing(triggers, number, time, cause);
	return true;
}

static bool is_full(const struct relay_triggers *triggers)
{
	return triggers->n_firings >= FIRINGS_MAX || triggers->lines.length >= LINES_BYTES;
}

/* An event of the trigger's names has met its condition. */
static void match(struct relay_triggers *triggers, uint32_t number, const struct relay_event *event)
{
	const struct relay_trigger *given = &triggers->at[number].given;
	struct relay_trigger_state *state = &triggers->at[number].given.state;
	if (event->time < given->since)
		return;
	state->matched++;
	if (given->kind == RELAY_TRIGGER_EVENT) {
		fire(triggers, number, event->time, (struct cause){.event = event});
	} else if (given->kind == RELAY_TRIGGER_RATE) {
		if (event->time / NS > state->second) {
			state->second = event->time / NS;
			state->in_second = 0;
		}
		if (event->time / NS == state->second && ++state->in_second == given->most + 1)
			fire(triggers, number, event->time, (struct cause){.event = event});
	} else if (event->time > state->last && event->time - state->last >= given->quiet && !state->is_told) {
		fire(triggers, number, state->last + given->quiet, (struct cause){0});
	}
	if (event->time > state->last) {
		state->last = event->time;
		state->is_told = 0;
	}
}

/* --- choices --- */

/* Whether a condition is one comparison, on which alone it depends. */
static bool is_single(const struct relay_choice *choice)
{
	return choice->n == 1 && choice->first == 0;
}

static bool is_same_path(const struct relay_step *one, const struct relay_step *other)
{
	for (;; one++, other++) {
		if (one->bytes != other->bytes || one->end != other->end || one->each != other->each)
			return false;
		if (one->end == RELAY_EVENT_ENDS)
			return true;
	}
}

static bool is_same_group(const struct relay_choice *one, const struct relay_choice *other)
{
	return is_single(one) && is_single(other) && one->has_range == other->has_range &&
	       is_same_path(one->comparisons->path, other->comparisons->path);
}

/* Return a range in which both lie. */
static struct relay_range range_around(const struct relay_range *one, const struct relay_range *other)
{
	const uint64_t one_last = one->low + one->span, other_last = other->low + other->span;
	const uint64_t low = one->low < other->low ? one->low : other->low;
	const uint64_t last = one_last > other_last ? one_last : other_last;
	const bool has_all = one_last < one->low || other_last < other->low;
	if (has_all)
		return (struct relay_range){.span = UINT64_MAX};
	return (struct relay_range){.low = low, .span = last - low};
}

/* Add a choice, for which there is room, at the end of its group. */
static void add_choice(struct relay_choices *choices, const struct relay_choice *choice)
{
	uint32_t at = 0;
	while (at < choices->n && !is_same_group(choice, &choices->at[at]))
		at += choices->at[at].n_in_group;
	struct relay_choice *first = &choices->at[at], *end = first;
	if (at < choices->n) {
		first->all = range_around(&first->all, &choice->range);
		end += first->n_in_group++;
	}
	memmove(end + 1, end, (size_t)(&choices->at[choices->n++] - end) * sizeof(*end));
	*end = *choice;
}

/* Add a trigger to the choices of an event if it waits for it. false: no memory. */
static bool choose(struct relay_choices *choices, uint32_t number, const struct trigger *trigger,
                   const struct relay_trace_event *event)
{
	struct relay_choice choice = {.trigger = number, .first = RELAY_TAKE};
	if (trigger->conditions) {
		const unsigned n = relay_condition_length(trigger->conditions, 0);
		choice.comparisons = calloc(n + 1, sizeof(*choice.comparisons));
		if (!choice.comparisons)
			return false;
		choice.first = relay_condition_resolve(trigger->conditions, 0, event, choice.comparisons, &choice.n);
	}
	if (choice.first == RELAY_REFUSE) {
		relay_comparisons_clear(choice.comparisons, choice.n);
		free(choice.comparisons);
		return true;
	}
	choice.has_range = is_single(&choice) && relay_comparison_range(choice.comparisons, &choice.range);
	choice.all = choice.range;
	choice.n_in_group = 1;
	add_choice(choices, &choice);
	return true;
}

static struct relay_choices *make_choices(const struct relay_triggers *triggers, const struct relay_trace_event *event)
{
	char name[2 * 128 + 2];
	struct relay_choices *choices = calloc(1, sizeof(*choices) + triggers->n * sizeof(choices->at[0]));
	snprintf(name, sizeof(name), "%s:%s", event->provider, event->name);
	for (uint32_t i = 0; choices && i < triggers->n; i++) {
		const struct trigger *trigger = &triggers->at[i];
		if (trigger->glob && fnmatch(trigger->glob, name, 0) == 0 && !choose(choices, i, trigger, event)) {
			relay_choices_free(choices);
			return NULL;
		}
	}
	return choices;
}

/* Return the triggers that wait for an event. NULL: no memory. */
static const struct relay_choices *choices_of(const struct relay_triggers *triggers, const struct relay_event *event)
{
	struct relay_chosen *chosen = event->stream->traced->chosen;
	const uint64_t id = event->stream->cursor.id;
	if (chosen->generation != triggers->generation)
		relay_chosen_clear(chosen, triggers->generation);
	if (id < chosen->n && chosen->of[id])
		return chosen->of[id];
	struct relay_choices **of = relay_grown(chosen->of, &chosen->n, id, sizeof(*of));
	if (!of)
		return NULL;
	chosen->of = of;
	chosen->of[id] = make_choices(triggers, event->declared);
	return chosen->of[id];
}

/* --- events --- */

/* Return a bit for each trigger of a group whose condition an event meets, by the trigger's index. */
static uint32_t take_group(const struct relay_choice *first, const struct relay_event *event)
{
	const struct relay_choice *end = first + first->n_in_group;
	uint64_t value;
	uint32_t taken = 0;
	if (!is_single(first))
		return (uint32_t)relay_condition_takes(first->comparisons, first->first, event->fields, event->end)
		       << first->trigger;
	const unsigned char *at = relay_pass_event(first->comparisons->path, event->fields, event->end);
	if (!first->has_range)
		for (const struct relay_choice *choice = first; choice < end; choice++)
			taken |= (uint32_t)relay_comparison_takes(choice->comparisons, at, event->end)
			         << choice->trigger;
	else if (relay_range_load(first->comparisons, at, event->end, &value) && relay_range_takes(&first->all, value))
		for (const struct relay_choice *choice = first; choice < end; choice++)
			taken |= (uint32_t)relay_range_takes(&choice->range, value) << choice->trigger;
	return taken;
}

/* Count the events of the run in the states of its triggers. */
static void count_run(struct relay_triggers *triggers)
{
	struct run *run = &triggers->latest;
	for (uint32_t taken = run->n ? run->taken : 0; taken; taken &= taken - 1) {
		struct relay_trigger_state *state = &triggers->at[__builtin_ctz(taken)].given.state;
		state->matched += run->n;
		state->limited += run->n;
		state->last = run->time > state->last ? run->time : state->last;
	}
	run->n = 0;
}

/* Begin a run with an event. */
static void begin_run(struct relay_triggers *triggers, const struct relay_event *event, uint32_t taken)
{
	struct run *run = &triggers->latest;
	*run = (struct run){.taken = taken, .time = event->time, .until = UINT64_MAX};
	for (; taken; taken &= taken - 1) {
		const uint32_t number = (uint32_t)__builtin_ctz(taken);
		const struct relay_trigger *given = &triggers->at[number].given;
		match(triggers, number, event);
		const bool counts = given->kind == RELAY_TRIGGER_EVENT && event->time >= given->since;
		const uint64_t until = counts ? given->state.due : 0;
		run->until = until < run->until ? until : run->until;
	}
}

static void take_event(struct relay_triggers *triggers, const struct relay_event *event)
{
	struct run *run = &triggers->latest;
	const struct relay_choices *choices = choices_of(triggers, event);
	uint32_t taken = 0;
	triggers->has_failed |= !choices;
	for (uint32_t i = 0; choices && i < choices->n; i += choices->at[i].n_in_group)
		taken |= take_group(&choices->at[i], event);
	if (taken == run->taken && event->time >= run->time && event->time < run->until) {
		run->n++;
		run->time = event->time;
		return;
	}
	count_run(triggers);
	begin_run(triggers, event, taken);
}

static void take_loss(struct relay_triggers *triggers, const struct relay_event *event)
{
	for (uint32_t i = 0; i < triggers->n; i++)
		if (triggers->at[i].given.kind == RELAY_TRIGGER_LOST)
			fire(triggers, i, event->time, (struct cause){.event = event});
}

int relay_triggers_gather(struct relay_triggers *triggers)
{
	const struct relay_event *event = NULL;
	relay_triggers_forget(triggers);
	triggers->text.has_failed = triggers->lines.has_failed = triggers->has_failed = false;
	while (!is_full(triggers) && (event = relay_merge_next(triggers->merge))) {
		triggers->text.length = 0;
		if (event->lost)
			take_loss(triggers, event);
		else
			take_event(triggers, event);
	}
	count_run(triggers);
	triggers->has_failed |= triggers->text.has_failed || triggers->lines.has_failed;
	return triggers->has_failed ? -ENOMEM : !event;
}

void relay_triggers_reach(struct relay_triggers *triggers, uint64_t time)
{
	for (uint32_t i = 0; i < triggers->n && !is_full(triggers); i++) {
		const struct relay_trigger *given = &triggers->at[i].given;
		struct relay_trigger_state *state = &triggers->at[i].given.state;
		if (given->kind != RELAY_TRIGGER_QUIET || state->is_told || time < state->last + given->quiet)
			continue;
		state->is_told = 1;
		fire(triggers, i, state->last + given->quiet, (struct cause){0});
	}
}

int relay_triggers_fire(struct relay_triggers *triggers, uint32_t trigger, uint64_t time, const char *text)
{
	if (trigger >= triggers->n)
		return -EINVAL;
	if (is_full(triggers))
		return -EAGAIN;
	return fire(triggers, trigger, time, (struct cause){.text = text});
}

int relay_triggers_next(struct relay_triggers *triggers, struct relay_firing *firing)
{
	if (triggers->n_told == triggers->n_firings)
		return 0;
	*firing = triggers->firings[triggers->n_told++];
	return 1;
}

const char *relay_triggers_lines(const struct relay_triggers *triggers, size_t *length)
{
	*length = triggers->lines.length;
	return triggers->lines.at;
}

void relay_triggers_forget(struct relay_triggers *triggers)
{
	triggers->n_firings = triggers->n_told = 0;
	triggers->lines.length = 0;
}

int relay_triggers_state(const struct relay_triggers *triggers, uint32_t trigger, struct relay_trigger_state *state)
{
	if (trigger >= triggers->n)
		return -EINVAL;
	*state = triggers->at[trigger].given.state;
	return 0;
}
