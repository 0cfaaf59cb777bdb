/* SPDX-License-Identifier: MIT */
/*
 * A program with tracepoints, that does as it is told on the standard input, one command a line:
 *
 *     emit N               N events; they are numbered
 *     flood BURST US       events for ever: BURST of them, a pause; the ledger counts those that are written
 *     threads T N          T threads, N events each
 *     signals N            N events, and others in the handler of a signal that comes meanwhile
 *     clocks N             N times: the time, an event with it, the time, an event with it
 *     fork N               a child and this one, N events each
 *     vfork N              the same, of which the child becomes this program anew
 *     exec                 becomes this program anew, which answers
 *     keep                 what it has open stays open when it becomes another program
 *     become FILE          becomes that program
 *     chroot DIR           what is outside is out of its reach
 *     library FILE N       load it, let it write N events, unload it
 *     turns FIRST N        waits for a byte on descriptor 3, writes an event, passes it on to descriptor 4
 *     markers FILE N       writes odd numbers to FILE, even ones as events
 *     step N               N events test:step, whose only field is a number; numbered on
 *     other N              N events other:step, the same
 *     log TEXT             relay_log(); answers what that returned
 *
 *     traced [LEDGER]      a file of 8 bytes: how many events have been written so far
 *     traced --steps N     N events test:step, and that is it
 *     traced --texts LENGTH ...            an event long:text for each, with a string of that length; the letter tells which
 *     traced --texts-in-threads LENGTH N   the same in two threads at once, N events each
 *
 * Each is answered with one line: what it counted, or an errno's name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <relayfs/trace.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

RELAY_TRACE_EVENT(judge, step, (u64, seq), (u32, who), (string, text))
RELAY_TRACE_EVENT(judge, before, (u64, seq), (u64, ns))
RELAY_TRACE_EVENT(judge, after, (u64, seq), (u64, ns))
RELAY_TRACE_EVENT(test, step, (u64, seq))
RELAY_TRACE_EVENT(other, step, (u64, seq))
RELAY_TRACE_EVENT(long, text, (u32, n), (string, text), (u32, after))

enum { MAIN, HANDLER = 1000, MAX_THREADS = 64, SIGNAL_US = 50 };

static uint64_t no_ledger, *written = &no_ledger, n_steps, n_others;
static volatile uint64_t in_handler;

/* Its length differs, so that events end anywhere in a sub-buffer. */
static void step(uint64_t seq, uint32_t who)
{
	static const char dots[] = "............................................................";

	trace_judge_step(seq, who, dots + sizeof(dots) - 1 - seq % 50);
}

static void emit(uint64_t n)
{
	while (n--) {
		step(*written, MAIN);
		__atomic_store_n(written, *written + 1, __ATOMIC_RELEASE);
	}
}

static void flood(uint64_t burst, useconds_t pause_us)
{
	for (;;) {
		emit(burst);
		if (pause_us)
			usleep(pause_us);
	}
}

struct worker {
	pthread_t thread;
	uint32_t who;
	uint64_t n;
};

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint64_t i;

	for (i = 0; i < worker->n; i++)
		step(i, worker->who);
	return NULL;
}

static int work_in_threads(unsigned n_threads, uint64_t n)
{
	struct worker workers[MAX_THREADS];
	unsigned i;

	for (i = 0; i < n_threads; i++) {
		workers[i] = (struct worker){.who = i + 1, .n = n};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
			return EAGAIN;
	}
	for (i = 0; i < n_threads; i++)
		pthread_join(workers[i].thread, NULL);
	return 0;
}

static void handle(int signum)
{
	(void)signum;
	step(in_handler++, HANDLER);
}

static uint64_t emit_with_signals(uint64_t n)
{
	struct itimerval often = {{0, SIGNAL_US}, {0, SIGNAL_US}}, never = {{0, 0}, {0, 0}};

	relay_trace_prepare();
	signal(SIGALRM, handle);
	setitimer(ITIMER_REAL, &often, NULL);
	while (in_handler < 100)
		emit(n);
	setitimer(ITIMER_REAL, &never, NULL);
	return in_handler;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void emit_clocks(uint64_t n)
{
	uint64_t seq, ns;

	for (seq = 0; seq < n; seq++) {
		ns = now_ns();
		trace_judge_before(seq, ns);
		ns = now_ns();
		trace_judge_after(seq, ns);
	}
}

static int fork_one(uint64_t n)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		written = &no_ledger;
		no_ledger = 0;
		emit(n);
		_exit(0);
	}
	emit(n);
	return waitpid(pid, &status, 0) == pid && status == 0 ? (int)pid : -ECHILD;
}

static int vfork_one(char *count, uint64_t n)
{
	int status;
	pid_t pid = vfork();

	if (pid == 0) {
		execl("/proc/self/exe", program_invocation_name, "--emit", count, NULL);
		_exit(1);
	}
	emit(n);
	return waitpid(pid, &status, 0) == pid && status == 0 ? (int)pid : -ECHILD;
}

static int use_library(const char *file, uint64_t n)
{
	void (*emit_n)(uint64_t);
	void *library = dlopen(file, RTLD_NOW);

	if (!library)
		return ELIBACC;
	*(void **)&emit_n = dlsym(library, "emit_in_library");
	emit_n(n);
	return dlclose(library) == 0 ? 0 : ELIBBAD;
}

