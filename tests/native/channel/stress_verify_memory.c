/* SPDX-License-Identifier: MIT */
/* stress_verify, where it reads the memory: through a reader without a copy, through the store, as it lies there. */
#define _GNU_SOURCE
#include "stress_verify.h"

#include <errno.h>
#include <inttypes.h>
#include <relayfs/layout.h>
#include <relayfs/reader.h>
#include <relayfs/store.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Zero copy: judge a piece only when done() has said that it was intact. */

static struct relay_reader *open_reader(struct source *s)
{
	struct timespec pause = {.tv_nsec = 10000000};
	time_t deadline = time(NULL) + REOPEN_SECONDS;
	struct relay_reader *reader;

	while (!(reader = relay_reader_open(s->tally.relay_file))) {
		if (!options.reopen || time(NULL) > deadline)
			die(s->tally.relay_file);
		nanosleep(&pause, NULL);
	}
	tell_opened(s);
	return reader;
}

/* One look at the memory, before done(): what was found there, kept outside of it. */
struct findings {
	struct stress_record *record;
	size_t n, room;
	size_t at;
	const char *problem;
	char around[16];
};

static void look(struct findings *f, const char *data, size_t length)
{
	f->n = f->at = 0;
	f->problem = NULL;
	while (f->at < length) {
		if (f->n == f->room) {
			f->room = f->room ? 2 * f->room : 4096;
			f->record = realloc(f->record, f->room * sizeof(*f->record));
			if (!f->record)
				die("memory");
		}
		f->problem = stress_parse(data + f->at, length - f->at, &f->record[f->n]);
		if (f->problem)
			break;
		f->at += f->record[f->n++].length;
	}
	memset(f->around, 0, sizeof(f->around));
	memcpy(f->around, data + f->at, length - f->at < sizeof(f->around) ? length - f->at : sizeof(f->around));
}

static void judge(struct source *s, const struct findings *f, size_t length)
{
	size_t i, shown = length - f->at < sizeof(f->around) ? length - f->at : sizeof(f->around);

	for (i = 0; i < f->n; i++)
		account_enter(&s->tally, &f->record[i]);
	if (f->problem)
		complain_of(s, f->problem, f->around, shown, 0);
}

void read_zero_copy(struct source *s)
{
	struct relay_reader *reader = open_reader(s);
	struct findings findings = {0};
	const void *data;
	size_t length;
	bool last_round = false;
	int err;

	for (;;) {
		account_before_read(&s->tally);
		err = relay_reader_next(reader, &data, &length, last_round ? 0 : WAIT_MS);
		if (err == 1) {
			account_during_read(&s->tally, s->buf, &options.account);
			look(&findings, data, length);
			err = relay_reader_done(reader);
			if (err == 0)
				judge(s, &findings, length);
			else if (err == -EOVERFLOW && options.account.overwrite)
				s->tally.lapped++;
			else
				complain("%s: done: %s", s->tally.relay_file, strerror(-err));
			last_round = false;
			continue;
		}
		if (err != 0 && err != -EINTR) {
			complain("%s: next: %s", s->tally.relay_file, strerror(-err));
			break;
		}
		if (last_round)
			break;
		last_round = no_more_writers();
	}
	free(findings.record);
	relay_reader_close(reader);
}

/* The store's own interface: what the file server does, copying included. */

/* A callback may be storing the header at the beginning: memcpy() may load the same byte twice, and tear it. */
static void copy_span(char *to, const struct relay_span *span)
{
	size_t word = 0;
	uint64_t first;

	if (span->length >= sizeof(first) && (uintptr_t)span->data % sizeof(first) == 0) {
		first = __atomic_load_n((const uint64_t *)span->data, __ATOMIC_RELAXED);
		word = sizeof(first);
		memcpy(to, &first, word);
	}
	memcpy(to + word, (const char *)span->data + word, span->length - word);
}

