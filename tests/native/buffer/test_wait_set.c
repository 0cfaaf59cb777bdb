/* SPDX-License-Identifier: MIT */
/* A wait set: which of its buffers have changed, which were woken, and that it sleeps while none was. */
#define _GNU_SOURCE
#include "check.h"

#include <relayfs/relay.h>

SCHEMES(rseq, lockless, locking);

enum { SLOT = 126, NEVER_MS = 600000 };

/* Check what the set says of its one buffer: whether it has changed, and whether it was woken. */
#define CHECK_SEES(set, has_changed, was_woken)                            \
	do {                                                               \
		uint32_t slots[RELAY_WAIT_SET_SLOTS] = {0};                \
		CHECK_EQ(relay_wait_set_changed(set, slots), has_changed); \
		if (has_changed)                                           \
			CHECK_EQ(slots[0], SLOT);                          \
		CHECK_EQ(relay_wait_set_woken(set, slots), was_woken);     \
	} while (0)

static void put(struct relay_wait_set *set, struct rchan_buf *buf)
{
	relay_wait_set_put_buf(set, SLOT, buf, relay_buf_wake_seq(buf));
	CHECK_SEES(set, 0, 0);
}

TEST(whatever_changes_a_buffer_is_seen_though_nobody_is_woken)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	struct relay_wait_set *set = relay_wait_set_new();

	put(set, buf);
	CHECK_EQ(write_letters(buf, 'a', 5), 0);
	CHECK_SEES(set, 1, 0);
	put(set, buf);
	CHECK_DRAINS(buf, "aaaaa");
	CHECK_SEES(set, 1, 0);
	put(set, buf);
	CHECK_EQ(write_letters(buf, 'b', 5), 0);
	put(set, buf);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_SEES(set, 1, 0);
	put(set, buf);
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_SEES(set, 1, 0);
	put(set, buf);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_SEES(set, 1, 0);
	relay_wait_set_free(set);
}

TEST(a_sleep_ends_when_a_counter_has_changed_but_not_of_one_that_rests)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	struct relay_wait_set *set = relay_wait_set_new();
	uint32_t seq, stop = 1;

	CHECK_EQ(relay_buf_arm(buf, RELAY_ARM_RECORD, &seq), 0);
	put(set, buf);
	CHECK_EQ(write_letters(buf, 'a', 5), 0);
	CHECK_SEES(set, 1, 1);
	CHECK_EQ(relay_wait_set_sleep(set, NULL, 0, NEVER_MS), 0);
	relay_wait_set_rest(set, SLOT);
	CHECK_SEES(set, 1, 0);
	CHECK_EQ(relay_wait_set_sleep(set, &stop, 1, 1), 0);
	CHECK_EQ(relay_wait_set_sleep(set, &stop, 0, NEVER_MS), 0);
	relay_wait_set_clear(set, SLOT);
	CHECK_SEES(set, 0, 0);
	relay_wait_set_free(set);
}
