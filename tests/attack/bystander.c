/* SPDX-License-Identifier: MIT */
/*
 * An honest program that works with the files under attack, over and over, until its input ends.
 *
 *     bystander read|poll|epoll|reader|ring|write|output|stat FILE
 *
 * read, poll, epoll   the relay file, with system calls
 * reader, ring        the library's consumers, in place
 * write, output       the library's producers; FILE is the channel's path
 * stat                says how long stat(2) of FILE took
 *
 * It believes nothing and accepts every error; it must neither be killed nor stand still. Prints "ready", and at the end
 * how often it went round and how many errors it met; for stat: the number of samples, and of these, in microseconds, the
 * median, the 99th percentile and the longest.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <relayfs/reader.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 64, WAIT_MS = 20, PAUSE_US = 5000, MAX_SAMPLES = 1 << 20, PIECE_BYTES = 65536 };

static const char *file;
static unsigned long rounds, errors;
static char piece[PIECE_BYTES];

static void met(int failed)
{
	errors += failed != 0;
}

static int told_to_end(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;
	return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

static void read_some(int fd)
{
	for (unsigned i = 0; i < PIECES; i++) {
		ssize_t got = read(fd, piece, sizeof(piece));
		met(got < 0);
		if (got <= 0)
			break;
	}
}

static void read_round(void)
{
	struct stat st;
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	met(fd < 0);
	if (fd < 0)
		return;
	met(fstat(fd, &st));
	read_some(fd);
	lseek(fd, 0, SEEK_END);
	close(fd);
}

static void poll_round(void)
{
	struct pollfd one = {.fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};
	met(one.fd < 0);
	if (one.fd < 0)
		return;
	for (unsigned i = 0; i < 4; i++)
		if (poll(&one, 1, WAIT_MS) > 0)
			read_some(one.fd);
	close(one.fd);
}

static void epoll_round(void)
{
	int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC), epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	met(fd < 0);
	if (fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0)
		for (unsigned i = 0; i < 4; i++)
			if (epoll_wait(epoll, &event, 1, WAIT_MS) > 0)
				read_some(fd);
	if (fd >= 0)
		close(fd);
	close(epoll);
}

static void reader_round(void)
{
	const void *data;
	size_t length, sum = 0;
	struct relay_reader *reader = relay_reader_open(file);
	met(!reader);
	for (unsigned i = 0; reader && i < PIECES; i++) {
		int got = relay_reader_next(reader, &data, &length, WAIT_MS);
		met(got < 0);
		if (got <= 0)
			break;
		for (size_t at = 0; at < length; at += 512)
			sum += ((const volatile unsigned char *)data)[at];
		met(relay_reader_done(reader));
	}
	relay_reader_close(reader);
	piece[0] = (char)sum;
}

static void ring_round(void)
{
	const void *data;
	size_t length, sum = 0;
	struct relay_rings *rings = relay_rings_attach(file);
	met(!rings);
	if (!rings)
		return;
	for (unsigned n = 0; n < rings->n; n++) {
		for (unsigned i = 0; i < PIECES; i++) {
			int got = relay_ring_next(rings->ring[n], &data, &length);
			met(got < 0);
			if (got <= 0)
				break;
			for (size_t at = 0; at < length; at += 512)
				sum += ((const volatile unsigned char *)data)[at];
			relay_ring_release(rings->ring[n]);
		}
		relay_ring_query(rings->ring[n], RELAY_RING_AVAIL_DATA);
	}
	met(relay_ring_wait(rings->ring, rings->n, WAIT_MS) < 0);
	relay_rings_close(rings);
	piece[0] = (char)sum;
}

static void write_round(void)
{
	struct rchan *chan = relay_attach(file);
	met(!chan);
	if (!chan)
		return;
	/* A lock that somebody holds costs each call two seconds: only the first of these may be waited for at the end. */
	for (unsigned i = 0; i < PIECES && !told_to_end(); i++) {
		met(relay_write(chan, piece, 100));
		void *record = relay_reserve(chan, 50);
		if (record && i & 1)
			relay_commit(chan, record);
		else if (record)
			relay_discard(chan, record);
	}
	relay_close(chan);
}

static void output_round(void)
{
	struct relay_rings *rings = relay_rings_attach(file);
	met(!rings);
	if (!rings)
		return;
	for (unsigned i = 0; i < PIECES && !told_to_end(); i++) {
		met(relay_rings_output(rings, piece, 100, 0));
		void *record = relay_rings_reserve(rings, 50, 0);
		if (record)
			met(i & 1 ? relay_ring_commit(record, 0) : relay_ring_discard(record, 0));
	}
	relay_rings_close(rings);
}

/* --- stat --- */

static uint32_t *samples;

static void stat_round(void)
{
	struct timespec before, after;
	struct stat st;
	clock_gettime(CLOCK_MONOTONIC, &before);
	met(stat(file, &st));
	clock_gettime(CLOCK_MONOTONIC, &after);
	if (rounds < MAX_SAMPLES)
		samples[rounds] =
		    (uint32_t)((after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000);
}

static int by_size(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	return (a > b) - (a < b);
}

static void say_times(void)
{
	unsigned long n = rounds < MAX_SAMPLES ? rounds : MAX_SAMPLES;
	qsort(samples, n, sizeof(*samples), by_size);
	printf("%lu %lu %u %u %u\n", n, errors, n ? samples[n / 2] : 0, n ? samples[n * 99 / 100] : 0,
	       n ? samples[n - 1] : 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*round)(void);
	} roles[] = {
	    {"read", read_round}, {"poll", poll_round},   {"epoll", epoll_round},   {"reader", reader_round},
	    {"ring", ring_round}, {"write", write_round}, {"output", output_round}, {"stat", stat_round},
	};
	void (*round)(void) = NULL;
	for (size_t i = 0; argc == 3 && i < sizeof(roles) / sizeof(*roles); i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			round = roles[i].round;
	samples = calloc(MAX_SAMPLES, sizeof(*samples));
	if (!round || !samples)
		return 2;
	file = argv[2];
	memset(piece, 'b', sizeof(piece));
	puts("ready");
	fflush(stdout);
	for (; !told_to_end(); rounds++) {
		round();
		usleep(PAUSE_US); /* as a user's tools, which are no flood */
	}
	if (round == stat_round)
		say_times();
	else
		printf("%lu %lu\n", rounds, errors);
	return 0;
}