static size_t consume_some(struct source *s, struct relay_span *spans, size_t n_spans)
{
	size_t total, used = 0;
	int n, i, err;

	account_before_read(&s->tally);
	n = relay_consume_begin(s->buf, options.max_bytes, spans, n_spans, &total);
	if (n < 0 && n != -EBUSY)
		complain("%s: consume: %s", s->tally.mem_file, strerror(-n));
	if (n <= 0)
		return 0;
	account_during_read(&s->tally, s->buf, &options.account);
	for (i = 0; i < n; i++) {
		copy_span(s->data + s->held + used, &spans[i]);
		used += spans[i].length;
	}
	if (used != total)
		complain("%s: spans of %zu bytes, total %zu", s->tally.mem_file, used, total);
	err = relay_consume_valid(s->buf);
	if (err) {
		relay_consume_abort(s->buf);
		s->tally.lapped++;
		return total;
	}
	relay_consume_end(s->buf);
	take_stream(s, total);
	return total;
}

void consume(struct source *s)
{
	struct relay_span spans[64];
	bool last_round = false;
	uint32_t seq;

	s->data = malloc(options.max_bytes + STRESS_LENGTH_MAX);
	if (!s->data)
		die("memory");
	for (;;) {
		if (consume_some(s, spans, 64)) {
			last_round = false;
			continue;
		}
		if (last_round)
			return;
		last_round = no_more_writers();
		relay_buf_arm(s->buf, RELAY_ARM_RECORD, &seq);
		if (relay_buf_state(s->buf) & RELAY_IS_DAMAGED)
			complain("%s: damaged", s->tally.mem_file);
		if (!last_round && !(relay_buf_state(s->buf) & RELAY_HAS_DATA))
			relay_buf_wait_any(&s->buf, &seq, 1, NULL, 0, WAIT_MS);
	}
}

/* The memory itself, header and padding included; only what is finished. */

/* The records of sub-buffer `number`, if they are all there: a reservation may be open. */
static bool look_at_subbuf(struct findings *f, const char *subbuf, uint64_t subbuf_size)
{
	struct stress_record header;

	if (stress_parse(subbuf, subbuf_size, &header) || header.stream != STRESS_SUBBUF ||
	    header.sequence > subbuf_size - sizeof(uint64_t))
		return false;
	look(f, subbuf, subbuf_size - header.sequence);
	return !f->problem;
}

static uint64_t consumed(const struct source *s)
{
	struct relay_stats stats = {0};

	if (relay_buf_stats(s->buf, &stats))
		complain("%s: no stats", s->tally.mem_file);
	return stats.consumed;
}

static bool take_subbuf(struct source *s, struct findings *f, const char *memory)
{
	struct relay_stats stats = {0};
	int err = relay_buf_stats(s->buf, &stats);

	if (err || stats.produced == stats.consumed)
		return false;
	if (!look_at_subbuf(f, memory + stats.consumed % stats.n_subbufs * stats.subbuf_size, stats.subbuf_size))
		return false;
	err = relay_buf_subbufs_consumed(s->buf, 1);
	if (err)
		complain("%s: consumed: %s", s->tally.mem_file, strerror(-err));
	if (consumed(s) == stats.consumed)
		return false; /* what was already filled was not committed yet */
	judge(s, f, 0);
	return true;
}

static bool all_is_consumed(const struct source *s)
{
	struct relay_stats stats = {0};

	return relay_buf_stats(s->buf, &stats) == 0 && stats.produced == stats.consumed;
}

void read_mapped(struct source *s)
{
	struct timespec pause = {.tv_nsec = 1000000};
	struct relay_span spans[64];
	time_t deadline = 0;
	struct findings findings = {0};
	struct relay_stats stats;
	char *memory;

	if (relay_buf_stats(s->buf, &stats))
		die(s->tally.mem_file);
	memory = mmap(NULL, stats.subbuf_size * stats.n_subbufs, PROT_READ, MAP_SHARED, relay_buf_fd(s->buf), 0);
	if (memory == MAP_FAILED)
		die(s->tally.mem_file);
	s->data = malloc(options.max_bytes + STRESS_LENGTH_MAX);
	if (!s->data)
		die("memory");
	for (;;) {
		if (take_subbuf(s, &findings, memory))
			continue;
		if (deadline && all_is_consumed(s))
			break;
		if (deadline && time(NULL) > deadline)
			die("what is finished is not whole");
		if (!deadline && no_more_writers()) {
			relay_buf_flush(s->buf);
			deadline = time(NULL) + REOPEN_SECONDS;
		}
		nanosleep(&pause, NULL);
	}
	/* The header of one that has only begun. */
	while (consume_some(s, spans, 64))
		;
	munmap(memory, stats.subbuf_size * stats.n_subbufs);
	free(findings.record);
}
