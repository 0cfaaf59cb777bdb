/* SPDX-License-Identifier: MIT */
/*
 * A traced program is stopped while it begins a sub-buffer that another one wants to write to.
 *
 *     trace_stuck TEST STORE/TRACE
 *
 * Says on a line "PID TRIED": how many events of this process have been tried. Those of the stopped one are of no interest.
 */
#define _GNU_SOURCE
#include "stepping.h"

#include <fcntl.h>
#include <glob.h>
#include <relayfs/layout.h>
#include <relayfs/trace.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

RELAY_TRACE_EVENT(judge, step, (u64, seq))
RELAY_TRACE_EVENT(judge, stuck, (string, text))

enum { N_WHILE_STUCK = 2000, N_AFTER = 10, N_FILLING = 200, MAX_STEPS = 1000000, WATCHDOG_S = 600 };

/* Of CPU time, which does not grow with what else the machine does. Who waits for a lock sleeps, many times for each event. */
enum { ALL_NS = 1000000000, MAX_SLEEPS = N_WHILE_STUCK / 10 };

static void fill(void)
{
	static const char text[] = ".................................................";
	int i;

	trace_judge_stuck(text);
	raise(SIGSTOP);
	for (i = 0; i < N_FILLING; i++)
		trace_judge_stuck(text);
	raise(SIGSTOP);
}

static const struct relay_control *see_control(void)
{
	char pattern[4096];
	struct stat status;
	glob_t found = {0};
	void *page;
	int fd;

	snprintf(pattern, sizeof(pattern), "%s/*/cpu/mem%u", scratch, home_cpu);
	CHECK_EQ(glob(pattern, 0, NULL, &found), 0);
	CHECK_EQ(found.gl_pathc, 1);
	fd = open(found.gl_pathv[0], O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &status) == 0);
	page = mmap(NULL, RELAY_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, status.st_size - RELAY_PAGE_BYTES);
	CHECK(page != MAP_FAILED);
	close(fd);
	globfree(&found);
	return page;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static long n_sleeps(void)
{
	struct rusage usage;

	CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

static uint64_t lost(const struct relay_control *control)
{
	return __atomic_load_n(&control->lost_full.first, __ATOMIC_ACQUIRE) & ~RELAY_LATCH_INDEX;
}

TEST(while_it_begins_a_sub_buffer)
{
	const struct relay_control *control;
	uint64_t start, before, seq;
	long n_steps = 0, sleeps;
	int i;
	pid_t pid;

	alarm(WATCHDOG_S);
	pid = start_stepped(fill);
	control = see_control();
	while (!__atomic_load_n(&control->switch_lock, __ATOMIC_RELAXED)) {
		CHECK(n_steps++ < MAX_STEPS);
		CHECK(step(pid));
	}
	CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, SIGSTOP), 0);

	trace_judge_step(0);
	before = lost(control);
	start = cpu_ns();
	sleeps = n_sleeps();
	for (seq = 1; seq < N_WHILE_STUCK; seq++)
		trace_judge_step(seq);
	CHECK(n_sleeps() - sleeps < MAX_SLEEPS);
	CHECK(cpu_ns() - start < ALL_NS);
	CHECK_EQ(lost(control) - before, N_WHILE_STUCK - 1);

	/* The dead lose the lock: within some milliseconds, as nobody asks at each event whether its holder lives. */
	kill_child(pid);
	do {
		before = lost(control);
		trace_judge_step(seq++);
		usleep(1000);
	} while (lost(control) > before);
	for (i = 0; i < N_AFTER; i++)
		trace_judge_step(seq++);
	CHECK_EQ(lost(control), before);
	printf("%d %llu\n", getpid(), (unsigned long long)seq);
}
