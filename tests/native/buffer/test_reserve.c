/* SPDX-License-Identifier: MIT */
/* Writing in two steps: reserve, fill, commit or discard. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <relayfs/relay.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

SCHEMES(rseq, lockless, locking);

/* Reserve and fill with `letter`. */
static char *reserve(struct rchan_buf *buf, char letter, size_t n)
{
	void *to = NULL;

	CHECK_EQ(relay_buf_reserve(buf, n, &to), 0);
	CHECK(to != NULL);
	memset(to, letter, n);
	return to;
}

TEST(a_reserved_record_is_read_when_it_is_committed)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *first = reserve(buf, 'a', 3);

	CHECK_DRAINS(buf, "");
	CHECK_EQ(relay_buf_state(buf) & RELAY_HAS_DATA, 0);
	CHECK_EQ(stats_of(buf).records, 1);
	relay_buf_commit(buf, first);
	CHECK_DRAINS(buf, "aaa");
}

TEST(later_records_wait_for_a_reserved_one)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 2), 0);
	char *second = reserve(buf, 'b', 2), *third = reserve(buf, 'c', 2);
	CHECK_EQ(write_letters(buf, 'd', 2), 0);
	CHECK_DRAINS(buf, "aa");
	relay_buf_commit(buf, third);
	CHECK_DRAINS(buf, "");
	relay_buf_commit(buf, second);
	CHECK_DRAINS(buf, "bbccdd");
	CHECK_EQ(stats_of(buf).read_records, 4);
}

TEST(discarded_records_are_skipped_and_counted)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *some[5];

	for (int i = 0; i < 5; i++)
		some[i] = reserve(buf, (char)('a' + i), 20);
	relay_buf_discard(buf, some[3]);
	relay_buf_discard(buf, some[0]);
	relay_buf_commit(buf, some[2]);
	relay_buf_discard(buf, some[1]);
	CHECK_DRAINS(buf, "cccccccccccccccccccc");
	relay_buf_commit(buf, some[4]);
	CHECK_DRAINS(buf, "eeeeeeeeeeeeeeeeeeee");
	CHECK_STATS(buf, (discarded_records, 3), (discarded_bytes, 60), (read_records, 2), (lost_torn_records, 0),
	            (unread_bytes, 0));
}

TEST(short_discarded_records_are_skipped_too)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *some[20];

	for (int i = 0; i < 20; i++)
		some[i] = reserve(buf, (char)('a' + i), (size_t)i % 4 + 1);
	for (int i = 19; i >= 0; i--)
		if (i % 3)
			relay_buf_discard(buf, some[i]);
		else
			relay_buf_commit(buf, some[i]);
	CHECK_DRAINS(buf, "addddggg"
	                  "jjmpppp"
	                  "sss");
	CHECK_STATS(buf, (discarded_records, 13), (lost_torn_records, 0));
	/* their claims are free again */
	for (int i = 0; i < 300; i++) {
		relay_buf_discard(buf, reserve(buf, 'x', 1));
		CHECK_DRAINS(buf, "");
	}
}

TEST(short_discarded_records_leave_claims_for_others)
{
	AUTOPTR(rchan_buf) buf = make_buf(4096, 4, RELAY_NO_OVERWRITE);
	void *to;
	int n = 0;

	while (relay_buf_reserve(buf, 1, &to) == 0) {
		relay_buf_discard(buf, to);
		n++;
	}
	CHECK_EQ(n, RELAY_N_CLAIMS / 2);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	relay_buf_commit(buf, reserve(buf, 'a', 16));
	CHECK_EQ(write_letters(buf, 'b', 1), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaab");
	CHECK_EQ(stats_of(buf).discarded_records, n);
}

TEST(any_number_of_records_can_be_discarded)
{
	enum { SUBBUF = 1 << 16, RECORD = 16, N = 3 * SUBBUF / RECORD };
	static char data[4 * SUBBUF];
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, 4, RELAY_NO_OVERWRITE);
	size_t kept = 0, got = 0;

	for (int i = 0; i < N; i++) {
		char *record = reserve(buf, (char)i, RECORD);
		if (i % 7 == 3) {
			relay_buf_commit(buf, record);
			kept += RECORD;
		} else {
			relay_buf_discard(buf, record);
		}
	}
	for (size_t n; (n = consume_into(buf, data + got, sizeof(data) - got)) > 0;)
		got += n;
	CHECK_EQ(got, kept);
	for (size_t i = 0; i < got; i++)
		CHECK_EQ(data[i], (char)(i / RECORD * 7 + 3));
	CHECK_STATS(buf, (discarded_records, N - kept / RECORD), (read_records, kept / RECORD));
}

