/* SPDX-License-Identifier: MIT */
/*
 * Memory that somebody else has written nonsense into: every function returns, an error or data of this very
 * buffer, and touches nothing else. A hang is ended by alarm(2).
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <relayfs/relay.h>
#include <relayfs/trace_store.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SCHEMES(rseq, lockless, locking);

enum { HANG_SECONDS = 600 };

/* A buffer with a history: some laps, some unread data, and a copy of its file to go back to. */
struct victim {
	char path[4096], neighbour[4096];
	struct rchan_buf *buf;
	unsigned char *memory; /* the whole file, mapped here a second time */
	unsigned char *saved;
	size_t file_bytes, data_bytes;
	unsigned char neighbour_saved[RELAY_PAGE_BYTES];
};

static void read_page(const char *path, unsigned char *page)
{
	int fd = open(path, O_RDONLY);

	CHECK(fd >= 0);
	CHECK_EQ(pread(fd, page, RELAY_PAGE_BYTES, 0), RELAY_PAGE_BYTES);
	close(fd);
}

static int always(struct rchan_buf *buf, void *subbuf, void *previous, unsigned padding)
{
	(void)buf;
	(void)subbuf;
	(void)previous;
	(void)padding;
	return 1;
}

static void victim_make_of(struct victim *v, struct relay_spec spec)
{
	static const struct rchan_callbacks client = {.subbuf_start = always};
	const char *path = make_channel(&spec);
	int i;

	snprintf(v->path, sizeof(v->path), "%s", path);
	/* The file mapped right behind in a process that opens both: the next channel's. */
	snprintf(v->neighbour, sizeof(v->neighbour), "%s", make_channel(&spec));
	read_page(v->neighbour, v->neighbour_saved);
	v->buf = relay_buf_open(v->path);
	CHECK(v->buf != NULL);
	if (spec.mode == RELAY_CALLBACK)
		relay_buf_set_callbacks(v->buf, &client);
	for (i = 0; i < 12; i++) {
		CHECK_EQ(write_letters(v->buf, (char)('a' + i), 60), 0);
		if (i < 8)
			drain(v->buf);
	}
	v->file_bytes = stats_of(v->buf).file_bytes;
	v->data_bytes = spec.n_subbufs * spec.subbuf_size;
	v->memory = mmap(NULL, v->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, relay_buf_fd(v->buf), 0);
	v->saved = malloc(v->file_bytes);
	CHECK(v->memory != MAP_FAILED && v->saved != NULL);
	memcpy(v->saved, v->memory, v->file_bytes);
}

static void victim_make(struct victim *v, uint32_t mode)
{
	victim_make_of(v, a_spec(100, 5, mode));
}

static void victim_free(struct victim *v)
{
	relay_buf_release(v->buf);
	munmap(v->memory, v->file_bytes);
	free(v->saved);
}

static bool is_error_or(int result, int limit)
{
	return result <= limit && result > -200;
}

/* Each byte that is offered must be readable, and no more than the buffer holds. */
static void consume_damaged(struct victim *v)
{
	static volatile unsigned char sink;
	struct relay_span spans[8];
	size_t total = 0, sum, j;
	int n, i, round;

	for (round = 0; round < 20; round++) {
		n = relay_consume_begin(v->buf, 1 << 20, spans, 8, &total);
		CHECK(is_error_or(n, 8));
		if (n <= 0)
			return;
		CHECK(total <= v->data_bytes);
		for (i = 0, sum = 0; i < n; i++) {
			CHECK(spans[i].length <= v->data_bytes / 5);
			for (j = 0; j < spans[i].length; j++)
				sink = ((const unsigned char *)spans[i].data)[j];
			sum += spans[i].length;
		}
		CHECK_EQ(sum, total);
		CHECK(is_error_or(relay_consume_valid(v->buf), 0));
		relay_consume_end(v->buf);
	}
	(void)sink;
}

