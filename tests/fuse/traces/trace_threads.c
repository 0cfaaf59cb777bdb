/* SPDX-License-Identifier: MIT */
/* Writes events that tell from where, and by which thread and process, they are written. */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <pthread.h>
#include <relayfs/trace.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

RELAY_TRACE_EVENT(threads, told, (string, where), (i32, thread), (i32, process))

static int32_t thread_id(void)
{
	return (int32_t)syscall(SYS_gettid);
}

static void tell(const char *where)
{
	trace_threads_told(where, thread_id(), getpid());
}

static void *tell_once(void *where)
{
	tell(where);
	return NULL;
}

static void run(void *(*start)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, start, argument) || pthread_join(thread, NULL))
		exit(2);
}

static void handle(int signal)
{
	(void)signal;
	tell("handler");
}

/* The handler writes the thread's first event. */
static void *interrupted(void *unused)
{
	raise(SIGUSR1);
	tell("interrupted");
	return unused;
}

static void tell_at_fork(void)
{
	tell("at fork");
}

static void *forking(void *unused)
{
	int status;

	tell("before fork");
	pid_t child = fork();

	if (child == 0) {
		tell("child");
		run(tell_once, "thread of child");
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		exit(2);
	tell("after fork");
	return unused;
}

/* From the prctl(2) on, each system call but read, write and _exit kills. */
static void *quiet(void *unused)
{
	const int32_t thread = thread_id(), process = getpid();

	relay_trace_prepare();
	tell("quiet");
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		exit(2);
	trace_threads_told("strict", thread, process);
	syscall(SYS_exit, 0);
	return unused;
}

int main(void)
{
	signal(SIGUSR1, handle);
	if (pthread_atfork(NULL, NULL, tell_at_fork))
		return 2;
	tell("main");
	run(tell_once, "thread");
	run(interrupted, NULL);
	run(forking, NULL);
	run(quiet, NULL);
	return 0;
}
