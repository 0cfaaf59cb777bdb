/* SPDX-License-Identifier: MIT */
/*
 * One record ring: what the kernel's does; conformance/ringbuf-observed.txt names each with its numbers.
 */
#define _GNU_SOURCE
#include "ring_check.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

SCHEMES(rseq, lockless);

/* --- making --- */

static int create_with(uint64_t ring_size, uint32_t mode, uint32_t n_rings, uint32_t buffers, uint32_t with_scheme)
{
	static unsigned n;
	char path[4096];
	struct relay_ring_spec spec = a_ring_spec(ring_size, mode);

	spec.n_rings = n_rings;
	spec.buffers = buffers;
	spec.scheme = with_scheme;
	snprintf(path, sizeof(path), "%s/created%u", scratch, n++);
	return relay_ring_create(path, &spec);
}

TEST(sizes_are_powers_of_two_from_a_page_on)
{
	const uint64_t wrong[] = {0, 1, 2048, 4097, 12288, 1ull << 41};
	unsigned i;

	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		CHECK_EQ(create_with(wrong[i], 0, 1, RELAY_GLOBAL, 0), -EINVAL);
		CHECK_EQ(relay_ring_file_bytes(wrong[i]), 0);
	}
	CHECK_EQ(create_with(4096, 0, 1, RELAY_GLOBAL, 0), 0);
	CHECK(relay_ring_file_bytes(4096) > 2 * 4096 + 2 * 4096);
}

TEST(specs_that_make_no_sense_are_refused)
{
	char path[4096];
	struct relay_ring_spec spec = a_ring_spec(4096, 0);

	CHECK_EQ(create_with(4096, RELAY_CALLBACK, 1, RELAY_GLOBAL, 0), -EINVAL);
	CHECK_EQ(create_with(4096, 0, 2, RELAY_GLOBAL, 0), -EINVAL);
	CHECK_EQ(create_with(4096, 0, 0, RELAY_PERCPU, 0), -EINVAL);
	CHECK_EQ(create_with(4096, 0, 1, RELAY_GLOBAL, RELAY_RSEQ), -EINVAL);
	CHECK_EQ(create_with(4096, 0, 1, RELAY_PERCPU, RELAY_LOCKING), -EINVAL);
	snprintf(path, sizeof(path), "%s/twice", scratch);
	CHECK_EQ(relay_ring_create(path, &spec), 0);
	CHECK_EQ(relay_ring_create(path, &spec), -EEXIST);
	CHECK_EQ(relay_store_remove(path, spec.n_rings), 0);
	CHECK_EQ(relay_ring_create(path, &spec), 0);
	spec.size--;
	snprintf(path, sizeof(path), "%s/short", scratch);
	CHECK_EQ(relay_ring_create(path, &spec), -EINVAL);
}

TEST(what_is_no_ring_is_not_opened)
{
	struct relay_spec channel = a_spec(4096, 2, 0);
	const char *path = make_ring_file(4096, 0);

	errno = 0;
	CHECK(relay_buf_open(path) == NULL && errno == EMEDIUMTYPE);
	CHECK(relay_ring_open(make_channel(&channel)) == NULL && errno == EMEDIUMTYPE);
	CHECK(relay_ring_open("/nowhere/mem0") == NULL && errno == ENOENT);
}

/* --- layout --- */

static void check_output(struct relay_ring *ring, const struct kernel_ring *k, size_t length, uint64_t before,
                         uint64_t after)
{
	unsigned char data[128];
	size_t i;

	for (i = 0; i < length; i++)
		data[i] = (unsigned char)(i + 1);
	CHECK_EQ(*k->producer, before);
	CHECK_EQ(relay_ring_output(ring, data, length, 0), 0);
	CHECK_EQ(*k->producer, after);
	CHECK_EQ(kernel_header(k, before)[0], length);
	CHECK_EQ(kernel_header(k, before)[1], 3);
	CHECK(memcmp(kernel_header(k, before) + 2, data, length) == 0);
}

