/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/refuse.h"

#include "base/persist.h"

int relay_refuse_again(struct relay_latch *lost, uint64_t length, uint32_t scheme, uint32_t cpu, int err)
{
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		enum relay_rseq_result result = relay_tally(lost, length, scheme, cpu);
		if (result == RELAY_RSEQ_ABORTED)
			result = relay_persist_tally(lost, length, cpu);
		if (result == RELAY_RSEQ_DONE)
			return err;
		int misplaced = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(cpu) : 0;
		if (misplaced)
			return misplaced;
	}
	return -EBADMSG;
}
