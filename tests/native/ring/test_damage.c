/* SPDX-License-Identifier: MIT */
/*
 * Rings whose memory somebody else has spoilt: every call returns, nothing outside of the ring is touched, and what
 * contradicts itself is said to.
 */
#define _GNU_SOURCE
#include "random.h"
#include "ring_check.h"

#include <pthread.h>

SCHEMES(rseq, lockless);

enum { SIZE = 4096, ROUNDS = 150, SCRIBBLES = 3000, WATCHDOG_S = 600 };

/* What tends to hurt: ends of ranges, what is not aligned, what was right a moment ago. */
static uint64_t nasty_word(uint64_t now)
{
	static const uint64_t chosen[] = {0,          1,          7,          8,          SIZE - 8,   SIZE - 1,
	                                  SIZE,       SIZE + 8,   2 * SIZE,   1u << 29,   1u << 30,   1u << 31,
	                                  0xffffffff, 1ull << 32, 1ull << 47, 1ull << 48, 1ull << 62, 3ull << 61,
	                                  1ull << 63, ~0ull << 3, ~0ull,      ~0ull >> 1, 3ull << 62, 0x40000008};
	uint64_t kind = random_word() % 8;

	if (kind < 4)
		return chosen[random_word() % (sizeof(chosen) / sizeof(*chosen))];
	if (kind < 6)
		return now + chosen[random_word() % 9] - (random_word() & 8);
	return kind == 6 ? random_word() : now ^ 1ull << random_word() % 64;
}

/* All of the file, the geometry left out. */
struct spoilt {
	uint64_t *words;
	uint64_t n;
};

static struct spoilt map_words(struct relay_ring *ring)
{
	struct relay_ring_stats stats = ring_stats(ring);
	struct spoilt file = {.n = (stats.file_bytes - PAGE) / 8};

	file.words = mmap(NULL, stats.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, relay_ring_fd(ring), 0);
	CHECK(file.words != MAP_FAILED);
	return file;
}

/* A word of one of the parts, each as likely as the others: most of the file is data. */
static uint64_t *any_word(const struct spoilt *file)
{
	const uint64_t ready_at = 2 * PAGE / 8 + 2 * SIZE / 8;
	const uint64_t claims_at = ready_at + RELAY_RING_N_READY + RELAY_RING_CLAIMS_GAP / 8;
	uint64_t r = random_word();

	switch (r % 6) {
	case 0: /* consumer */
		return &file->words[(r >> 8) % 32];
	case 1: /* producer */
		return &file->words[PAGE / 8 + (r >> 8) % 10];
	case 2: /* first headers */
		return &file->words[2 * PAGE / 8 + (r >> 8) % 64];
	case 3: /* claims in use */
		return &file->words[claims_at + (r >> 8) % 64];
	case 4:
		return &file->words[ready_at + (r >> 8) % 64];
	default: /* state: oldest, losses, wake_seq */
		return &file->words[file->n + sizeof(struct relay_ring_geometry) / 8 + (r >> 8) % 32];
	}
}

static void spoil(const struct spoilt *file)
{
	uint64_t *word = any_word(file);

	__atomic_store_n(word, nasty_word(__atomic_load_n(word, __ATOMIC_RELAXED)), __ATOMIC_RELAXED);
}

/* What a consumer is given lies in the ring. */
static void check_inside(struct relay_ring *ring, const void *data, size_t length)
{
	static struct relay_ring *last;
	static const unsigned char *first;
	const unsigned char *at = data;

	CHECK(length <= SIZE - 16);
	/* The mapping itself is the library's secret: all that it gives of one ring lies close together. */
	if (last != ring) {
		last = ring;
		first = at;
	}
	CHECK((at > first ? at - first : first - at) < 2 * SIZE);
	CHECK(memchr(data, 'x', length) != data + SIZE); /* touch all of it */
}