/* "4. record layout" */
TEST(records_lie_as_in_the_kernel)
{
	AUTOPTR(relay_ring) ring = make_ring(8192, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 8192);
	char *record;

	check_output(ring, &k, 0, 0, 8);
	check_output(ring, &k, 1, 8, 24);
	check_output(ring, &k, 7, 24, 40);
	check_output(ring, &k, 8, 40, 56);
	check_output(ring, &k, 9, 56, 80);
	check_output(ring, &k, 100, 80, 192);
	record = reserve_letters(ring, 'r', 16);
	CHECK_EQ(*k.producer, 216);
	CHECK_EQ(kernel_header(&k, 192)[0], 0x80000010);
	CHECK_EQ(kernel_header(&k, 192)[1], 3);
	CHECK_EQ(relay_ring_discard(record, 0), 0);
	CHECK_EQ(kernel_header(&k, 192)[0], 0x40000010);
	record = reserve_letters(ring, 's', 16);
	CHECK_EQ(relay_ring_commit(record, 0), 0);
	CHECK_EQ(kernel_header(&k, 216)[0], 0x10);
	CHECK_EQ((uintptr_t)record % 8, 0);
}

TEST(the_second_header_word_counts_pages)
{
	AUTOPTR(relay_ring) ring = make_ring(8192, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 8192);

	CHECK_EQ(output_letters(ring, 'a', 3000, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 3000, 0), 0);
	CHECK_EQ(output_letters(ring, 'c', 3000, 0), -EAGAIN);
	CHECK_EQ(output_letters(ring, 'c', 1000, 0), 0);
	CHECK_EQ(kernel_header(&k, 0)[1], 3);
	CHECK_EQ(kernel_header(&k, 3008)[1], 3);
	CHECK_EQ(kernel_header(&k, 6016)[1], 4);
}

/* A program that knows nothing but the kernel's layout, over many laps, with all lengths. */
TEST(the_kernels_layout_is_all_that_a_consumer_needs)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);
	const unsigned char *data;
	uint32_t length, expected = 0, n = 0;

	while (expected <= 4080) {
		char letter = (char)('a' + n % 26), *other;

		if (output_letters(ring, letter, n, RELAY_RING_NO_WAKEUP) == 0) {
			other = relay_ring_reserve(ring, n % 5, 0);
			if (other)
				CHECK_EQ(relay_ring_discard(other, 0), 0);
			n = n < 4080 ? n + 1 : 5000;
		}
		if (!kernel_next(&k, &data, &length))
			continue;
		CHECK_EQ(length, expected);
		while (length > 0)
			CHECK_EQ(data[--length], (unsigned char)('a' + expected % 26));
		kernel_done(&k, expected++);
	}
	CHECK(*k.producer > 100 * 4096);
}

/* "wrap: record at pos 4000 contiguous through 2nd mapping" */
TEST(a_record_that_wraps_is_in_one_piece)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);
	const unsigned char *data;
	uint32_t length, i;
	size_t taken;
	const void *there;

	CHECK_EQ(output_letters(ring, 'x', 3992, 0), 0);
	CHECK_LETTERS(ring, "x");
	CHECK_EQ(output_letters(ring, 'w', 600, 0), 0);
	CHECK_EQ(kernel_next(&k, &data, &length), 1);
	CHECK_EQ(length, 600);
	CHECK_EQ(data - k.data, 4008);
	for (i = 0; i < 600; i++)
		CHECK_EQ(data[i], 'w');
	CHECK_EQ(relay_ring_next(ring, &there, &taken), 1);
	CHECK(taken == 600 && memcmp(there, data, 600) == 0);
}

/* --- room --- */

