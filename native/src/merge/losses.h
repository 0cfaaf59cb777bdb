/* SPDX-License-Identifier: MIT */
/* Why events were lost: the intervals that the metadata of a recording have. */
#ifndef RELAYFS_MERGE_LOSSES_H
#define RELAYFS_MERGE_LOSSES_H

#include <relayfs/merge.h>

struct relay_losses;

/* NULL: no memory. */
struct relay_losses *relay_losses_new(void);
void relay_losses_free(struct relay_losses *losses);

/* Add an interval. 0 or -ENOMEM. */
int relay_losses_add(struct relay_losses *losses, const struct relay_loss *loss);

/*
 * Divide `lost` events of a CPU, which were lost between the times `since` and `until`, among the causes: those of the
 * intervals that overlap this time, the ones that end first before others, each up to the number of its events that no earlier
 * call has taken. parts receives the events by cause; the cause of those for which there is no interval is RELAY_LOSS_UNKNOWN.
 */
void relay_losses_divide(struct relay_losses *losses, uint32_t cpu, uint64_t since, uint64_t until, uint64_t lost,
                         uint64_t parts[RELAY_N_LOSS_CAUSES]);

#endif
