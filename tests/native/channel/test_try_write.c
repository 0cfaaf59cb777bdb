/* SPDX-License-Identifier: MIT */
/* Producers that wait for room: what is refused and tried again is not counted as lost. */
#define _GNU_SOURCE
#include "check.h"

#include "channel/channel.h"

#include <relayfs/relay.h>

SCHEMES(rseq, lockless, locking);

enum { SUBBUF = 256, N_SUBBUFS = 2, RECORD = 100 };

static int refuse_all(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)buf, (void)subbuf, (void)prev_subbuf, (void)prev_padding;
	return 0;
}

static struct rchan *open_channel(struct rchan_callbacks *cb)
{
	static const char *const names[] = {"any", "rseq", "lockless", "locking"};
	static char options[64];
	struct rchan *chan;

	snprintf(options, sizeof(options), "scheme=%s", names[scheme]);
	cb->options = options;
	chan = relay_open(NULL, NULL, SUBBUF, N_SUBBUFS, cb, NULL);
	CHECK(chan != NULL);
	return chan;
}

static void check_lost(struct rchan *chan, uint64_t full, uint64_t too_large, uint64_t disabled)
{
	struct relay_stats stats = stats_of(&chan->bufs[home_cpu]);

	CHECK_FIELDS(stats, (lost_full_records, full), (lost_full_bytes, full * RECORD),
	             (lost_too_large_records, too_large), (lost_disabled_records, disabled));
}

static void try_in_vain(struct rchan *chan)
{
	static char data[RECORD];

	for (int i = 0; i < 3; i++) {
		CHECK_EQ(relay_try_write(chan, data, RECORD), -ENOSPC);
		CHECK(!relay_try_reserve(chan, RECORD) && errno == ENOSPC);
	}
	check_lost(chan, 0, 0, 0);
	/* It gives up. */
	CHECK_EQ(relay_write(chan, data, RECORD), -ENOSPC);
	CHECK(!relay_reserve(chan, RECORD) && errno == ENOSPC);
	check_lost(chan, 2, 0, 0);
}

TEST(the_largest_record_fits_and_a_longer_one_does_not)
{
	struct rchan_callbacks cb = {.options = NULL};
	struct rchan *chan = open_channel(&cb);
	char data[SUBBUF + 1] = "";

	CHECK_EQ(relay_largest_record(NULL), 0);
	CHECK_EQ(relay_largest_record(chan), SUBBUF);
	CHECK_EQ(relay_write(chan, data, SUBBUF + 1), -EMSGSIZE);
	CHECK_EQ(relay_write(chan, data, SUBBUF), 0);
	relay_close(chan);
}

TEST(a_producer_that_will_try_again_has_lost_nothing)
{
	struct rchan_callbacks cb = {.options = NULL};
	struct rchan *chan = open_channel(&cb);
	char data[SUBBUF + 1] = "", *record;
	int n = 0;

	while (relay_try_write(chan, data, RECORD) == 0)
		n++;
	CHECK_EQ(n, N_SUBBUFS * (SUBBUF / RECORD));
	try_in_vain(chan);
	CHECK_EQ(strlen(drain(&chan->bufs[home_cpu])), 0); /* all of them zero */
	CHECK_EQ(stats_of(&chan->bufs[home_cpu]).read_records, n);
	memset(data, 'a', 3);
	CHECK_EQ(relay_try_write(chan, data, 3), 0);
	record = relay_try_reserve(chan, 2);
	CHECK(record != NULL);
	memset(record, 'b', 2);
	relay_commit(chan, record);
	CHECK_EQ(relay_try_write(chan, data, 0), 0);
	CHECK_DRAINS(&chan->bufs[home_cpu], "aaabb");
	relay_close(chan);
}

TEST(what_waiting_does_not_cure_is_counted)
{
	struct rchan_callbacks cb = {.options = NULL};
	struct rchan *chan = open_channel(&cb);
	char data[SUBBUF + 1] = "";

	CHECK_EQ(relay_try_write(chan, data, sizeof(data)), -EMSGSIZE);
	CHECK(!relay_try_reserve(chan, sizeof(data)) && errno == EMSGSIZE);
	check_lost(chan, 0, 2, 0);
	CHECK_EQ(relay_buf_stop(&chan->bufs[home_cpu], RELAY_DISABLED, 1), 0);
	CHECK_EQ(relay_try_write(chan, data, RECORD), -ECANCELED);
	CHECK(!relay_try_reserve(chan, RECORD) && errno == ECANCELED);
	check_lost(chan, 0, 2, 2);
	CHECK_EQ(relay_try_write(NULL, data, 1), -EBADF);
	CHECK(!relay_try_reserve(NULL, 1) && errno == EBADF);
	relay_close(chan);
}

TEST(a_client_that_says_not_yet_is_asked_again)
{
	struct rchan_callbacks cb = {.subbuf_start = refuse_all};
	struct rchan *chan = open_channel(&cb);
	char data[RECORD] = "";

	/* The first sub-buffer begins in any case. */
	while (relay_try_write(chan, data, RECORD) == 0)
		;
	try_in_vain(chan);
	relay_close(chan);
}

TEST(all_reservations_in_use_are_room_that_comes)
{
	struct rchan_callbacks cb = {.options = NULL};
	struct rchan *chan = open_channel(&cb);
	void *some[RELAY_N_RESERVATIONS];

	for (int i = 0; i < RELAY_N_RESERVATIONS; i++)
		CHECK((some[i] = relay_try_reserve(chan, 1)) != NULL);
	CHECK(!relay_try_reserve(chan, 1) && errno == ENOSPC);
	check_lost(chan, 0, 0, 0);
	for (int i = 0; i < RELAY_N_RESERVATIONS; i++)
		relay_commit(chan, some[i]);
	relay_close(chan);
}