TEST(holes_of_before_a_reset_are_forgotten)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 20), *b = reserve(buf, 'b', 20);

	relay_buf_discard(buf, a);
	relay_buf_discard(buf, b);
	CHECK_DRAINS(buf, "");
	CHECK_EQ(relay_buf_reset(buf), 0);
	a = reserve(buf, 'a', 20);
	b = reserve(buf, 'b', 20);
	relay_buf_commit(buf, a);
	relay_buf_discard(buf, b);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaa");
	CHECK_EQ(stats_of(buf).discarded_records, 1);
}

TEST(a_buffer_with_an_open_reservation_is_not_reset)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 20);

	CHECK_EQ(relay_buf_reset(buf), -EBUSY);
	relay_buf_commit(buf, a);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaa");
	CHECK_EQ(relay_buf_reset(buf), 0);
}

TEST(a_reset_whose_process_is_killed_while_it_waits_does_not_happen)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 20);
	int err;
	pid_t pid = fork_child();

	if (pid == 0) {
		for (;;)
			relay_buf_reset(buf);
	}
	while ((err = write_letters(buf, 'b', 1)) != -ECANCELED)
		CHECK(err == 0 || err == -ENOSPC);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	relay_buf_commit(buf, a);
	CHECK(strncmp(drain(buf), "aaaaaaaaaaaaaaaaaaaa", 20) == 0);
	CHECK_EQ(write_letters(buf, 'c', 1), 0);
	CHECK_DRAINS(buf, "c");
}

TEST(a_record_that_does_not_fit_goes_to_the_next_subbuf)
{
	AUTOPTR(rchan_buf) buf = make_buf(32, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 20), *b = reserve(buf, 'b', 20);
	void *to;

	CHECK_EQ(b - a, 32);
	relay_buf_commit(buf, a);
	relay_buf_commit(buf, b);
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb");
	CHECK_EQ(stats_of(buf).padding, 12);
	CHECK_EQ(relay_buf_reserve(buf, 33, &to), -EMSGSIZE);
	CHECK_EQ(stats_of(buf).lost_too_large_records, 1);
	CHECK_EQ(relay_buf_reserve(buf, 0, &to), 0);
	CHECK(to != NULL);
	relay_buf_commit(buf, to);
	CHECK_EQ(stats_of(buf).records, 2);
}

TEST(a_full_buffer_refuses_reservations)
{
	AUTOPTR(rchan_buf) buf = make_buf(32, 2, RELAY_NO_OVERWRITE);
	void *to;

	relay_buf_commit(buf, reserve(buf, 'a', 32));
	relay_buf_commit(buf, reserve(buf, 'b', 32));
	CHECK_EQ(relay_buf_reserve(buf, 1, &to), -ENOSPC);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_EQ(relay_buf_reserve(buf, 1, &to), -ECANCELED);
	CHECK_EQ(relay_buf_stop(buf, RELAY_CLOSED, 1), 0);
	CHECK_EQ(relay_buf_reserve(buf, 1, &to), -EPIPE);
}

