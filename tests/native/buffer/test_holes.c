/* SPDX-License-Identifier: MIT */
/* Lists of discarded records that are too long for one call of a reader, or for its memory. No reader looks at the scheme. */
#define _GNU_SOURCE
#include "check.h"

enum {
	HANG_SECONDS = 600,
	HOLE = 16,
	SUBBUF = 4 << 20,
	MANY = 150000, /* more than one call passes */
	MOST_CALLS = 200,
	HONEST = 40000,
	SMALL = 640 << 10,
	N_HOLES = SMALL / HOLE - 1, /* the last 16 bytes are a record */
	N_BUFS = 400,               /* of one file: what one call collects for each takes more than all lists may */
	N_READ = 5,
	MOST_ROUNDS = 300
};

static void discard_some(struct rchan_buf *buf, int n)
{
	for (int i = 0; i < n; i++) {
		void *to;

		CHECK_EQ(relay_buf_reserve(buf, HOLE, &to), 0);
		relay_buf_discard(buf, to);
	}
}

/* So many that one call does not pass them: whoever looks at what lies behind comes again, and comes nearer each time. */
static void look_behind_holes(uint32_t mode)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, 2, mode);
	struct relay_span spans[2];
	size_t total;
	uint64_t end;
	int calls, n;

	CHECK_EQ(write_letters(buf, 'a', 8), 0);
	discard_some(buf, MANY);
	CHECK_EQ(write_letters(buf, 'b', 8), 0);
	for (calls = 0; (n = relay_consume_begin_behind(buf, 8, 100, spans, 2, &total, &end)) == -EBUSY; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK(calls > 0);
	CHECK_EQ(n, 1);
	CHECK_EQ(total, 8);
	CHECK_EQ(*(const char *)spans[0].data, 'b');
	CHECK_EQ(end, MANY * HOLE + 16);
	relay_consume_abort(buf);
	/* It has read nothing. */
	CHECK_EQ(stats_of(buf).read_records, 0);
	CHECK_EQ(relay_consume_begin(buf, 8, spans, 1, &total), 1);
	CHECK_EQ(*(const char *)spans[0].data, 'a');
	relay_consume_end(buf);
}

TEST(who_looks_behind_many_holes_comes_nearer_each_time)
{
	look_behind_holes(RELAY_NO_OVERWRITE);
}

TEST(who_looks_behind_many_holes_comes_nearer_each_time_where_data_is_overwritten)
{
	look_behind_holes(RELAY_OVERWRITE);
}

/* Each list has to be collected by several calls, between which the others are. */
TEST(of_lists_that_have_no_room_together_some_are_finished)
{
	struct rchan_buf *written = make_buf(SMALL, 2, RELAY_NO_OVERWRITE), *bufs[N_BUFS];
	bool is_read[N_BUFS] = {false};
	int rounds, n_read = 0;

	CHECK_EQ(write_letters(written, 'a', 8), 0);
	discard_some(written, N_HOLES - 1);
	CHECK_EQ(write_letters(written, 'b', 8), 0);
	for (int i = 0; i < N_BUFS; i++)
		CHECK((bufs[i] = relay_buf_fdopen(relay_buf_fd(written))) != NULL);
	for (rounds = 0; n_read < N_READ; rounds++) {
		CHECK(rounds < MOST_ROUNDS);
		for (int i = 0; i < N_BUFS; i++) {
			struct relay_span spans[2];
			size_t total;
			uint64_t end;
			int n;

			if (is_read[i])
				continue;
			n = relay_consume_begin_behind(bufs[i], 8, 100, spans, 2, &total, &end);
			CHECK(n == 1 || n == -EBUSY);
			if (n == 1) {
				CHECK_EQ(total, 8);
				CHECK_EQ(*(const char *)spans[0].data, 'b');
				CHECK_EQ(end, (N_HOLES - 1) * HOLE + 16);
				relay_consume_abort(bufs[i]);
				n_read++;
				is_read[i] = true;
			}
		}
	}
	for (int i = 0; i < N_BUFS; i++)
		relay_buf_release(bufs[i]);
	relay_buf_release(written);
}

/* The list grows while it is looked at. */
TEST(discarded_records_are_all_counted_while_more_come)
{
	AUTOPTR(rchan_buf) buf = make_buf(SMALL, 2, RELAY_NO_OVERWRITE);
	uint64_t read = 0;
	char out[64];

	alarm(HANG_SECONDS);
	for (int i = 0; i < HONEST / 1000; i++) {
		discard_some(buf, 1000);
		CHECK_EQ(write_letters(buf, 'r', 20), 0);
		CHECK_EQ(stats_of(buf).unread_holes + stats_of(buf).discarded_bytes, (i + 1) * 1000ull * HOLE);
		CHECK_EQ(relay_buf_state(buf) & RELAY_HAS_DATA, RELAY_HAS_DATA);
		if (i % 3 == 0)
			read += consume_into(buf, out, sizeof(out));
	}
	while (relay_buf_state(buf))
		read += consume_into(buf, out, sizeof(out));
	CHECK_EQ(read, HONEST / 1000 * 20);
	CHECK_STATS(buf, (discarded_records, HONEST), (unread_bytes, 0));
}