static int take_turns(uint64_t first, uint64_t n)
{
	char ball;
	uint64_t i;

	for (i = 0; i < n; i++) {
		if (read(3, &ball, 1) != 1)
			return EPIPE;
		step(first + 2 * i, MAIN);
		if (write(4, &ball, 1) != 1)
			return EPIPE;
	}
	return 0;
}

static int mark(const char *file, uint64_t n)
{
	char text[32];
	uint64_t i;
	int fd = open(file, O_WRONLY | O_CLOEXEC), length;

	if (fd < 0)
		return errno;
	for (i = 0; i < n; i++) {
		step(2 * i, MAIN);
		length = snprintf(text, sizeof(text), "%" PRIu64, 2 * i + 1);
		if (write(fd, text, (size_t)length) != length)
			return errno;
	}
	close(fd);
	return 0;
}

static void emit_steps(uint64_t n)
{
	while (n--)
		trace_test_step(n_steps++);
}

static void emit_others(uint64_t n)
{
	while (n--)
		trace_other_step(n_others++);
}

static void emit_text(uint32_t n, size_t length)
{
	char *text = malloc(length + 1);

	if (!text)
		exit(1);
	memset(text, 'a' + (int)(n % 26), length);
	text[length] = 0;
	trace_long_text(n, text, ~n);
	free(text);
}

struct texts {
	uint32_t first, n;
	size_t length;
};

static void *emit_texts(void *argument)
{
	const struct texts *texts = argument;
	uint32_t i;

	for (i = 0; i < texts->n; i++)
		emit_text(texts->first + i, texts->length);
	return NULL;
}

static int emit_texts_in_threads(size_t length, uint32_t n)
{
	struct texts first = {0, n, length}, second = {n, n, length};
	pthread_t thread;

	if (pthread_create(&thread, NULL, emit_texts, &second) != 0)
		return 1;
	emit_texts(&first);
	return pthread_join(thread, NULL) != 0;
}

static int keep(void)
{
	int fd;

	for (fd = 3; fd < 64; fd++)
		fcntl(fd, F_SETFD, 0);
	return 0;
}

static void answer(int err)
{
	puts(err ? strerrorname_np(err < 0 ? -err : err) : "0");
}

static void answer_count(int64_t count)
{
	if (count < 0)
		answer((int)count);
	else
		printf("%" PRId64 "\n", count);
}

static void obey(char *line)
{
	char *word = strtok(line, " \n"), *first = strtok(NULL, " \n"), *second = strtok(NULL, " \n");
	uint64_t a = first ? strtoull(first, NULL, 0) : 0, b = second ? strtoull(second, NULL, 0) : 0;

	if (strcmp(word, "emit") == 0)
		answer((emit(a), 0));
	else if (strcmp(word, "flood") == 0)
		flood(a, (useconds_t)b);
	else if (strcmp(word, "threads") == 0)
		answer(work_in_threads((unsigned)a, b));
	else if (strcmp(word, "signals") == 0)
		answer_count((int64_t)emit_with_signals(a));
	else if (strcmp(word, "clocks") == 0)
		answer((emit_clocks(a), 0));
	else if (strcmp(word, "fork") == 0)
		answer_count(fork_one(a));
	else if (strcmp(word, "vfork") == 0)
		answer_count(vfork_one(first, a));
	else if (strcmp(word, "keep") == 0)
		answer(keep());
	else if (strcmp(word, "become") == 0)
		answer((execl(first, first, NULL), errno));
	else if (strcmp(word, "exec") == 0)
		answer((execl("/proc/self/exe", program_invocation_name, "--again", NULL), errno));
	else if (strcmp(word, "chroot") == 0)
		answer(chroot(first) || chdir("/") ? errno : 0);
	else if (strcmp(word, "library") == 0)
		answer(use_library(first, b));
	else if (strcmp(word, "turns") == 0)
		answer(take_turns(a, b));
	else if (strcmp(word, "markers") == 0)
		answer(mark(first, b));
	else if (strcmp(word, "step") == 0)
		answer((emit_steps(a), 0));
	else if (strcmp(word, "other") == 0)
		answer((emit_others(a), 0));
	else
		answer(EINVAL);
}

static void open_ledger(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	written = mmap(NULL, sizeof(*written), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (written == MAP_FAILED)
		exit(2);
}

/* Write some events and end: -1 if that is not what is asked for. */
static int emit_at_once(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	int i;

	if (strcmp(what, "--texts-in-threads") == 0 && argc == 4)
		return emit_texts_in_threads(strtoull(argv[2], NULL, 0), (uint32_t)strtoul(argv[3], NULL, 0));
	if (strcmp(what, "--emit") == 0)
		emit(strtoull(argv[2], NULL, 0));
	else if (strcmp(what, "--steps") == 0)
		emit_steps(strtoull(argv[2], NULL, 0));
	else if (strcmp(what, "--texts") == 0)
		for (i = 2; i < argc; i++)
			emit_text((uint32_t)i - 2, strtoull(argv[i], NULL, 0));
	else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	char line[4096];
	int status = emit_at_once(argc, argv);

	if (status >= 0)
		return status;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* What it has not read is for the program that it becomes. */
	setvbuf(stdin, NULL, _IONBF, 0);
	if (argc == 2 && strcmp(argv[1], "--again") == 0)
		answer(0);
	else if (argc == 2)
		open_ledger(argv[1]);
	while (fgets(line, sizeof(line), stdin)) {
		if (strncmp(line, "log ", 4) == 0)
			answer_count(relay_log("%.*s", (int)strcspn(line + 4, "\n"), line + 4));
		else
			obey(line);
	}
	return 0;
}
