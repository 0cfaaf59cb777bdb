/* SPDX-License-Identifier: MIT */
/*
 * Writers of channels of 2003 that are killed after each single change that the library makes to the shared memory.
 *
 * The child is stepped from instruction to instruction. Only when the memory has changed others could see a difference:
 * so one death for each change is all there can be. RELAYFS_STRESS=long: one for each instruction, all the same.
 */
#define _GNU_SOURCE
#include "classic_writers.h"

#include <sys/ptrace.h>
#include <sys/user.h>

SCHEMES(lockless, locking);

enum {
	MAX_STEPS = 100000,
	FEWEST_CHANGES = 4,
#ifdef __SANITIZE_ADDRESS__
	STEPS = 0 /* it makes ten of each, and finds what it looks for without deaths */
#else
	STEPS = 1
#endif
};

/* Where a child is to die: about to execute what lies at `at` for the `times`-th time. */
struct point {
	unsigned long at;
	unsigned times;
};

/* Heirs note them, too. */
static struct {
	struct point point[MAX_STEPS];
	unsigned n, n_killed;
} * points;

/* It waits to be traced through `work`. */
static pid_t start_traced(void (*work)(void))
{
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		/* What is done once only, to find out who this process is, need not be stepped through. */
		info_of_channel();
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		work();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSTOPPED(status));
	return pid;
}

/* Let it run on until it stops. false: it has ended well. */
static bool run_traced(pid_t pid, enum __ptrace_request how)
{
	int status;

	CHECK_EQ(ptrace(how, pid, NULL, NULL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFSTOPPED(status)) {
		CHECK_EQ(WSTOPSIG(status), SIGTRAP);
		return true;
	}
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return false;
}

static unsigned long where_it_is(pid_t pid)
{
	struct user_regs_struct registers;

	CHECK_EQ(ptrace(PTRACE_GETREGS, pid, NULL, &registers), 0);
	return registers.rip;
}

static bool memory_has_changed(unsigned char *before)
{
	if (!is_long() && memcmp(before, channel.memory, channel.memory_bytes) == 0)
		return false;
	memcpy(before, channel.memory, channel.memory_bytes);
	return true;
}

/* A child does its work from instruction to instruction: note where it is when the memory has changed. */
static void find_points(void (*work)(void))
{
	static unsigned long way[MAX_STEPS];
	unsigned char *before = malloc(channel.memory_bytes);
	unsigned n_steps = 0, i;
	pid_t pid = start_traced(work);

	CHECK(before != NULL);
	memcpy(before, channel.memory, channel.memory_bytes);
	for (points->n = 0; run_traced(pid, STEPS ? PTRACE_SINGLESTEP : PTRACE_CONT); n_steps++) {
		CHECK(n_steps < MAX_STEPS);
		way[n_steps] = where_it_is(pid);
		if (!memory_has_changed(before))
			continue;
		points->point[points->n] = (struct point){.at = way[n_steps]};
		for (i = 0; i <= n_steps; i++)
			points->point[points->n].times += way[i] == way[n_steps];
		points->n++;
	}
	free(before);
}

/* Step over the instruction at the breakpoint, which the child has just met. */
static bool step_over(pid_t pid, unsigned long at, long text)
{
	struct user_regs_struct registers;
	long breakpoint = (text & ~0xffl) | 0xcc;

	CHECK_EQ(ptrace(PTRACE_GETREGS, pid, NULL, &registers), 0);
	registers.rip = at;
	CHECK_EQ(ptrace(PTRACE_SETREGS, pid, NULL, &registers), 0);
	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, at, text), 0);
	if (!run_traced(pid, PTRACE_SINGLESTEP))
		return false;
	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, at, breakpoint), 0);
	return true;
}

/* false: it went another way, and did all its work. */
static bool die_at(struct point point, void (*work)(void))
{
	int status;
	unsigned times = 0;
	pid_t pid = start_traced(work);
	long text = ptrace(PTRACE_PEEKTEXT, pid, point.at, NULL);

	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, point.at, (text & ~0xffl) | 0xcc), 0);
	for (;;) {
		if (!run_traced(pid, PTRACE_CONT))
			return false;
		if (++times == point.times)
			break;
		if (!step_over(pid, point.at, text))
			return false;
	}
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return true;
}