/* "5. space rule" */
TEST(the_largest_record_is_16_bytes_less_than_the_ring)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	const size_t wrong[] = {4096, 4089, 4088, 4087, 4081, 0x40000000, 0xffffffff, SIZE_MAX};
	unsigned i;

	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		CHECK_EQ(relay_ring_output(ring, "", wrong[i], 0), -EAGAIN);
		errno = 0;
		CHECK(relay_ring_reserve(ring, wrong[i], 0) == NULL && errno == EAGAIN);
	}
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_PROD_POS), 0);
	CHECK_EQ(output_letters(ring, 'a', 4080, 0), 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_PROD_POS), 4088);
	CHECK_FIELDS(ring_stats(ring), (lost_too_large_records, 16), (lost_full_records, 0));
}

TEST(a_ring_is_never_quite_full)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	const void *data;
	size_t length;
	int i;

	for (i = 0; i < 63; i++)
		CHECK_EQ(output_letters(ring, 'a', 56, 0), 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_PROD_POS), 4032);
	CHECK_EQ(output_letters(ring, 'b', 56, 0), -EAGAIN);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	CHECK_EQ(output_letters(ring, 'b', 56, 0), -EAGAIN);
	relay_ring_release(ring);
	CHECK_EQ(output_letters(ring, 'b', 56, 0), 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_PROD_POS), 4096);
	CHECK_EQ(output_letters(ring, 'b', 56, 0), -EAGAIN);
	CHECK_FIELDS(ring_stats(ring), (lost_full_records, 3), (lost_full_bytes, 3 * 56), (records, 64));
}

/* "user sets cons_pos > prod_pos" */
TEST(a_consumer_position_ahead_of_the_producer_refuses_records_when_the_producer_looks)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);
	int n = 0;

	*k.consumer = 1 << 20;
	while (output_letters(ring, 'a', 8, 0) == 0)
		n++;
	CHECK_EQ(n, 4096 / 16 - 1);
	CHECK_EQ(output_letters(ring, 'a', 8, 0), -EAGAIN);
}

TEST(other_flags_are_refused)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	void *record;

	CHECK_EQ(relay_ring_output(ring, "a", 1, 4), -EINVAL);
	CHECK_EQ(relay_ring_output(ring, NULL, 1, 0), -EINVAL);
	CHECK(relay_ring_reserve(ring, 1, 1) == NULL && errno == EINVAL);
	record = relay_ring_reserve(ring, 1, 0);
	CHECK_EQ(relay_ring_commit(record, 8), -EINVAL);
	CHECK_EQ(relay_ring_commit(record, 0), 0);
	CHECK_EQ(relay_ring_commit(record, 0), -EINVAL);
	CHECK_EQ(relay_ring_discard(&record, 0), -EINVAL);
	CHECK_EQ(relay_ring_output(ring, "a", 1, RELAY_RING_NO_WAKEUP | RELAY_RING_FORCE_WAKEUP), 0);
	CHECK_EQ(relay_ring_output(ring, NULL, 0, 0), 0);
}

/* "6. query" */
TEST(query_tells_five_things)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);

	CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	CHECK_EQ(relay_ring_query(ring, 0), 16);
	CHECK_EQ(relay_ring_query(ring, 1), 4096);
	CHECK_EQ(relay_ring_query(ring, 2), 0);
	CHECK_EQ(relay_ring_query(ring, 3), 16);
	CHECK_EQ(relay_ring_query(ring, 4), 0);
	CHECK_EQ(relay_ring_query(ring, 5), 0);
	CHECK_LETTERS(ring, "a");
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 0);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_CONS_POS), 16);
}

/* --- order --- */

TEST(records_come_in_the_order_of_their_reservations)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10), *b = reserve_letters(ring, 'b', 20),
	     *c = reserve_letters(ring, 'c', 0);

	CHECK_EQ(output_letters(ring, 'd', 5, 0), 0);
	CHECK_EQ(relay_ring_commit(c, 0), 0);
	CHECK_EQ(relay_ring_commit(b, 0), 0);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 24 + 32 + 8 + 16);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "ab.d");
}

