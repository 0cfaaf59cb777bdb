/* SPDX-License-Identifier: MIT */
/*
 * Writing in two steps: reserve, then commit or discard.
 *
 * A reservation is a claim (buffer/claims.c) that its owner keeps. What the client holds is the memory's address only, and
 * commit finds the claim by it: claims in use are few, and a list of them in the process would not survive fork().
 */
#define _GNU_SOURCE
#include "buffer/reserve.h"

#include "buffer/claims.h"
#include "buffer/holes.h"
#include "buffer/try_reserve.h"
#include "buffer/write.h"

int relay_reserve_here(struct rchan_buf *buf, size_t length, bool will_retry, void **to)
{
	/* Nothing, somewhere: as in the kernel. */
	*to = buf->data;
	if (length == 0)
		return 0;
	struct relay_slot slot = {.will_retry = will_retry};
	if (buf->reserve == RELAY_RESERVE_VISIBLE) {
		int result = relay_reserve_visible(buf, length, &slot);
		*to = slot.to;
		if (!result)
			relay_wake_record(buf);
		return result;
	}
	/* Discarded, it would take a claim until it is read: leave some for others. */
	if (length < sizeof(struct relay_hole) && relay_claims_n_holes(buf, 0) >= RELAY_N_CLAIMS / 2) {
		relay_switch_from_holes(buf, false);
		return will_retry ? -ENOSPC : relay_refuse_full(buf, length);
	}
	int err = relay_reserve_claimed(buf, length, &slot);
	*to = slot.to;
	if (!err)
		relay_claim_confirm(slot.claim);
	return err;
}

void relay_buf_commit(struct rchan_buf *buf, void *reserved)
{
	struct relay_claim *claim = relay_claim_at(buf, reserved);
	if (claim)
		relay_commit_claim(buf, claim);
}

void relay_buf_discard(struct rchan_buf *buf, void *reserved)
{
	struct relay_claim *claim = relay_claim_at(buf, reserved);
	if (!claim)
		return;
	/* Relaxed: constant while the claim is taken, which relay_claim_at() saw, and the ledger since head came here. */
	uint64_t pos = relay_claim_position(claim);
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	uint64_t record = __atomic_load_n(&claim->records, __ATOMIC_RELAXED) -
	                  __atomic_load_n(&relay_pos_ledger(buf, pos)->start_records, __ATOMIC_RELAXED);
	if (relay_hole_push(buf, pos, length, (uint32_t)record))
		relay_commit_claim(buf, claim);
	else
		relay_claim_leave_hole(buf, claim, true);
}
