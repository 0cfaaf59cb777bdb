/* SPDX-License-Identifier: MIT */
/* Writers that stop or die in the middle of a write, where they leave claims: schemes rseq and lockless. */
#define _GNU_SOURCE
#include "half_written.h"

#include <pthread.h>

SCHEMES(rseq, lockless);

static void check_torn(struct rchan_buf *buf, uint64_t records, uint64_t bytes)
{
	CHECK_EQ(stats_of(buf).lost_torn_records, records);
	CHECK_EQ(stats_of(buf).lost_torn_bytes, bytes);
	CHECK_EQ(stats_of(buf).unread_bytes, 0);
	CHECK_EQ(stats_of(buf).read_records + records + stats_of(buf).lost_overwritten_records, stats_of(buf).records);
	CHECK_EQ(stats_of(buf).read_bytes + bytes + stats_of(buf).lost_overwritten_bytes, stats_of(buf).bytes);
}

TEST(a_restartable_write_that_dies_was_never_there)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	/* In lockless the claim is there at the first fault already. */
	writer = start_writer(path, 'x', 20, 0, 1);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaabbbbbbbbbb");
	CHECK_EQ(stats_of(buf).lost_torn_records, scheme == RELAY_RSEQ ? 0 : 1);
	CHECK_EQ(stats_of(buf).records, scheme == RELAY_RSEQ ? 2 : 3);
	relay_buf_release(buf);
}

TEST(a_restarted_write_is_written_once)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_writer(path, 'x', 20, 0, 1);

	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	continue_writer(&writer);
	CHECK_EQ(stats_of(buf).records, 2);
	CHECK_EQ(stats_of(buf).bytes, 30);
	if (scheme == RELAY_RSEQ)
		CHECK_DRAINS(buf, "bbbbbbbbbbxxxxxxxxxxxxxxxxxxxx");
	else
		CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxbbbbbbbbbb");
	relay_buf_release(buf);
}

TEST(a_hole_is_skipped_and_its_neighbours_kept)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	writer = start_claimed(path, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaabbbbbbbbbb");
	check_torn(buf, 1, 20);
	CHECK_EQ(stats_of(buf).records, 3);
	relay_buf_release(buf);
}

TEST(a_hole_may_begin_the_sub_buffer)
{
	const char *path = new_path(40, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_claimed(path, 'x', 20);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	kill_writer(&writer);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_torn(buf, 1, 20);
	relay_buf_release(buf);
}

/* The dead writer had switched, too. */
TEST(a_hole_may_follow_a_switch)
{
	const char *path = new_path(40, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 30), 0);
	writer = start_claimed(path, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', 20), 0);
	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 20), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbcccccccccccccccccccc");
	check_torn(buf, 1, 20);
	CHECK_EQ(stats_of(buf).produced, 2);
	CHECK_EQ(stats_of(buf).padding, 10);
	relay_buf_release(buf);
}

TEST(a_hole_may_fill_the_sub_buffer)
{
	const char *path = new_path(20, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 20), 0);
	writer = start_claimed(path, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', 20), 0);
	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 20), -ENOSPC);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb");
	check_torn(buf, 1, 20);
	CHECK_EQ(write_letters(buf, 'c', 20), 0);
	CHECK_DRAINS(buf, "cccccccccccccccccccc");
	relay_buf_release(buf);
}

TEST(several_holes_in_one_sub_buffer)
{
	const char *path = new_path(200, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer[5];
	char expected[51];
	int i;

	for (i = 0; i < 5; i++) {
		CHECK_EQ(write_letters(buf, (char)('a' + i), 10), 0);
		memset(expected + 10 * i, 'a' + i, 10);
		writer[i] = start_claimed(path, 'x', (size_t)(10 + i));
	}
	expected[50] = 0;
	/* Not in the order of their positions. */
	for (i = 0; i < 5; i++)
		kill_writer(&writer[i * 3 % 5]);
	CHECK_DRAINS(buf, expected);
	check_torn(buf, 5, 60);
	relay_buf_release(buf);
}

/* Data before a slow writer is there, data behind it waits, and comes in order. */
TEST(a_slow_writer_holds_back_what_follows)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	writer = start_claimed(path, 'x', 20);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	CHECK_DRAINS(buf, "");
	CHECK(!(relay_buf_state(buf) & RELAY_HAS_DATA));
	continue_writer(&writer);
	CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxbbbbbbbbbb");
	check_torn(buf, 0, 0);
	relay_buf_release(buf);
}