static void do_something(struct relay_ring *ring)
{
	static void *reserved;
	static char data[SIZE];
	struct relay_ring_stats stats;
	uint64_t r = random_word(), missed;
	const void *there;
	size_t length;
	int i;

	switch (r % 9) {
	case 0:
	case 1:
		relay_ring_output(ring, data, (r >> 8) % 200, (r >> 16) % 4);
		break;
	case 2:
		if (reserved)
			relay_ring_commit(reserved, 0);
		reserved = relay_ring_reserve(ring, (r >> 8) % 200, 0);
		if (reserved)
			memset(reserved, 'r', (r >> 8) % 200);
		break;
	case 3:
		if (reserved)
			relay_ring_discard(reserved, 0);
		reserved = NULL;
		break;
	case 4:
		for (i = 0; i < 100 && relay_ring_next(ring, &there, &length) == 1; i++)
			check_inside(ring, there, length);
		if (r & 256)
			relay_ring_release(ring);
		else
			relay_ring_abort(ring);
		break;
	case 5:
		for (i = 0; i < 100 && relay_ring_read(ring, data, sizeof(data), &missed) >= 0; i++)
			;
		break;
	case 6:
		relay_ring_stats(ring, &stats);
		relay_ring_query(ring, (r >> 8) % 5);
		relay_ring_damaged_at(ring);
		break;
	case 7:
		relay_ring_state(ring);
		relay_ring_wait(&ring, 1, 0);
		break;
	default:
		relay_ring_resolve(ring, (r >> 8) % 3);
		relay_ring_stop(ring, RELAY_DISABLED, 0);
		relay_ring_stop(ring, RELAY_CLOSED, 0);
	}
}

static void use_spoilt_rings(uint32_t mode)
{
	int round, i;

	alarm(WATCHDOG_S);
	for (round = 0; round < ROUNDS; round++) {
		AUTOPTR(relay_ring) ring = make_ring(SIZE, mode);
		struct spoilt file = map_words(ring);

		for (i = 0; i < 20; i++)
			do_something(ring);
		for (i = 0; i < 60; i++) {
			if (i % 3 == 0)
				spoil(&file);
			do_something(ring);
		}
		munmap(file.words, file.n * 8 + PAGE);
	}
}

TEST(spoilt_rings_harm_nobody)
{
	use_spoilt_rings(RELAY_NO_OVERWRITE);
}

TEST(spoilt_rings_that_overwrite_harm_nobody)
{
	use_spoilt_rings(RELAY_OVERWRITE);
}

/* Random words all over, the geometry left out. */
TEST(rubbish_harms_nobody)
{
	int round, i;
	uint64_t k;

	alarm(WATCHDOG_S);
	for (round = 0; round < ROUNDS / 15; round++) {
		AUTOPTR(relay_ring) ring = make_ring(SIZE, round % 2);
		struct spoilt file = map_words(ring);

		for (k = 0; k < file.n; k++)
			file.words[k] = random_word();
		for (i = 0; i < 20; i++)
			do_something(ring);
		munmap(file.words, file.n * 8 + PAGE);
	}
}

static bool scribbled;

static void *scribble(void *argument)
{
	const struct spoilt *file = argument;
	uint64_t mine = 1234567;

	/* Words of its own choice: the seed is the other thread's. */
	while (!__atomic_load_n(&scribbled, __ATOMIC_RELAXED)) {
		mine = mine * 6364136223846793005ull + 1442695040888963407ull;
		uint64_t at = (mine >> 33) % 3 == 0 ? (mine >> 40) % 32 : PAGE / 8 + (mine >> 40) % (3 * PAGE / 8);

		__atomic_store_n(&file->words[at], mine >> 20, __ATOMIC_RELAXED);
		sched_yield();
	}
	return NULL;
}

TEST(rings_that_change_all_the_time_harm_nobody)
{
	AUTOPTR(relay_ring) ring = make_ring(SIZE, 0);
	struct spoilt file = map_words(ring);
	pthread_t thread;
	int i;

	alarm(WATCHDOG_S);
	CHECK_EQ(pthread_create(&thread, NULL, scribble, &file), 0);
	for (i = 0; i < SCRIBBLES; i++)
		do_something(ring);
	__atomic_store_n(&scribbled, true, __ATOMIC_RELAXED);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* --- what is said of it --- */

/* Two records of 16 bytes with their headers, then what `change` does to the words of the file. */
static void check_damage(void (*change)(uint64_t *words), uint64_t at, int n_good)
{
	AUTOPTR(relay_ring) ring = make_ring(SIZE, 0);
	struct spoilt file = map_words(ring);
	const void *data;
	size_t length;
	int i;

	CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 8, 0), 0);
	change(file.words);
	for (i = 0; i < n_good; i++) {
		CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
		relay_ring_release(ring);
	}
	CHECK_EQ(relay_ring_next(ring, &data, &length), -EBADMSG);
	CHECK_EQ(relay_ring_damaged_at(ring), at);
	CHECK_EQ(relay_ring_state(ring) & RELAY_IS_DAMAGED, RELAY_IS_DAMAGED);
	CHECK_EQ(relay_ring_wait(&ring, 1, -1), 1);
	CHECK_EQ(relay_ring_read(ring, NULL, 0, NULL), -EBADMSG);
	CHECK_EQ(relay_ring_consume(ring, NULL, NULL, 0), -EBADMSG);
}

