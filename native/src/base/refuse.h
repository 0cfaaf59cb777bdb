/* SPDX-License-Identifier: MIT */
/* Counting refused records as lost, in a latch of {records, bytes} in shared memory. The functions are inline, because
 * a producer that writes to a full buffer spends its time in them. */
#ifndef RELAYFS_BASE_REFUSE_H
#define RELAYFS_BASE_REFUSE_H

#include "base/latch.h"
#include "base/rseq.h"

#include <errno.h>

/* Try to add {1, length} to a latch. RELAY_RSEQ_MOVED: another thread changed it meanwhile; RELAY_RSEQ_ABORTED: the
 * section of scheme rseq was interrupted. */
static inline enum relay_rseq_result relay_tally(struct relay_latch *lost, uint64_t length, uint32_t scheme,
                                                 uint32_t cpu)
{
	if (scheme == RELAY_RSEQ)
		return relay_rseq_tally(lost, length, cpu);
	/* The order of the loads does not matter: if the two words are of different moments, the compare-and-swap
	 * fails. */
	uint64_t records = __atomic_load_n(&lost->first, __ATOMIC_ACQUIRE);
	uint64_t bytes = __atomic_load_n(&lost->second[0], __ATOMIC_ACQUIRE);
	RELAY_PUBLISHES(&lost->first);
	bool is_counted = relay_latch_cmpxchg(lost, records, bytes, records + 1, bytes + length);
	return is_counted ? RELAY_RSEQ_DONE : RELAY_RSEQ_MOVED;
}

/* As relay_refuse(), after relay_tally() has failed once. */
int relay_refuse_again(struct relay_latch *lost, uint64_t length, uint32_t scheme, uint32_t cpu, int err);

/*
 * Count a refused record of `length` bytes in `lost`, by the scheme of the buffer or ring; in scheme RELAY_RSEQ, `cpu`
 * is the CPU to which it belongs. Returns err if the record was counted. Returns RELAY_WRONG_CPU or -ENOTSUP, from
 * relay_rseq_misplaced(), if this thread cannot run a section on `cpu`; -EBADMSG if the latch changed in each of
 * RELAY_CHANGE_TRIES tries.
 */
static inline int relay_refuse(struct relay_latch *lost, uint64_t length, uint32_t scheme, uint32_t cpu, int err)
{
	if (__builtin_expect(relay_tally(lost, length, scheme, cpu) == RELAY_RSEQ_DONE, 1))
		return err;
	return relay_refuse_again(lost, length, scheme, cpu, err);
}

#endif
