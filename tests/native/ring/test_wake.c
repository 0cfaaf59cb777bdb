/* SPDX-License-Identifier: MIT */
/* One record ring: who is woken, and what stops producers. conformance/ringbuf-observed.txt has the rules. */
#define _GNU_SOURCE
#include "ring_check.h"

#include <pthread.h>
#include <signal.h>

SCHEMES(rseq, lockless);

/* --- wake-ups: "7. poll / wake-up rule" --- */

TEST(only_a_sleeper_at_this_very_record_is_woken)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
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
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);

	check_woken(ring, act_output);
	CHECK_LETTERS(ring, "a");
	check_woken(ring, act_reserved);
	CHECK_LETTERS(ring, "ab");
	CHECK_EQ(relay_ring_wait(&ring, 1, 0), 0);
	CHECK_EQ(relay_ring_wait(&ring, 1, 1), 0);
	CHECK_EQ(relay_ring_wait(&ring, 0, 1), -EINVAL);
	check_woken(ring, act_close);
}

static int act_discard(struct relay_ring *ring)
{
	return relay_ring_discard(reserve_letters(ring, 'd', 5), 0);
}

TEST(a_discard_wakes_as_a_commit_does)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
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
}

TEST(a_ring_full_of_discards_is_drained_by_who_waits)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
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
}

TEST(who_skips_for_a_consumer_gives_no_record_away)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);

	CHECK_EQ(act_discard(ring), 0);
	CHECK_EQ(output_letters(ring, 'a', 0, 0), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DISCARDED | RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_skip(ring), 0);
	CHECK_EQ(relay_ring_state(ring), RELAY_HAS_DATA);
	CHECK_EQ(relay_ring_skip(ring), 0);
	CHECK_LETTERS(ring, ".");
	CHECK_EQ(ring_stats(ring).skipped_records, 1);
}

static void do_nothing(int signal)
{
	(void)signal;
}

TEST(a_signal_ends_a_wait)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
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
}

static int count(void *n, const void *data, size_t length)
{
	(void)data;
	(void)length;
	return ++*(unsigned *)n, 0;
}

enum { N_RECORDS = 20000 };

static void *read_all(void *opened)
{
	struct relay_ring *ring = opened;
	unsigned n = 0;

	while (n < N_RECORDS) {
		CHECK_EQ(relay_ring_wait(&ring, 1, -1), 1);
		CHECK(relay_ring_consume(ring, count, &n, 0) >= 0);
	}
	return NULL;
}

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

TEST(a_producer_of_many_records_wakes_a_sleeper_2000_times_a_second_at_most)
{
	AUTOPTR(relay_ring) ring = make_ring(1 << 20, 0);
	uint32_t before = relay_ring_wake_seq(ring);
	pthread_t thread;
	int64_t start = now_us();
	int i;

	CHECK_EQ(pthread_create(&thread, NULL, read_all, ring), 0);
	for (i = 0; i < N_RECORDS; i++) {
		CHECK_EQ(output_letters(ring, 'a', 5, 0), 0);
		/* The reader finds this record alone, if it has a CPU. */
		sched_yield();
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(relay_ring_wake_seq(ring) - before <= 1 + (now_us() - start) / 500);
}

/* --- stopping --- */

TEST(a_disabled_ring_refuses_and_counts)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
	char *a = reserve_letters(ring, 'a', 10);

	CHECK_EQ(relay_ring_stop(ring, RELAY_DISABLED, 1), 0);
	CHECK_EQ(output_letters(ring, 'b', 10, 0), -ECANCELED);
	CHECK_EQ(relay_ring_output(ring, "", 5000, 0), -ECANCELED);
	CHECK(relay_ring_reserve(ring, 1, 0) == NULL && errno == ECANCELED);
	CHECK_EQ(relay_ring_commit(a, 0), 0);
	CHECK_EQ(relay_ring_stop(ring, RELAY_DISABLED, 0), 0);
	CHECK_EQ(output_letters(ring, 'c', 10, 0), 0);
	CHECK_LETTERS(ring, "ac");
	CHECK_FIELDS(ring_stats(ring), (lost_disabled_records, 3), (records, 2));
	CHECK_EQ(relay_ring_stop(ring, RELAY_ARM_RECORD, 1), -EINVAL);
}

TEST(a_closed_ring_gives_what_it_has)
{
	AUTOPTR(relay_ring) ring = make_ring(4096, 0);
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
}
