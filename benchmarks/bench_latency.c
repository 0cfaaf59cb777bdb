/* SPDX-License-Identifier: MIT */
/*
 * How soon a process is awake that sleeps until another one, on another CPU, has something for it.
 *
 *     bench_latency ROUNDS WAKER_CPU SLEEPER_CPU CHANNEL BARE_FILE WORDS_FILE
 *
 * CHANNEL: of one buffer, also the path of its relay file; BARE_FILE: of bench_latency_bare, which has been given WORDS_FILE.
 * Prints a line for each way to sleep: its name, and in microseconds the median of the times from just before the act of the
 * waker until the sleeper is awake. The sleeper has slept for some milliseconds each time.
 */
#define _GNU_SOURCE
#include "bench_latency.h"

#include <fcntl.h>
#include <poll.h>
#include <relayfs/producer.h>
#include <relayfs/reader.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST_ROUNDS = 10000, ASLEEP_NS = 2000000, LOOK_NS = 100000 };

/* What the two processes tell each other. */
struct told {
	volatile int ready; /* rounds that the sleeper has begun */
	volatile int awake; /* rounds in which it has woken */
	volatile double at; /* when it woke last, in ns */
	uint32_t word;      /* futex */
};

static struct told *told;
static struct words *words;
static struct rchan *channel;
static struct relay_reader *reader;
static struct pollfd polled = {.events = POLLIN};

/* --- ways to sleep, and to wake --- */

static void sleep_on_futex(void)
{
	static uint32_t seen;
	while (__atomic_load_n(&told->word, __ATOMIC_ACQUIRE) == seen)
		wait_for_word(&told->word, seen);
	seen++;
}

static void wake_by_futex(void)
{
	__atomic_add_fetch(&told->word, 1, __ATOMIC_RELEASE);
	wake_word(&told->word);
}

static void sleep_in_library(void)
{
	const void *data;
	size_t length;
	if (relay_reader_next(reader, &data, &length, -1) != 1)
		die("relay_reader_next");
}

static void done_in_library(void)
{
	relay_reader_done(reader);
}

static void write_record(void)
{
	if (relay_write(channel, "a record", 8) != 0)
		die("relay_write");
}

static void sleep_in_poll(void)
{
	if (poll(&polled, 1, -1) != 1)
		die("poll");
}

static void read_all(void)
{
	char data[4096];
	while (read(polled.fd, data, sizeof(data)) > 0)
		;
}

static void wake_bare(void)
{
	__atomic_store_n(&words->is_ready, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&words->seq, 1, __ATOMIC_SEQ_CST);
	wake_word(&words->seq);
}

static void be_unready(void)
{
	__atomic_store_n(&words->is_ready, 0, __ATOMIC_SEQ_CST);
}

static void nothing(void)
{
}

/* --- measuring --- */

static void rest(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static int compare(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
}

static void sleep_again_and_again(int rounds, void (*sleep_once)(void), void (*after)(void))
{
	for (int i = 1; i <= rounds; i++) {
		told->ready = i;
		sleep_once();
		told->at = clock_ns(CLOCK_MONOTONIC);
		after();
		told->awake = i;
	}
	_exit(0);
}

static void measure(const char *name, int rounds, const int *cpus, void (*sleep_once)(void), void (*after)(void),
                    void (*wake)(void))
{
	static double us[MOST_ROUNDS];
	int status;
	*told = (struct told){0};
	const pid_t sleeper = fork();
	if (sleeper == 0) {
		pin(cpus[1]);
		sleep_again_and_again(rounds, sleep_once, after);
	}
	for (int i = 1; i <= rounds; i++) {
		while (told->ready < i)
			rest(LOOK_NS);
		rest(ASLEEP_NS);
		const double began = clock_ns(CLOCK_MONOTONIC);
		wake();
		while (told->awake < i)
			rest(LOOK_NS);
		us[i - 1] = (told->at - began) / 1e3;
	}
	if (waitpid(sleeper, &status, 0) < 0 || status)
		die(name);
	qsort(us, (size_t)rounds, sizeof(*us), compare);
	printf("%s %.2f\n", name, us[rounds / 2]);
	fflush(stdout);
}

static void open_to_poll(const char *path)
{
	polled.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (polled.fd < 0)
		die(path);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 2;
	const int rounds = atoi(argv[1]);
	int cpus[2];
	if (rounds < 1 || rounds > MOST_ROUNDS)
		return 2;
	take_cpus(argv, cpus);
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	words = map_words(argv[6]);
	channel = relay_attach(argv[4]);
	reader = relay_reader_open(argv[4]);
	if (told == MAP_FAILED || !channel || !reader)
		die(argv[4]);
	measure("futex", rounds, cpus, sleep_on_futex, nothing, wake_by_futex);
	measure("library", rounds, cpus, sleep_in_library, done_in_library, write_record);
	open_to_poll(argv[4]);
	measure("poll-mount", rounds, cpus, sleep_in_poll, read_all, write_record);
	close(polled.fd);
	open_to_poll(argv[5]);
	measure("poll-bare", rounds, cpus, sleep_in_poll, be_unready, wake_bare);
	return 0;
}
