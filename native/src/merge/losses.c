/* SPDX-License-Identifier: MIT */
/*
 * Packets say how many events were lost between two of them, and not why. The metadata of a recording have intervals, each
 * of one cause, between two looks at the counts of a buffer. An event that was lost in an interval was lost between two
 * packets whose times overlap it, so the two together tell the cause of each loss at its place.
 */
#define _GNU_SOURCE
#include "merge/losses.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Intervals are of CLOCK_REALTIME, the times of events of a clock that was compared with it when the trace was made, and may
 * have drifted from it by so much. */
static const uint64_t DRIFT_NS = 1000000000;

struct relay_losses {
	struct relay_loss *at; /* by `until`; `records` are those that were not given to a loss yet */
	size_t n, room;
};

const char *relay_loss_cause_name(uint32_t cause)
{
	static const char *const names[RELAY_N_LOSS_CAUSES] = {
	    [RELAY_LOSS_FULL] = "full",         [RELAY_LOSS_TOO_LARGE] = "too_large",
	    [RELAY_LOSS_DISABLED] = "disabled", [RELAY_LOSS_OVERWRITTEN] = "overwritten",
	    [RELAY_LOSS_TORN] = "torn",         [RELAY_LOSS_NO_BUFFERS] = "no_buffers",
	    [RELAY_LOSS_DAMAGED] = "damaged",   [RELAY_LOSS_REMOVED] = "removed",
	};
	return cause < RELAY_N_LOSS_CAUSES ? names[cause] : NULL;
}

struct relay_losses *relay_losses_new(void)
{
	return calloc(1, sizeof(struct relay_losses));
}

void relay_losses_free(struct relay_losses *losses)
{
	if (losses)
		free(losses->at);
	free(losses);
}

int relay_losses_add(struct relay_losses *losses, const struct relay_loss *loss)
{
	if (losses->n == losses->room) {
		const size_t room = losses->room ? 2 * losses->room : 8;
		struct relay_loss *more = reallocarray(losses->at, room, sizeof(*more));
		if (!more)
			return -ENOMEM;
		losses->at = more;
		losses->room = room;
	}
	size_t place = losses->n++;
	for (; place > 0 && losses->at[place - 1].until > loss->until; place--)
		losses->at[place] = losses->at[place - 1];
	losses->at[place] = *loss;
	return 0;
}

/* Add up to `lost` events to `parts`, from intervals that overlap this time. Returns how many are left. */
static uint64_t take(struct relay_losses *losses, uint32_t cpu, uint64_t since, uint64_t until, uint64_t lost,
                     uint64_t *parts)
{
	for (size_t i = 0; i < losses->n && lost; i++) {
		struct relay_loss *loss = &losses->at[i];
		if (loss->cpu != cpu || loss->since > until || loss->until < since)
			continue;
		const uint64_t part = loss->records < lost ? loss->records : lost;
		parts[loss->cause] += part;
		loss->records -= part;
		lost -= part;
	}
	return lost;
}

void relay_losses_divide(struct relay_losses *losses, uint32_t cpu, uint64_t since, uint64_t until, uint64_t lost,
                         uint64_t parts[RELAY_N_LOSS_CAUSES])
{
	memset(parts, 0, RELAY_N_LOSS_CAUSES * sizeof(*parts));
	if (losses) {
		lost = take(losses, cpu, since, until, lost, parts);
		since -= since < DRIFT_NS ? since : DRIFT_NS;
		until += until > UINT64_MAX - DRIFT_NS ? UINT64_MAX - until : DRIFT_NS;
		lost = take(losses, cpu, since, until, lost, parts);
	}
	parts[RELAY_LOSS_UNKNOWN] = lost;
}
