/* SPDX-License-Identifier: MIT */
/* Writers that stop or die in the middle of a write, where they leave claims: schemes rseq and lockless. */
#define _GNU_SOURCE
#include "half_written.h"

#include <pthread.h>

SCHEMES(rseq, lockless);

TEST(a_restartable_write_that_dies_was_never_there)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	/* In lockless the claim is there at the first fault already. */
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaabbbbbbbbbb");
	CHECK_STATS(buf, (lost_torn_records, scheme == RELAY_RSEQ ? 0 : 1), (records, scheme == RELAY_RSEQ ? 2 : 3));
}

TEST(a_restarted_write_is_written_once)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);

	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	continue_writer(&writer);
	CHECK_STATS(buf, (records, 2), (bytes, 30));
	if (scheme == RELAY_RSEQ)
		CHECK_DRAINS(buf, "bbbbbbbbbbxxxxxxxxxxxxxxxxxxxx");
	else
		CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxbbbbbbbbbb");
}

/* A writer in the middle of a record of 20 bytes, between two records of n bytes. */
static struct writer start_between(struct rchan_buf *buf, size_t n)
{
	CHECK_EQ(write_letters(buf, 'a', n), 0);
	struct writer writer = start_claimed(buf, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', n), 0);
	return writer;
}

TEST(a_hole_is_skipped_and_its_neighbours_kept)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_between(buf, 10);

	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaabbbbbbbbbb");
	check_torn(buf, 1, 20);
	CHECK_EQ(stats_of(buf).records, 3);
}

TEST(a_hole_may_begin_the_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(40, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_claimed(buf, 'x', 20);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_torn(buf, 1, 20);
}

/* The dead writer had switched, too. */
TEST(a_hole_may_follow_a_switch)
{
	AUTOPTR(rchan_buf) buf = make_buf(40, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 30), 0);
	struct writer writer = start_claimed(buf, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', 20), 0);
	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 20), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbcccccccccccccccccccc");
	check_torn(buf, 1, 20);
	CHECK_STATS(buf, (produced, 2), (padding, 10));
}

TEST(a_hole_may_fill_the_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(20, 3, RELAY_NO_OVERWRITE);
	struct writer writer = start_between(buf, 20);

	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 20), -ENOSPC);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb");
	check_torn(buf, 1, 20);
	CHECK_EQ(write_letters(buf, 'c', 20), 0);
	CHECK_DRAINS(buf, "cccccccccccccccccccc");
}

TEST(several_holes_in_one_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(200, 3, RELAY_NO_OVERWRITE);
	struct writer writer[5];
	char expected[51];
	int i;

	for (i = 0; i < 5; i++) {
		CHECK_EQ(write_letters(buf, (char)('a' + i), 10), 0);
		memset(expected + 10 * i, 'a' + i, 10);
		writer[i] = start_claimed(buf, 'x', (size_t)(10 + i));
	}
	expected[50] = 0;
	/* Not in the order of their positions. */
	for (i = 0; i < 5; i++)
		kill_writer(&writer[i * 3 % 5]);
	CHECK_DRAINS(buf, expected);
	check_torn(buf, 5, 60);
}

/* Data before a slow writer is there, data behind it waits, and comes in order. */
TEST(a_slow_writer_holds_back_what_follows)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_between(buf, 10);

	CHECK_DRAINS(buf, "aaaaaaaaaa");
	CHECK_DRAINS(buf, "");
	CHECK(!(relay_buf_state(buf) & RELAY_HAS_DATA));
	continue_writer(&writer);
	CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxbbbbbbbbbb");
	check_torn(buf, 0, 0);
}

