/* SPDX-License-Identifier: MIT */
/*
 * Reads everything that stress_producer writes into a channel and holds it against the ledger and against
 * the buffers' own counts.
 *
 *     stress_verify --ledger FILE --reader read|pipe|zero-copy|consume|mmap [--overwrite] [--killed]
 *                   [--reopen] [--passed] [--resets] [--callback keep|replace] [--max BYTES] (RELAY_FILE MEM_FILE)...
 *
 * One thread per buffer. End of file on standard input means that no producer is left: the buffers are drained
 * and the account is made. Prints the account as one JSON object. Exit 0: it is right.
 *
 * --killed: producers were killed, some records per stream are in doubt. --passed: others call `consumed`,
 * --resets: and reset. --reopen: the file server is killed and comes back; relay files are opened again until it
 * does. `consume` and `mmap` use MEM_FILE and need no mount; the
 * latter takes the memory as it lies there, finds its padding in the headers that --callback has left, and tells with
 * `consumed`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <stdbool.h>
#include <stdio.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stress_callback.h"
#include "stress_options.h"
#include "stress_verify.h"

enum { MAX_BUFFERS = 1024, READ_BYTES = 1 << 20 };

struct verify_options options = {.reader = "read", .max_bytes = READ_BYTES};

static struct source *sources[MAX_BUFFERS];
static unsigned n_sources;
static bool producers_done;
static sem_t n_opened;

void tell_opened(struct source *s)
{
	if (!s->is_opened)
		sem_post(&n_opened);
	s->is_opened = true;
}

bool no_more_writers(void)
{
	return __atomic_load_n(&producers_done, __ATOMIC_ACQUIRE);
}

/* Returns how many bytes were whole records; *problem: why the next one is none, or NULL at the end. */
static size_t accept_records(struct source *s, const char *data, size_t length, const char **problem)
{
	struct stress_record record;
	size_t at = 0;

	*problem = NULL;
	while (at < length) {
		*problem = stress_parse(data + at, length - at, &record);
		if (*problem)
			break;
		account_enter(&s->tally, &record);
		at += record.length;
	}
	return at;
}

void complain_of(const struct source *s, const char *problem, const char *data, size_t length, size_t at)
{
	uint64_t words[2] = {0, 0};

	memcpy(words, data + at, length - at < sizeof(words) ? length - at : sizeof(words));
	complain("%s: after %" PRIu64 " records, at byte %zu of %zu: %s (%016" PRIx64 " %016" PRIx64 ")",
	         s->tally.relay_file, s->tally.records, at, length, problem, words[0], words[1]);
}

/* read(2) */

