/* SPDX-License-Identifier: MIT */
/*
 * Each stop inside a restartable section sends the thread back to the section's beginning, so that a thread which a
 * debugger steps never reaches its end. Only a section may change these words, because the sections of other threads
 * change them without a lock or a locked instruction. Therefore a child process that is not stopped runs the section:
 *
 *     thread:  section  stop  section  stop ... 100 times  |  clone ................ wait4  | continues, step by step
 *     child:                                               |  move to the CPU  section  exit |
 *
 * CLONE_UNTRACED keeps the debugger from attaching to the child. A child that clone(2) makes without CLONE_VM inherits
 * the registration of the rseq area, at the same address of its copy of the memory; what the section stores to is
 * shared. The child's end sends no signal, and wait() calls of the program do not return it.
 */
#define _GNU_SOURCE
#include "base/persist.h"

#include "base/affinity.h"
#include "base/quiet.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIES = 100 };

/* A section with all its arguments. */
struct section {
	enum relay_rseq_result (*run)(const struct section *section);
	uint32_t cpu;
	void *at; /* struct relay_latch or struct relay_ring_producer */
	const uint32_t *flags;
	const void *change;     /* struct relay_tx or struct relay_ring_put */
	uint64_t first, second; /* tally: length, unused; ring_reserve: last, new_last */
};

/* True once clone(2) has failed, because it would probably fail again. */
static bool clone_failed;

static bool is_on_cpu(const struct section *section)
{
	return relay_rseq_registered() && relay_rseq_cpu() == section->cpu;
}

static enum relay_rseq_result run_repeatedly(const struct section *section)
{
	for (int tries = 0; tries < TRIES; tries++) {
		enum relay_rseq_result result = section->run(section);
		if (result != RELAY_RSEQ_ABORTED || !is_on_cpu(section))
			return result;
	}
	return RELAY_RSEQ_ABORTED;
}

/* The child. It calls no function that takes a lock, because another thread of the parent may have held the lock. */
static _Noreturn void run_and_exit(const struct section *section)
{
	struct relay_affinity affinity = {.active = false};
	enum relay_rseq_result result =
	    relay_migrate(section->cpu, &affinity) ? RELAY_RSEQ_ABORTED : run_repeatedly(section);
	for (;;)
		syscall(SYS_exit_group, (int)result);
}

static enum relay_rseq_result wait_for(long pid)
{
	int status;
	/* A plain system call, because waitpid() is a cancellation point. */
	while (syscall(SYS_wait4, pid, &status, __WALL, NULL) < 0)
		if (errno != EINTR)
			return RELAY_RSEQ_ABORTED;
	return WIFEXITED(status) ? (enum relay_rseq_result)WEXITSTATUS(status) : RELAY_RSEQ_ABORTED;
}

static enum relay_rseq_result run_in_child(const struct section *section)
{
	sigset_t all, before;
	int saved = errno;
	sigfillset(&all);
	/* The program's handlers must not run in the child. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	long pid = syscall(SYS_clone, CLONE_UNTRACED, 0, 0, 0, 0);
	if (pid == 0)
		run_and_exit(section);
	enum relay_rseq_result result = pid > 0 ? wait_for(pid) : RELAY_RSEQ_ABORTED;
	/* Relaxed: a thread that sees the store late only calls clone(2) in vain. */
	if (pid < 0)
		__atomic_store_n(&clone_failed, true, __ATOMIC_RELAXED);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return result;
}

static enum relay_rseq_result persist(const struct section *section)
{
	/* A quiet thread may make no system calls, so it cannot make a child. Relaxed: as in run_in_child(). */
	if (relay_is_quiet() || __atomic_load_n(&clone_failed, __ATOMIC_RELAXED))
		return section->run(section);
	enum relay_rseq_result result = run_repeatedly(section);
	return result == RELAY_RSEQ_ABORTED && is_on_cpu(section) ? run_in_child(section) : result;
}

static enum relay_rseq_result transact(const struct section *section)
{
	return relay_rseq_transact(section->at, section->flags, section->change, section->cpu);
}

enum relay_rseq_result relay_persist_transact(struct relay_latch *latch, const uint32_t *flags,
                                              const struct relay_tx *tx, uint32_t cpu)
{
	return persist(&(struct section){.run = transact, .cpu = cpu, .at = latch, .flags = flags, .change = tx});
}

static enum relay_rseq_result tally(const struct section *section)
{
	return relay_rseq_tally(section->at, section->first, section->cpu);
}

enum relay_rseq_result relay_persist_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu)
{
	return persist(&(struct section){.run = tally, .cpu = cpu, .at = latch, .first = length});
}

static enum relay_rseq_result ring_reserve(const struct section *section)
{
	return relay_rseq_ring_reserve(section->at, section->change, section->first, section->second, section->cpu);
}

enum relay_rseq_result relay_persist_ring_reserve(struct relay_ring_producer *producer,
                                                  const struct relay_ring_put *put, uint64_t last, uint64_t new_last,
                                                  uint32_t cpu)
{
	struct section section = {
	    .run = ring_reserve, .cpu = cpu, .at = producer, .change = put, .first = last, .second = new_last};
	return persist(&section);
}
