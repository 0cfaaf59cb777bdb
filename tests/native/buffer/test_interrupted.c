/* SPDX-License-Identifier: MIT */
/*
 * Readers that are interrupted anywhere, while others read and write. They are stepped through, which takes long, and in one scheme,
 * because they do not look at it.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each call begins with a stop. */
static _Noreturn void be_stepped(struct rchan_buf *buf, void (*call)(struct rchan_buf *buf))
{
	call(buf);
	CHECK_EQ(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
	for (;;) {
		syscall(SYS_kill, getpid(), SIGSTOP);
		call(buf);
	}
}

/* Let it make n steps of a call; false: that is more than there are. */
static bool step(pid_t pid, unsigned n)
{
	int status = 0;

	for (; n > 0 && WSTOPSIG(status) != SIGSTOP; n--) {
		CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSTOPPED(status));
	}
	return WSTOPSIG(status) != SIGSTOP;
}

/*
 * How much longer each step is than the one before, so that steps get longer where the compiler adds to what is to be met. A
 * sanitizer adds ten times as much, and finds what it finds at any of them.
 */
#ifdef __SANITIZE_ADDRESS__
enum { LONGER = 2 };
#else
enum { LONGER = 16 };
#endif

/* Another process calls; what `meanwhile` does happens after each of its steps. */
static void interrupt_everywhere(struct rchan_buf *buf, void (*call)(struct rchan_buf *buf),
                                 void (*meanwhile)(struct rchan_buf *buf))
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		be_stepped(buf, call);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	for (unsigned n = 1; step(pid, n); n += 1 + n / LONGER) {
		meanwhile(buf);
		CHECK_EQ(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSTOPPED(status));
	}
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
}

static void look_at_stats(struct rchan_buf *buf)
{
	stats_of(buf);
	CHECK_EQ(relay_buf_state(buf) & RELAY_IS_DAMAGED, 0);
}

static void write_and_drain(struct rchan_buf *buf)
{
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(write_letters(buf, 'a', 4), 0);
		CHECK_DRAINS(buf, "aaaa");
	}
}

/* Readers may go on, and writers a lap farther, between a look at the one and at the other. */
TEST(what_moves_while_it_is_looked_at_is_not_damaged)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 2, RELAY_NO_OVERWRITE);

	interrupt_everywhere(buf, look_at_stats, write_and_drain);
}

static void consume_two_subbufs(struct rchan_buf *buf)
{
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 2), 0);
	CHECK_EQ(relay_buf_state(buf) & RELAY_IS_DAMAGED, 0);
}

static void write_a_lap(struct rchan_buf *buf)
{
	CHECK_EQ(write_each(buf, "abcdefghij", 4), 0);
}

/* The ledgers that it reads are those of a later lap then. */
TEST(subbufs_that_are_overwritten_while_they_are_consumed_are_not_damaged)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_OVERWRITE);

	write_a_lap(buf);
	interrupt_everywhere(buf, consume_two_subbufs, write_a_lap);
	/* What was neither overwritten nor consumed is left. */
	drain(buf);
	CHECK_EQ(stats_of(buf).read_records + stats_of(buf).lost_overwritten_records, stats_of(buf).records);
}
