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
	/* In any order: the compare-and-swap compares both words, so that two loads of different moments make it fail. */
	uint64_t records = __atomic_load_n(&lost->first, __ATOMIC_ACQUIRE);
	uint64_t bytes = __atomic_load_n(&lost->second[0], __ATOMIC_ACQUIRE);
	RELAY_PUBLISHES(&lost->first);
	bool is_counted = relay_latch_cmpxchg(lost, records, bytes, records + 1, bytes + length);
	return is_counted ? RELAY_RSEQ_DONE : RELAY_RSEQ_MOVED;
}

/*
 * Count a refused record of `length` bytes in `lost`, by the scheme of the buffer or ring; in RELAY_RSEQ, `cpu` is the CPU to which
 * it belongs. Returns err; RELAY_WRONG_CPU or -ENOTSUP (relay_rseq_misplaced()): not counted, because this thread cannot run a
 * section on `cpu`; -EBADMSG: the latch kept changing for RELAY_CHANGE_TRIES tries.
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
