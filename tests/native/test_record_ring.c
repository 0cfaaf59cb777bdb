/* SPDX-License-Identifier: MIT */
/*
 * One record ring: what the kernel's does (conformance/ringbuf-observed.txt names each with its numbers), and what comes
 * with memory that processes share: death, overwriting, stopping.
 */
#define _GNU_SOURCE
#include "ring_check.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

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
	struct relay_ring *ring = make_ring(8192, 0);
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
	relay_ring_close(ring);
}

TEST(the_second_header_word_counts_pages)
{
	struct relay_ring *ring = make_ring(8192, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 8192);

	CHECK_EQ(output_letters(ring, 'a', 3000, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 3000, 0), 0);
	CHECK_EQ(output_letters(ring, 'c', 3000, 0), -EAGAIN);
	CHECK_EQ(output_letters(ring, 'c', 1000, 0), 0);
	CHECK_EQ(kernel_header(&k, 0)[1], 3);
	CHECK_EQ(kernel_header(&k, 3008)[1], 3);
	CHECK_EQ(kernel_header(&k, 6016)[1], 4);
	relay_ring_close(ring);
}

/* A program that knows nothing but the kernel's layout, over many laps, with all lengths. */
TEST(the_kernels_layout_is_all_that_a_consumer_needs)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	relay_ring_close(ring);
}

/* "wrap: record at pos 4000 contiguous through 2nd mapping" */
TEST(a_record_that_wraps_is_in_one_piece)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	relay_ring_close(ring);
}

/* --- room --- */

/* "5. space rule" */
TEST(the_largest_record_is_16_bytes_less_than_the_ring)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	CHECK_EQ(ring_stats(ring).lost_too_large_records, 16);
	CHECK_EQ(ring_stats(ring).lost_full_records, 0);
	relay_ring_close(ring);
}

TEST(a_ring_is_never_quite_full)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	CHECK_EQ(ring_stats(ring).lost_full_records, 3);
	CHECK_EQ(ring_stats(ring).lost_full_bytes, 3 * 56);
	CHECK_EQ(ring_stats(ring).records, 64);
	relay_ring_close(ring);
}

/* "user sets cons_pos > prod_pos" */
TEST(a_consumer_position_ahead_of_the_producer_refuses_records)
{
	struct relay_ring *ring = make_ring(4096, 0);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);

	*k.consumer = 64;
	CHECK_EQ(output_letters(ring, 'a', 8, 0), -EAGAIN);
	relay_ring_close(ring);
}

TEST(other_flags_are_refused)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	relay_ring_close(ring);
}

/* "6. query" */
TEST(query_tells_five_things)
{
	struct relay_ring *ring = make_ring(4096, 0);

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
	relay_ring_close(ring);
}

/* --- order --- */

TEST(records_come_in_the_order_of_their_reservations)
{
	struct relay_ring *ring = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10), *b = reserve_letters(ring, 'b', 20),
	     *c = reserve_letters(ring, 'c', 0);

	CHECK_EQ(output_letters(ring, 'd', 5, 0), 0);
	CHECK_EQ(relay_ring_commit(c, 0), 0);
	CHECK_EQ(relay_ring_commit(b, 0), 0);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_AVAIL_DATA), 24 + 32 + 8 + 16);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "ab.d");
	relay_ring_close(ring);
}

TEST(discarded_records_are_skipped_and_make_room)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	CHECK_EQ(ring_stats(ring).skipped_records, 2);
	CHECK_EQ(ring_stats(ring).read_records, 2);
	CHECK_EQ(ring_stats(ring).read_bytes, 101);
	CHECK_EQ(ring_stats(ring).torn_records, 0);
	CHECK_EQ(ring_stats(ring).records, 4);
	relay_ring_close(ring);
}

TEST(as_many_reservations_as_there_are_claims)
{
	struct relay_ring *ring = make_ring(65536, 0);
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
	relay_ring_close(ring);
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
	struct relay_ring *ring = interrupted = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10);

	signal(SIGUSR1, reserve_in_handler);
	CHECK_EQ(raise(SIGUSR1), 0);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_LETTERS(ring, "a");
	CHECK_EQ(relay_ring_commit(from_handler, 0), 0);
	CHECK_LETTERS(ring, "ho");
	relay_ring_close(ring);
}

static void *commit_it(void *record)
{
	return (void *)(intptr_t)relay_ring_commit(record, 0);
}

TEST(another_thread_of_the_process_commits)
{
	struct relay_ring *ring = make_ring(4096, 0), *other = make_ring(4096, 0);
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
	relay_ring_close(ring);
	relay_ring_close(other);
}

