/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "stress_account.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <relayfs/layout.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_COMPLAINTS = 20 };

static const struct stress_ledger *ledger;
static uint8_t *seen; /* one bit a record: STRESS_N_STREAMS rows of STRESS_N_SEQUENCES bits */
static unsigned n_complaints;

static struct account {
	uint64_t read_records, read_bytes, repeated, unnoted_records, unnoted_bytes, lapped, reopened;
	uint64_t headers, begun_bytes, resets_met;
	uint64_t written, written_bytes, in_doubt, full, full_bytes, discarded, discarded_bytes;
	uint64_t disabled, disabled_bytes;
	uint64_t least, most;     /* records taken since the last reset, discarded ones included */
	struct relay_stats stats; /* the buffers' sum */
} account;

_Noreturn void die(const char *what)
{
	fprintf(stderr, "stress_verify: %s: %s\n", what, strerror(errno));
	exit(2);
}

void complain(const char *format, ...)
{
	va_list arguments;

	if (__atomic_fetch_add(&n_complaints, 1, __ATOMIC_RELAXED) >= MAX_COMPLAINTS)
		return;
	va_start(arguments, format);
	flockfile(stderr);
	fputs("stress_verify: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	funlockfile(stderr);
	va_end(arguments);
}

void account_open(const char *ledger_file)
{
	int fd = open(ledger_file, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*ledger)) != 0)
		die(ledger_file);
	ledger = mmap(NULL, sizeof(*ledger), PROT_READ, MAP_SHARED, fd, 0);
	seen = mmap(NULL, STRESS_N_STREAMS * (STRESS_N_SEQUENCES / 8), PROT_READ | PROT_WRITE,
	            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ledger == MAP_FAILED || seen == MAP_FAILED)
		die("mmap");
	close(fd);
}

static bool mark_seen(const struct stress_record *r)
{
	uint64_t bit = (uint64_t)r->stream << STRESS_SEQUENCE_BITS | r->sequence;
	uint8_t mask = (uint8_t)(1u << bit % 8);

	return (__atomic_fetch_or(&seen[bit / 8], mask, __ATOMIC_RELAXED) & mask) == 0;
}

static bool was_seen(uint32_t stream, uint64_t sequence)
{
	uint64_t bit = (uint64_t)stream << STRESS_SEQUENCE_BITS | sequence;

	return seen[bit / 8] >> bit % 8 & 1;
}

void account_before_read(struct tally *t)
{
	uint64_t n = __atomic_load_n(&ledger->n_resets, __ATOMIC_ACQUIRE);
	uint32_t stream;

	if (n == t->n_resets)
		return;
	t->n_resets = n;
	for (stream = 0; stream < STRESS_N_STREAMS; stream++)
		t->floor[stream] = __atomic_load_n(&ledger->reset[stream].written, __ATOMIC_RELAXED);
}

static void check_read(const struct tally *t, const struct relay_stats *f, bool passed)
{
	uint64_t records = t->records - t->before.records - t->unnoted_records;
	uint64_t header_bytes = t->header_bytes - t->before.header_bytes;
	uint64_t bytes = t->bytes - t->before.bytes - t->unnoted_bytes + header_bytes;

	if (passed ? f->read_records < records || f->read_bytes < bytes
	           : f->read_records != records || f->read_bytes != bytes)
		complain("%s: says that %" PRIu64 " records, %" PRIu64 " bytes were read; they were %" PRIu64
		         ", %" PRIu64,
		         t->mem_file, f->read_records, f->read_bytes, records, bytes);
}

/* A buffer that does not know of any read was reset since. */
static void meet_reset(struct tally *t, const struct relay_stats *f)
{
	if (f->reads || (t->records == t->before.records && t->headers == t->before.headers))
		return;
	t->before.records = t->records;
	t->before.bytes = t->bytes;
	t->before.headers = t->headers;
	t->before.header_bytes = t->header_bytes;
	t->resets_met++;
}

void account_during_read(struct tally *t, struct rchan_buf *buf, const struct account_options *options)
{
	struct relay_stats f;
	int err = relay_buf_stats(buf, &f);

	if (err) {
		complain("%s: stats: %s", t->mem_file, strerror(-err));
		return;
	}
	if (options->resets)
		meet_reset(t, &f);
	check_read(t, &f, options->passed);
}