struct scene {
	int full;              /* what buffers_full answers */
	void (*prepare)(void); /* here */
	void (*work)(void);    /* in the child */
	void (*next)(void);    /* here, when it is dead */
	bool heirs;            /* both have inherited the channel: who opened it is dead */
};

static void set(const struct scene *scene)
{
	open_channel(scene->full);
	scene->prepare();
}

static void look_on(const struct scene *scene)
{
	note_killed();
	scene->next();
	if (scene->next != close_channel) {
		check_account();
		close_channel();
	}
}

/* The i-th death; -1: find out how many there are to be. */
static void let_one_die(const struct scene *scene, int i)
{
	if (i < 0)
		find_points(scene->work);
	else
		points->n_killed += die_at(points->point[i], scene->work);
	look_on(scene);
}

static _Noreturn void be_heir(const struct scene *scene, int i, int maker_is_dead)
{
	char byte;

	CHECK_EQ(read(maker_is_dead, &byte, 1), 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	let_one_die(scene, i);
	_exit(0);
}

/* Another process opens the channel, and ends when it has a child. */
static void let_one_die_among_heirs(const struct scene *scene, int i)
{
	int status, maker_is_dead[2];
	pid_t pid;

	CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	CHECK_EQ(pipe(maker_is_dead), 0);
	pid = fork_child();
	if (pid == 0) {
		set(scene);
		if (fork() == 0)
			be_heir(scene, i, maker_is_dead[0]);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(write(maker_is_dead[1], "d", 1), 1);
	CHECK(wait(&status) > 0);
	CHECK_EQ(status, 0);
	close(maker_is_dead[0]);
	close(maker_is_dead[1]);
}

/* Each on a new channel: what the dead leave behind would lead the next one another way. */
static void kill_after_each_change(struct scene scene)
{
	int i;

	/* Each step is two switches between processes, in which all others can have their turn. If we may not, it takes
	 * longer. */
	setpriority(PRIO_PROCESS, 0, -20);
	points = mmap(NULL, sizeof(*points), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(points != MAP_FAILED);
	for (i = -1; i < (int)points->n; i++) {
		if (scene.heirs) {
			let_one_die_among_heirs(&scene, i);
			continue;
		}
		set(&scene);
		let_one_die(&scene, i);
	}
	CHECK(!STEPS || (points->n >= FEWEST_CHANGES && points->n_killed >= points->n / 2));
}

static void write_well(void)
{
	CHECK_EQ(write_large(), 0);
}

static void reserve_and_commit(void)
{
	uint64_t delta;
	char *to;

	lock();
	to = reserve_large(&delta);
	memcpy(to, large.data, large.length);
	if (large.delta_at >= 0)
		memcpy(to + large.delta_at, &delta, sizeof(delta));
	relay_classic_commit(rchan, to, large.length);
	relay_unlock_channel(rchan);
	rchan_put(rchan);
}

static void suspend(void)
{
	CHECK_EQ(write_large(), -ENOSPC);
}

static void resume(void)
{
	relay_classic_resume(channel.id);
}

static void consume_one(void)
{
	relay_classic_buffers_consumed(channel.id, 1);
}

static void fill_all_and_suspend(void)
{
	fill_all();
	CHECK_EQ(write_large(), -ENOSPC);
}

static void resume_and_go_on(void)
{
	relay_classic_resume(channel.id);
	read_all();
	go_on();
}

TEST(a_write_that_switches_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, write_well, go_on, false});
}

TEST(a_write_that_overwrites_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){0, fill_all, write_well, go_on, false});
}

TEST(a_write_that_suspends_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_all, suspend, go_on_after_resume, false});
}

TEST(a_reservation_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, reserve_and_commit, go_on, false});
}

TEST(a_resume_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_all_and_suspend, resume, resume_and_go_on, false});
}

TEST(who_consumes_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){0, fill_all, consume_one, go_on, false});
}

static void close_well(void)
{
	CHECK_EQ(relay_classic_close(channel.id), 0);
}

/* Only an heir's takes the channel away, if it is not that of who opened it. What the dead did not do, the next does. */
TEST(a_close_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, close_well, close_channel, true});
}
