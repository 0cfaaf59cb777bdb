/* SPDX-License-Identifier: MIT */
/*
 * Random operations on random geometries, held against a model that keeps every record ever taken.
 *
 * The model knows positions in the stream of all records. It leaves open only what layout.h leaves open: a
 * sub-buffer that is read to its end is free at the latest when the reader stands in a later one, and in
 * overwrite mode the oldest sub-buffer dies between entering and beginning the newest.
 */
#define _GNU_SOURCE
#include "check.h"
#include "random.h"

SCHEMES(rseq, lockless, locking);

enum { MAX_RECORDS = 4000, MAX_STREAM = 1 << 20, ROUNDS = 400, STEPS = 300 };

struct model_record {
	uint64_t number; /* of its sub-buffer */
	uint64_t at;     /* in the stream */
};

struct model {
	uint64_t size, n;
	uint32_t mode;
	uint64_t number, offset; /* where the next write goes */
	uint64_t padding;
	bool must_wait, may_wait; /* the buffer was full when this sub-buffer was entered, and no flush has begun it */
	struct model_record record[MAX_RECORDS];
	uint64_t n_records, n_bytes;
	uint64_t read_at; /* stream position of the reader, what it lost included */
	uint64_t lost_bytes;
	uint64_t full_records, full_bytes, large_records, disabled_records;
	bool disabled;
	unsigned char stream[MAX_STREAM];
};

/* Stream position where sub-buffer `number` begins. */
static uint64_t stream_at(const struct model *m, uint64_t number)
{
	uint64_t i = m->n_records;

	while (i > 0 && m->record[i - 1].number >= number)
		i--;
	return i < m->n_records ? m->record[i].at : m->n_bytes;
}

/* The sub-buffer that the byte at the reader's position lies in, or the current one. */
static uint64_t reader_number(const struct model *m)
{
	uint64_t i = m->n_records;

	if (m->read_at == m->n_bytes)
		return m->number;
	while (i > 0 && m->record[i - 1].at > m->read_at)
		i--;
	return m->record[i - 1].number;
}

/* Is there unread data where sub-buffer `number` would go? */
static bool must_refuse(const struct model *m, uint64_t number)
{
	return m->mode == RELAY_NO_OVERWRITE && number >= m->n && reader_number(m) + m->n <= number;
}

/* The reader has read everything of it but may not have left it. */
static bool may_refuse(const struct model *m, uint64_t number)
{
	uint64_t i = m->n_records;

	if (m->mode == RELAY_OVERWRITE || number < m->n)
		return false;
	while (i > 0 && m->record[i - 1].at >= m->read_at)
		i--;
	return i == 0 || m->record[i - 1].number + m->n <= number;
}

static void model_switch(struct model *m)
{
	m->padding += m->size - m->offset;
	m->number++;
	m->offset = 0;
	m->must_wait = must_refuse(m, m->number);
	m->may_wait = m->must_wait || may_refuse(m, m->number);
}

static void model_take(struct model *m, const unsigned char *data, uint64_t length)
{
	CHECK(m->n_records < MAX_RECORDS && m->n_bytes + length <= MAX_STREAM);
	m->record[m->n_records++] = (struct model_record){m->number, m->n_bytes};
	memcpy(m->stream + m->n_bytes, data, length);
	m->n_bytes += length;
	m->offset += length;
}

static void step_write(struct model *m, struct rchan_buf *buf)
{
	uint64_t length = random_below(8) ? 1 + random_below(m->size) : m->size + random_below(2), i;
	unsigned char data[1024] = {0};
	int err;

	for (i = 0; i < length; i++)
		data[i] = (unsigned char)random_below(256);
	err = relay_buf_write(buf, data, length);
	if (m->disabled) {
		CHECK_EQ(err, -ECANCELED);
		m->disabled_records++;
		return;
	}
	if (length > m->size) {
		CHECK_EQ(err, -EMSGSIZE);
		m->large_records++;
		return;
	}
	if (m->offset + length > m->size)
		model_switch(m);
	if (m->offset == 0 && must_refuse(m, m->number))
		CHECK_EQ(err, -ENOSPC);
	if (err == -ENOSPC) {
		CHECK(m->offset == 0 && may_refuse(m, m->number));
		m->full_records++;
		m->full_bytes += length;
		return;
	}
	CHECK_EQ(err, 0);
	model_take(m, data, length);
}

/* Flush enters the next sub-buffer; where it would stand in one that readers have not left it does nothing, and where it
 * stands in one that they have left since it was entered, it only begins that. */
static void step_flush(struct model *m, struct rchan_buf *buf)
{
	bool must_refuse_now = must_refuse(m, m->number), may_refuse_now = must_refuse_now || may_refuse(m, m->number);

	CHECK_EQ(relay_buf_flush(buf), 0);
	if (m->offset == 0 && (may_refuse_now || m->may_wait) && stats_of(buf).produced == m->number) {
		CHECK(m->mode == RELAY_NO_OVERWRITE);
		m->must_wait &= must_refuse_now;
		m->may_wait &= may_refuse_now;
		return;
	}
	CHECK(m->offset > 0 || !m->must_wait);
	model_switch(m);
}

