/* SPDX-License-Identifier: MIT */
/*
 * Memory that somebody fills with things to walk over, or changes all the time: no call takes longer than a limited
 * amount of work, and with honest memory all of it is done in the end. Times are CPU times of this thread, compared with
 * each other within one run.
 */
#define _GNU_SOURCE
#include "bounds.h"
#include "random.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SCHEMES(rseq, lockless); /* locking does what lockless does */

enum {
	HANG_SECONDS = 600,
	SUBBUF = 4 << 20,
	HOLE = 16,
	N_HOLES = SUBBUF / HOLE - 1, /* the last 16 bytes are a record */
	ROUNDS = 30,
	SCRIBBLES = 2, /* each may wait a second for claims that seem to be of the living: reset does */
	MOST_CALLS = 200,
	HONEST = 40000, /* discarded records */
	MANY = 150000,  /* more than one call passes */
	N_BUFS = 400,   /* of one file: what one call collects for each takes more than all lists may */
	N_READ = 5,
	MOST_ROUNDS = 300
};

/* A buffer and its whole file, mapped a second time. */
struct victim {
	struct rchan_buf *buf;
	unsigned char *memory;
	struct relay_control *control;
	struct relay_claim *claims;
	struct relay_subbuf *subbufs;
};

static struct victim make_victim(uint64_t subbuf_size, uint32_t mode)
{
	struct victim v = {.buf = make_buf(subbuf_size, 2, mode)};
	uint64_t bytes = stats_of(v.buf).file_bytes, data = (2 * subbuf_size + 4095) & ~4095ull;

	v.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, relay_buf_fd(v.buf), 0);
	CHECK(v.memory != MAP_FAILED);
	v.control = (struct relay_control *)(v.memory + bytes - 4096);
	v.subbufs = (struct relay_subbuf *)(v.memory + data);
	v.claims = (struct relay_claim *)(v.memory + data + 4096);
	return v;
}

/* The order in which the holes were made: any. */
static uint32_t *shuffled(void)
{
	uint32_t *order = malloc(N_HOLES * sizeof(*order)), i;

	CHECK(order != NULL);
	for (i = 0; i < N_HOLES; i++) {
		uint32_t other = (uint32_t)(random_word() % (i + 1));

		order[i] = order[other];
		order[other] = i;
	}
	return order;
}

static int by_value(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

	return (a > b) - (a < b);
}

/* A sub-buffer that is full of discarded records up to its last 16 bytes. Returns how long it takes to sort them. */
static uint64_t fill_with_holes(struct victim *v)
{
	uint32_t *order = shuffled(), i;
	uint64_t begin;

	for (i = 0; i < N_HOLES; i++) {
		struct relay_hole hole = {
		    .next = i ? order[i - 1] * HOLE + 1 : 0, .length = HOLE, .record = order[i], .count = i + 1};

		memcpy(v->memory + order[i] * HOLE, &hole, sizeof(hole));
	}
	memset(v->memory + N_HOLES * HOLE, 'r', HOLE);
	v->subbufs[0].holes = RELAY_HOLES | order[N_HOLES - 1] * HOLE;
	v->control->n_holes = N_HOLES;
	v->control->head.second[0] = N_HOLES + 1;
	__atomic_store_n(&v->control->head.first, SUBBUF, __ATOMIC_RELEASE);
	begin = cpu_ns();
	qsort(order, N_HOLES, sizeof(*order), by_value);
	begin = cpu_ns() - begin;
	free(order);
	return begin;
}

/* --- somebody who changes words all the time --- */

/* --- holes --- */

static uint64_t longest_call(struct rchan_buf *buf)
{
	uint64_t longest = 0;

	for (int i = 0; i < ROUNDS; i++) {
		struct relay_stats stats;
		uint64_t begin = cpu_ns(), took;

		relay_buf_stats(buf, &stats);
		relay_buf_state(buf);
		took = cpu_ns() - begin;
		longest = took > longest ? took : longest;
	}
	return longest;
}

