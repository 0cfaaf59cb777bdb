/* SPDX-License-Identifier: MIT */
/* Producers that are run step by step, as by a debugger: each operation ends, and does what it does otherwise. */
#define _GNU_SOURCE
#include "ring_check.h"
#include "stepping.h"

SCHEMES(rseq, lockless);
/* All builds are stepped through alike. */
BUILDS(plain);

enum {
	BYTES = 24,
	MOST_STEPS =
	    400000 /* an operation has some thousands, and what is tried again without end soon more than these */
};

static struct relay_ring *ring;
static struct rchan_buf *buf;
static int expected;
static int (*produce)(void);

static int produce_ring(void)
{
	return output_letters(ring, 's', BYTES, 0);
}

static int reserve_ring(void)
{
	char *record = relay_ring_reserve(ring, BYTES, 0);

	if (!record)
		return -errno;
	memset(record, 's', BYTES);
	return relay_ring_commit(record, 0);
}

static int write_buf(void)
{
	return write_letters(buf, 's', BYTES);
}

static int reserve_buf(void)
{
	void *to;
	int err = relay_buf_reserve(buf, BYTES, &to);

	if (err)
		return err;
	memset(to, 's', BYTES);
	relay_buf_commit(buf, to);
	return 0;
}

static void produce_stepped(void)
{
	CHECK_EQ(raise(SIGSTOP), 0);
	CHECK_EQ(produce(), expected);
	/* No child is left, and none that was has been told of. */
	CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
	_exit(0);
}

/* Each single instruction of it is a step. */
static void run_stepped(int (*operation)(void), int result)
{
	produce = operation;
	expected = result;
	pid_t pid = start_stepped(produce_stepped);
	int status = 0;

	for (long steps = 0;; steps++) {
		CHECK(steps < MOST_STEPS);
		CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		CHECK_EQ(waitpid(pid, &status, __WALL), pid);
		if (!WIFSTOPPED(status))
			break;
		CHECK_EQ(WSTOPSIG(status), SIGTRAP);
	}
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
}

static void fill_ring(void)
{
	while (output_letters(ring, 'f', BYTES, 0) == 0)
		;
}

TEST(a_record_is_put_into_a_ring_step_by_step)
{
	ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
	run_stepped(produce_ring, 0);
	run_stepped(reserve_ring, 0);
	CHECK_LETTERS(ring, "ss");
	CHECK_EQ(ring_stats(ring).records, 2);
}

TEST(a_full_ring_refuses_and_counts_step_by_step)
{
	ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
	fill_ring();
	uint64_t lost = ring_stats(ring).lost_full_records;

	run_stepped(produce_ring, -EAGAIN);
	run_stepped(reserve_ring, -EAGAIN);
	CHECK_EQ(ring_stats(ring).lost_full_records, lost + 2);
}

TEST(a_ring_overwrites_step_by_step)
{
	ring = make_ring(PAGE, RELAY_OVERWRITE);
	for (unsigned i = 0; i < PAGE / BYTES; i++)
		CHECK_EQ(output_letters(ring, 'f', BYTES, 0), 0);
	uint64_t records = ring_stats(ring).records;

	run_stepped(produce_ring, 0);
	run_stepped(reserve_ring, 0);
	CHECK_EQ(ring_stats(ring).records, records + 2);
}

TEST(a_record_is_put_into_a_buffer_step_by_step)
{
	buf = make_buf(64, 2, RELAY_NO_OVERWRITE);
	run_stepped(write_buf, 0);
	run_stepped(reserve_buf, 0);
	run_stepped(write_buf, 0); /* in the next sub-buffer */
	run_stepped(write_buf, 0);
	run_stepped(write_buf, -ENOSPC);
	CHECK_STATS(buf, (records, 4), (lost_full_records, 1));
	CHECK_EQ(strlen(drain(buf)), 4 * BYTES);
}