static void check_numbers(const struct relay_stats *stats)
{
	const uint64_t numbers[] = {stats->produced,
	                            stats->consumed,
	                            stats->offset,
	                            stats->records,
	                            stats->bytes,
	                            stats->padding,
	                            stats->read_records,
	                            stats->read_bytes,
	                            stats->unread_bytes,
	                            stats->unread_holes,
	                            stats->reads,
	                            stats->wakeups,
	                            stats->lost_full_records,
	                            stats->lost_full_bytes,
	                            stats->lost_too_large_records,
	                            stats->lost_too_large_bytes,
	                            stats->lost_disabled_records,
	                            stats->lost_disabled_bytes,
	                            stats->lost_overwritten_records,
	                            stats->lost_overwritten_bytes,
	                            stats->lost_torn_records,
	                            stats->lost_torn_bytes,
	                            stats->discarded_records,
	                            stats->discarded_bytes,
	                            stats->switch_time_ns};
	size_t i;

	for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		CHECK((int64_t)numbers[i] >= 0);
	CHECK(stats->consumed <= stats->produced);
	CHECK(stats->offset <= stats->subbuf_size);
	CHECK(stats->unread_bytes <= stats->n_subbufs * stats->subbuf_size);
	CHECK(stats->unread_holes <= stats->unread_bytes);
	CHECK(stats->read_records <= stats->records);
	CHECK(stats->read_bytes + stats->unread_bytes <= stats->bytes);
	CHECK(stats->lost_overwritten_records + stats->lost_torn_records + stats->discarded_records <= stats->records);
	CHECK(stats->buffers <= RELAY_SINGLE && stats->delivery <= RELAY_PACKET && stats->read <= RELAY_READ_WAIT);
}

/* Whatever is there: numbers that are some, or an error that says what is wrong. */
static void ask(struct rchan_buf *buf)
{
	struct relay_stats stats;
	int err = relay_buf_stats(buf, &stats), state;

	CHECK(err == 0 || err == -EBADMSG);
	if (err)
		CHECK(strlen(relay_buf_damage(buf)) > 10);
	else
		check_numbers(&stats);
	state = relay_buf_state(buf);
	CHECK(is_error_or(state, 63));
	if (state & RELAY_IS_DAMAGED)
		CHECK(strlen(relay_buf_damage(buf)) > 10);
}

static void copy_packets(struct victim *v)
{
	uint64_t number = 0, records = 0;
	char out[300];
	ssize_t n;

	for (int i = 0; i < 20 && (n = relay_packet_copy(v->buf, &number, &records, out, sizeof(out))) > 0; i++) {
		CHECK((size_t)n <= sizeof(out));
		CHECK((int64_t)records >= 0);
		number++;
	}
}

static void use(struct victim *v)
{
	struct rchan_buf *fresh;
	uint32_t seq;

	alarm(HANG_SECONDS);
	ask(v->buf);
	CHECK(is_error_or(write_letters(v->buf, 'x', 60), 0));
	consume_damaged(v);
	CHECK(is_error_or(write_letters(v->buf, 'y', 100), 0));
	CHECK(is_error_or(relay_buf_flush(v->buf), 0));
	CHECK(is_error_or(relay_buf_subbufs_consumed(v->buf, 2), 0));
	CHECK(is_error_or(relay_buf_arm(v->buf, RELAY_ARM_RECORD, &seq), 0));
	CHECK(is_error_or(relay_buf_resolve(v->buf, 5), RELAY_N_CLAIMS));
	ask(v->buf);
	CHECK(is_error_or(relay_buf_stop(v->buf, RELAY_DISABLED, 0), 0));
	consume_damaged(v);
	CHECK(is_error_or(relay_buf_reset(v->buf), 0));
	CHECK(is_error_or(write_letters(v->buf, 'z', 60), 0));
	ask(v->buf);
	fresh = relay_buf_open(v->path);
	if (!fresh)
		CHECK(errno == EBADMSG || errno == EPROTO);
	relay_buf_release(fresh);
	alarm(0);
}

/* Back to the saved memory: everything works as if nothing had happened. */
static void recover(struct victim *v)
{
	struct stat st;
	unsigned char page[RELAY_PAGE_BYTES];

	relay_consume_abort(v->buf);
	memcpy(v->memory, v->saved, v->file_bytes);
	CHECK_EQ(stat(v->path, &st), 0);
	CHECK_EQ((size_t)st.st_size, v->file_bytes);
	read_page(v->neighbour, page);
	CHECK_EQ(memcmp(page, v->neighbour_saved, sizeof(page)), 0);
}