TEST(discarded_records_are_skipped_and_make_room)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 4000), *b;

	CHECK_EQ(relay_ring_discard(a, 0), 0);
	CHECK_EQ(output_letters(ring, 'x', 4000, 0), -EAGAIN);
	CHECK_LETTERS(ring, "");
	a = reserve_letters(ring, 'a', 100);
	b = reserve_letters(ring, 'b', 100);
	CHECK_EQ(output_letters(ring, 'c', 1, 0), 0);
	CHECK_EQ(relay_ring_discard(b, 0), 0);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "ac");
	CHECK_FIELDS(ring_stats(ring), (skipped_records, 2), (read_records, 2), (read_bytes, 101), (torn_records, 0),
	             (records, 4));
}

TEST(as_many_reservations_as_there_are_claims)
{
	AUTOPTR(relay_ring) ring = make_ring(65536, 0);
	void *record[RELAY_N_CLAIMS];
	int i;

	for (i = 0; i < RELAY_N_CLAIMS; i++)
		record[i] = reserve_letters(ring, 'r', 8);
	errno = 0;
	CHECK(relay_ring_reserve(ring, 8, 0) == NULL && errno == EAGAIN);
	CHECK_EQ(ring_stats(ring).lost_full_records, 1);
	for (i = RELAY_N_CLAIMS - 1; i >= 0; i--)
		CHECK_EQ(relay_ring_commit(record[i], 0), 0);
	CHECK_EQ(strlen(drain_letters(ring)), RELAY_N_CLAIMS);
	for (i = 0; i < RELAY_N_CLAIMS; i++)
		CHECK_EQ(relay_ring_discard(reserve_letters(ring, 'd', 8), 0), 0);
}

static struct relay_ring *interrupted;
static char *from_handler;

static void reserve_in_handler(int signal)
{
	(void)signal;
	from_handler = reserve_letters(interrupted, 'h', 30);
	CHECK_EQ(output_letters(interrupted, 'o', 3, 0), 0);
}

TEST(a_signal_handler_reserves_over_an_open_reservation)
{
	AUTOPTR(relay_ring) ring = interrupted = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10);

	signal(SIGUSR1, reserve_in_handler);
	CHECK_EQ(raise(SIGUSR1), 0);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "a");
	CHECK_EQ(relay_ring_commit(from_handler, 0), 0);
	CHECK_LETTERS(ring, "ho");
}

static void *commit_it(void *record)
{
	return (void *)(intptr_t)relay_ring_commit(record, 0);
}

TEST(another_thread_of_the_process_commits)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0), *other = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10), *b = reserve_letters(other, 'b', 10);
	pthread_t thread;
	void *result;

	CHECK_EQ(pthread_create(&thread, NULL, commit_it, b), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK_EQ((intptr_t)result, 0);
	CHECK_EQ(relay_ring_commit(b, 0), -EINVAL);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "a");
	CHECK_LETTERS(other, "b");
}

/* --- consuming --- */

TEST(next_holds_records_until_release)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0), *second = open_ring(make_ring_file(4096, 0));
	const void *a, *b;
	size_t length;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 20, 0), 0);
	CHECK_EQ(relay_ring_next(ring, &a, &length), 1);
	CHECK_EQ(relay_ring_next(ring, &b, &length), 1);
	CHECK_EQ(relay_ring_next(ring, &b, &length), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), -EALREADY);
	CHECK_EQ(relay_ring_read(ring, NULL, 0, NULL), -EALREADY);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_CONS_POS), 0);
	relay_ring_abort(ring);
	CHECK_EQ(relay_ring_next(ring, &b, &length), 1);
	CHECK(a == b && length == 10);
	relay_ring_release(ring);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_CONS_POS), 24);
	CHECK_LETTERS(ring, "b");
}

struct each {
	char letters[16];
	unsigned n, stop_after;
};