static int open_relay_file(struct source *s)
{
	struct timespec pause = {.tv_nsec = 10000000};
	time_t deadline = time(NULL) + REOPEN_SECONDS;
	int fd;

	while ((fd = open(s->tally.relay_file, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
		if (!options.reopen || time(NULL) > deadline)
			die(s->tally.relay_file);
		nanosleep(&pause, NULL);
	}
	tell_opened(s);
	return fd;
}

/*
 * A file server that is killed after its reply and before it noted it has given what the buffer still holds as
 * unread: readers get it again, or, in overwrite mode, producers overwrite it and it counts as lost, too. The
 * buffer's counts tell exactly when that is the case; all else that comes twice is an error.
 */
static void look_for_unnoted(struct source *s)
{
	uint64_t accepted = s->tally.bytes + s->held - s->tally.unnoted_bytes, missing;
	struct relay_stats stats = {0};

	if (relay_buf_stats(s->buf, &stats) != 0)
		complain("%s: no stats", s->tally.mem_file);
	missing = accepted - stats.read_bytes;
	/* All of the last read or nothing of it; or, if that repeats an earlier one, what is left of that. */
	if (missing > s->previous_length || (missing && missing < s->previous_length && !s->unnoted)) {
		complain("%s: %" PRIu64 " bytes are noted as read, they were %" PRIu64, s->tally.relay_file,
		         stats.read_bytes, accepted);
		return;
	}
	s->unnoted = missing > 0;
	s->unnoted_at = s->previous_length - missing;
}

static uint64_t count_records(const char *data, size_t length)
{
	struct stress_record record;
	uint64_t n = 0;
	size_t at;

	for (at = 0; at < length && !stress_parse(data + at, length - at, &record); at += record.length)
		n++;
	return n;
}

/* The unnoted bytes up to `end` did not come again. */
static void give_up_unnoted(struct source *s, size_t end)
{
	const char *lost = s->previous + s->unnoted_at;

	if (!options.account.overwrite && end > s->unnoted_at)
		complain("%s: %zu bytes are not given again", s->tally.relay_file, end - s->unnoted_at);
	s->tally.unnoted_records += count_records(lost, end - s->unnoted_at);
	s->tally.unnoted_bytes += end - s->unnoted_at;
	s->unnoted_at = end;
}

/* How many bytes at the beginning of this read have come before. */
static size_t skip_unnoted(struct source *s, const char *data, size_t length)
{
	const char *from = s->previous + s->unnoted_at;
	size_t rest = s->previous_length - s->unnoted_at, same;
	/* Eight bytes name a record: found once or never. */
	const char *found = length < 8 ? NULL : memmem(from, rest, data, 8);

	if (!found) {
		give_up_unnoted(s, s->previous_length);
		return 0;
	}
	give_up_unnoted(s, (size_t)(found - s->previous));
	rest = s->previous_length - s->unnoted_at;
	same = length < rest ? length : rest;
	if (memcmp(found, data, same) != 0)
		complain("%s: what is given again has changed", s->tally.relay_file);
	s->tally.repeated += count_records(data, same);
	s->unnoted_at += same;
	return same;
}

static size_t repeated_bytes(struct source *s, const char *data, size_t length)
{
	size_t repeated = 0;

	if (s->unnoted)
		repeated = skip_unnoted(s, data, length);
	if (s->unnoted && s->unnoted_at < s->previous_length)
		return repeated; /* the next read goes on with it */
	s->unnoted = false;
	if (options.reopen) {
		memcpy(s->previous, data, length);
		s->previous_length = length;
		s->unnoted_at = 0;
	}
	return repeated;
}

static bool may_be_cut(void)
{
	return !options.account.overwrite || strcmp(options.reader, "pipe") == 0;
}

/* Records may be cut where one read ends and the next begins, but only if the reader asked for less than there
 * was: never in the overwrite tests, where the rest could be gone, unless it is in a pipe already. */
void take_stream(struct source *s, size_t length)
{
	size_t skip = repeated_bytes(s, s->data + s->held, length), at, total = s->held + length - skip;
	const char *problem;

	memmove(s->data + s->held, s->data + s->held + skip, length - skip);
	at = accept_records(s, s->data, total, &problem);
	s->held = total - at;
	if (problem && (strcmp(problem, "cut") != 0 || !may_be_cut() || s->held > STRESS_LENGTH_MAX)) {
		complain_of(s, problem, s->data, total, at);
		s->held = 0;
	}
	memmove(s->data, s->data + at, s->held);
}

static bool server_died(int error)
{
	return options.reopen && (error == ENOTCONN || error == ECONNABORTED || error == EIO || error == EBADF);
}

/* Returns bytes read; 0: nothing there now; -1: no answer, ask again. */
static ssize_t read_some(struct source *s, int *fd)
{
	ssize_t n = read(*fd, s->data + s->held, options.max_bytes);

	if (n >= 0)
		return n;
	if (errno == EAGAIN)
		return 0;
	if (errno == EINTR)
		return -1;
	if (!server_died(errno))
		die(s->tally.relay_file);
	look_for_unnoted(s);
	close(*fd);
	*fd = open_relay_file(s);
	s->tally.reopened++;
	return -1;
}

static void read_stream(struct source *s)
{
	int fd = open_relay_file(s);
	struct pollfd poll_fd;
	bool last_round = false;
	ssize_t n;

	s->data = malloc(options.max_bytes + STRESS_LENGTH_MAX);
	s->previous = malloc(options.max_bytes);
	if (!s->data || !s->previous)
		die("memory");
	for (;;) {
		n = read_some(s, &fd);
		if (n > 0)
			take_stream(s, (size_t)n);
		if (n != 0) {
			last_round = false;
			continue;
		}
		if (last_round)
			break;
		last_round = no_more_writers();
		poll_fd = (struct pollfd){.fd = fd, .events = POLLIN};
		if (!last_round)
			poll(&poll_fd, 1, WAIT_MS);
	}
	if (s->unnoted)
		give_up_unnoted(s, s->previous_length);
	if (s->held)
		complain("%s: ends in the middle of a record", s->tally.relay_file);
	close(fd);
}

/* What somebody else reads: RELAY_FILE is a pipe that ends when all has been read. Between two readings he puts a mark,
 * the header of a sub-buffer. */
static void read_pipe(struct source *s)
{
	int fd = open(s->tally.relay_file, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	s->data = malloc(options.max_bytes + STRESS_LENGTH_MAX);
	if (fd < 0 || !s->data)
		die(s->tally.relay_file);
	while ((n = read(fd, s->data + s->held, options.max_bytes)) > 0)
		take_stream(s, (size_t)n);
	if (n < 0)
		die(s->tally.relay_file);
	if (s->held)
		complain("%s: ends in the middle of a record", s->tally.relay_file);
	s->tally.headers = s->tally.header_bytes = 0;
	close(fd);
}

static void *run_source(void *argument)
{
	struct source *s = argument;

	if (strcmp(options.reader, "zero-copy") != 0 && strcmp(options.reader, "read") != 0)
		tell_opened(s); /* its memory is; a pipe opens when somebody writes */
	if (strcmp(options.reader, "zero-copy") == 0)
		read_zero_copy(s);
	else if (strcmp(options.reader, "consume") == 0)
		consume(s);
	else if (strcmp(options.reader, "mmap") == 0)
		read_mapped(s);
	else if (strcmp(options.reader, "pipe") == 0)
		read_pipe(s);
	else
		read_stream(s);
	return NULL;
}

static void parse_options(int argc, char **argv)
{
	static const struct stress_option known[] = {{"ledger", .text = &options.ledger_file},
	                                             {"reader", .text = &options.reader},
	                                             {"overwrite", .flag = &options.account.overwrite},
	                                             {"killed", .flag = &options.account.killed},
	                                             {"reopen", .flag = &options.reopen},
	                                             {"max", .number = &options.max_bytes},
	                                             {"passed", .flag = &options.account.passed},
	                                             {"resets", .flag = &options.account.resets},
	                                             {"callback", .text = &options.callback},
	                                             {0}};

	stress_parse_options(argc, argv, known);
	n_sources = (unsigned)(argc - optind) / 2;
	errno = EINVAL;
	if (!options.ledger_file || n_sources == 0 || n_sources > MAX_BUFFERS || (argc - optind) % 2)
		die("arguments");
}

static void start_source(unsigned i, char **paths)
{
	struct source *s = sources[i] = calloc(1, sizeof(*s));

	if (!s)
		die("memory");
	s->tally.relay_file = paths[0];
	s->tally.mem_file = paths[1];
	s->buf = relay_buf_open(s->tally.mem_file);
	if (!s->buf)
		die(s->tally.mem_file);
	if (options.callback)
		relay_buf_set_callbacks(s->buf, stress_callbacks(options.callback));
	if (pthread_create(&s->thread, NULL, run_source, s) != 0)
		die("pthread_create");
}

static void wait_for_end_of_input(void)
{
	char ignored[64];
	ssize_t n;

	while ((n = read(0, ignored, sizeof(ignored))) > 0 || (n < 0 && errno == EINTR))
		;
	__atomic_store_n(&producers_done, true, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
	unsigned i, n_complaints;

	parse_options(argc, argv);
	account_open(options.ledger_file);
	sem_init(&n_opened, 0, 0);
	for (i = 0; i < n_sources; i++)
		start_source(i, argv + optind + 2 * i);
	for (i = 0; i < n_sources; i++)
		while (sem_wait(&n_opened) != 0)
			;
	puts("reading");
	fflush(stdout);
	wait_for_end_of_input();
	for (i = 0; i < n_sources; i++)
		pthread_join(sources[i]->thread, NULL);
	for (i = 0; i < n_sources; i++) {
		account_add(&sources[i]->tally, sources[i]->buf, &options.account);
		relay_buf_release(sources[i]->buf);
		free(sources[i]->data);
		free(sources[i]->previous);
		free(sources[i]);
	}
	n_complaints = account_close(&options.account);
	return n_complaints ? 1 : 0;
}