TEST(to_look_at_a_list_of_holes_costs_a_part_of_it_even_while_resets_are_counted)
{
	struct victim v = make_victim(SUBBUF, RELAY_NO_OVERWRITE);
	uint64_t all = fill_with_holes(&v);
	struct flipper resets = {.word = (uint64_t *)&v.control->current, .step = 2ull << 32};

	alarm(HANG_SECONDS);
	start_flipping(&resets);
	CHECK(longest_call(v.buf) < all);
	stop_flipping(&resets);
	relay_buf_release(v.buf);
}

TEST(many_holes_are_passed_in_pieces)
{
	struct victim v = make_victim(SUBBUF, RELAY_NO_OVERWRITE);
	struct relay_span span;
	size_t total;
	int calls, n;

	fill_with_holes(&v);
	alarm(HANG_SECONDS);
	for (calls = 0; relay_buf_state(v.buf) & RELAY_LOOK_AGAIN; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK_EQ(relay_buf_state(v.buf), RELAY_HAS_DATA);
	for (calls = 0; stats_of(v.buf).unread_holes < (uint64_t)N_HOLES * HOLE; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK_STATS(v.buf, (unread_holes, (uint64_t)N_HOLES * HOLE), (unread_bytes, SUBBUF));
	for (calls = 0; (n = relay_consume_begin(v.buf, 1 << 20, &span, 1, &total)) == -EBUSY; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK(calls > 0);
	CHECK_EQ(n, 1);
	CHECK_EQ(total, HOLE);
	CHECK_EQ(*(const char *)span.data, 'r');
	relay_consume_end(v.buf);
	CHECK_STATS(v.buf, (unread_bytes, 0), (discarded_records, N_HOLES), (read_records, 1));
	relay_buf_release(v.buf);
}

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

/* Each list has to be collected by many calls, between which the others are. */
TEST(of_lists_that_have_no_room_together_some_are_finished)
{
	struct rchan_buf *written = make_buf(SUBBUF, 2, RELAY_NO_OVERWRITE), *bufs[N_BUFS];
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
	AUTOPTR(rchan_buf) buf = make_buf(1 << 20, 2, RELAY_NO_OVERWRITE);
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

/* --- words that keep changing --- */

static void do_everything(struct rchan_buf *buf)
{
	struct relay_stats stats;
	struct relay_span span;
	size_t total;
	uint32_t seq;

	alarm(HANG_SECONDS);
	for (int i = 0; i < ROUNDS; i++) {
		relay_buf_stats(buf, &stats);
		relay_buf_state(buf);
		write_letters(buf, 'w', 60);
		relay_buf_refuse_too_large(buf, 1 << 20);
		if (relay_consume_begin(buf, 1 << 20, &span, 1, &total) > 0) {
			relay_consume_valid(buf);
			relay_consume_end(buf);
		}
		relay_buf_flush(buf);
		relay_buf_subbufs_consumed(buf, 1);
		relay_buf_resolve(buf, 1);
		relay_buf_arm(buf, RELAY_ARM_RECORD, &seq);
		relay_buf_stop(buf, RELAY_DISABLED, i & 1);
	}
	relay_buf_reset(buf);
	alarm(0);
}

static void flip_and_do(uint32_t mode, size_t at, uint64_t one, uint64_t other, uint64_t step)
{
	struct victim v = make_victim(100, mode);
	struct flipper flipper = {
	    .word = (uint64_t *)((unsigned char *)v.control + at), .value = {one, other}, .step = step};

	CHECK_EQ(write_letters(v.buf, 'a', 60), 0);
	start_flipping(&flipper);
	do_everything(v.buf);
	stop_flipping(&flipper);
	relay_buf_release(v.buf);
}

#define AT(field) offsetof(struct relay_control, field)

TEST(a_head_that_does_not_rest_holds_nobody_up)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		flip_and_do(mode, AT(head.first), 60, 70, 0);
		flip_and_do(mode, AT(head.first), 60, 160 + (1ull << 63), 0);
		flip_and_do(mode, AT(head.first), 0, 0, 128); /* sub-buffer by sub-buffer */
		flip_and_do(mode, AT(head.second[0]), 1, 2, 0);
	}
}

TEST(a_consumer_that_does_not_rest_holds_nobody_up)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		flip_and_do(mode, AT(current), 0, 0, 1);
		flip_and_do(mode, AT(current), 0, 0, 1ull << 32); /* resets */
		flip_and_do(mode, AT(consumer[0].position), 0, 128, 0);
		flip_and_do(mode, AT(reader_lock), 0, 1, 1 << 22);
		flip_and_do(mode, AT(write_lock), 0, 1, 1 << 22);
		flip_and_do(mode, AT(lost_full.first), 0, 1, 3);
		flip_and_do(mode, AT(n_holes), 0, 1, 1);
	}
}