/* Where overwrite may let the reader begin: the oldest sub-buffer that must be there, or one before it. */
static uint64_t overwrite_start(const struct model *m, const unsigned char *got, uint64_t total)
{
	uint64_t kept = m->number < m->n ? 0 : m->number - m->n + 1, start;

	if (m->offset == 0 && kept > 0) {
		start = stream_at(m, kept - 1);
		start = start > m->read_at ? start : m->read_at;
		if (total && start + total <= m->n_bytes && memcmp(m->stream + start, got, total) == 0)
			return start;
	}
	start = stream_at(m, kept);
	return start > m->read_at ? start : m->read_at;
}

static void step_read(struct model *m, struct rchan_buf *buf, uint64_t max)
{
	static unsigned char got[MAX_STREAM];
	uint64_t total = consume_into(buf, (char *)got, max), start = m->read_at;

	if (m->mode == RELAY_OVERWRITE)
		start = overwrite_start(m, got, total);
	m->lost_bytes += start - m->read_at;
	m->read_at = start;
	CHECK(total > 0 || m->read_at == m->n_bytes);
	CHECK(m->read_at + total <= m->n_bytes);
	CHECK_EQ(memcmp(got, m->stream + m->read_at, total), 0);
	m->read_at += total;
	CHECK_EQ(stats_of(buf).lost_overwritten_bytes, m->lost_bytes);
}

static void check_stats(const struct model *m, struct rchan_buf *buf)
{
	struct relay_stats f = stats_of(buf);

	CHECK_FIELDS(f, (produced, m->number), (offset, m->offset), (records, m->n_records), (bytes, m->n_bytes),
	             (padding, m->padding), (lost_full_records, m->full_records));
	CHECK_FIELDS(f, (lost_full_bytes, m->full_bytes), (lost_too_large_records, m->large_records),
	             (lost_disabled_records, m->disabled_records));
	CHECK_EQ(f.lost_torn_records | f.lost_torn_bytes, 0);
	CHECK(f.consumed <= f.produced);
	if (m->mode == RELAY_NO_OVERWRITE) {
		CHECK(f.produced - f.consumed <= m->n);
		CHECK_EQ(f.unread_bytes, m->n_bytes - m->read_at);
	}
}

static void check_drained(struct model *m, struct rchan_buf *buf)
{
	struct relay_stats f;

	do
		step_read(m, buf, MAX_STREAM);
	while (m->read_at < m->n_bytes);
	f = stats_of(buf);
	CHECK_EQ(f.unread_bytes, 0);
	CHECK_EQ(f.read_bytes + f.lost_overwritten_bytes, f.bytes);
	CHECK_EQ(f.read_records + f.lost_overwritten_records, f.records);
	CHECK(!(relay_buf_state(buf) & RELAY_HAS_DATA));
}

static void model_reset(struct model *m)
{
	struct model fresh_head = {.size = m->size, .n = m->n, .mode = m->mode, .disabled = m->disabled};

	memcpy(m, &fresh_head, offsetof(struct model, record));
	m->n_records = m->n_bytes = m->read_at = m->lost_bytes = 0;
	m->full_records = m->full_bytes = m->large_records = m->disabled_records = 0;
}

static struct rchan_buf *step(struct model *m, struct rchan_buf *buf, const char *path)
{
	uint64_t choice = random_below(1000);

	if (choice < 600) {
		step_write(m, buf);
	} else if (choice < 850) {
		step_read(m, buf, 1 + random_below(random_below(2) ? m->size : 3 * m->size));
	} else if (choice < 900) {
		step_read(m, buf, MAX_STREAM);
	} else if (choice < 960) {
		step_flush(m, buf);
	} else if (choice < 975) {
		m->disabled = !m->disabled;
		CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, m->disabled), 0);
	} else if (choice < 980) {
		CHECK_EQ(relay_buf_reset(buf), 0);
		model_reset(m);
	} else {
		relay_buf_release(buf);
		buf = relay_buf_open(path);
		CHECK(buf != NULL);
	}
	return buf;
}

static void run_model(uint32_t mode)
{
	static struct model m;
	unsigned round, i;

	for (round = 1; round <= ROUNDS; round++) {
		struct relay_spec spec;
		struct rchan_buf *buf;
		const char *path;

		random_state = 0x9e3779b97f4a7c15ull * round;
		memset(&m, 0, offsetof(struct model, stream));
		m.size = 1 + random_below(random_below(2) ? 12 : 300);
		m.n = 1 + random_below(6);
		m.mode = mode;
		fprintf(stderr, "round %u: %llu sub-buffers of %llu\n", round, (unsigned long long)m.n,
		        (unsigned long long)m.size);
		spec = a_spec(m.size, m.n, mode);
		path = make_channel(&spec);
		buf = relay_buf_open(path);
		CHECK(buf != NULL);
		for (i = 0; i < STEPS; i++) {
			buf = step(&m, buf, path);
			check_stats(&m, buf);
		}
		check_drained(&m, buf);
		relay_buf_release(buf);
	}
}

TEST(no_overwrite_is_as_the_model)
{
	run_model(RELAY_NO_OVERWRITE);
}

TEST(overwrite_is_as_the_model)
{
	run_model(RELAY_OVERWRITE);
}
