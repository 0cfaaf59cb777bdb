/* SPDX-License-Identifier: MIT */
/*
 * A traced program that may do little: its stack is small, or the kernel forbids it what tracing needs.
 *
 *     trace_frugal small        a first event in a thread with the smallest stack; says how much of it that takes
 *     trace_frugal long         an event of 60,000 bytes in a thread with a stack of 64 KiB
 *     trace_frugal huge         events of 100,000 bytes: the first one says how much of its thread's stack it takes, the
 *                               second one's thread is prepared, the third is written in seccomp(2)'s strict mode
 *     trace_frugal fsize        it may not write to files, nor make any
 *     trace_frugal strict       in seccomp(2)'s strict mode; writes 100 events, and a long one, for each byte that it reads
 *     trace_frugal nofile       it may open no more files; tells how many events it wrote without being traced
 *
 * The last line says "PID EVENTS".
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

RELAY_TRACE_EVENT(frugal, step, (u64, seq))
RELAY_TRACE_EVENT(frugal, text, (u64, seq), (string, text))

enum { LONG_BYTES = 60000, HUGE_BYTES = 100000, PAINT = 0xa5, PAINTED_BYTES = 256 * 1024 };

static char long_text[HUGE_BYTES + 1];

static void *emit_one(void *seq)
{
	trace_frugal_step((uintptr_t)seq);
	return NULL;
}

static void *emit_none(void *unused)
{
	return unused;
}

static void *emit_long(void *seq)
{
	trace_frugal_text((uintptr_t)seq, long_text);
	return NULL;
}

static void run_with(size_t stack_bytes, void *(*run)(void *), uintptr_t seq)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	if (pthread_attr_setstacksize(&attr, stack_bytes) || pthread_create(&thread, &attr, run, (void *)seq) ||
	    pthread_join(thread, NULL))
		exit(2);
	pthread_attr_destroy(&attr);
}

/* How much of its stack a thread uses. */
static size_t stack_used(void *(*run)(void *), uintptr_t seq)
{
	unsigned char *stack = mmap(NULL, PAINTED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t untouched = 0;
	pthread_attr_t attr;
	pthread_t thread;

	memset(stack, PAINT, PAINTED_BYTES);
	pthread_attr_init(&attr);
	if (pthread_attr_setstack(&attr, stack, PAINTED_BYTES) || pthread_create(&thread, &attr, run, (void *)seq) ||
	    pthread_join(thread, NULL))
		exit(2);
	while (stack[untouched] == PAINT)
		untouched++;
	return PAINTED_BYTES - untouched;
}

static int small(void)
{
	size_t before = stack_used(emit_none, 0), with = stack_used(emit_one, 0);

	run_with((size_t)PTHREAD_STACK_MIN, emit_one, 1);
	printf("%zu\n", with - before);
	return 2;
}

static int long_event(void)
{
	memset(long_text, 'x', LONG_BYTES);
	run_with(64 * 1024, emit_long, 0);
	run_with(64 * 1024, emit_long, 1);
	return 2;
}

/* From the prctl(2) on, each system call but read, write and _exit kills. */
static int huge_event(void)
{
	size_t before, with;

	memset(long_text, 'x', HUGE_BYTES);
	before = stack_used(emit_none, 0);
	with = stack_used(emit_long, 0);
	printf("%zu\n", with - before);
	fflush(stdout);
	relay_trace_prepare();
	emit_long((void *)1);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		exit(2);
	emit_long((void *)2);
	emit_one((void *)3);
	syscall(SYS_exit, 0);
	return -1;
}

static int without_files(int resource)
{
	struct rlimit none = {resource == RLIMIT_NOFILE ? 4 : 0, resource == RLIMIT_NOFILE ? 4 : 0};
	int i;

	memset(long_text, 'x', LONG_BYTES);
	if (setrlimit(resource, &none))
		exit(2);
	for (i = 0; i < 3; i++) {
		emit_one((void *)(uintptr_t)i);
		emit_long((void *)(uintptr_t)i);
	}
	return 3;
}

/* From the prctl(2) on, each system call but read, write and _exit kills. */
static int strict(void)
{
	uint64_t n = 0, n_long = 0;
	char byte;
	int i;

	memset(long_text, 'x', LONG_BYTES);
	relay_trace_prepare();
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		exit(2);
	while (read(0, &byte, 1) == 1 && byte != 'q') {
		for (i = 0; i < 100; i++)
			trace_frugal_step(n++);
		trace_frugal_text(n_long++, long_text);
		if (write(1, "0\n", 2) != 2)
			syscall(SYS_exit, 1);
	}
	syscall(SYS_exit, 0);
	return -1;
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	int n = -1;

	if (strcmp(what, "small") == 0)
		n = small();
	else if (strcmp(what, "long") == 0)
		n = long_event();
	else if (strcmp(what, "huge") == 0)
		n = huge_event();
	else if (strcmp(what, "fsize") == 0)
		n = without_files(RLIMIT_FSIZE);
	else if (strcmp(what, "nofile") == 0)
		n = without_files(RLIMIT_NOFILE);
	else if (strcmp(what, "strict") == 0)
		n = strict();

	printf("%d %d\n", getpid(), n);
	return n < 0;
}