void account_enter(struct tally *t, const struct stress_record *r)
{
	if (r->stream == STRESS_SUBBUF) {
		t->headers++;
		t->header_bytes += r->length;
		return;
	}
	if (r->sequence < t->floor[r->stream])
		complain("%s: stream %u record %u was written before a reset", t->relay_file, r->stream, r->sequence);
	if (r->sequence >= __atomic_load_n(&ledger->slot[r->stream].tried, __ATOMIC_ACQUIRE))
		complain("%s: stream %u record %u was never written", t->relay_file, r->stream, r->sequence);
	if (!mark_seen(r))
		complain("%s: stream %u record %u came twice", t->relay_file, r->stream, r->sequence);
	if (r->sequence < t->last[r->stream])
		complain("%s: stream %u record %u came after %" PRId64, t->relay_file, r->stream, r->sequence,
		         t->last[r->stream] - 1);
	t->last[r->stream] = (int64_t)r->sequence + 1;
	t->records++;
	t->bytes += r->length;
}

static uint64_t difference(uint64_t left, uint64_t right)
{
	return left > right ? left - right : 0;
}

static void add_ledger(struct account *a, const struct account_options *options)
{
	uint64_t sequence;
	uint32_t stream;

	for (stream = 0; stream < STRESS_N_STREAMS; stream++) {
		const struct stress_slot *slot = &ledger->slot[stream];
		const struct stress_reset *reset = &ledger->reset[stream];

		if (slot->other)
			complain("stream %u: a write failed: %s", stream, strerror((int)slot->other_errno));
		a->written += slot->written;
		a->in_doubt += slot->tried - slot->written + slot->discarding - slot->discarded;
		a->full += slot->full_records;
		a->full_bytes += slot->full_bytes;
		a->discarded += slot->discarded;
		a->discarded_bytes += slot->discarded_bytes;
		a->disabled += slot->disabled_records;
		a->disabled_bytes += slot->disabled_bytes;
		a->least += difference(slot->written, reset->tried) + difference(slot->discarded, reset->discarding);
		a->most += slot->tried - reset->written + slot->discarding - reset->discarded;
		for (sequence = 0; sequence < slot->written; sequence++)
			a->written_bytes += stress_length(stream, (uint32_t)sequence) + options->tail_bytes;
	}
}

void account_add(struct tally *t, struct rchan_buf *buf, const struct account_options *options)
{
	struct account *a = &account;
	struct relay_stats f, *sum = &a->stats;
	int err = relay_buf_stats(buf, &f);

	if (err) {
		complain("%s: stats: %s", t->mem_file, strerror(-err));
		return;
	}
	if (f.unread_bytes)
		complain("%s: %" PRIu64 " bytes unread", t->mem_file, f.unread_bytes);
	if (options->resets)
		meet_reset(t, &f);
	check_read(t, &f, options->passed);
	if (options->client_bytes)
		a->begun_bytes += options->client_bytes;
	else if (f.mode == RELAY_CALLBACK)
		a->begun_bytes += (f.produced + (f.offset > 0)) * sizeof(uint64_t);
	sum->records += f.records;
	sum->bytes += f.bytes;
	sum->lost_full_records += f.lost_full_records;
	sum->lost_full_bytes += f.lost_full_bytes;
	sum->lost_overwritten_records += f.lost_overwritten_records;
	sum->lost_overwritten_bytes += f.lost_overwritten_bytes;
	sum->lost_torn_records += f.lost_torn_records;
	sum->lost_torn_bytes += f.lost_torn_bytes;
	sum->lost_too_large_records += f.lost_too_large_records;
	sum->lost_disabled_records += f.lost_disabled_records;
	sum->lost_disabled_bytes += f.lost_disabled_bytes;
	sum->discarded_records += f.discarded_records;
	sum->discarded_bytes += f.discarded_bytes;
	sum->read_records += f.read_records;
	sum->read_bytes += f.read_bytes;
	a->headers += t->headers;
	a->resets_met += t->resets_met;
	a->read_records += t->records;
	a->read_bytes += t->bytes;
	a->unnoted_records += t->unnoted_records;
	a->unnoted_bytes += t->unnoted_bytes;
	a->repeated += t->repeated;
	a->lapped += t->lapped;
	a->reopened += t->reopened;
}

static void equal(const char *what, uint64_t left, uint64_t right)
{
	if (left != right)
		complain("%s: %" PRIu64 " is not %" PRIu64, what, left, right);
}

static void between(const char *what, uint64_t value, uint64_t low, uint64_t high)
{
	if (value < low || value > high)
		complain("%s: %" PRIu64 " is not within %" PRIu64 " .. %" PRIu64, what, value, low, high);
}