static int note(void *context, const void *data, size_t length)
{
	struct each *each = context;

	CHECK(length > 0 && each->n < sizeof(each->letters));
	each->letters[each->n++] = *(const char *)data;
	return each->n == each->stop_after ? -ECANCELED : 0;
}

TEST(a_function_gets_each_record)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	struct each each = {.stop_after = 3};
	const char *letter;

	for (letter = "abcdef"; *letter; letter++)
		CHECK_EQ(output_letters(ring, *letter, 9, 0), 0);
	CHECK_EQ(relay_ring_consume(ring, note, &each, 2), 2);
	CHECK_EQ(relay_ring_consume(ring, note, &each, 0), -ECANCELED);
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_CONS_POS), 3 * 24);
	CHECK_EQ(relay_ring_consume(ring, note, &each, 0), 3);
	CHECK_EQ(relay_ring_consume(ring, note, &each, 0), 0);
	CHECK(each.n == 6 && memcmp(each.letters, "abcdef", 6) == 0);
}

TEST(a_copying_reader_says_what_does_not_fit)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	char data[16];

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 0, 0), 0);
	CHECK_EQ(relay_ring_read(ring, data, 9, NULL), -EMSGSIZE);
	CHECK_EQ(relay_ring_read(ring, data, 10, NULL), 10);
	CHECK(memcmp(data, "aaaaaaaaaa", 10) == 0);
	CHECK_EQ(relay_ring_read(ring, data, 0, NULL), 0);
	CHECK_EQ(relay_ring_read(ring, data, 10, NULL), -EAGAIN);
}

static void *consume_elsewhere(void *ring)
{
	const void *data;
	size_t length;

	return (void *)(intptr_t)relay_ring_next(ring, &data, &length);
}

TEST(there_is_one_consumer_at_a_time)
{
	const char *path = make_ring_file(4096, 0);
	AUTOPTR(relay_ring) ring = open_ring(path), *other = open_ring(path);
	const void *data;
	size_t length;
	pthread_t thread;
	void *result;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	CHECK_EQ(relay_ring_next(other, &data, &length), -EBUSY);
	CHECK_EQ(pthread_create(&thread, NULL, consume_elsewhere, other), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK_EQ((intptr_t)result, -EBUSY);
	relay_ring_release(ring);
	CHECK_EQ(relay_ring_next(other, &data, &length), 0);
}

TEST(the_state_follows_who_consumes_by_the_kernels_format)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);
	const unsigned char *data;
	uint32_t length;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 10, 0), 0);
	CHECK_EQ(kernel_next(&k, &data, &length), 1);
	kernel_done(&k, length);
	CHECK_LETTERS(ring, "b");
	CHECK_EQ(kernel_next(&k, &data, &length), 0);
	CHECK_EQ(output_letters(ring, 'c', 10, 0), 0);
	CHECK_EQ(kernel_next(&k, &data, &length), 1);
	CHECK_EQ(data[0], 'c');
}

/* --- two handles --- */

TEST(a_producer_finds_the_room_that_a_consumer_has_made_and_no_more)
{
	enum { RECORD_BYTES = 16, RECORDS = 4096 / RECORD_BYTES - 1 };
	const char *path = make_ring_file(4096, 0);
	AUTOPTR(relay_ring) writer = open_ring(path);
	AUTOPTR(relay_ring) reader = open_ring(path);
	uint64_t written = 0, consumed = 0, found;

	for (int round = 0; round < 1000; round++) {
		while (relay_ring_output(writer, &written, sizeof(written), RELAY_RING_WILL_RETRY) == 0)
			written++;
		CHECK_EQ(written - consumed, RECORDS);
		for (int i = round % 7; i >= 0; i--, consumed++) {
			CHECK_EQ(relay_ring_read(reader, &found, sizeof(found), NULL), sizeof(found));
			CHECK_EQ(found, consumed);
		}
	}
}
