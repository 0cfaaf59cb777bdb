/* SPDX-License-Identifier: MIT */
#include "merge/chosen.h"

#include <stdlib.h>

struct relay_chosen *relay_chosen_new(void)
{
	return calloc(1, sizeof(struct relay_chosen));
}

void relay_choices_free(struct relay_choices *choices)
{
	for (uint32_t i = 0; choices && i < choices->n; i++) {
		relay_comparisons_clear(choices->at[i].comparisons, choices->at[i].n);
		free(choices->at[i].comparisons);
	}
	free(choices);
}

void relay_chosen_clear(struct relay_chosen *chosen, uint64_t generation)
{
	for (size_t id = 0; id < chosen->n; id++)
		relay_choices_free(chosen->of[id]);
	free(chosen->of);
	*chosen = (struct relay_chosen){.generation = generation};
}

void relay_chosen_free(struct relay_chosen *chosen)
{
	if (chosen)
		relay_chosen_clear(chosen, 0);
	free(chosen);
}