/* How many of a stream's records below `end` never came, from what was begun after the last reset on. */
static uint64_t count_missing(uint32_t stream, uint64_t *first)
{
	uint64_t sequence, missing = 0;

	for (sequence = ledger->reset[stream].tried; sequence < ledger->slot[stream].written; sequence++)
		if (!was_seen(stream, sequence) && missing++ == 0)
			*first = sequence;
	return missing;
}

/* No-overwrite: each record that was surely written has come. */
static void check_all_came(void)
{
	uint64_t missing, first = 0;
	uint32_t stream;

	for (stream = 0; stream < STRESS_N_STREAMS; stream++) {
		missing = count_missing(stream, &first);
		if (missing)
			complain("stream %u: %" PRIu64 " records never came, the first is %" PRIu64, stream, missing,
			         first);
	}
}

/* ... or was passed by somebody's `consumed`. */
static void check_others_were_passed(const struct account *a)
{
	uint64_t missing = 0, first;
	uint32_t stream;

	for (stream = 0; stream < STRESS_N_STREAMS; stream++)
		missing += count_missing(stream, &first);
	equal("records that never came, passed by consumed", missing, a->stats.read_records - a->read_records);
}

/* What the buffers took, against what producers say. A reset leaves only what can be said of records. */
static void check_taken(const struct account *a, uint64_t doubt, bool resets)
{
	const struct relay_stats *f = &a->stats;
	uint64_t bytes = a->written_bytes + a->discarded_bytes + a->begun_bytes;

	between("records the buffers took, written by the ledger", f->records, a->least, a->most);
	if (resets)
		return;
	between("bytes the buffers took", f->bytes, bytes, bytes + doubt * STRESS_LENGTH_MAX);
	between("records lost because full", f->lost_full_records, a->full, a->full + doubt);
	between("records refused by disable", f->lost_disabled_records, a->disabled, a->disabled + doubt);
	if (doubt == 0) {
		equal("bytes lost because full", f->lost_full_bytes, a->full_bytes);
		equal("bytes refused by disable", f->lost_disabled_bytes, a->disabled_bytes);
	}
}

static void check_account(const struct account *a, const struct account_options *options)
{
	const struct relay_stats *f = &a->stats;
	uint64_t doubt = options->killed ? a->in_doubt : 0;

	if (!options->killed)
		equal("records in doubt, 0", a->in_doubt, 0);
	check_taken(a, doubt, options->resets);
	equal("records read + overwritten + torn + discarded, taken",
	      f->read_records + f->lost_overwritten_records + f->lost_torn_records + f->discarded_records, f->records);
	equal("bytes read + overwritten + torn + discarded, taken",
	      f->read_bytes + f->lost_overwritten_bytes + f->lost_torn_bytes + f->discarded_bytes, f->bytes);
	between("torn records", f->lost_torn_records, 0, doubt);
	between("discarded records", f->discarded_records, 0, a->discarded + doubt);
	equal("records too large", f->lost_too_large_records, 0);
	if (options->overwrite)
		return;
	equal("records overwritten", f->lost_overwritten_records, 0);
	if (!options->resets)
		between("discarded records", f->discarded_records, a->discarded, a->discarded + doubt);
	if (!options->passed)
		check_all_came();
	else if (!options->resets && !options->killed)
		check_others_were_passed(a);
}

static void print_account(const struct account *a)
{
	printf("{\"written\": %" PRIu64 ", \"written_bytes\": %" PRIu64 ", \"read\": %" PRIu64
	       ", \"read_bytes\": %" PRIu64 ", \"in_doubt\": %" PRIu64 ", \"full\": %" PRIu64
	       ", \"overwritten\": %" PRIu64 ", \"torn\": %" PRIu64 ", \"repeated\": %" PRIu64 ", \"unnoted\": %" PRIu64
	       ", \"lapped\": %" PRIu64 ", \"reopened\": %" PRIu64 ", \"discarded\": %" PRIu64
	       ", \"disabled\": %" PRIu64 ", \"headers\": %" PRIu64 ", \"resets\": %" PRIu64
	       ", \"resets_met\": %" PRIu64 ", \"complaints\": %u}\n",
	       a->written, a->written_bytes, a->read_records, a->read_bytes, a->in_doubt, a->full,
	       a->stats.lost_overwritten_records, a->stats.lost_torn_records, a->repeated, a->unnoted_records,
	       a->lapped, a->reopened, a->stats.discarded_records, a->disabled, a->headers, ledger->n_resets,
	       a->resets_met, n_complaints);
}

unsigned account_close(const struct account_options *options)
{
	add_ledger(&account, options);
	check_account(&account, options);
	print_account(&account);
	return n_complaints;
}