TEST(an_open_reservation_is_not_overwritten)
{
	AUTOPTR(rchan_buf) buf = make_buf(32, 2, RELAY_OVERWRITE);
	char *a = reserve(buf, 'a', 32);

	CHECK_EQ(write_letters(buf, 'b', 32), 0);
	CHECK_EQ(write_letters(buf, 'c', 32), -ENOSPC);
	relay_buf_commit(buf, a);
	CHECK_EQ(write_letters(buf, 'd', 32), 0);
	CHECK_EQ(stats_of(buf).lost_overwritten_records, 1);
	CHECK_DRAINS(buf, "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	                  "dddddddddddddddddddddddddddddddd");
}

TEST(a_hole_that_is_lapped_and_made_again_is_not_forgotten)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 2, RELAY_OVERWRITE);
	struct relay_span spans[4];
	size_t total;

	CHECK_EQ(write_letters(buf, 'a', 8), 0);
	relay_buf_discard(buf, reserve(buf, 'x', 4));
	CHECK_EQ(write_letters(buf, 'b', 8), 0);
	CHECK_EQ(relay_consume_begin(buf, 256, spans, 4, &total), 2);
	CHECK_EQ(relay_consume_valid(buf), 0);
	/* Too late for this reader to see: the claim of the hole goes to another hole, of another lap. */
	CHECK_EQ(write_each(buf, "cc", 64), 0);
	relay_buf_discard(buf, reserve(buf, 'y', 4));
	relay_consume_end(buf);
	CHECK_EQ(write_letters(buf, 'd', 8), 0);
	CHECK(!strchr(drain(buf), 'y'));
}

TEST(with_reserve_visible_a_record_is_read_at_once)
{
	struct relay_spec spec = a_spec(64, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf;
	void *to;

	spec.reserve = RELAY_RESERVE_VISIBLE;
	buf = relay_buf_open(make_channel(&spec));
	reserve(buf, 'a', 3);
	CHECK_DRAINS(buf, "aaa");
	CHECK_EQ(relay_buf_reserve(buf, 3, &to), 0);
	relay_buf_discard(buf, to);
	memcpy(to, "xyz", 3);
	relay_buf_commit(buf, to);
	CHECK_DRAINS(buf, "xyz");
	CHECK_STATS(buf, (read_records, 2), (discarded_records, 0));
	relay_buf_release(buf);
}

TEST(addresses_that_were_not_reserved_are_ignored)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 8);

	relay_buf_commit(buf, a + 1);
	relay_buf_discard(buf, &buf);
	relay_buf_discard(buf, NULL);
	CHECK_DRAINS(buf, "");
	relay_buf_commit(buf, a);
	relay_buf_commit(buf, a);
	relay_buf_discard(buf, a);
	CHECK_DRAINS(buf, "aaaaaaaa");
}

static struct rchan_buf *signalled;
static char *in_handler;

static void on_signal(int signal)
{
	(void)signal;
	in_handler = reserve(signalled, 'S', 2);
	relay_buf_commit(signalled, reserve(signalled, 'T', 2));
}

TEST(reservations_nest_in_signal_handlers)
{
	struct sigaction action = {.sa_handler = on_signal};
	char *a;

	signalled = make_buf(64, 4, RELAY_NO_OVERWRITE);
	sigaction(SIGUSR1, &action, NULL);
	a = reserve(signalled, 'a', 2);
	raise(SIGUSR1);
	relay_buf_commit(signalled, reserve(signalled, 'b', 2));
	relay_buf_commit(signalled, in_handler);
	relay_buf_commit(signalled, a);
	CHECK_DRAINS(signalled, "aaSSTTbb");
	relay_buf_release(signalled);
}

enum { TOO_LATE = 2 }; /* the signal: the record was there */

