/* SPDX-License-Identifier: MIT */
/* Whose a claim is: of the open file that took it, whichever thread commits, until its owner is dead. */
#define _GNU_SOURCE
#include "half_written.h"

#include <pthread.h>

SCHEMES(rseq, lockless);

/* --- reserved by one thread, committed by another --- */

/* On a busy machine a thread waits long for its turn: so several are passed on in one. */
enum { N_PASSED_ON = 100000, N_OPEN = 64 };

struct pipeline {
	struct rchan_buf *buf;
	void *open[N_OPEN]; /* reserved, to be committed in this order; or NULL */
};

static void *commit_all(void *arg)
{
	struct pipeline *pipeline = arg;
	cpu_set_t any;
	memset(&any, 0xff, sizeof(any));
	CHECK_EQ(sched_setaffinity(0, sizeof(any), &any), 0);
	for (int i = 0; i < N_PASSED_ON; i++) {
		void *to;
		while (!(to = __atomic_exchange_n(&pipeline->open[i % N_OPEN], NULL, __ATOMIC_ACQUIRE)))
			sched_yield();
		relay_buf_commit(pipeline->buf, to);
	}
	return NULL;
}

static int count_claims_in_use(struct rchan_buf *buf)
{
	struct relay_claim claims[RELAY_N_CLAIMS];
	int n = 0;
	CHECK_EQ(pread(relay_buf_fd(buf), claims, sizeof(claims), claims_at(buf)), sizeof(claims));
	for (int i = 0; i < RELAY_N_CLAIMS; i++)
		n += claims[i].owner.in_use != 0;
	return n;
}

TEST(claims_that_other_threads_commit_can_be_taken_again)
{
	struct pipeline pipeline = {make_buf(4096, 4, RELAY_OVERWRITE), {NULL}};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, commit_all, &pipeline), 0);
	for (int i = 0; i < N_PASSED_ON; i++) {
		void *to;
		/* While those before are committed. What is reserved a lap behind is in the way for a while. */
		while (relay_buf_reserve(pipeline.buf, 8, &to))
			sched_yield();
		while (__atomic_load_n(&pipeline.open[i % N_OPEN], __ATOMIC_RELAXED))
			sched_yield();
		__atomic_store_n(&pipeline.open[i % N_OPEN], to, __ATOMIC_RELEASE);
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(stats_of(pipeline.buf).records, N_PASSED_ON);
	CHECK_EQ(count_claims_in_use(pipeline.buf), 0);
	relay_buf_release(pipeline.buf);
}

/* The file server knows a thread's open files by their tokens: one may be closed while another one is written to. */
TEST(a_claim_belongs_to_the_open_file_that_took_it)
{
	AUTOPTR(rchan_buf) closed = make_buf(100, 3, RELAY_NO_OVERWRITE), *open = open_again(closed);
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
}

/* Nobody writes or reads: the file server resolves, and a reader that waits gets the data. */
TEST(resolve_counts_the_dead_and_lets_data_through)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 3, RELAY_NO_OVERWRITE);
	struct writer writer[2] = {start_claimed(buf, 'x', 20), start_claimed(buf, 'y', 20)};

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
}

/* Its parent has not asked for its status yet. */
TEST(a_zombie_is_dead)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 3, RELAY_NO_OVERWRITE);
	struct writer writer = start_claimed(buf, 'x', 20);
	siginfo_t info;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(kill(writer.pid, SIGKILL), 0);
	CHECK_EQ(waitid(P_PID, (id_t)writer.pid, &info, WEXITED | WNOWAIT), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_torn(buf, 1, 20);
	CHECK_EQ(WTERMSIG(end_writer(&writer)), SIGKILL);
}

/* A living thread has the id that the owner had: told by the start time. */
TEST(who_got_the_owners_id_is_not_the_owner)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 3, RELAY_NO_OVERWRITE);
	struct writer writer = start_claimed(buf, 'x', 20);
	off_t claims = claims_at(buf);
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
}

/* The token is the server's knowledge that nobody has the file open any more, whatever process ids say. */
TEST(resolve_by_token_needs_no_process_id)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 3, RELAY_NO_OVERWRITE);
	unsigned faults = scheme == RELAY_RSEQ ? FAULTS_TO_FALLBACK : 1;
	struct writer gone = start_writer(buf, 'x', 20, 7, faults), there = start_writer(buf, 'y', 20, 8, faults);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(relay_buf_resolve(buf, 9), 0);
	CHECK_EQ(relay_buf_resolve(buf, 7), 1);
	CHECK_DRAINS(buf, "");
	continue_writer(&there);
	CHECK_DRAINS(buf, "yyyyyyyyyyyyyyyyyyyyaaaaaaaaaa");
	kill_writer(&gone);
	check_torn(buf, 1, 20);
}

/* A reader that dies between begin and end has consumed nothing, and nobody waits for it. */
TEST(a_dead_readers_lock_is_taken_over)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 3, RELAY_NO_OVERWRITE);
	struct relay_span spans[4];
	size_t total;
	pid_t pid;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	pid = fork_child();
	if (pid == 0) {
		struct rchan_buf *mine = open_again(buf);

		CHECK_EQ(relay_consume_begin(mine, 100, spans, 4, &total), 1);
		CHECK_EQ(total, 10);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(WTERMSIG(result_of(pid)), SIGKILL);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	CHECK_EQ(stats_of(buf).reads, 1);
}

/* A buffer that was mapped before fork() serves both, each in its own name. */
TEST(after_fork_both_write)
{
	AUTOPTR(rchan_buf) buf = make_buf(1000, 3, RELAY_NO_OVERWRITE);
	int i;
	pid_t pid;

	CHECK_EQ(write_letters(buf, 'a', 1), 0);
	pid = fork_child();
	if (pid == 0) {
		for (i = 0; i < 100; i++)
			CHECK_EQ(write_letters(buf, 'c', 1), 0);
		_exit(0);
	}
	for (i = 0; i < 100; i++)
		CHECK_EQ(write_letters(buf, 'p', 1), 0);
	CHECK_EQ(result_of(pid), 0);
	CHECK_EQ(strlen(drain(buf)), 201);
	CHECK_EQ(stats_of(buf).records, 201);
}