TEST(a_slow_writer_keeps_its_memory_from_being_overwritten)
{
	const char *path = new_path(20, 3, RELAY_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;
	int i, err = 0;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	writer = start_claimed(path, 'x', 10);
	for (i = 0; i < 6 && err == 0; i++)
		err = write_letters(buf, (char)('b' + i), 20);
	CHECK_EQ(err, -ENOSPC);
	CHECK(i <= 4);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	continue_writer(&writer);
	for (i = 0; i < 4; i++)
		CHECK_EQ(write_letters(buf, 'k', 20), 0);
	CHECK_DRAINS(buf, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
	check_torn(buf, 0, 0);
	relay_buf_release(buf);
}

TEST(a_dead_writers_memory_is_overwritten)
{
	const char *path = new_path(20, 3, RELAY_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;
	int i;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	writer = start_claimed(path, 'x', 10);
	kill_writer(&writer);
	for (i = 0; i < 8; i++)
		CHECK_EQ(write_letters(buf, 'k', 20), 0);
	CHECK_DRAINS(buf, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
	/* Overwritten or torn: counted once. */
	CHECK_EQ(stats_of(buf).read_records + stats_of(buf).lost_overwritten_records + stats_of(buf).lost_torn_records,
	         10);
	CHECK_EQ(stats_of(buf).read_bytes + stats_of(buf).lost_overwritten_bytes + stats_of(buf).lost_torn_bytes, 180);
	relay_buf_release(buf);
}

TEST(the_buffer_goes_on_for_laps_after_a_hole)
{
	const char *path = new_path(50, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;
	int i;

	writer = start_claimed(path, 'x', 20);
	kill_writer(&writer);
	for (i = 0; i < 50; i++) {
		CHECK_EQ(write_letters(buf, 'r', 30), 0);
		CHECK_EQ(strlen(drain(buf)), 30);
	}
	check_torn(buf, 1, 20);
	relay_buf_release(buf);
}

/* More dead than there are claims. */
TEST(claims_of_the_dead_are_used_again)
{
	const char *path = new_path(50, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;
	int i;

	for (i = 0; i < RELAY_N_CLAIMS + 20; i++) {
		writer = start_claimed(path, 'x', 20);
		kill_writer(&writer);
		CHECK_EQ(write_letters(buf, 'r', 30), 0);
		CHECK_EQ(strlen(drain(buf)), 30);
	}
	check_torn(buf, RELAY_N_CLAIMS + 20, 20 * (RELAY_N_CLAIMS + 20));
	relay_buf_release(buf);
}

/* A process that makes all reservations there can be, and dies. */
static void die_with_all_reservations(const char *path, size_t length)
{
	int status, i;
	void *to;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		struct rchan_buf *mine = open_path(path);

		for (i = 0; i < RELAY_N_RESERVATIONS; i++)
			CHECK_EQ(relay_buf_reserve(mine, length, &to), 0);
		CHECK_EQ(relay_buf_reserve(mine, length, &to), -ENOSPC);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

/* Who reads packets gets finished sub-buffers only. */
TEST(a_sub_buffer_in_which_the_dead_hold_all_claims_can_be_finished)
{
	enum { LENGTH = 20, N = RELAY_N_RESERVATIONS };
	const char *path = new_path(8192, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);

	die_with_all_reservations(path, LENGTH);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	CHECK_EQ(relay_buf_resolve(buf, 0), N);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 1);
	CHECK_DRAINS(buf, "");
	check_torn(buf, N, N * LENGTH);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "bbbbbbbbbb");
	check_torn(buf, N, N * LENGTH);
	relay_buf_release(buf);
}

/* A writer of scheme lockless needs a claim for each record, one of scheme rseq does not. */
TEST(a_writer_that_gets_no_claim_finishes_the_sub_buffer_in_which_the_dead_hold_them)
{
	const char *path = new_path(8192, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	void *to;
	int i;

	die_with_all_reservations(path, 20);
	for (i = 0; i < 3; i++)
		CHECK_EQ(relay_buf_reserve(buf, 10, &to), -ENOSPC);
	CHECK_EQ(stats_of(buf).lost_full_records, 4);
	CHECK_EQ(stats_of(buf).produced, 1);
	CHECK_DRAINS(buf, "");
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "bbbbbbbbbb");
	check_torn(buf, RELAY_N_RESERVATIONS, 20 * RELAY_N_RESERVATIONS);
	relay_buf_release(buf);
}

/* Nobody reads, so that the claims come free when the holes are overwritten. */
TEST(writers_overwrite_what_the_dead_hold_all_claims_in)
{
	enum { N_SUBBUFS = 3, N = RELAY_N_RESERVATIONS };
	const char *path = new_path(8192, N_SUBBUFS, RELAY_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	void *to;
	int i;

	die_with_all_reservations(path, 20);
	for (i = 0; i < N_SUBBUFS; i++)
		CHECK_EQ(relay_buf_reserve(buf, 10, &to), -ENOSPC);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_EQ(relay_buf_reserve(buf, 10, &to), 0);
	relay_buf_commit(buf, memset(to, 'c', 10));
	CHECK_DRAINS(buf, "bbbbbbbbbbcccccccccc");
	CHECK_EQ(stats_of(buf).lost_full_records, 1 + N_SUBBUFS);
	CHECK_EQ(stats_of(buf).lost_overwritten_records, N);
	check_torn(buf, 0, 0);
	relay_buf_release(buf);
}

/* Make a reservation and end it; was its claim one that threads do not keep, so that they look for another next time? */
static bool takes_an_unkept_claim(struct rchan_buf *buf)
{
	struct relay_claim claims[RELAY_N_CLAIMS];
	off_t at = (off_t)stats_of(buf).file_bytes - RELAY_PAGE_BYTES - (off_t)sizeof(claims);
	uint32_t taken = 0;
	void *to;

	CHECK_EQ(relay_buf_reserve(buf, 20, &to), 0);
	CHECK_EQ(pread(relay_buf_fd(buf), claims, sizeof(claims), at), sizeof(claims));
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
	const char *path = new_path(1000, 3, RELAY_OVERWRITE);
	struct rchan_buf *buf;
	int status, i;
	pid_t pid;

	for (i = 0; i < RELAY_N_CLAIMS_KEPT + 8; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(count_unkept_claims(open_path(path), 2));
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(status, 0);
	}
	buf = open_path(path);
	CHECK_EQ(count_unkept_claims(buf, 1000), 0);
	relay_buf_release(buf);
}

static void *reserve_once(void *buf)
{
	takes_an_unkept_claim(buf);
	return NULL;
}

/* Of one process, which asks who is dead now and then only. */
TEST(threads_that_come_and_go_leave_claims_to_keep)
{
	const char *path = new_path(1000, 3, RELAY_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	pthread_t thread;
	int n_unkept, i;

	for (i = 0; i < 2 * RELAY_N_CLAIMS_KEPT; i++) {
		CHECK_EQ(pthread_create(&thread, NULL, reserve_once, buf), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
	n_unkept = count_unkept_claims(buf, 1000);
	CHECK(n_unkept > 0 && n_unkept < 64);
	relay_buf_release(buf);
}

/* --- reserved by one thread, committed by another --- */

enum { N_PASSED_ON = 100000 };

struct pipeline {
	struct rchan_buf *buf;
	void *open; /* reserved, to be committed; or NULL */
};

static void *commit_all(void *arg)
{
	struct pipeline *pipeline = arg;
	cpu_set_t any;
	memset(&any, 0xff, sizeof(any));
	CHECK_EQ(sched_setaffinity(0, sizeof(any), &any), 0);
	for (int i = 0; i < N_PASSED_ON; i++) {
		void *to;
		while (!(to = __atomic_exchange_n(&pipeline->open, NULL, __ATOMIC_ACQUIRE)))
			sched_yield();
		relay_buf_commit(pipeline->buf, to);
	}
	return NULL;
}

static int count_claims_in_use(struct rchan_buf *buf)
{
	struct relay_claim claims[RELAY_N_CLAIMS];
	off_t at = (off_t)stats_of(buf).file_bytes - RELAY_PAGE_BYTES - (off_t)sizeof(claims);
	int n = 0;
	CHECK_EQ(pread(relay_buf_fd(buf), claims, sizeof(claims), at), sizeof(claims));
	for (int i = 0; i < RELAY_N_CLAIMS; i++)
		n += claims[i].owner.in_use != 0;
	return n;
}

TEST(claims_that_other_threads_commit_can_be_taken_again)
{
	struct pipeline pipeline = {open_path(new_path(4096, 4, RELAY_OVERWRITE)), NULL};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, commit_all, &pipeline), 0);
	for (int i = 0; i < N_PASSED_ON; i++) {
		void *to;
		/* At the moment at which the one before is committed. What is reserved a lap behind is in the way for a while. */
		while (relay_buf_reserve(pipeline.buf, 8, &to))
			sched_yield();
		while (__atomic_load_n(&pipeline.open, __ATOMIC_RELAXED))
			sched_yield();
		__atomic_store_n(&pipeline.open, to, __ATOMIC_RELEASE);
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(stats_of(pipeline.buf).records, N_PASSED_ON);
	CHECK_EQ(count_claims_in_use(pipeline.buf), 0);
	relay_buf_release(pipeline.buf);
}

/* The file server knows a thread's open files by their tokens: one may be closed while another one is written to. */
TEST(a_claim_belongs_to_the_open_file_that_took_it)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *closed = open_path(path), *open = open_path(path);
	void *to;
	relay_buf_set_token(closed, 7);
	relay_buf_set_token(open, 9);
	CHECK_EQ(relay_buf_reserve(closed, 10, &to), 0);
	memset(to, 'a', 10);
	relay_buf_commit(closed, to);
	CHECK_EQ(relay_buf_reserve(open, 10, &to), 0);
	CHECK_EQ(relay_buf_resolve(open, 7), 1);
	memset(to, 'b', 10);
	relay_buf_commit(open, to);
	CHECK_DRAINS(open, "aaaaaaaaaabbbbbbbbbb");
	check_torn(open, 0, 0);
	relay_buf_release(closed);
	relay_buf_release(open);
}

/* Nobody writes or reads: the file server resolves, and a reader that waits gets the data. */
TEST(resolve_counts_the_dead_and_lets_data_through)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer[2];

	writer[0] = start_claimed(path, 'x', 20);
	writer[1] = start_claimed(path, 'y', 20);
	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(relay_buf_resolve(buf, 0), 0);
	CHECK(!(relay_buf_state(buf) & RELAY_HAS_DATA));
	kill_writer(&writer[0]);
	kill_writer(&writer[1]);
	CHECK_EQ(relay_buf_resolve(buf, 0), 2);
	CHECK_EQ(relay_buf_resolve(buf, 0), 0);
	CHECK(relay_buf_state(buf) & RELAY_HAS_DATA);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_torn(buf, 2, 40);
	relay_buf_release(buf);
}

/* Its parent has not asked for its status yet. */
TEST(a_zombie_is_dead)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_claimed(path, 'x', 20);
	siginfo_t info;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(kill(writer.pid, SIGKILL), 0);
	CHECK_EQ(waitid(P_PID, (id_t)writer.pid, &info, WEXITED | WNOWAIT), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_torn(buf, 1, 20);
	CHECK_EQ(WTERMSIG(end_writer(&writer)), SIGKILL);
	relay_buf_release(buf);
}

/* A living thread has the id that the owner had: told by the start time. */
TEST(who_got_the_owners_id_is_not_the_owner)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_claimed(path, 'x', 20);
	off_t claims =
	    (off_t)stats_of(buf).file_bytes - RELAY_PAGE_BYTES - RELAY_N_CLAIMS * (off_t)sizeof(struct relay_claim);
	struct relay_claim claim;
	int n_changed = 0, i;

	CHECK_EQ(relay_buf_resolve(buf, 0), 0);
	for (i = 0; i < RELAY_N_CLAIMS; i++, claims += (off_t)sizeof(claim)) {
		CHECK_EQ(pread(relay_buf_fd(buf), &claim, sizeof(claim), claims), sizeof(claim));
		if ((claim.word & RELAY_CLAIM_STATE) == RELAY_CLAIM_FREE)
			continue;
		claim.owner.thread += 1ull << (RELAY_OWNER_TID_BITS + RELAY_OWNER_NS_BITS);
		CHECK_EQ(pwrite(relay_buf_fd(buf), &claim, sizeof(claim), claims), sizeof(claim));
		n_changed++;
	}
	CHECK_EQ(n_changed, 1);
	CHECK_EQ(relay_buf_resolve(buf, 0), 1);
	CHECK_DRAINS(buf, "");
	check_torn(buf, 1, 20);
	kill_writer(&writer);
	relay_buf_release(buf);
}

/* The token is the server's knowledge that nobody has the file open any more, whatever process ids say. */
TEST(resolve_by_token_needs_no_process_id)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	unsigned faults = scheme == RELAY_RSEQ ? FAULTS_TO_FALLBACK : 1;
	struct writer gone = start_writer(path, 'x', 20, 7, faults), there = start_writer(path, 'y', 20, 8, faults);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(relay_buf_resolve(buf, 9), 0);
	CHECK_EQ(relay_buf_resolve(buf, 7), 1);
	CHECK_DRAINS(buf, "");
	continue_writer(&there);
	CHECK_DRAINS(buf, "yyyyyyyyyyyyyyyyyyyyaaaaaaaaaa");
	kill_writer(&gone);
	check_torn(buf, 1, 20);
	relay_buf_release(buf);
}

/* A reader that dies between begin and end has consumed nothing, and nobody waits for it. */
TEST(a_dead_readers_lock_is_taken_over)
{
	const char *path = new_path(100, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct relay_span spans[4];
	size_t total;
	int status;
	pid_t pid;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct rchan_buf *mine = open_path(path);

		CHECK_EQ(relay_consume_begin(mine, 100, spans, 4, &total), 1);
		CHECK_EQ(total, 10);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WTERMSIG(status), SIGKILL);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	CHECK_EQ(stats_of(buf).reads, 1);
	relay_buf_release(buf);
}

/* A buffer that was mapped before fork() serves both, each in its own name. */
TEST(after_fork_both_write)
{
	const char *path = new_path(1000, 3, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	int status, i;
	pid_t pid;

	CHECK_EQ(write_letters(buf, 'a', 1), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		for (i = 0; i < 100; i++)
			CHECK_EQ(write_letters(buf, 'c', 1), 0);
		_exit(0);
	}
	for (i = 0; i < 100; i++)
		CHECK_EQ(write_letters(buf, 'p', 1), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(strlen(drain(buf)), 201);
	CHECK_EQ(stats_of(buf).records, 201);
	relay_buf_release(buf);
}