/* --- consuming --- */

TEST(next_holds_records_until_release)
{
	struct relay_ring *ring = make_ring(4096, 0), *second = open_ring(make_ring_file(4096, 0));
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
	relay_ring_close(ring);
	relay_ring_close(second);
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
	struct relay_ring *ring = make_ring(4096, 0);
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
	relay_ring_close(ring);
}

TEST(a_copying_reader_says_what_does_not_fit)
{
	struct relay_ring *ring = make_ring(4096, 0);
	char data[16];

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 0, 0), 0);
	CHECK_EQ(relay_ring_read(ring, data, 9, NULL), -EMSGSIZE);
	CHECK_EQ(relay_ring_read(ring, data, 10, NULL), 10);
	CHECK(memcmp(data, "aaaaaaaaaa", 10) == 0);
	CHECK_EQ(relay_ring_read(ring, data, 0, NULL), 0);
	CHECK_EQ(relay_ring_read(ring, data, 10, NULL), -EAGAIN);
	relay_ring_close(ring);
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
	struct relay_ring *ring = open_ring(path), *other = open_ring(path);
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
	relay_ring_close(ring);
	relay_ring_close(other);
}

TEST(the_state_follows_who_consumes_by_the_kernels_format)
{
	struct relay_ring *ring = make_ring(4096, 0);
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
	relay_ring_close(ring);
}

/* --- wake-ups: "7. poll / wake-up rule" --- */

