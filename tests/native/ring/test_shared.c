/* SPDX-License-Identifier: MIT */
/* Record rings, beyond the kernel's: overwriting, producers that die, several rings at once. */
#define _GNU_SOURCE
#include "ring_check.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

SCHEMES(rseq, lockless);

/* --- overwriting --- */

TEST(in_overwrite_mode_the_oldest_give_way)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, RELAY_OVERWRITE);
	char data[100];
	uint64_t missed, i;
	const void *there;
	size_t length;

	for (i = 0; i < 1000; i++)
		CHECK_EQ(relay_ring_output(ring, &i, sizeof(i), 0), 0);
	CHECK_EQ(relay_ring_next(ring, &there, &length), -EOPNOTSUPP);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 255 * 16);
	for (i = 745; i < 1000; i++) {
		CHECK_EQ(relay_ring_read(ring, data, sizeof(data), &missed), 8);
		CHECK_EQ(*(uint64_t *)data, i);
		CHECK_EQ(missed, i == 745 ? 745 : 0);
	}
	CHECK_EQ(relay_ring_read(ring, data, sizeof(data), &missed), -EAGAIN);
	CHECK_FIELDS(ring_stats(ring), (lost_overwritten_records, 745), (read_records, 255), (lost_full_records, 0));
}

/* bpf_ringbuf_query() and the words of the producer's page, of BPF_F_RB_OVERWRITE. */
TEST(the_overwrite_position_lies_where_the_kernel_has_it)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, RELAY_OVERWRITE), *other = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096), o = kernel_map(relay_ring_fd(other), 4096);
	unsigned char *data = malloc(4096);
	uint64_t i, pos = 0;
	uint32_t length;
	char *record;

	CHECK(data != NULL);
	for (i = 0; i < 200; i++)
		CHECK_EQ(relay_ring_output(ring, &i, sizeof(i), 0), 0);
	CHECK_EQ(k.producer[2], 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_OVERWRITE_POS), 0);
	record = reserve_letters(ring, 'd', 8);
	CHECK_EQ(relay_ring_discard(record, 0), 0);
	for (; i < 300; i++)
		CHECK_EQ(relay_ring_output(ring, &i, sizeof(i), 0), 0);
	CHECK_EQ(k.producer[0], 301 * 16);
	CHECK_EQ(k.producer[2], (301 - 255) * 16);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_OVERWRITE_POS), k.producer[2]);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 255 * 16);
	for (i = 301 - 255; i < 300; i++) {
		CHECK_EQ(kernel_copy_next(&k, &pos, data, &length), 1);
		CHECK(length == 8 && *(uint64_t *)data == i);
	}
	CHECK_EQ(kernel_copy_next(&k, &pos, data, &length), 0);
	/* It has consumed all that there is: nobody is told to read it again. */
	CHECK(relay_ring_state(ring) & RELAY_HAS_DATA);
	__atomic_store_n(k.consumer, pos, __ATOMIC_RELEASE);
	CHECK_EQ(relay_ring_state(ring), 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 0);
	CHECK_EQ(output_letters(ring, 'n', 8, 0), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA);
	while (output_letters(other, 'x', 8, 0) == 0)
		;
	CHECK_EQ(o.producer[2], 0);
	CHECK_EQ(relay_ring_query(other, RELAY_RING_OVERWRITE_POS), 0);
	free(data);
}

struct overwriter {
	struct relay_ring *ring;
	unsigned which;
};

enum { N_OVERWRITERS = 2, OVERWRITTEN_RECORDS = 200000, STAMP_BYTES = 8 };

/* Records of all lengths that say whose they are, which, and the same in each word. */
static void *overwrite(void *argument)
{
	const struct overwriter *self = argument;
	uint64_t words[64];

	for (uint64_t i = 0; i < OVERWRITTEN_RECORDS; i++) {
		size_t n = 1 + i % 61;

		for (size_t w = 0; w < n; w++)
			words[w] = i << 8 | self->which;
		int err;
		/* Full where the oldest record is just being filled by the other one. */
		while ((err = relay_ring_output(self->ring, words, n * STAMP_BYTES, 0)) == -EAGAIN)
			sched_yield();
		CHECK_EQ(err, 0);
	}
	return NULL;
}

