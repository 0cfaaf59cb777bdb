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
	MANY = 60000,                /* more than one call passes */
	ROUNDS = 30,
	SCRIBBLES = 1, /* each may wait a second for claims that seem to be of the living: reset does */
	MOST_CALLS = 200
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
static uint32_t *shuffled(uint32_t n)
{
	uint32_t *order = malloc(n * sizeof(*order)), i;

	CHECK(order != NULL);
	for (i = 0; i < n; i++) {
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

/* Discarded records, then 16 bytes. Returns how long it takes to sort them. */
static uint64_t fill_with_holes(struct victim *v, uint32_t n)
{
	uint32_t *order = shuffled(n), i;
	uint64_t begin;

	for (i = 0; i < n; i++) {
		struct relay_hole hole = {
		    .next = i ? order[i - 1] * HOLE + 1 : 0, .length = HOLE, .record = order[i], .count = i + 1};

		memcpy(v->memory + order[i] * HOLE, &hole, sizeof(hole));
	}
	memset(v->memory + n * HOLE, 'r', HOLE);
	v->subbufs[0].holes = RELAY_HOLES | order[n - 1] * HOLE;
	v->control->n_holes = n;
	v->control->head.second[0] = n + 1;
	__atomic_store_n(&v->control->head.first, (n + 1) * HOLE, __ATOMIC_RELEASE);
	begin = cpu_ns();
	qsort(order, n, sizeof(*order), by_value);
	begin = cpu_ns() - begin;
	free(order);
	return begin;
}

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
	uint64_t all = fill_with_holes(&v, N_HOLES);
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

	fill_with_holes(&v, MANY);
	alarm(HANG_SECONDS);
	for (calls = 0; relay_buf_state(v.buf) & RELAY_LOOK_AGAIN; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK_EQ(relay_buf_state(v.buf), RELAY_HAS_DATA);
	for (calls = 0; stats_of(v.buf).unread_holes < (uint64_t)MANY * HOLE; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK_STATS(v.buf, (unread_holes, (uint64_t)MANY * HOLE), (unread_bytes, (MANY + 1ull) * HOLE));
	for (calls = 0; (n = relay_consume_begin(v.buf, 1 << 20, &span, 1, &total)) == -EBUSY; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK(calls > 0);
	CHECK_EQ(n, 1);
	CHECK_EQ(total, HOLE);
	CHECK_EQ(*(const char *)span.data, 'r');
	relay_consume_end(v.buf);
	CHECK_STATS(v.buf, (unread_bytes, 0), (discarded_records, MANY), (read_records, 1));
	relay_buf_release(v.buf);
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
