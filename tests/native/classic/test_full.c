/* SPDX-License-Identifier: MIT */
/* Channels of 2003 that are full: they are asked, suspended, resumed and consumed, also from within a callback. */
#define _GNU_SOURCE
#include "classic_channel.h"

SCHEMES(lockless, locking);

static int fill(void)
{
	int id = open_plain();

	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), 64);
	CHECK_CALLS("seds");
	return id;
}

TEST(a_suspended_channel_discards_and_counts_until_it_is_resumed)
{
	answers.full = 1;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 10), -ENOSPC);
	CHECK_CALLS("edf");
	CHECK_FIELDS(info_of(id), (suspended, 1), (events_lost, 1));
	for (int i = 0; i < 5; i++)
		CHECK_EQ(write_n(id, 'd', 10), -ENOSPC);
	CHECK_CALLS(""); /* nobody is asked again */
	CHECK_EQ(info_of(id).events_lost, 6);
	/* That there is room again, changes nothing. */
	relay_buffers_consumed(id, 1);
	CHECK_EQ(write_n(id, 'e', 10), -ENOSPC);
	CHECK_EQ(info_of(id).suspended, 1);
	relay_resume(id);
	CHECK_EQ(info_of(id).suspended, 0);
	CHECK_EQ(write_n(id, 'f', 10), 10);
	CHECK_CALLS("s");
	CHECK_EQ(info_of(id).events_lost, 7);
	CHECK_READS("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbffffffffff");
}

TEST(resume_catches_consumed_up_with_produced)
{
	answers.full = 1;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 64), -ENOSPC);
	CHECK_FIELDS(info_of(id), (bufs_produced, 2), (bufs_consumed, 0));
	relay_resume(id);
	CHECK_EQ(info_of(id).bufs_consumed, 2);
	/* So two more fit before somebody is asked; readers get what is left. */
	CHECK_EQ(write_n(id, 'd', 64), 64);
	CHECK_EQ(write_n(id, 'e', 64), 64);
	CHECK_CALLS("edfseds");
	CHECK_EQ(write_n(id, 'f', 64), -ENOSPC);
	CHECK_CALLS("edf");
	char expected[256];
	snprintf(expected, sizeof(expected), "%s%s", text_of('d', 64), text_of('e', 64));
	CHECK_READS(expected);
}

TEST(what_is_unread_can_be_read_after_a_resume)
{
	answers.full = 1;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 64), -ENOSPC);
	relay_resume(id);
	char expected[256];
	snprintf(expected, sizeof(expected), "%s%s", text_of('a', 64), text_of('b', 64));
	CHECK_READS(expected);
}

TEST(resume_of_what_is_not_suspended_means_that_all_is_consumed)
{
	AUTO_ID id = fill();

	relay_resume(id);
	CHECK_EQ(info_of(id).bufs_consumed, 1);
	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("eds");
}

TEST(a_client_that_consumes_what_is_delivered_is_never_full)
{
	answers.full = 1;
	AUTO_ID id = open_plain();

	for (char letter = 'a'; letter <= 'j'; letter++) {
		CHECK_EQ(write_n(id, letter, 64), 64);
		if (letter > 'a')
			relay_buffers_consumed(id, 1);
	}
	for (unsigned i = 0; i < n_calls; i++)
		CHECK(calls[i].kind != 'f');
	CHECK_FIELDS(info_of(id), (bufs_produced, 9), (bufs_consumed, 9));
	/* Nobody else is given them. */
	CHECK_READS("jjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjj");
}

TEST(what_readers_have_read_is_consumed)
{
	answers.full = 1;
	AUTO_ID id = fill();
	AUTOPTR(rchan_buf) buf = open_memory();
	char data[64];

	CHECK_EQ(consume_into(buf, data, sizeof(data)), 64);
	CHECK_EQ(info_of(id).bufs_consumed, 1);
	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("eds");
	CHECK_EQ(write_n(id, 'd', 64), -ENOSPC);
	CHECK_CALLS("edf");
}

TEST(no_more_is_consumed_than_is_produced)
{
	AUTO_ID id = fill();

	relay_buffers_consumed(id, 0);
	CHECK_EQ(info_of(id).bufs_consumed, 0);
	relay_buffers_consumed(id, 2);
	CHECK_EQ(info_of(id).bufs_consumed, 1);
	relay_buffers_consumed(id, 100);
	CHECK_EQ(info_of(id).bufs_consumed, 1);
}

/* --- from within a callback --- */

static void consume_delivered(const struct call *call)
{
	if (call->kind == 'd')
		relay_buffers_consumed(call->id, 1);
}

TEST(deliver_may_consume_what_it_is_given)
{
	answers.full = 1;
	answers.in = consume_delivered;
	AUTO_ID id = open_plain();

	for (char letter = 'a'; letter <= 'j'; letter++)
		CHECK_EQ(write_n(id, letter, 64), 64);
	CHECK_CALLS("sedsedsedsedsedsedsedsedseds");
	CHECK_EQ(info_of(id).bufs_consumed, 9);
}

static struct rchan_info told_inside[4];
static void ask_info(const struct call *call)
{
	if (n_calls > 1)
		CHECK_EQ(relay_info(call->id, &told_inside[strchr("sedf", call->kind) - "sedf"]), 0);
}

TEST(callbacks_may_ask_for_info)
{
	answers.in = ask_info;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("edfs");
	CHECK_EQ(told_inside[2].bufs_produced, 2); /* deliver */
	CHECK_EQ(told_inside[2].buffer_complete[1], 1);
	CHECK_EQ(told_inside[3].bufs_produced, 2); /* buffers_full */
	CHECK_EQ(told_inside[3].bufs_consumed, 0);
	CHECK_EQ(told_inside[3].events_lost, 0);
	CHECK_EQ(told_inside[0].n_bufs, 2);
}

static void resume_at_once(const struct call *call)
{
	if (call->kind == 'f')
		relay_resume(call->id);
}

TEST(buffers_full_may_resume)
{
	answers.in = resume_at_once;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("edfs");
	CHECK_EQ(info_of(id).bufs_consumed, 2);
}

static int results[4];
static void write_inside(const struct call *call)
{
	if (n_calls > 1)
		results[strchr("sedf", call->kind) - "sedf"] = write_n(call->id, 'x', 64);
}

TEST(callbacks_may_not_write_what_needs_a_callback)
{
	answers.in = write_inside;
	AUTO_ID id = fill();

	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("edfs");
	for (int i = 0; i < 4; i++)
		CHECK_EQ(results[i], -EDEADLK);
	CHECK_EQ(info_of(id).bufs_produced, 2);
	answers.in = NULL;
}

TEST(close_of_a_suspended_channel_ends_nothing_twice)
{
	answers.full = 1;
	int id = fill();

	CHECK_EQ(write_n(id, 'c', 64), -ENOSPC);
	CHECK_CALLS("edf");
	CHECK_EQ(relay_close(id), 0);
	CHECK_CALLS("");
}
