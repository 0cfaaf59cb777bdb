/* SPDX-License-Identifier: MIT */
/* The source of a stream of losses that no packet counts, such as those of programs that got no buffers. */
#define _GNU_SOURCE
#include "merge/merge.h"

#include <errno.h>
#include <stdlib.h>

struct loss_source {
	struct relay_source source;
	struct relay_loss *at;
	size_t n, next;
	bool is_begun; /* the packet that ends where the next loss begins was returned */
	uint64_t discarded;
};

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct loss_source *losses = (struct loss_source *)source;
	if (losses->next == losses->n)
		return RELAY_SOURCE_ENDED;
	const struct relay_loss *loss = &losses->at[losses->next];
	if (losses->is_begun) {
		losses->discarded += loss->records;
		packet->lost[loss->cause] = loss->records;
		losses->next++;
	}
	const uint64_t time = losses->is_begun ? loss->until : loss->since;
	packet->head = (struct relay_packet){
	    .events_discarded = losses->discarded, .timestamp_begin = time, .timestamp_end = time};
	packet->events = (const unsigned char *)""; /* none; NULL has no end */
	packet->tells_causes = true;
	losses->is_begun = !losses->is_begun;
	return RELAY_SOURCE_PACKET;
}

static void close_losses(struct relay_source *source)
{
	free(((struct loss_source *)source)->at);
	free(source);
}

int relay_merge_add_lost(struct relay_merge *merge, int process, const struct relay_loss *losses, size_t n)
{
	struct loss_source *source = calloc(1, sizeof(*source));
	struct relay_loss *at = calloc(n + 1, sizeof(*at));
	for (size_t i = 0; i < n; i++)
		if (losses[i].cause >= RELAY_N_LOSS_CAUSES || (i && losses[i - 1].until > losses[i].until)) {
			free(at);
			free(source);
			return -EINVAL;
		}
	if (!source || !at) {
		free(at);
		free(source);
		return -ENOMEM;
	}
	memcpy(at, losses, n * sizeof(*at));
	*source = (struct loss_source){.source = {.next = next_packet, .close = close_losses}, .at = at, .n = n};
	return relay_merge_add_source(merge, process, RELAY_NO_CPU, &source->source, 0);
}

int relay_merge_explain(struct relay_merge *merge, int process, const struct relay_loss *losses, size_t n)
{
	struct relay_traced *traced = relay_merge_process(merge, process);
	return traced ? relay_traced_explain(traced, losses, n) : -EINVAL;
}
