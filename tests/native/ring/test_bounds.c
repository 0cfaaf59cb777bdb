/* SPDX-License-Identifier: MIT */
/*
 * Rings that somebody fills with records to skip, or changes all the time: no call of a file server takes longer than a
 * limited amount of work, and all of it is done in the end. Times are CPU times of this thread, compared within one run.
 */
#define _GNU_SOURCE
#include "bounds.h"
#include "ring_check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

SCHEMES(rseq, lockless);

enum { SIZE = 16 << 20, SMALL = 4096, N_SKIPPED = SIZE / 8 - 4, ROUNDS = 200, MOST_CALLS = 400, HANG_SECONDS = 600 };
enum { YIELDS_FIRST = 200, YIELDS_EACH = 10 };

static unsigned long n_yields;

/* The library's calls, too. */
int sched_yield(void)
{
	n_yields++;
	return (int)syscall(SYS_sched_yield);
}

static uint64_t *words_of(struct relay_ring *ring)
{
	uint64_t *words =
	    mmap(NULL, ring_stats(ring).file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, relay_ring_fd(ring), 0);

	CHECK(words != MAP_FAILED);
	return words;
}

static uint64_t header(uint64_t pos, uint32_t word)
{
	return word | (pos / PAGE + RELAY_RING_FIRST_PAGE) << 32;
}

/* Empty records to skip, and one of 8 bytes behind them. */
static void fill_with_skipped(uint64_t *words)
{
	uint64_t *data = words + 2 * PAGE / 8, end = N_SKIPPED * 8ull + 16;
	struct relay_ring_producer *producer = (struct relay_ring_producer *)(words + PAGE / 8);

	for (uint64_t i = 0; i < N_SKIPPED; i++)
		data[i] = header(8 * i, RELAY_RING_DISCARD);
	data[N_SKIPPED] = header(8ull * N_SKIPPED, 8);
	memcpy(&data[N_SKIPPED + 1], "rrrrrrrr", 8);
	producer->tail[0] = (struct relay_u128){end, N_SKIPPED + 1};
	producer->position.second = N_SKIPPED + 1;
	__atomic_store_n(&producer->position.first, end, __ATOMIC_RELEASE);
}

TEST(records_to_skip_are_skipped_in_pieces)
{
	AUTOPTR(relay_ring) ring = make_ring(SIZE, 0), *other = relay_ring_fdopen(relay_ring_fd(ring));
	uint64_t begin, longest = 0, all;
	const void *data;
	size_t length;
	char out[64];
	ssize_t got;
	int state, calls;

	alarm(HANG_SECONDS);
	CHECK(other != NULL);
	fill_with_skipped(words_of(ring));
	for (calls = 0, state = RELAY_LOOK_AGAIN; state & RELAY_LOOK_AGAIN; calls++) {
		CHECK(calls < MOST_CALLS);
		begin = cpu_ns();
		state = relay_ring_state(ring);
		begin = cpu_ns() - begin;
		longest = begin > longest ? begin : longest;
	}
	CHECK(calls > 4);
	CHECK_EQ(state, RELAY_HAS_DATA | RELAY_HAS_DISCARDED);
	/* A program passes all of it in one call. */
	begin = cpu_ns();
	CHECK_EQ(relay_ring_next(other, &data, &length), 1);
	all = cpu_ns() - begin;
	relay_ring_abort(other);
	CHECK(longest < all / 2);
	for (calls = 0; (got = relay_ring_read_framed(ring, out, sizeof(out), 0)) == -EBUSY; calls++)
		CHECK(calls < MOST_CALLS);
	CHECK(calls > 4);
	CHECK_EQ(got, 8);
	CHECK_EQ(memcmp(out, "rrrrrrrr", 8), 0);
	CHECK_FIELDS(ring_stats(ring), (skipped_records, N_SKIPPED), (read_records, 1));
}

/* --- words that keep changing --- */

