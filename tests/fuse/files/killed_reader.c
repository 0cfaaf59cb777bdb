/* SPDX-License-Identifier: MIT */
/*
 * Readers of a relay file that are killed in read(2), and what had come into their memory by then.
 *
 *     killed_reader FILE SIZE 0          killed before and after each of their system calls
 *     killed_reader FILE SIZE SERVER     killed while that thread of the file server is stopped before or after each
 *                                        of its system calls, which answers them afterwards
 *
 * The readers, one after the other, put what they read into one shared memory, which is printed at the end. The last line on
 * the standard error says how many were killed, and how many of these had got data.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY_BYTES = 16 << 20, READS = 3, AT_SYSCALL = SIGTRAP | 0x80, PAUSE_US = 100 };

static const char *file;
static size_t size;
static char *memory;
static size_t used;
static unsigned n_killed, n_killed_with_data;

static void fail(const char *what)
{
	fprintf(stderr, "reader %u: %s: %s\n", n_killed, what, strerror(errno));
	exit(1);
}

static void read_file(void)
{
	int fd = open(file, O_RDONLY);
	size_t at = used;
	for (int i = 0; i < READS; i++) {
		ssize_t got = read(fd, memory + at, size);
		if (got <= 0)
			_exit(2);
		at += (size_t)got;
	}
	_exit(0);
}

static pid_t start(bool is_traced)
{
	pid_t pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (is_traced) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
	}
	read_file();
	return 0;
}

/* What it has read has no byte that is zero. */
static void account(int status)
{
	size_t got = strnlen(memory + used, MEMORY_BYTES - used);
	if (WIFSIGNALED(status)) {
		n_killed++;
		n_killed_with_data += got != 0;
	} else if (status) {
		fail("read");
	}
	used += got;
	if (used + READS * size > MEMORY_BYTES)
		fail("memory");
}

/* Past n stops at system calls, then to death. false: it ended before. */
static bool kill_reader_at(unsigned n)
{
	int status;
	pid_t pid = start(true);
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		fail("start");
	for (unsigned i = 0; i <= n; i++) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, &status, 0) != pid)
			fail("ptrace");
		if (!WIFSTOPPED(status)) {
			account(status);
			return false;
		}
	}
	if (kill(pid, SIGKILL) || waitpid(pid, &status, 0) != pid)
		fail("kill");
	account(status);
	return true;
}

/* Let the server go on from a stop, with the signal that stopped it, if one did. */
static void go_on(pid_t server, int request, int status)
{
	int signum = WSTOPSIG(status);
	bool is_signal = signum != AT_SYSCALL && signum != SIGTRAP && !(status >> 16);
	if (ptrace(request, server, NULL, (void *)(long)(is_signal ? signum : 0)))
		fail("server");
}

static int stop(pid_t server)
{
	int status;
	if (ptrace(PTRACE_INTERRUPT, server, NULL, NULL) || waitpid(server, &status, __WALL) != server ||
	    !WIFSTOPPED(status))
		fail("stopping the server");
	return status;
}

/* true: the server has stopped; false: the reader has ended, though not yet been waited for. */
static bool wait_for_stop(pid_t server, pid_t reader, int *status)
{
	for (;; usleep(PAUSE_US)) {
		siginfo_t ended = {0};
		pid_t stopped = waitpid(server, status, __WALL | WNOHANG);
		if (stopped < 0 || (stopped && !WIFSTOPPED(*status)))
			fail("server");
		if (stopped)
			return true;
		if (waitid(P_PID, (id_t)reader, &ended, WEXITED | WNOWAIT | WNOHANG))
			fail("waitid");
		if (ended.si_pid)
			return false;
	}
}

/* At the server's n-th stop since the reader began. false: the reader ended before. */
static bool kill_reader_at_stop(pid_t server, unsigned n)
{
	bool is_stopped = true;
	int status = stop(server), end;
	pid_t reader = start(false);
	for (unsigned i = 0; is_stopped && i <= n; i++) {
		go_on(server, PTRACE_SYSCALL, status);
		is_stopped = wait_for_stop(server, reader, &status);
	}
	if (is_stopped) {
		if (kill(reader, SIGKILL))
			fail("kill");
	} else {
		status = stop(server);
	}
	/* The kernel waits for the answer to what the server has begun. */
	go_on(server, PTRACE_CONT, status);
	if (waitpid(reader, &end, 0) != reader)
		fail("waitpid");
	account(end);
	return is_stopped;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	file = argv[1];
	size = strtoul(argv[2], NULL, 0);
	pid_t server = atoi(argv[3]);
	memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	if (server && ptrace(PTRACE_SEIZE, server, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD))
		fail("PTRACE_SEIZE");
	for (unsigned n = 0; server ? kill_reader_at_stop(server, n) : kill_reader_at(n); n++)
		;
	fwrite(memory, 1, used, stdout);
	fprintf(stderr, "%u %u\n", n_killed, n_killed_with_data);
	return fflush(stdout) != 0;
}