TEST(a_consumer_of_the_kernels_format_copies_whole_records_while_they_are_overwritten)
{
	enum { SIZE = 4096 };
	AUTOPTR(relay_ring) ring = make_ring(SIZE, RELAY_OVERWRITE);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), SIZE);
	unsigned n = scheme == RELAY_RSEQ ? 1 : N_OVERWRITERS;
	uint64_t data[SIZE / 8], pos = 0, next[N_OVERWRITERS] = {0}, got = 0;
	struct overwriter overwriters[N_OVERWRITERS];
	pthread_t threads[N_OVERWRITERS];
	uint32_t length;

	for (unsigned i = 0; i < n; i++) {
		overwriters[i] = (struct overwriter){ring, i};
		CHECK_EQ(pthread_create(&threads[i], NULL, overwrite, &overwriters[i]), 0);
	}
	/* Until each has written its last record, which nobody overwrites before another one writes. */
	while (next[0] < OVERWRITTEN_RECORDS || (n > 1 && next[1] < OVERWRITTEN_RECORDS)) {
		if (!kernel_copy_next(&k, &pos, (unsigned char *)data, &length)) {
			/* In this order: the position is the last one once all are written. */
			if (ring_stats(ring).records == (uint64_t)n * OVERWRITTEN_RECORDS &&
			    relay_ring_query(ring, RELAY_RING_PROD_POS) == pos)
				break;
			continue;
		}
		uint64_t number = data[0] >> 8, which = data[0] & 0xff;

		CHECK(which < n && number >= next[which]);
		CHECK_EQ(length, (1 + number % 61) * STAMP_BYTES);
		for (size_t w = 1; w < length / STAMP_BYTES; w++)
			CHECK_EQ(data[w], data[0]);
		next[which] = number + 1;
		got++;
	}
	for (unsigned i = 0; i < n; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK(got > 0);
}

TEST(what_was_discarded_is_not_missed)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, RELAY_OVERWRITE);
	char data[100], *record;
	uint64_t missed;
	int i;

	for (i = 0; i < 600; i++) {
		record = reserve_letters(ring, 'r', 8);
		CHECK_EQ(i % 3 ? relay_ring_discard(record, 0) : relay_ring_commit(record, 0), 0);
	}
	/* The last 255 stand, the first of them is number 345. */
	for (i = 345; i < 600; i += 3)
		CHECK_EQ(relay_ring_read(ring, data, sizeof(data), i == 345 ? &missed : NULL), 8);
	CHECK_EQ(missed, 115);
	CHECK_EQ(relay_ring_read(ring, data, sizeof(data), &missed), -EAGAIN);
	CHECK_EQ(missed, 0);
}

TEST(a_reservation_is_never_overwritten)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, RELAY_OVERWRITE);
	char *a = reserve_letters(ring, 'a', 8), data[100];
	int n = 0;

	while (output_letters(ring, 'b', 8, 0) == 0)
		n++;
	CHECK_EQ(n, 254);
	CHECK_EQ(ring_stats(ring).lost_full_records, 1);
	CHECK_EQ(memcmp(a, "aaaaaaaa", 8), 0);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_EQ(output_letters(ring, 'c', 8, 0), 0);
	CHECK_EQ(relay_ring_read(ring, data, sizeof(data), NULL), 8);
	CHECK_EQ(data[0], 'b');
}

/* --- death --- */

static void reserve_and_die(const char *path, char letter, size_t n, uint64_t token)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0) {
		struct relay_ring *ring = open_ring(path);

		relay_ring_set_token(ring, token);
		reserve_letters(ring, letter, n);
		CHECK_EQ(output_letters(ring, (char)(letter + 1), n, 0), 0);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WTERMSIG(status), SIGKILL);
}