TEST(only_a_sleeper_at_this_very_record_is_woken)
{
	struct relay_ring *ring = make_ring(4096, 0);
	uint32_t seq = relay_ring_arm(ring);
	char *a, *b;

	/* default output at cons_pos; nobody sleeps any more */
	CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	CHECK_EQ(output_letters(ring, 'a', 8, RELAY_RING_FORCE_WAKEUP), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	/* consumer not advanced */
	seq = relay_ring_arm(ring);
	CHECK_EQ(output_letters(ring, 'b', 8, 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq);
	CHECK_LETTERS(ring, "aab");
	/* NO_WAKEUP, NO_WAKEUP then default, NO_WAKEUP then FORCE */
	CHECK_EQ(output_letters(ring, 'c', 8, RELAY_RING_NO_WAKEUP), 0);
	CHECK_EQ(output_letters(ring, 'd', 8, 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq);
	CHECK_EQ(output_letters(ring, 'e', 8, RELAY_RING_FORCE_WAKEUP), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	CHECK_LETTERS(ring, "cde");
	/* reserve A, B; commit B, A: one event; a discard counts, too */
	seq = relay_ring_arm(ring);
	a = reserve_letters(ring, 'a', 8);
	b = reserve_letters(ring, 'b', 8);
	CHECK_EQ(relay_ring_commit(b, 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq);
	CHECK_EQ(relay_ring_discard(a, 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	CHECK_LETTERS(ring, "b");
	relay_ring_close(ring);
}

/* Says when a sleeper sleeps, so that the producer comes afterwards. */
static void *sleep_for_record(void *ring)
{
	return (void *)(intptr_t)relay_ring_wait((struct relay_ring *const *)&ring, 1, 60000);
}

static void wait_until_armed(struct relay_ring *ring)
{
	const struct relay_ring_producer *producer;

	producer = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, relay_ring_fd(ring), PAGE);
	CHECK(producer != MAP_FAILED);
	while (!(__atomic_load_n(&producer->flags, __ATOMIC_ACQUIRE) & RELAY_ARM_RECORD))
		sched_yield();
	munmap((void *)producer, PAGE);
}

static void check_woken(struct relay_ring *ring, int (*act)(struct relay_ring *))
{
	pthread_t thread;
	void *result;

	CHECK_EQ(pthread_create(&thread, NULL, sleep_for_record, ring), 0);
	wait_until_armed(ring);
	CHECK_EQ(act(ring), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK_EQ((intptr_t)result, 1);
}

static int act_output(struct relay_ring *ring)
{
	return output_letters(ring, 'a', 5, 0);
}

static int act_reserved(struct relay_ring *ring)
{
	char *a = reserve_letters(ring, 'a', 5);
	int err = output_letters(ring, 'b', 5, 0);

	return err ? err : relay_ring_commit(a, 0);
}

static int act_close(struct relay_ring *ring)
{
	return relay_ring_stop(ring, RELAY_CLOSED, 1);
}

TEST(a_sleeper_is_woken_by_record_commit_and_close)
{
	struct relay_ring *ring = make_ring(4096, 0);

	check_woken(ring, act_output);
	CHECK_LETTERS(ring, "a");
	check_woken(ring, act_reserved);
	CHECK_LETTERS(ring, "ab");
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 1), 0);
	CHECK_EQ(relay_ring_wait(&ring, 0, 1), -EINVAL);
	check_woken(ring, act_close);
	relay_ring_close(ring);
}

static int act_discard(struct relay_ring *ring)
{
	return relay_ring_discard(reserve_letters(ring, 'd', 5), 0);
}

TEST(a_discard_wakes_as_a_commit_does)
{
	struct relay_ring *ring = make_ring(4096, 0);
	uint32_t seq;

	check_woken(ring, act_discard);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DISCARDED);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_state(ring), 0);
	seq = relay_ring_arm(ring);
	CHECK_EQ(act_discard(ring), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	seq = relay_ring_arm(ring);
	CHECK_EQ(relay_ring_discard(reserve_letters(ring, 'd', 5), 0), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq);
	CHECK_EQ(relay_ring_discard(reserve_letters(ring, 'd', 5), RELAY_RING_FORCE_WAKEUP), 0);
	CHECK_EQ(relay_ring_wake_seq(ring), seq + 1);
	relay_ring_close(ring);
}

TEST(a_ring_full_of_discards_is_drained_by_who_waits)
{
	struct relay_ring *ring = make_ring(4096, 0);
	char *held, *d;

	while ((d = relay_ring_reserve(ring, 8, 0)) != NULL)
		CHECK_EQ(relay_ring_discard(d, 0), 0);
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 1);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 0);
	/* what stands behind a reservation is neither given nor skipped */
	held = reserve_letters(ring, 'h', 5);
	CHECK_EQ(act_discard(ring), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 0);
	CHECK_EQ(relay_ring_state(ring), 0);
	CHECK_EQ(relay_ring_commit(held, 0), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 1);
	CHECK_LETTERS(ring, "h");
	CHECK_EQ(ring_stats(ring).skipped_records, 256);
	relay_ring_close(ring);
}

TEST(who_skips_for_a_consumer_gives_no_record_away)
{
	struct relay_ring *ring = make_ring(4096, 0);

	CHECK_EQ(act_discard(ring), 0);
	CHECK_EQ(output_letters(ring, 'a', 0, 0), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DISCARDED | RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_skip(ring), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_skip(ring), 0);
	CHECK_LETTERS(ring, ".");
	CHECK_EQ(ring_stats(ring).skipped_records, 1);
	relay_ring_close(ring);
}

static void do_nothing(int signal)
{
	(void)signal;
}

TEST(a_signal_ends_a_wait)
{
	struct relay_ring *ring = make_ring(4096, 0);
	struct sigaction action = {.sa_handler = do_nothing};
	pthread_t thread;
	void *result;

	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, sleep_for_record, ring), 0);
	wait_until_armed(ring);
	/* Until it has met the thread asleep. */
	while (pthread_tryjoin_np(thread, &result) == EBUSY) {
		pthread_kill(thread, SIGUSR1);
		sched_yield();
	}
	CHECK_EQ((intptr_t)result, -EINTR);
	relay_ring_close(ring);
}

/* --- stopping --- */

TEST(a_disabled_ring_refuses_and_counts)
{
	struct relay_ring *ring = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10);

	CHECK_EQ(relay_ring_stop(ring, RELAY_DISABLED, 1), 0);
	CHECK_EQ(output_letters(ring, 'b', 10, 0), -ECANCELED);
	CHECK_EQ(relay_ring_output(ring, "", 5000, 0), -ECANCELED);
	CHECK(relay_ring_reserve(ring, 1, 0) == NULL && errno == ECANCELED);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_EQ(relay_ring_stop(ring, RELAY_DISABLED, 0), 0);
	CHECK_EQ(output_letters(ring, 'c', 10, 0), 0);
	CHECK_LETTERS(ring, "ac");
	CHECK_EQ(ring_stats(ring).lost_disabled_records, 3);
	CHECK_EQ(ring_stats(ring).records, 2);
	CHECK_EQ(relay_ring_stop(ring, RELAY_ARM_RECORD, 1), -EINVAL);
	relay_ring_close(ring);
}