static void do_everything(struct relay_ring *ring)
{
	struct relay_ring_stats stats;
	char out[SMALL];
	const void *data;
	size_t length;

	for (int i = 0; i < ROUNDS; i++) {
		int err = relay_ring_stats(ring, &stats);

		CHECK(err == 0 || err == -EBADMSG);
		relay_ring_state(ring);
		output_letters(ring, 'w', 60, 0);
		relay_ring_refuse(ring, SMALL);
		relay_ring_read_framed(ring, out, sizeof(out), 0);
		if (relay_ring_next(ring, &data, &length) == 1)
			relay_ring_release(ring);
		relay_ring_abort(ring);
		relay_ring_resolve(ring, 1);
		relay_ring_stop(ring, RELAY_DISABLED, i & 1);
	}
}

static void flip_and_do(uint32_t mode, uint64_t at, uint64_t one, uint64_t other, uint64_t step)
{
	struct relay_ring *ring = make_ring(SMALL, mode);
	struct flipper flipper = {.word = words_of(ring) + at / 8, .value = {one, other}, .step = step};

	alarm(HANG_SECONDS);
	CHECK_EQ(output_letters(ring, 'a', 60, 0), 0);
	start_flipping(&flipper);
	do_everything(ring);
	stop_flipping(&flipper);
	relay_ring_close(ring);
	alarm(0);
}

TEST(words_of_a_ring_that_do_not_rest_hold_nobody_up)
{
	const uint64_t state_at = relay_ring_file_bytes(SMALL) - PAGE;

	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		flip_and_do(mode, 0, 0, 0, 8);       /* the consumer position */
		flip_and_do(mode, 8, 0, 1, 1 << 22); /* the consumer's lock */
		flip_and_do(mode, offsetof(struct relay_ring_consumer, current), 0, 1, 0);
		flip_and_do(mode, PAGE, 72, 144, 0); /* the producer position */
		flip_and_do(mode, PAGE, 0, 0, 8);
		flip_and_do(mode, PAGE + 16, 0, 72, 0); /* overwritten */
		flip_and_do(mode, PAGE + 16, 0, 0, 8);
		flip_and_do(mode, PAGE + 32, 72, 144, 0); /* tail */
		flip_and_do(mode, PAGE + 40, 1, 2, 0);
		flip_and_do(mode, state_at + offsetof(struct relay_ring_state, oldest), 0, 72, 0);
		flip_and_do(mode, state_at + offsetof(struct relay_ring_state, oldest), 0, 0, 8);
		flip_and_do(mode, state_at + offsetof(struct relay_ring_state, lost_full), 0, 1, 3);
	}
}

/* --- the consumer's lock --- */

TEST(a_consumer_that_lives_is_told_to_who_polls_and_a_dead_one_is_replaced)
{
	struct relay_ring *ring = make_ring(SMALL, 0), *other;
	uint64_t *words = words_of(ring);
	const void *data;
	size_t length;
	char out[64];
	int ready[2];
	pid_t child;

	CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	words[1] = 1ull << 40; /* no thread's number */
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	relay_ring_abort(ring);
	CHECK_EQ(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		other = relay_ring_fdopen(relay_ring_fd(ring));
		if (relay_ring_next(other, &data, &length) == 1 && write(ready[1], "r", 1) == 1)
			pause();
		_exit(1);
	}
	CHECK_EQ(read(ready[0], out, 1), 1);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA | RELAY_IS_HELD);
	CHECK_EQ(relay_ring_read_framed(ring, out, sizeof(out), 0), -EBUSY);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_read_framed(ring, out, sizeof(out), 0), 8);
	relay_ring_close(ring);
}

static struct relay_ring_claim *claims_of(struct relay_ring *ring, uint64_t *words)
{
	uint64_t claims_at = RELAY_RING_DATA_AT + 2 * ring_stats(ring).ring_size +
	                     RELAY_RING_N_READY * sizeof(uint64_t) + RELAY_RING_CLAIMS_GAP;
	return (struct relay_ring_claim *)(words + claims_at / 8);
}