/* Reserves a record, and in a handler wherever that interrupts it two more, of which one stays open. */
static _Noreturn void write_and_be_stepped(const char *path)
{
	char out[64] = "";
	struct sigaction action = {.sa_handler = on_signal};

	signalled = relay_buf_open(path);
	CHECK(signalled != NULL && sigaction(SIGUSR1, &action, NULL) == 0);
	/* What the first calls have to look for is not of interest. */
	relay_buf_commit(signalled, reserve(signalled, 'w', 4));
	drain(signalled);
	CHECK_EQ(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
	syscall(SYS_kill, getpid(), SIGSTOP);
	relay_buf_commit(signalled, reserve(signalled, 'a', 4));
	if (!in_handler)
		_exit(1);                          /* it came too late to be of interest */
	consume_into(signalled, out, sizeof(out)); /* none of the handler's first record, which is open */
	CHECK(!memchr(out, 'S', sizeof(out)));
	relay_buf_commit(signalled, in_handler);
	drain(signalled);
	CHECK_STATS(signalled, (read_records, 4), (read_bytes, 12));
	_exit(0);
}

/* Stop it after n instructions, send it SIGUSR1 there. Returns its status. */
static int step_and_signal(pid_t pid, unsigned n)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	for (; n > 0 && WIFSTOPPED(status); n--) {
		CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
	}
	if (WIFSTOPPED(status))
		CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, SIGUSR1), 0);
	if (WIFSTOPPED(status))
		CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(a_handler_may_keep_a_reservation_wherever_it_interrupts)
{
	enum { MOST = 250 }; /* what is stepped through never ends where sections restart */
	struct relay_spec spec = a_spec(256, 4, RELAY_NO_OVERWRITE);
	unsigned n = 0, n_inside = 0;

	for (int status = 0; n < MOST; n++) {
		const char *path = make_channel(&spec);
		pid_t pid = fork_child();

		if (pid == 0)
			write_and_be_stepped(path);
		status = step_and_signal(pid, n);
		if (status == TOO_LATE)
			break;
		CHECK_EQ(status, 0);
		n_inside++;
	}
	CHECK(n_inside > 100);
}

struct job {
	struct rchan_buf *buf;
	void *reserved;
};

static void *commit_job(void *arg)
{
	struct job *job = arg;

	relay_buf_commit(job->buf, job->reserved);
	return NULL;
}

TEST(another_thread_may_commit)
{
	pthread_t thread;
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_NO_OVERWRITE);
	struct job job = {buf, reserve(buf, 'a', 4)};

	CHECK_EQ(pthread_create(&thread, NULL, commit_job, &job), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_DRAINS(buf, "aaaa");
}

TEST(what_a_dead_process_had_reserved_is_torn)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_NO_OVERWRITE);
	pid_t pid = fork_child();

	if (pid == 0) {
		reserve(buf, 'x', 20);
		relay_buf_discard(buf, reserve(buf, 'y', 20));
		relay_buf_commit(buf, reserve(buf, 'z', 4));
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	CHECK_DRAINS(buf, "zzzz");
	CHECK_STATS(buf, (lost_torn_records, 1), (discarded_records, 1));
}

TEST(a_list_of_holes_that_lies_ends)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	char *a = reserve(buf, 'a', 32), *b = reserve(buf, 'b', 32);
	struct relay_hole loop = {.next = 1, .length = 32, .count = 1}, beyond = {.next = 3000, .length = 16};
	char out[256];

	relay_buf_discard(buf, a);
	memcpy(a, &loop, sizeof(loop)); /* its own next */
	relay_buf_commit(buf, b);
	CHECK_EQ(consume_into(buf, out, sizeof(out)), 32);
	a = reserve(buf, 'c', 32);
	relay_buf_discard(buf, a);
	memcpy(a, &beyond, sizeof(beyond));
	CHECK_EQ(write_letters(buf, 'd', 32), 0);
	CHECK(consume_into(buf, out, sizeof(out)) <= 64);
}

TEST(consumed_stops_at_an_open_reservation_and_counts_what_was_none)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_NO_OVERWRITE);
	char *a, *b;

	relay_buf_discard(buf, reserve(buf, 'x', 16));
	relay_buf_discard(buf, reserve(buf, 'y', 1));
	CHECK_EQ(relay_buf_flush(buf), 0);
	a = reserve(buf, 'a', 8);
	b = reserve(buf, 'b', 8);
	relay_buf_commit(buf, b);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 2), 0);
	CHECK_STATS(buf, (consumed, 1), (discarded_records, 2), (read_records, 0));
	relay_buf_commit(buf, a);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 2), 0);
	CHECK_STATS(buf, (consumed, 2), (read_records, 2));
	for (int i = 0; i < 300; i++) { /* the claim of the short one is free again */
		relay_buf_discard(buf, reserve(buf, 'z', 1));
		CHECK_EQ(relay_buf_flush(buf), 0);
		CHECK_EQ(relay_buf_subbufs_consumed(buf, 1), 0);
	}
}