static void check_recovered(struct victim *v)
{
	char expected[4 * 60 + 1];
	int i;

	for (i = 0; i < 4; i++)
		memset(expected + 60 * i, 'i' + i, 60);
	expected[240] = 0;
	CHECK_DRAINS(v->buf, expected);
	CHECK_EQ(write_letters(v->buf, 'n', 60), 0);
	recover(v);
}

/* Interesting to arithmetic: limits, signs, one bit, near what was there. */
static uint64_t nonsense(uint64_t was, unsigned kind, uint64_t r)
{
	switch (kind) {
	case 0:
		return 0;
	case 1:
		return ~0ull;
	case 2:
		return was ^ 1ull << r % 64;
	case 3:
		return was + r % 16 - 8;
	case 4:
		return r % 256;
	case 5:
		return was | 1ull << 63;
	case 6:
		return was + (r % 16 << r % 40);
	default:
		return r;
	}
}

enum { N_KINDS = 8 };

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void damage_word(struct victim *v, size_t at, unsigned kind, uint64_t r)
{
	uint64_t word;

	memcpy(&word, v->memory + at, 8);
	word = nonsense(word, kind, r);
	memcpy(v->memory + at, &word, 8);
}

/* Every word of the control page, each with every kind of nonsense. */
static void each_control_word(uint32_t mode)
{
	struct victim v;
	uint64_t state = 88172645463325252ull;
	size_t at;
	unsigned kind;

	victim_make(&v, mode);
	for (at = v.file_bytes - RELAY_PAGE_BYTES; at < v.file_bytes - RELAY_PAGE_BYTES + sizeof(struct relay_control);
	     at += 8) {
		for (kind = 0; kind < N_KINDS; kind++) {
			fprintf(stderr, "control word %zu kind %u\n", (at - v.file_bytes + RELAY_PAGE_BYTES) / 8, kind);
			damage_word(&v, at, kind, next_random(&state));
			use(&v);
			recover(&v);
			check_recovered(&v);
		}
	}
	victim_free(&v);
}

TEST(any_control_word_may_be_nonsense_no_overwrite)
{
	each_control_word(RELAY_NO_OVERWRITE);
}

TEST(any_control_word_may_be_nonsense_overwrite)
{
	each_control_word(RELAY_OVERWRITE);
}

/* Many words at once, the tables of sub-buffers and claims included. */
static void fuzz(uint32_t mode)
{
	struct victim v;
	uint64_t state = 2463534242ull + mode;
	unsigned round, i, n;

	victim_make(&v, mode);
	for (round = 0; round < 1500; round++) {
		size_t words = (v.file_bytes - RELAY_PAGE_BYTES) / 8;

		fprintf(stderr, "round %u\n", round);
		n = 1 + (unsigned)(next_random(&state) % 12);
		for (i = 0; i < n; i++) {
			/* Half of them in the control page, the others in the tables before it. */
			size_t word = next_random(&state) % 2 ? words + next_random(&state) % 64
			                                      : words - 1 - next_random(&state) % 96;

			damage_word(&v, 8 * word, (unsigned)(next_random(&state) % N_KINDS), next_random(&state));
		}
		use(&v);
		recover(&v);
		if (round % 50 == 0)
			check_recovered(&v);
	}
	/* And all of them. */
	for (round = 0; round < 100; round++) {
		size_t at;

		for (at = RELAY_PAGE_BYTES; at < v.file_bytes; at += 8)
			damage_word(&v, at, 7, next_random(&state));
		use(&v);
		recover(&v);
	}
	check_recovered(&v);
	victim_free(&v);
}

TEST(random_nonsense_does_no_harm_no_overwrite)
{
	fuzz(RELAY_NO_OVERWRITE);
}

TEST(random_nonsense_does_no_harm_overwrite)
{
	fuzz(RELAY_OVERWRITE);
}