TEST(a_slow_writer_keeps_its_memory_from_being_overwritten)
{
	AUTOPTR(rchan_buf) buf = make_buf(20, 3, RELAY_OVERWRITE);
	int i, err = 0;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	struct writer writer = start_claimed(buf, 'x', 10);
	for (i = 0; i < 6 && err == 0; i++)
		err = write_letters(buf, (char)('b' + i), 20);
	CHECK_EQ(err, -ENOSPC);
	CHECK(i <= 4);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	continue_writer(&writer);
	CHECK_EQ(write_each(buf, "kkkk", 20), 0);
	CHECK_DRAINS(buf, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
	check_torn(buf, 0, 0);
}

TEST(a_dead_writers_memory_is_overwritten)
{
	AUTOPTR(rchan_buf) buf = make_buf(20, 3, RELAY_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	leave_hole(buf, 10);
	CHECK_EQ(write_each(buf, "kkkkkkkk", 20), 0);
	CHECK_DRAINS(buf, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
	/* Overwritten or torn: counted once. */
	CHECK_EQ(stats_of(buf).read_records + stats_of(buf).lost_overwritten_records + stats_of(buf).lost_torn_records,
	         10);
	CHECK_EQ(stats_of(buf).read_bytes + stats_of(buf).lost_overwritten_bytes + stats_of(buf).lost_torn_bytes, 180);
}

TEST(the_buffer_goes_on_for_laps_after_a_hole)
{
	AUTOPTR(rchan_buf) buf = make_buf(50, 3, RELAY_NO_OVERWRITE);
	int i;

	leave_hole(buf, 20);
	for (i = 0; i < 50; i++) {
		CHECK_EQ(write_letters(buf, 'r', 30), 0);
		CHECK_EQ(strlen(drain(buf)), 30);
	}
	check_torn(buf, 1, 20);
}

/* More dead than there are claims. */
TEST(claims_of_the_dead_are_used_again)
{
	AUTOPTR(rchan_buf) buf = make_buf(50, 3, RELAY_NO_OVERWRITE);
	int i;

	for (i = 0; i < RELAY_N_CLAIMS + 20; i++) {
		leave_hole(buf, 20);
		CHECK_EQ(write_letters(buf, 'r', 30), 0);
		CHECK_EQ(strlen(drain(buf)), 30);
	}
	check_torn(buf, RELAY_N_CLAIMS + 20, 20 * (RELAY_N_CLAIMS + 20));
}

/* Who reads packets gets finished sub-buffers only. */
TEST(a_sub_buffer_in_which_the_dead_hold_all_claims_can_be_finished)
{
	enum { LENGTH = 20, N = RELAY_N_RESERVATIONS };
	AUTOPTR(rchan_buf) buf = make_buf(8192, 3, RELAY_NO_OVERWRITE);

	die_with_all_reservations(buf, LENGTH);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	CHECK_EQ(relay_buf_resolve(buf, 0), N);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 1);
	CHECK_DRAINS(buf, "");
	check_torn(buf, N, N * LENGTH);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "bbbbbbbbbb");
	check_torn(buf, N, N * LENGTH);
}

/* A writer of scheme lockless needs a claim for each record, one of scheme rseq does not. */
TEST(a_writer_that_gets_no_claim_finishes_the_sub_buffer_in_which_the_dead_hold_them)
{
	AUTOPTR(rchan_buf) buf = make_buf(8192, 3, RELAY_NO_OVERWRITE);
	void *to;
	int i;

	die_with_all_reservations(buf, 20);
	for (i = 0; i < 3; i++)
		CHECK_EQ(relay_buf_reserve(buf, 10, &to), -ENOSPC);
	CHECK_STATS(buf, (lost_full_records, 4), (produced, 1));
	CHECK_DRAINS(buf, "");
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "bbbbbbbbbb");
	check_torn(buf, RELAY_N_RESERVATIONS, 20 * RELAY_N_RESERVATIONS);
}

/* Nobody reads, so that the claims come free when the holes are overwritten. */
TEST(writers_overwrite_what_the_dead_hold_all_claims_in)
{
	enum { N_SUBBUFS = 3, N = RELAY_N_RESERVATIONS };
	AUTOPTR(rchan_buf) buf = make_buf(8192, N_SUBBUFS, RELAY_OVERWRITE);
	void *to;
	int i;

	die_with_all_reservations(buf, 20);
	for (i = 0; i < N_SUBBUFS; i++)
		CHECK_EQ(relay_buf_reserve(buf, 10, &to), -ENOSPC);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_EQ(relay_buf_reserve(buf, 10, &to), 0);
	relay_buf_commit(buf, memset(to, 'c', 10));
	CHECK_DRAINS(buf, "bbbbbbbbbbcccccccccc");
	CHECK_STATS(buf, (lost_full_records, 1 + N_SUBBUFS), (lost_overwritten_records, N));
	check_torn(buf, 0, 0);
}

/* Make a reservation and end it; was its claim one that threads do not keep, so that they look for another next time? */
static bool takes_an_unkept_claim(struct rchan_buf *buf)
{
	struct relay_claim claims[RELAY_N_CLAIMS];
	uint32_t taken = 0;
	void *to;

	CHECK_EQ(relay_buf_reserve(buf, 20, &to), 0);
	CHECK_EQ(pread(relay_buf_fd(buf), claims, sizeof(claims), claims_at(buf)), sizeof(claims));
	relay_buf_commit(buf, to);
	while (taken < RELAY_N_CLAIMS && (claims[taken].word & RELAY_CLAIM_STATE) != RELAY_CLAIM_TAKEN)
		taken++;
	CHECK(taken < RELAY_N_CLAIMS);
	return taken >= RELAY_N_CLAIMS_KEPT;
}

static int count_unkept_claims(struct rchan_buf *buf, int n_reservations)
{
	int n = 0, i;

	for (i = 0; i < n_reservations; i++)
		n += takes_an_unkept_claim(buf);
	return n;
}

/* They keep a claim each, and do not die in the middle of anything. */
TEST(processes_that_come_and_go_leave_claims_to_keep)
{
	AUTOPTR(rchan_buf) buf = make_buf(1000, 3, RELAY_OVERWRITE);
	int i;
	pid_t pid;

	for (i = 0; i < RELAY_N_CLAIMS_KEPT + 8; i++) {
		pid = fork_child();
		if (pid == 0)
			_exit(count_unkept_claims(open_again(buf), 2));
		CHECK_EQ(result_of(pid), 0);
	}
	CHECK_EQ(count_unkept_claims(buf, 1000), 0);
}

static void *reserve_once(void *buf)
{
	takes_an_unkept_claim(buf);
	return NULL;
}

/* Of one process, which asks who is dead now and then only. */
TEST(threads_that_come_and_go_leave_claims_to_keep)
{
	AUTOPTR(rchan_buf) buf = make_buf(1000, 3, RELAY_OVERWRITE);
	pthread_t thread;
	int n_unkept, i;

	for (i = 0; i < 2 * RELAY_N_CLAIMS_KEPT; i++) {
		CHECK_EQ(pthread_create(&thread, NULL, reserve_once, buf), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
	n_unkept = count_unkept_claims(buf, 1000);
	CHECK(n_unkept > 0 && n_unkept < 64);
}