/* --- claims --- */

static void scribble_claims(struct victim *v)
{
	for (uint32_t i = 0; i < RELAY_N_CLAIMS; i++) {
		uint64_t *words = (uint64_t *)&v->claims[i];

		for (int k = 0; k < 6; k++)
			words[k] = random_word();
		words[0] = (words[0] & RELAY_CLAIM_STATE) | random_word() % 300;
		words[1] %= 200;
		words[2] %= 8;
		/* Of this namespace and dead, or of another one. */
		if (i % 3)
			words[4] = 0x3fffff - i;
	}
	v->control->n_claims_used = random_word() % 2 ? 0xffffffff : RELAY_N_CLAIMS;
}

TEST(scribbled_claims_hold_nobody_up)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		struct victim v = make_victim(100, mode);
		struct flipper flipper = {
		    .word = &v.claims[0].word, .value = {RELAY_CLAIM_HOLE, RELAY_CLAIM_TAKEN}, .step = 1};

		start_flipping(&flipper);
		for (int i = 0; i < SCRIBBLES; i++) {
			scribble_claims(&v);
			do_everything(v.buf);
		}
		stop_flipping(&flipper);
		relay_buf_release(v.buf);
	}
}

/* --- the reader's lock --- */

TEST(a_lock_that_no_thread_can_hold_is_taken_over)
{
	struct victim v = make_victim(100, RELAY_NO_OVERWRITE);
	char out[64];

	/* No thread's number; the numbers of threads end before this one. */
	for (uint64_t word = 1ull << 40; word; word = word == 1ull << 40 ? 0x3ffffe : 0) {
		uint64_t self;

		CHECK_EQ(write_letters(v.buf, 'a', 20), 0);
		/* In this namespace: its bits are in the word of whoever has the lock now. */
		CHECK_EQ(relay_consume_begin(v.buf, 64, &(struct relay_span){NULL, 0}, 1, &(size_t){0}), 1);
		self = v.control->reader_lock;
		relay_consume_abort(v.buf);
		v.control->reader_lock = word == 0x3ffffe ? (self & ~0x3fffffull) | word : word;
		CHECK_EQ(relay_buf_state(v.buf), RELAY_HAS_DATA);
		CHECK_EQ(consume_into(v.buf, out, sizeof(out)), 20);
	}
	relay_buf_release(v.buf);
}

TEST(a_lock_that_somebody_holds_is_told_to_who_polls)
{
	struct victim v = make_victim(100, RELAY_NO_OVERWRITE);
	struct relay_span span;
	size_t total;
	char out[64];
	int ready[2];
	pid_t child;

	CHECK_EQ(write_letters(v.buf, 'a', 20), 0);
	CHECK_EQ(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		if (relay_consume_begin(v.buf, 64, &span, 1, &total) == 1 && write(ready[1], "r", 1) == 1)
			pause();
		_exit(1);
	}
	CHECK_EQ(read(ready[0], out, 1), 1);
	CHECK_EQ(relay_buf_state(v.buf), RELAY_HAS_DATA | RELAY_IS_HELD);
	CHECK_EQ(relay_consume_begin(v.buf, 64, &span, 1, &total), -EBUSY);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(relay_buf_state(v.buf), RELAY_HAS_DATA);
	CHECK_EQ(consume_into(v.buf, out, sizeof(out)), 20);
	relay_buf_release(v.buf);
}