static void make_second_too_long(uint64_t *words)
{
	words[(2 * PAGE + 16) / 8] = 9 | 3ull << 32;
}

static void make_second_busy(uint64_t *words)
{
	words[(2 * PAGE + 16) / 8] = 8 | 1u << 31 | 3ull << 32;
}

static void make_first_endless(uint64_t *words)
{
	words[2 * PAGE / 8] = 0x3fffffff | 3ull << 32;
}

static void unalign_producer(uint64_t *words)
{
	words[PAGE / 8] = 31;
}

static void move_producer_away(uint64_t *words)
{
	words[PAGE / 8] = SIZE;
}

static void unalign_consumer(uint64_t *words)
{
	words[0] = 4;
}

static void move_consumer_ahead(uint64_t *words)
{
	words[0] = 64;
}

TEST(damage_is_reported_with_its_place)
{
	check_damage(make_second_too_long, 16, 1);
	check_damage(make_second_busy, 16, 1);
	check_damage(make_first_endless, 0, 0);
	check_damage(unalign_producer, 0, 0);
	check_damage(move_producer_away, 0, 0);
	check_damage(unalign_consumer, 4, 0);
	check_damage(move_consumer_ahead, 64, 0);
}

TEST(producers_store_nothing_where_positions_contradict)
{
	AUTOPTR(relay_ring) ring = make_ring(SIZE, 0);
	struct spoilt file = map_words(ring);

	file.words[PAGE / 8] = file.words[PAGE / 8 + 4] = 12; /* position, tail */
	CHECK_EQ(output_letters(ring, 'a', 8, 0), -EBADMSG);
}

static void check_refused(struct spoilt *file, int fd, uint64_t at, uint64_t value, int err)
{
	uint64_t *word = &file->words[file->n + at], before = *word;

	*word = value;
	errno = 0;
	CHECK(relay_ring_fdopen(fd) == NULL);
	CHECK_EQ(errno, err);
	*word = before;
}

TEST(a_geometry_that_does_not_fit_the_file_is_refused)
{
	struct relay_ring *ring = make_ring(SIZE, 0), *again;
	struct spoilt file = map_words(ring);
	int fd = relay_ring_fd(ring);

	check_refused(&file, fd, 0, 0, EBADMSG);                               /* magic */
	check_refused(&file, fd, 1, RELAY_RING_VERSION + 1, EPROTO);           /* version */
	check_refused(&file, fd, 2, 2 * SIZE, EBADMSG);                        /* size */
	check_refused(&file, fd, 3, 0, EBADMSG);                               /* file_bytes */
	check_refused(&file, fd, 4, 0, EBADMSG);                               /* n_rings */
	check_refused(&file, fd, 5, RELAY_RING_N_READY | 2ull << 32, EBADMSG); /* mode callback */
	check_refused(&file, fd, 6, 9, EBADMSG);                               /* scheme */
	again = relay_ring_fdopen(fd);
	CHECK(again != NULL);
	relay_ring_close(again);
	CHECK_EQ(ftruncate(fd, 4 * PAGE), 0);
	CHECK(relay_ring_fdopen(fd) == NULL);
	relay_ring_close(ring);
}

/* Under a process that has asked for it, a file that is cut short is a damaged ring and no SIGBUS. */
TEST(a_truncated_ring_is_damaged)
{
	struct relay_ring *ring;
	const void *data;
	size_t length;

	CHECK_EQ(relay_guard_install(), 0);
	ring = make_ring(SIZE, 0);
	CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	CHECK_EQ(ftruncate(relay_ring_fd(ring), 0), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_IS_DAMAGED);
	CHECK_EQ(relay_ring_next(ring, &data, &length), -EBADMSG);
	relay_ring_close(ring);
}

/* Who waits for a record and then asks for it hears the same from both, or it would go round for ever. */
TEST(who_asks_a_damaged_ring_for_a_record_hears_what_who_waits_does)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		AUTOPTR(relay_ring) ring = make_ring(SIZE, mode);
		struct spoilt file = map_words(ring);
		char to[SIZE];
		const void *data;
		size_t length;

		file.words[file.n] = 0; /* the magic number */
		CHECK_EQ(relay_ring_state(ring), RELAY_IS_DAMAGED);
		CHECK_EQ(relay_ring_wait(&ring, 1, 0), 1);
		if (mode == RELAY_NO_OVERWRITE)
			CHECK_EQ(relay_ring_next(ring, &data, &length), -EBADMSG);
		CHECK_EQ(relay_ring_read(ring, to, sizeof(to), NULL), -EBADMSG);
		munmap(file.words, PAGE + 8 * file.n);
	}
}
