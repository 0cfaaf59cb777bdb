/* SPDX-License-Identifier: MIT */
/*
 * Programs that are killed in relay_open(): before and after each of its system calls.
 *
 *     dying_opener FILE
 *
 * FILE is how the relay files begin, below $RELAYFS. After each death the same name is opened again: there is
 * nothing of the channel then, or all of it, which can be written to and removed. Prints how often it could not be opened
 * and was whole, and how often it was killed.
 */
#include <errno.h>
#include <relayfs/relay.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUBBUF_SIZE = 4096, N_SUBBUFS = 4 };

static const char *file;

static void fail(const char *what, unsigned n)
{
	fprintf(stderr, "death %u: %s: %s\n", n, what, strerror(errno));
	exit(1);
}

static struct rchan *open_channel(void)
{
	return relay_open(file, NULL, SUBBUF_SIZE, N_SUBBUFS, NULL, NULL);
}

static pid_t start(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(open_channel() ? 0 : errno);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		fail("start", 0);
	return pid;
}

/* Past n stops at system calls, to the next one. false: it has opened the channel before, and ended. */
static bool run_to(pid_t pid, unsigned n)
{
	int status;
	for (unsigned i = 0; i <= n; i++) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, &status, 0) != pid)
			fail("ptrace", n);
		if (WIFSTOPPED(status))
			continue;
		if (status)
			fail(strerror(WEXITSTATUS(status)), n);
		return false;
	}
	return true;
}

static void let_die(pid_t pid, unsigned n)
{
	int status;
	if (kill(pid, SIGKILL) || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
		fail("kill", n);
}

/* Is it whole? Then it goes. */
static void remove_whole(const char *path, unsigned n)
{
	char relay_file[4096];
	struct rchan *chan = relay_attach(path);
	if (!chan)
		fail("relay_attach", n);
	if ((errno = -relay_write(chan, "text\n", 5)))
		fail("relay_write", n);
	relay_close(chan);
	snprintf(relay_file, sizeof(relay_file), "%s0", path);
	if ((errno = -relay_remove_file(relay_file)))
		fail("relay_remove_file", n);
}

/* true: it is there already. */
static bool open_again(const char *path, unsigned n)
{
	struct rchan *chan = open_channel();
	bool exists = !chan && errno == EEXIST;
	if (exists)
		remove_whole(path, n);
	if (exists)
		chan = open_channel();
	if (!chan)
		fail("relay_open", n);
	if ((errno = -relay_write(chan, "text\n", 5)))
		fail("relay_write", n);
	relay_close(chan);
	return exists;
}

int main(int argc, char **argv)
{
	char path[2048];
	unsigned n = 0, n_whole = 0;
	if (argc != 2)
		return 2;
	file = argv[1];
	snprintf(path, sizeof(path), "%s/%s", getenv("RELAYFS"), file);
	for (pid_t pid = start(); run_to(pid, n); pid = start()) {
		let_die(pid, n);
		n_whole += open_again(path, n);
		n++;
	}
	remove_whole(path, n);
	printf("%u %u\n", n_whole, n);
	return 0;
}
