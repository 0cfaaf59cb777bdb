/* SPDX-License-Identifier: MIT */
/* Refused records are counted as lost, in a latch of {records, bytes} in shared memory. Inline: a producer that outruns its
 * reader spends its time here. */
#ifndef RELAYFS_BASE_REFUSE_H
#define RELAYFS_BASE_REFUSE_H

#include "base/latch.h"
#include "base/persist.h"

#include <errno.h>

static inline enum relay_rseq_result relay_tally(struct relay_latch *lost, uint64_t length, uint32_t scheme,
                                                 uint32_t cpu)
{
	if (scheme == RELAY_RSEQ) {
		enum relay_rseq_result result = relay_rseq_tally(lost, length, cpu);
		return result == RELAY_RSEQ_ABORTED ? relay_persist_tally(lost, length, cpu) : result;
	}
	/* Acquire, and in this order: if they are of two moments, the compare-and-swap fails. */
	uint64_t records = __atomic_load_n(&lost->first, __ATOMIC_ACQUIRE);
	uint64_t bytes = __atomic_load_n(&lost->second[0], __ATOMIC_ACQUIRE);
	RELAY_PUBLISHES(&lost->first);
	bool is_counted = relay_latch_cmpxchg(lost, records, bytes, records + 1, bytes + length);
	return is_counted ? RELAY_RSEQ_DONE : RELAY_RSEQ_MOVED;
}

/*
 * Count a record of `length` bytes as lost, in memory of this scheme, and of this CPU in scheme rseq. Returns `err`. If the record
 * could not be counted: what relay_rseq_misplaced() says, or -EBADMSG, because the latch never came to rest.
 */
static inline int relay_refuse(struct relay_latch *lost, uint64_t length, uint32_t scheme, uint32_t cpu, int err)
{
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		enum relay_rseq_result result = relay_tally(lost, length, scheme, cpu);
		if (__builtin_expect(result == RELAY_RSEQ_DONE, 1))
			return err;
		int gone = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(cpu) : 0;
		if (gone)
			return gone;
	}
	return -EBADMSG;
}

#endif
