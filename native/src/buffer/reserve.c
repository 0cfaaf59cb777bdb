/* SPDX-License-Identifier: MIT */
/*
 * Writing in two steps: reserve, then commit or discard.
 *
 * A reservation is a claim (buffer/claims.c). The program has only the address of the reserved memory, and
 * commit searches the claims for it: few claims are in use, and a list of reservations in the process's memory
 * would not survive fork().
 */
#define _GNU_SOURCE
#include "buffer/reserve.h"

#include "buffer/claims.h"
#include "buffer/holes.h"
#include "buffer/timed.h"
#include "buffer/try_reserve.h"
#include "buffer/write.h"

/* Reserve in another way than with reserve=commit. */
static int reserve_otherwise(struct rchan_buf *buf, size_t length, struct relay_slot *slot, void **to)
{
	if (buf->is_timed)
		return relay_timed_reserve(buf, length, slot->will_retry, &slot->claim, to);
	int err = relay_reserve_visible(buf, length, slot);
	*to = slot->to;
	if (!err)
		relay_wake_record(buf);
	return err;
}

int relay_reserve_here(struct rchan_buf *buf, size_t length, bool will_retry, void **to)
{
	/* For a length of 0, return an address to which nothing is written, as the kernel does. */
	*to = buf->data;
	if (length == 0)
		return 0;
	struct relay_slot slot = {.will_retry = will_retry};
	if (buf->reserve != RELAY_RESERVE_COMMIT)
		return reserve_otherwise(buf, length, &slot, to);
	/* A discarded record that is too short for struct relay_hole keeps its claim until a reader passes it. At most
	 * half of the claims may be used like that. */
	if (length < sizeof(struct relay_hole) && relay_claims_n_holes(buf, 0) >= RELAY_N_CLAIMS / 2) {
		relay_switch_from_holes(buf, false);
		return will_retry ? -ENOSPC : relay_refuse_full(buf, length);
	}
	int err = relay_reserve_claimed(buf, length, &slot);
	*to = slot.to;
	return err;
}

/* The claim of a reservation, which with `times` begins with the head before the record. NULL: there is none. */
static struct relay_claim *claim_of(struct rchan_buf *buf, void *reserved)
{
	struct relay_claim *claim = relay_claim_at(buf, reserved);
	return claim || !buf->is_timed ? claim : relay_claim_at(buf, (char *)reserved - RELAY_HEAD_BYTES);
}

void relay_buf_commit(struct rchan_buf *buf, void *reserved)
{
	struct relay_claim *claim = claim_of(buf, reserved);
	if (claim)
		relay_commit_claim(buf, claim);
}

void relay_buf_discard(struct rchan_buf *buf, void *reserved)
{
	struct relay_claim *claim = claim_of(buf, reserved);
	if (!claim)
		return;
	/* Relaxed: the fields of a claim do not change while it is TAKEN, nor does the entry of a sub-buffer after head
	 * has entered it. */
	uint64_t pos = relay_claim_position(claim);
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	uint64_t record = __atomic_load_n(&claim->records, __ATOMIC_RELAXED) -
	                  __atomic_load_n(&relay_pos_entry(buf, pos)->start_records, __ATOMIC_RELAXED);
	if (relay_hole_push(buf, pos, length, (uint32_t)record))
		relay_commit_claim(buf, claim);
	else
		relay_claim_leave_hole(buf, claim, true);
}
