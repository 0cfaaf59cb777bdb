/* SPDX-License-Identifier: MIT */
/*
 * A program with log statements.
 *
 *     klogger quiet                  nobody listens: checks that nothing happens
 *     klogger text MNT/app/log       logs one record of each kind
 *     klogger threads MNT/app/log N  threads log while channels are registered N times and closed again
 *     klogger fork MNT/app/log N     children of N forks unregister while threads of the parent log
 *
 * The latter two print how many records were written, and how many were refused by a full buffer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <relayfs/klog.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	N_THREADS = 3,
	N_REGISTRARS = 2,
	LONG_BYTES = 100000,
	SIGNAL_US = 500,
	CHILD_DEADLINE_S = 300,
	CHILD_REFUSED = 3
};

#define CHECK(condition)                                                             \
	do {                                                                         \
		if (!(condition)) {                                                  \
			fprintf(stderr, "klogger.c:%d: %s\n", __LINE__, #condition); \
			_exit(1);                                                    \
		}                                                                    \
	} while (0)

static const char *path;
static long n_rounds;
static long n_written, n_refused; /* by all */
static bool over;

static struct rchan *attach(void)
{
	struct rchan *chan = relay_attach(path);
	CHECK(chan);
	return chan;
}

static void quiet(void)
{
	struct rchan *none = (struct rchan *)&n_written;
	int evaluated = 0;
	errno = EDOM;
	CHECK(klog("%d\n", ++evaluated) == 0);
	CHECK(klog_raw(&evaluated, (size_t)++evaluated) == 0);
	CHECK(evaluated == 0);
	CHECK((klog)("%d\n", 1) == 0);
	CHECK((klog_raw)("x", 1) == 0);
	CHECK(klog_register(NULL) == -EINVAL);
	CHECK(klog_unregister(NULL) == -ENOENT);
	CHECK(klog_unregister(none) == -ENOENT);
	CHECK(errno == EDOM);
}

static void text(void)
{
	struct rchan *chan = attach(), *other = attach();
	char *longer = malloc(LONG_BYTES + 1);
	CHECK(longer);
	memset(longer, 'x', LONG_BYTES);
	longer[LONG_BYTES] = 0;
	CHECK(klog("before\n") == 0);
	CHECK(klog_register(chan) == 0);
	CHECK(klog_register(chan) == -EBUSY);
	CHECK(klog_register(other) == -EBUSY);
	CHECK(klog_unregister(other) == -ENOENT);
	errno = EDOM;
	CHECK(klog("%s %d %m\n", "text", 42) == 1);
	CHECK(klog_raw("\0raw\n", 5) == 1);
	CHECK(klog("%.*s\n", 510, longer) == 1); /* all the stack's room, less one, and none */
	CHECK(klog("%.*s\n", 511, longer) == 1);
	CHECK(klog("%m %s\n", longer) == 1);
	CHECK(klog_raw(longer, 1u << 30) == -EMSGSIZE);
	CHECK(klog("%s", "") == 1);
	CHECK(errno == EDOM);
	CHECK(klog_unregister(chan) == 0);
	CHECK(klog("after\n") == 0);
	CHECK(klog_register(other) == 0);
	CHECK(klog("last\n") == 1);
	CHECK(klog_unregister(other) == 0);
	relay_close(chan);
	relay_close(other);
	free(longer);
}

static void count(int written)
{
	CHECK(written == 0 || written == 1 || written == -ENOSPC);
	__atomic_fetch_add(written < 0 ? &n_refused : &n_written, written ? 1 : 0, __ATOMIC_RELAXED);
}

static long attempts(void)
{
	return __atomic_load_n(&n_written, __ATOMIC_RELAXED) + __atomic_load_n(&n_refused, __ATOMIC_RELAXED);
}

static void *log_lines(void *argument)
{
	int who = (int)(long)argument;
	for (long i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++)
		count(klog("thread %d line %ld\n", who, i));
	return NULL;
}

static void on_signal(int signum)
{
	(void)signum;
	count(klog_raw("signal\n", 7));
}

/* Register, let something be logged, unregister, close: who were still inside would use memory that is gone. */
static void *register_often(void *unused)
{
	for (long i = 0; i < n_rounds;) {
		struct rchan *chan = attach();
		long before = attempts();
		int err = klog_register(chan);
		CHECK(err == 0 || err == -EBUSY);
		if (!err) {
			while (attempts() == before)
				sched_yield();
			CHECK(klog_unregister(chan) == 0);
			i++;
		}
		relay_close(chan);
	}
	return unused;
}

static void threads(void)
{
	pthread_t loggers[N_THREADS], registrars[N_REGISTRARS];
	struct itimerval every = {{.tv_usec = SIGNAL_US}, {.tv_usec = SIGNAL_US}};
	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &every, NULL);
	for (long i = 0; i < N_THREADS; i++)
		CHECK(!pthread_create(&loggers[i], NULL, log_lines, (void *)i));
	for (int i = 0; i < N_REGISTRARS; i++)
		CHECK(!pthread_create(&registrars[i], NULL, register_often, NULL));
	for (int i = 0; i < N_REGISTRARS; i++)
		pthread_join(registrars[i], NULL);
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(loggers[i], NULL);
	printf("%ld %ld\n", n_written, n_refused);
}

static _Noreturn void child(struct rchan *chan)
{
	alarm(CHILD_DEADLINE_S); /* a statement that the parent was in would be waited for until then */
	CHECK(klog_unregister(chan) == 0);
	CHECK(klog("nobody\n") == 0);
	CHECK(klog_register(chan) == 0);
	int written = klog("child\n");
	CHECK(written == 1 || written == -ENOSPC);
	_exit(written == 1 ? 0 : CHILD_REFUSED);
}

static void forks(void)
{
	struct rchan *chan = attach();
	pthread_t loggers[N_THREADS];
	CHECK(klog_register(chan) == 0);
	for (long i = 0; i < N_THREADS; i++)
		CHECK(!pthread_create(&loggers[i], NULL, log_lines, (void *)i));
	for (long i = 0; i < n_rounds; i++) {
		int status;
		pid_t pid = fork();
		if (pid == 0)
			child(chan);
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
		CHECK(status == 0 || status == W_EXITCODE(CHILD_REFUSED, 0));
		count(status ? -ENOSPC : 1);
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(loggers[i], NULL);
	CHECK(klog_unregister(chan) == 0);
	relay_close(chan);
	printf("%ld %ld\n", n_written, n_refused);
}

int main(int argc, char **argv)
{
	const char *job = argc > 1 ? argv[1] : "";
	path = argc > 2 ? argv[2] : NULL;
	n_rounds = argc > 3 ? atol(argv[3]) : 0;
	if (!strcmp(job, "quiet"))
		quiet();
	else if (!strcmp(job, "text"))
		text();
	else if (!strcmp(job, "threads"))
		threads();
	else if (!strcmp(job, "fork"))
		forks();
	else
		return 2;
	return 0;
}