TEST(a_dead_producers_reservation_is_discarded_when_a_consumer_meets_it)
{
	const char *path = make_ring_file(4096, 0);
	AUTOPTR(relay_ring) ring = open_ring(path);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);

	reserve_and_die(path, 'a', 100, 0);
	CHECK_EQ(kernel_header(&k, 0)[0], 100 | RELAY_RING_BUSY);
	CHECK_EQ(output_letters(ring, 'c', 1, 0), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 1);
	CHECK_EQ(kernel_header(&k, 0)[0], 100 | RELAY_RING_DISCARD);
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	CHECK_LETTERS(ring, "bc");
	CHECK_FIELDS(ring_stats(ring), (torn_records, 1), (skipped_records, 1), (read_records, 2));
	/* In scheme lockless its other record took a claim, too. */
	CHECK_EQ(relay_ring_resolve(ring, 0), scheme == RELAY_LOCKLESS);
	CHECK_EQ(relay_ring_resolve(ring, 0), 0);
}

TEST(a_reservation_is_resolved_by_the_servers_token)
{
	const char *path = make_ring_file(4096, 0);
	AUTOPTR(relay_ring) ring = open_ring(path), *mine = open_ring(path);

	relay_ring_set_token(mine, 7);
	CHECK(relay_ring_reserve(mine, 10, 0) != NULL);
	CHECK_EQ(output_letters(ring, 'b', 10, 0), 0);
	CHECK_EQ(relay_ring_resolve(ring, 8), 0);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_resolve(ring, 7), 1);
	CHECK_LETTERS(ring, "b");
	CHECK_EQ(ring_stats(ring).torn_records, 1);
}

TEST(overwriting_passes_the_reservation_of_the_dead)
{
	const char *path = make_ring_file(4096, RELAY_OVERWRITE);
	AUTOPTR(relay_ring) ring = open_ring(path);
	char data[16];
	uint64_t missed;
	int i;

	reserve_and_die(path, 'a', 8, 0);
	for (i = 0; i < 1000; i++)
		CHECK_EQ(output_letters(ring, 'x', 8, 0), 0);
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	CHECK_EQ(relay_ring_read(ring, data, sizeof(data), &missed), 8);
	CHECK_EQ(missed, 746); /* what the dead one committed is among them */
}

TEST(a_dead_consumers_lock_is_taken_over)
{
	const char *path = make_ring_file(4096, 0);
	AUTOPTR(relay_ring) ring = open_ring(path);
	const void *data;
	size_t length;
	int status;
	pid_t pid;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(relay_ring_next(open_ring(path), &data, &length), 1);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_LETTERS(ring, "a");
}

