/* SPDX-License-Identifier: MIT */
/*
 * A child that is run step by step, to be killed anywhere.
 *
 *     child:   stop    an operation    stop
 *     tracer:  |  step step step ... k steps, kill
 *
 * A restartable section cannot be stepped through, because each stop inside restarts it: it is run to a hardware breakpoint,
 * on every byte of it in turn, or behind it.
 */
#ifndef STEPPING_H
#define STEPPING_H

#include "check.h"

#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/rseq.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* Stopped at its first SIGSTOP. */
static inline pid_t start_stepped(void (*run)(void))
{
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		run();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	return pid;
}

static inline void kill_child(pid_t pid)
{
	int status;

	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WTERMSIG(status), SIGKILL);
}

/* Go on; true: with a trap; false: the operation has ended. */
static inline bool resume(pid_t pid, enum __ptrace_request how)
{
	int status;

	CHECK_EQ(ptrace(how, pid, NULL, NULL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSTOPPED(status));
	CHECK(WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP);
	return WSTOPSIG(status) == SIGTRAP;
}

static inline uint64_t peek(pid_t pid, uint64_t address)
{
	errno = 0;
	uint64_t word = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, (void *)address, NULL);

	CHECK_EQ(errno, 0);
	return word;
}

struct section {
	uint64_t start, length;
};

/* The section that the child is about to be in. Its rseq area is where ours is: it is our fork. */
static inline struct section section_of(pid_t pid)
{
	uint64_t area = (uint64_t)(uintptr_t)__builtin_thread_pointer() + (uint64_t)__rseq_offset;
	uint64_t descriptor = peek(pid, area + offsetof(struct rseq, rseq_cs));

	if (!descriptor)
		return (struct section){0};
	return (struct section){peek(pid, descriptor + 8), peek(pid, descriptor + 16)};
}

static inline uint64_t instruction_of(pid_t pid)
{
	return (uint64_t)ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user, regs.rip), NULL);
}

/* 0: none */
static inline void set_breakpoint(pid_t pid, uint64_t address)
{
	CHECK_EQ(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), 0), 0);
	CHECK_EQ(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[0]), address), 0);
	if (address)
		CHECK_EQ(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), 1), 0);
}

static inline bool run_to(pid_t pid, uint64_t address)
{
	set_breakpoint(pid, address);
	bool there = resume(pid, PTRACE_CONT);

	if (there)
		CHECK_EQ(instruction_of(pid), address);
	set_breakpoint(pid, 0);
	return there;
}

enum { MAX_SECTIONS = 8 };
static struct section sections[MAX_SECTIONS];
static unsigned n_sections;

static inline void note_section(struct section section)
{
	unsigned i;

	for (i = 0; i < n_sections; i++)
		if (sections[i].start == section.start)
			return;
	CHECK(n_sections < MAX_SECTIONS);
	sections[n_sections++] = section;
}

/* One instruction, or a whole section. false: the operation has ended. */
static inline bool step(pid_t pid)
{
	if (!resume(pid, PTRACE_SINGLESTEP))
		return false;
	struct section section = section_of(pid);

	if (!section.start || instruction_of(pid) != section.start)
		return true;
	note_section(section);
	return run_to(pid, section.start + section.length);
}

#endif