TEST(a_closed_ring_gives_what_it_has)
{
	struct relay_ring *ring = make_ring(4096, 0);
	const void *data;
	size_t length;
	char *b;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	b = reserve_letters(ring, 'b', 10);
	CHECK_EQ(relay_ring_stop(ring, RELAY_CLOSED, 1), 0);
	CHECK_EQ(output_letters(ring, 'c', 10, 0), -EPIPE);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA | RELAY_IS_CLOSED);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	relay_ring_release(ring);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 0);
	CHECK_EQ(relay_ring_commit(b, 0), 0);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	relay_ring_release(ring);
	CHECK_EQ(relay_ring_next(ring, &data, &length), -EPIPE);
	CHECK_EQ(relay_ring_state(ring), RELAY_IS_CLOSED);
	relay_ring_close(ring);
}

/* --- overwriting --- */

TEST(in_overwrite_mode_the_oldest_give_way)
{
	struct relay_ring *ring = make_ring(4096, RELAY_OVERWRITE);
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
	CHECK_EQ(ring_stats(ring).lost_overwritten_records, 745);
	CHECK_EQ(ring_stats(ring).read_records, 255);
	CHECK_EQ(ring_stats(ring).lost_full_records, 0);
	relay_ring_close(ring);
}

/* bpf_ringbuf_query() and the words of the producer's page, of BPF_F_RB_OVERWRITE. */
TEST(the_overwrite_position_lies_where_the_kernel_has_it)
{
	struct relay_ring *ring = make_ring(4096, RELAY_OVERWRITE), *other = make_ring(4096, 0);
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
	relay_ring_close(ring);
	relay_ring_close(other);
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
	struct relay_ring *ring = make_ring(SIZE, RELAY_OVERWRITE);
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
	relay_ring_close(ring);
}

TEST(what_was_discarded_is_not_missed)
{
	struct relay_ring *ring = make_ring(4096, RELAY_OVERWRITE);
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
	relay_ring_close(ring);
}

TEST(a_reservation_is_never_overwritten)
{
	struct relay_ring *ring = make_ring(4096, RELAY_OVERWRITE);
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
	relay_ring_close(ring);
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
	struct relay_ring *ring = open_ring(path);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), 4096);

	reserve_and_die(path, 'a', 100, 0);
	CHECK_EQ(kernel_header(&k, 0)[0], 100 | RELAY_RING_BUSY);
	CHECK_EQ(output_letters(ring, 'c', 1, 0), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 1);
	CHECK_EQ(kernel_header(&k, 0)[0], 100 | RELAY_RING_DISCARD);
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	CHECK_LETTERS(ring, "bc");
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	CHECK_EQ(ring_stats(ring).skipped_records, 1);
	CHECK_EQ(ring_stats(ring).read_records, 2);
	/* In scheme lockless its other record took a claim, too. */
	CHECK_EQ(relay_ring_resolve(ring, 0), scheme == RELAY_LOCKLESS);
	CHECK_EQ(relay_ring_resolve(ring, 0), 0);
	relay_ring_close(ring);
}

TEST(a_reservation_is_resolved_by_the_servers_token)
{
	const char *path = make_ring_file(4096, 0);
	struct relay_ring *ring = open_ring(path), *mine = open_ring(path);

	relay_ring_set_token(mine, 7);
	CHECK(relay_ring_reserve(mine, 10, 0) != NULL);
	CHECK_EQ(output_letters(ring, 'b', 10, 0), 0);
	CHECK_EQ(relay_ring_resolve(ring, 8), 0);
	CHECK_LETTERS(ring, "");
	CHECK_EQ(relay_ring_resolve(ring, 7), 1);
	CHECK_LETTERS(ring, "b");
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	relay_ring_close(ring);
	relay_ring_close(mine);
}

TEST(overwriting_passes_the_reservation_of_the_dead)
{
	const char *path = make_ring_file(4096, RELAY_OVERWRITE);
	struct relay_ring *ring = open_ring(path);
	char data[16];
	uint64_t missed;
	int i;

	reserve_and_die(path, 'a', 8, 0);
	for (i = 0; i < 1000; i++)
		CHECK_EQ(output_letters(ring, 'x', 8, 0), 0);
	CHECK_EQ(ring_stats(ring).torn_records, 1);
	CHECK_EQ(relay_ring_read(ring, data, sizeof(data), &missed), 8);
	CHECK_EQ(missed, 746); /* what the dead one committed is among them */
	relay_ring_close(ring);
}