TEST(after_fork_both_produce)
{
	AUTOPTR(relay_ring) ring = make_ring(65536, 0);
	char *mine = reserve_letters(ring, 'm', 8);
	int status, i;
	pid_t pid = fork();

	CHECK(pid >= 0);
	for (i = 0; i < 100; i++)
		CHECK_EQ(i % 2 ? output_letters(ring, 'x', 8, 0) : relay_ring_commit(reserve_letters(ring, 'y', 8), 0),
		         0);
	if (pid == 0)
		_exit(0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(relay_ring_commit(mine, 0), 0);
	CHECK_EQ(strlen(drain_letters(ring)), 201);
	CHECK_EQ(ring_stats(ring).records, 201);
}

/* --- several rings --- */

TEST(a_key_has_its_ring)
{
	unsigned counts[7] = {0}, i;

	for (i = 0; i < 7000; i++) {
		unsigned ring = relay_ring_hash(i, 7);

		CHECK(ring < 7 && ring == relay_ring_hash(i, 7));
		counts[ring]++;
	}
	for (i = 0; i < 7; i++)
		CHECK(counts[i] > 800 && counts[i] < 1200);
	CHECK_EQ(relay_ring_hash(UINT64_MAX, 1), 0);
}

static struct relay_rings open_all_rings(void)
{
	static struct relay_ring *ring[1024];
	char path[4096];
	struct relay_ring_spec spec = a_ring_spec(4096, 0);
	unsigned i;

	snprintf(path, sizeof(path), "%s/all", scratch);
	CHECK(spec.n_rings <= 1024);
	CHECK_EQ(relay_ring_create(path, &spec), 0);
	for (i = 0; i < spec.n_rings; i++) {
		snprintf(path, sizeof(path), "%s/all/mem%u", scratch, i);
		ring[i] = open_ring(path);
	}
	return (struct relay_rings){.n = spec.n_rings, .ring = ring};
}

TEST(each_cpu_has_its_ring)
{
	struct relay_rings rings = open_all_rings(), none = {0};
	unsigned n = rings.n, i, here = n == 1 ? 0 : home_cpu;

	if (n == 1)
		CHECK_EQ(sched_setaffinity(0, sizeof(cpu_set_t), &(cpu_set_t){{1}}), 0);
	CHECK_EQ(relay_rings_output(&rings, "a", 1, 0), 0);
	CHECK_EQ(relay_ring_commit(memset(relay_rings_reserve(&rings, 1, 0), 'b', 1), 0), 0);
	CHECK_EQ(relay_rings_output(&none, "c", 1, 0), -EINVAL);
	CHECK(!relay_rings_reserve(&none, 1, 0) && errno == EINVAL);
	/* Those of other CPUs are written from there. */
	for (i = 0; i < n; i++)
		CHECK_EQ(relay_ring_output(rings.ring[i], "d", 1, 0), 0);
	for (i = 0; i < n; i++)
		CHECK_LETTERS(rings.ring[i], i == here ? "abd" : "d");
	CHECK_EQ(relay_ring_wait(rings.ring, n, 0), 0);
}

TEST(one_wait_serves_several_rings)
{
	struct relay_ring *two[2] = {make_ring(4096, 0), make_ring(4096, 0)};

	CHECK_EQ(relay_ring_wait(two, 2, 0), 0);
	CHECK_EQ(output_letters(two[1], 'a', 1, 0), 0);
	CHECK_EQ(relay_ring_wait(two, 2, -1), 1);
	CHECK_LETTERS(two[1], "a");
	CHECK_EQ(relay_ring_wait(two, 2, 1), 0);
	relay_ring_close(two[0]);
	relay_ring_close(two[1]);
}

/* As relay_ring_open() returns it when it fails. */
TEST(calls_without_a_ring_do_nothing)
{
	struct relay_ring *none = NULL;
	const void *data;
	size_t length;

	CHECK_EQ(relay_ring_output(NULL, "a", 1, 0), -EBADF);
	CHECK_EQ(relay_rings_output(NULL, "a", 1, 0), -EBADF);
	errno = 0;
	CHECK(!relay_ring_reserve(NULL, 1, 0) && errno == EBADF);
	errno = 0;
	CHECK(!relay_rings_reserve(NULL, 1, 0) && errno == EBADF);
	CHECK_EQ(relay_ring_commit(NULL, 0), -EINVAL);
	CHECK_EQ(relay_ring_discard(NULL, 0), -EINVAL);
	CHECK_EQ(relay_ring_next(NULL, &data, &length), -EBADF);
	CHECK_EQ(relay_ring_consume(NULL, NULL, NULL, 0), -EBADF);
	CHECK_EQ(relay_ring_read(NULL, NULL, 0, NULL), -EBADF);
	relay_ring_release(NULL);
	relay_ring_abort(NULL);
	CHECK_EQ(relay_ring_wait(NULL, 1, 0), -EBADF);
	CHECK_EQ(relay_ring_wait(&none, 1, 0), -EBADF);
	CHECK_EQ(relay_ring_query(NULL, RELAY_RING_RING_SIZE), 0);
	CHECK_EQ(relay_ring_fd(NULL), -EBADF);
	CHECK_EQ(relay_ring_damaged_at(NULL), 0);
	CHECK_TEXT(relay_ring_damage(NULL), "");
	relay_ring_close(NULL);
	relay_rings_close(NULL);
}

TEST(the_largest_record_fits_exactly)
{
	enum { SIZE = 4096 };
	AUTOPTR(relay_ring) ring = make_ring(SIZE, RELAY_NO_OVERWRITE);
	static char data[SIZE];

	for (size_t length = SIZE - 24; length <= SIZE; length++) {
		int expected = length <= SIZE - 16 ? 0 : -EAGAIN;
		CHECK_EQ(relay_ring_output(ring, data, length, 0), expected);
		drain_letters(ring);
		void *record = relay_ring_reserve(ring, length, 0);
		CHECK_EQ(record != NULL, !expected);
		if (record)
			CHECK_EQ(relay_ring_discard(record, 0), 0);
		drain_letters(ring);
	}
	CHECK_EQ(relay_ring_output(ring, data, SIZE_MAX, 0), -EAGAIN);
	CHECK_EQ(relay_ring_output(ring, data, SIZE_MAX - 7, 0), -EAGAIN);
	CHECK_FIELDS(ring_stats(ring), (lost_full_records, 0), (lost_too_large_records, 2 * 16 + 2));
}

TEST(what_a_consumer_of_the_kernels_format_passed_is_told_in_bytes)
{
	AUTOPTR(relay_ring) ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), PAGE);
	const unsigned char *data;
	uint32_t length;

	for (char letter = 'a'; letter <= 'd'; letter++)
		CHECK_EQ(output_letters(ring, letter, 8, 0), 0);
	CHECK_EQ(ring_stats(ring).foreign_bytes, 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(kernel_next(&k, &data, &length), 1);
		kernel_done(&k, length);
	}
	CHECK_FIELDS(ring_stats(ring), (foreign_bytes, 32), (consumer_position, 32));
	/* Others go on from there, and it is not forgotten. */
	CHECK_LETTERS(ring, "cd");
	CHECK_FIELDS(ring_stats(ring), (foreign_bytes, 32), (read_records, 2), (consumer_position, 64));
}

