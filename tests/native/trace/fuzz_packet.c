/* SPDX-License-Identifier: MIT */
/*
 * For libFuzzer: relay_packet_check() reads nothing beyond a packet, whatever is in it, and whatever is declared.
 *
 * An input is declarations, then events:
 *
 *     n  {id n_types {type form} * n_types} * n  context  events ...        a byte each, but for the events
 *
 * Ids are small so that events that the fuzzer makes up have declared ones.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <relayfs/trace_store.h>
#include <string.h>

enum { MOST_TYPES = 64 };
static const uint64_t begin = 100, end = 1ull << 40;

static void declare(struct relay_layouts *layouts, struct input *input)
{
	for (unsigned n = take(input) % 8; n; n--) {
		uint32_t types[MOST_TYPES], n_types;
		uint64_t id = take(input);
		n_types = take(input) % MOST_TYPES;
		for (uint32_t i = 0; i < n_types; i++)
			types[i] = take(input) % (RELAY_N_TRACE_TYPES + 1) | form_of(take(input));
		relay_layouts_add(layouts, id, types, n_types);
	}
}

/* What was found good is good for itself, and all of it. */
static void check_again(const struct relay_layouts *layouts, const unsigned char *events,
                        const struct relay_packet_checked *checked)
{
	struct relay_packet_checked again;
	unsigned char *copy = malloc(checked->good_bytes);
	memcpy(copy, events, checked->good_bytes);
	relay_packet_check(layouts, copy, checked->good_bytes, begin, end, &again);
	must(again.fault == RELAY_PACKET_GOOD && again.n_events == checked->n_events &&
	         again.good_bytes == checked->good_bytes && again.time == checked->time,
	     "the good part is not good");
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};
	struct relay_packet_checked checked;
	struct relay_layouts *layouts = relay_layouts_new(size && data[size - 1] & 1 ? 4 : 0);
	declare(layouts, &input);
	/* In memory of just this length, so that the address sanitizer sees a byte too many. */
	unsigned char *events = malloc(input.left);
	memcpy(events, input.at, input.left);
	relay_packet_check(layouts, events, input.left, begin, end, &checked);
	must(checked.good_bytes <= input.left, "more is good than there is");
	must((checked.fault == RELAY_PACKET_GOOD) == (checked.good_bytes == input.left),
	     "a fault and its place differ");
	must(checked.n_events * sizeof(uint64_t) <= checked.good_bytes, "more events than bytes");
	must(checked.time >= begin && checked.time <= end, "a time that is not the packet's");
	check_again(layouts, events, &checked);
	free(events);
	relay_layouts_free(layouts);
	return 0;
}