/* Each word of the first tables, and of the control page, with each kind of nonsense, one after the other. */
static void each_word_of(struct relay_spec spec)
{
	struct victim v;
	uint64_t state = 362436069ull;

	victim_make_of(&v, spec);
	for (size_t at = v.file_bytes - RELAY_PAGE_BYTES; at < v.file_bytes; at += 8) {
		size_t offset = at - (v.file_bytes - RELAY_PAGE_BYTES);

		if (offset >= sizeof(struct relay_control))
			break;
		/* A program with a client waits for these locks, a second each time. */
		if (spec.mode == RELAY_CALLBACK && (offset == offsetof(struct relay_control, switch_lock) ||
		                                    offset == offsetof(struct relay_control, write_lock)))
			continue;
		for (unsigned kind = 0; kind < N_KINDS; kind++) {
			damage_word(&v, at, kind, next_random(&state));
			use(&v);
			copy_packets(&v);
			recover(&v);
		}
	}
	for (size_t at = (v.data_bytes + 4095) & ~4095ull; at < ((v.data_bytes + 4095) & ~4095ull) + 10 * 64; at += 8) {
		for (unsigned kind = 0; kind < N_KINDS; kind++) {
			damage_word(&v, at, kind, next_random(&state));
			use(&v);
			copy_packets(&v);
			recover(&v);
		}
	}
	victim_free(&v);
}

TEST(any_word_of_a_ledger_may_be_nonsense)
{
	each_word_of(a_spec(100, 5, RELAY_NO_OVERWRITE));
	each_word_of(a_spec(100, 5, RELAY_OVERWRITE));
}

TEST(any_word_of_a_buffer_of_packets_may_be_nonsense)
{
	struct relay_spec spec = a_packet_spec(300, 5, RELAY_NO_OVERWRITE);

	each_word_of(spec);
	spec.mode = RELAY_OVERWRITE;
	each_word_of(spec);
}

TEST(any_word_of_a_buffer_whose_client_decides_may_be_nonsense)
{
	struct relay_spec spec = a_spec(100, 5, RELAY_CALLBACK);

	spec.timestamp = RELAY_TSC;
	if (!relay_clock_is_available(RELAY_TSC))
		spec.timestamp = RELAY_MONO;
	each_word_of(spec);
}

/* --- what is said of it --- */

static void check_said(struct victim *v, uint64_t *word, uint64_t value, const char *said)
{
	struct relay_stats stats;

	*word = value;
	CHECK_EQ(relay_buf_stats(v->buf, &stats), -EBADMSG);
	if (strncmp(relay_buf_damage(v->buf), said, strlen(said)) != 0) {
		fprintf(stderr, "\"%s\" is said, not \"%s\"\n", relay_buf_damage(v->buf), said);
		exit(1);
	}
	recover(v);
	CHECK_EQ(relay_buf_stats(v->buf, &stats), 0);
}

TEST(damage_is_said_in_words)
{
	struct victim v;
	struct relay_control *control;
	struct relay_subbuf *subbufs;

	victim_make(&v, RELAY_NO_OVERWRITE);
	CHECK_TEXT(relay_buf_damage(v.buf), "");
	control = (struct relay_control *)(v.memory + v.file_bytes - RELAY_PAGE_BYTES);
	subbufs = (struct relay_subbuf *)(v.memory + 4096);
	/* Twelve records of 60 bytes, one in each sub-buffer of 100: the twelfth is in the third lap's second. */
	check_said(&v, &subbufs[1].start_bytes, 1ull << 63,
	           "relay_subbuf[1].start_bytes is 9223372036854775808, more than 1100");
	check_said(&v, &control->lost_full.second[0], 1ull << 63,
	           "relay_control.lost_full.second is 9223372036854775808, more than 9223372036854775807");
	check_said(&v, &control->switch_time_ns, ~0ull, "relay_control.switch_time_ns is 18446744073709551615, more");
	check_said(&v, &control->geometry.magic, 1, "relay_geometry.magic is 1, not");
	check_said(&v, &control->consumer[control->current & 1].bytes, 800, "relay_consumer.bytes is 800, more than");
	check_said(&v, &control->consumer[control->current & 1].reads, 1ull << 62, "relay_consumer.reads is");
	check_said(&v, &control->consumer[control->current & 1].torn_records, 90, "relay_consumer: more records are");
	check_said(&v, &control->head.first, 127, "relay_control.head.first is 127, not a position");
	victim_free(&v);
}