TEST(an_overwritten_ring_of_a_consumer_of_the_kernels_format_shows_its_position)
{
	AUTOPTR(relay_ring) ring = make_ring(PAGE, RELAY_OVERWRITE);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), PAGE);

	for (int i = 0; i < 10; i++)
		CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	__atomic_store_n(k.consumer, 80, __ATOMIC_RELEASE);
	CHECK_FIELDS(ring_stats(ring), (consumer_position, 80), (foreign_bytes, 80));
	for (int i = 0; i < PAGE / 8; i++)
		CHECK_EQ(output_letters(ring, 'b', 8, 0), 0);
	CHECK_EQ(ring_stats(ring).lost_overwritten_records, 0);
	CHECK(ring_stats(ring).consumer_position > 80);
}

TEST(a_producer_that_will_try_again_has_lost_nothing)
{
	AUTOPTR(relay_ring) ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
	static char data[PAGE];
	void *record;

	while (relay_ring_output(ring, data, 500, RELAY_RING_WILL_RETRY) == 0)
		;
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(relay_ring_output(ring, data, 500, RELAY_RING_WILL_RETRY | RELAY_RING_FORCE_WAKEUP), -EAGAIN);
		CHECK(!relay_ring_reserve(ring, 500, RELAY_RING_WILL_RETRY) && errno == EAGAIN);
	}
	CHECK_EQ(ring_stats(ring).lost_full_records, 0);
	/* It gives up. */
	CHECK_EQ(relay_ring_output(ring, data, 500, 0), -EAGAIN);
	CHECK(!relay_ring_reserve(ring, 500, 0) && errno == EAGAIN);
	CHECK_EQ(ring_stats(ring).lost_full_records, 2);
	/* What can never be had is counted in any case. */
	CHECK_EQ(relay_ring_output(ring, data, PAGE, RELAY_RING_WILL_RETRY), -EAGAIN);
	CHECK_EQ(ring_stats(ring).lost_too_large_records, 1);
	CHECK(!relay_ring_reserve(ring, 1, RELAY_RING_FORCE_WAKEUP) && errno == EINVAL);
	CHECK_EQ(relay_ring_output(ring, data, 1, 8), -EINVAL);
	drain_letters(ring);
	record = relay_ring_reserve(ring, 500, RELAY_RING_WILL_RETRY);
	CHECK(record != NULL);
	CHECK_EQ(relay_ring_commit(record, RELAY_RING_WILL_RETRY), -EINVAL);
	CHECK_EQ(relay_ring_commit(record, 0), 0);
}