TEST(a_dead_consumers_lock_is_taken_over)
{
	const char *path = make_ring_file(4096, 0);
	struct relay_ring *ring = open_ring(path);
	const void *data;
	size_t length;
	int status;
	pid_t pid;

	CHECK_EQ(output_letters(ring, 'a', 10, 0), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK_EQ(relay_ring_next(open_ring(path), &data, &length), 1);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_LETTERS(ring, "a");
	relay_ring_close(ring);
}

TEST(after_fork_both_produce)
{
	struct relay_ring *ring = make_ring(65536, 0);
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
	relay_ring_close(ring);
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

static struct relay_ring *rings[1024];

static unsigned open_all_rings(void)
{
	char path[4096];
	struct relay_ring_spec spec = a_ring_spec(4096, 0);
	unsigned i;

	snprintf(path, sizeof(path), "%s/all", scratch);
	CHECK(spec.n_rings <= 1024);
	CHECK_EQ(relay_ring_create(path, &spec), 0);
	for (i = 0; i < spec.n_rings; i++) {
		snprintf(path, sizeof(path), "%s/all/mem%u", scratch, i);
		rings[i] = open_ring(path);
	}
	return spec.n_rings;
}

TEST(each_cpu_has_its_ring)
{
	unsigned n = open_all_rings(), i, here = n == 1 ? 0 : home_cpu;

	if (n == 1)
		CHECK_EQ(sched_setaffinity(0, sizeof(cpu_set_t), &(cpu_set_t){{1}}), 0);
	CHECK_EQ(relay_ring_output_here(rings, n, "a", 1, 0), 0);
	CHECK_EQ(relay_ring_commit(memset(relay_ring_reserve_here(rings, n, 1, 0), 'b', 1), 0), 0);
	if (n > 1)
		CHECK_EQ(relay_ring_output_here(rings, here, "c", 1, 0), -EINVAL);
	/* Those of other CPUs are written from there. */
	for (i = 0; i < n; i++)
		CHECK_EQ(relay_ring_output(rings[i], "d", 1, 0), 0);
	for (i = 0; i < n; i++)
		CHECK_LETTERS(rings[i], i == here ? "abd" : "d");
	CHECK_EQ(relay_ring_wait(rings, n, 0), 0);
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
	CHECK_EQ(relay_ring_output_here(NULL, 1, "a", 1, 0), -EBADF);
	CHECK_EQ(relay_rings_output(NULL, "a", 1, 0), -EBADF);
	errno = 0;
	CHECK(!relay_ring_reserve(NULL, 1, 0) && errno == EBADF);
	errno = 0;
	CHECK(!relay_ring_reserve_here(NULL, 1, 1, 0) && errno == EBADF);
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
	struct relay_ring *ring = make_ring(SIZE, RELAY_NO_OVERWRITE);
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
	CHECK_EQ(ring_stats(ring).lost_full_records, 0);
	CHECK_EQ(ring_stats(ring).lost_too_large_records, 2 * 16 + 2);
	relay_ring_close(ring);
}

TEST(what_a_consumer_of_the_kernels_format_passed_is_told_in_bytes)
{
	struct relay_ring *ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
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
	CHECK_EQ(ring_stats(ring).foreign_bytes, 32);
	CHECK_EQ(ring_stats(ring).consumer_position, 32);
	/* Others go on from there, and it is not forgotten. */
	CHECK_LETTERS(ring, "cd");
	CHECK_EQ(ring_stats(ring).foreign_bytes, 32);
	CHECK_EQ(ring_stats(ring).read_records, 2);
	CHECK_EQ(ring_stats(ring).consumer_position, 64);
	relay_ring_close(ring);
}

TEST(an_overwritten_ring_of_a_consumer_of_the_kernels_format_shows_its_position)
{
	struct relay_ring *ring = make_ring(PAGE, RELAY_OVERWRITE);
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), PAGE);

	for (int i = 0; i < 10; i++)
		CHECK_EQ(output_letters(ring, 'a', 8, 0), 0);
	__atomic_store_n(k.consumer, 80, __ATOMIC_RELEASE);
	CHECK_EQ(ring_stats(ring).consumer_position, 80);
	CHECK_EQ(ring_stats(ring).foreign_bytes, 80);
	for (int i = 0; i < PAGE / 8; i++)
		CHECK_EQ(output_letters(ring, 'b', 8, 0), 0);
	CHECK_EQ(ring_stats(ring).lost_overwritten_records, 0);
	CHECK(ring_stats(ring).consumer_position > 80);
	relay_ring_close(ring);
}

TEST(a_producer_that_will_try_again_has_lost_nothing)
{
	struct relay_ring *ring = make_ring(PAGE, RELAY_NO_OVERWRITE);
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
	relay_ring_close(ring);
}