TEST(claims_that_hold_nonsense_cost_one_long_search)
{
	AUTOPTR(relay_ring) ring = make_ring(SMALL, 0);
	uint64_t *words = words_of(ring);
	struct relay_ring_claim *claims = claims_of(ring, words);
	void *record = relay_ring_reserve(ring, 8, 0);

	CHECK(record != NULL);
	CHECK_EQ(relay_ring_discard(record, 0), 0);
	for (int i = 0; i < RELAY_N_CLAIMS; i++) {
		claims[i].owner.thread = 1ull << 40 | 1; /* of another pid namespace: it may live */
		claims[i].owner.in_use = 1;
	}
	CHECK(relay_ring_reserve(ring, 8, 0) == NULL);
	CHECK(n_yields < YIELDS_FIRST);
	n_yields = 0;
	for (int i = 0; i < ROUNDS; i++)
		CHECK(relay_ring_reserve(ring, 8, 0) == NULL);
	CHECK(n_yields < (unsigned long)ROUNDS * YIELDS_EACH);
	CHECK_EQ(ring_stats(ring).lost_full_records, 1 + ROUNDS);
	/* One that is free again is found. */
	claims[RELAY_N_CLAIMS - 1].owner.thread = 0;
	claims[RELAY_N_CLAIMS - 1].owner.in_use = 0;
	record = relay_ring_reserve(ring, 8, 0);
	CHECK(record != NULL);
	CHECK_EQ(relay_ring_discard(record, 0), 0);
}

/* --- one handle, two threads --- */

enum { N_SHARED = 20000, N_THREADS = 2 };

static struct {
	struct relay_ring *ring;
	bool ended;
	unsigned char times[N_SHARED]; /* that each record was read */
} shared;

static void note_record(const void *data, size_t length)
{
	uint32_t number;

	CHECK_EQ(length, sizeof(number));
	memcpy(&number, data, sizeof(number));
	CHECK(number < N_SHARED);
	__atomic_add_fetch(&shared.times[number], 1, __ATOMIC_RELAXED);
}

static int note_each(void *context, const void *data, size_t length)
{
	(void)context;
	note_record(data, length);
	return 0;
}

/* In each of the ways there are; -EBUSY: the other one is reading. */
static void *read_shared(void *unused)
{
	const void *data;
	size_t length;
	uint32_t number;

	(void)unused;
	for (int i = 0; !__atomic_load_n(&shared.ended, __ATOMIC_ACQUIRE); i++) {
		int result = relay_ring_next(shared.ring, &data, &length);

		CHECK(result == 1 || result == 0 || result == -EBUSY);
		if (result == 1)
			note_record(data, length);
		relay_ring_release(shared.ring);
		result = (int)relay_ring_read(shared.ring, &number, sizeof(number), NULL);
		CHECK(result == sizeof(number) || result == -EAGAIN || result == -EBUSY);
		if (result > 0)
			note_record(&number, sizeof(number));
		result = relay_ring_consume(shared.ring, note_each, NULL, 3);
		CHECK(result >= 0 || result == -EBUSY);
	}
	return NULL;
}

TEST(two_threads_that_read_by_one_handle_get_each_record_once)
{
	pthread_t threads[N_THREADS];
	cpu_set_t all;

	alarm(HANG_SECONDS);
	CHECK_EQ(sched_getaffinity(getppid(), sizeof(all), &all), 0);
	shared.ring = make_ring(SMALL, 0);
	for (int i = 0; i < N_THREADS; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, read_shared, NULL), 0);
		pthread_setaffinity_np(threads[i], sizeof(all), &all);
	}
	for (uint32_t number = 0; number < N_SHARED;) {
		int err = relay_ring_output(shared.ring, &number, sizeof(number), 0);

		CHECK(err == 0 || err == -EAGAIN);
		number += !err;
	}
	while (ring_stats(shared.ring).read_records < N_SHARED)
		sched_yield();
	__atomic_store_n(&shared.ended, true, __ATOMIC_RELEASE);
	for (int i = 0; i < N_THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (uint32_t number = 0; number < N_SHARED; number++)
		CHECK_EQ(shared.times[number], 1);
	relay_ring_close(shared.ring);
}