static void check_refused(const char *path, int expected)
{
	alarm(HANG_SECONDS);
	errno = 0;
	CHECK(relay_buf_open(path) == NULL);
	CHECK_EQ(errno, expected);
	alarm(0);
}

TEST(a_truncated_file_is_refused)
{
	struct relay_spec spec = a_spec(100, 5, RELAY_NO_OVERWRITE);
	const char *path = make_channel(&spec);
	off_t size = (off_t)relay_buf_file_bytes(100, 5);
	off_t sizes[] = {0, 1, 4095, 4096, size - 4096, size - 1, size + 1, size + 4096};
	unsigned i;
	int fd;

	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		path = make_channel(&spec);
		fd = open(path, O_RDWR);
		CHECK(fd >= 0);
		CHECK_EQ(ftruncate(fd, sizes[i]), 0);
		close(fd);
		check_refused(path, EBADMSG);
	}
}

static void overwrite_file(const char *path, size_t at, const void *data, size_t length)
{
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, data, length, (off_t)at), length);
	close(fd);
}

TEST(a_foreign_file_is_refused)
{
	char path[4096], junk[20000];

	memset(junk, 'j', sizeof(junk));
	snprintf(path, sizeof(path), "%s/foreign", scratch);
	check_refused(path, ENOENT);
	close(open(path, O_CREAT | O_RDWR, 0600));
	check_refused(path, EBADMSG);
	overwrite_file(path, 0, junk, sizeof(junk));
	check_refused(path, EBADMSG);
	overwrite_file(path, 0, junk, 16384);
	CHECK_EQ(truncate(path, 16384), 0);
	check_refused(path, EBADMSG);
}

TEST(another_layout_version_is_refused)
{
	struct relay_spec spec = a_spec(100, 5, RELAY_NO_OVERWRITE);
	const char *path = make_channel(&spec);
	size_t control = relay_buf_file_bytes(100, 5) - RELAY_PAGE_BYTES;
	uint32_t version = RELAY_LAYOUT_VERSION + 1;
	uint64_t magic = RELAY_MAGIC + 1;

	overwrite_file(path, control + offsetof(struct relay_geometry, version), &version, sizeof(version));
	check_refused(path, EPROTO);
	version = RELAY_LAYOUT_VERSION;
	overwrite_file(path, control + offsetof(struct relay_geometry, version), &version, sizeof(version));
	relay_buf_release(relay_buf_open(path));
	overwrite_file(path, control + offsetof(struct relay_geometry, magic), &magic, sizeof(magic));
	check_refused(path, EBADMSG);
}

TEST(what_is_no_file_is_refused_without_waiting)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/fifo", scratch);
	CHECK_EQ(mkfifo(path, 0600), 0);
	check_refused(path, EBADMSG);
}

/* The file shrinks under the mapping: the buffer is damaged, the process lives. */
TEST(truncation_under_the_mapping_costs_the_buffer_only)
{
	struct relay_spec spec = a_spec(10000, 5, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf, *other;
	struct relay_span spans[8];
	const char *path;
	size_t total = 0;

	CHECK_EQ(relay_guard_install(), 0);
	other = make_buf(100, 5, RELAY_NO_OVERWRITE);
	path = make_channel(&spec);
	buf = relay_buf_open(path);
	CHECK(buf != NULL);
	CHECK_EQ(write_letters(buf, 'a', 9000), 0);
	CHECK_EQ(truncate(path, 4096), 0);
	alarm(HANG_SECONDS);
	write_letters(buf, 'b', 9000);
	/* At most what was written just now, into this process's own replacement pages. */
	CHECK(relay_consume_begin(buf, 1 << 20, spans, 8, &total) <= 1);
	relay_consume_abort(buf);
	CHECK(relay_buf_state(buf) & RELAY_IS_DAMAGED);
	alarm(0);
	CHECK_EQ(write_letters(other, 'c', 50), 0);
	CHECK_EQ(strlen(drain(other)), 50);
	relay_buf_release(buf);
	relay_buf_release(other);
}
