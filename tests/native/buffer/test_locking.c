/* SPDX-License-Identifier: MIT */
/* Scheme locking: one writer at a time, and what becomes of the lock when it dies. */
#define _GNU_SOURCE
#include "half_written.h"

#include <pthread.h>

SCHEMES(locking);

TEST(a_killed_writer_loses_the_lock_and_its_record)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer;

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	writer = start_writer(path, 'x', 20, 0, 1);
	CHECK_EQ(write_letters(buf, 'b', 10), -EBUSY); /* it lives: nobody else may write */
	CHECK_EQ(relay_buf_flush(buf), -EBUSY);
	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 10), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaacccccccccc");
	CHECK_EQ(stats_of(buf).lost_torn_records, 1);
	CHECK_EQ(stats_of(buf).lost_torn_bytes, 20);
	CHECK_EQ(stats_of(buf).records, 3);
	relay_buf_release(buf);
}

TEST(a_flush_takes_the_lock_from_the_dead)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_writer(path, 'x', 20, 0, 1);

	kill_writer(&writer);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 1);
	CHECK_DRAINS(buf, "");
	CHECK_EQ(stats_of(buf).lost_torn_records, 1);
	CHECK_EQ(stats_of(buf).unread_bytes, 0);
	relay_buf_release(buf);
}

TEST(a_stopped_writer_goes_on_where_it_was)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_writer(path, 'x', 20, 0, 1);
	void *to;

	CHECK_EQ(relay_buf_reserve(buf, 10, &to), -EBUSY);
	CHECK_EQ(stats_of(buf).lost_full_records, 0); /* not lost: who gets EBUSY comes again */
	continue_writer(&writer);
	CHECK_EQ(relay_buf_reserve(buf, 10, &to), 0);
	memcpy(to, "rrrrrrrrrr", 10);
	relay_buf_commit(buf, to);
	CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxrrrrrrrrrr");
	CHECK_EQ(stats_of(buf).lost_torn_records, 0);
	relay_buf_release(buf);
}

TEST(a_disabled_buffer_refuses_the_writer_that_was_in_it)
{
	const char *path = new_path(100, 4, RELAY_NO_OVERWRITE);
	struct rchan_buf *buf = open_path(path);
	struct writer writer = start_writer(path, 'x', 20, 0, 1);

	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_EQ(write(writer.go, "g", 1), 1);
	CHECK_EQ(WEXITSTATUS(end_writer(&writer)), 1);
	CHECK_EQ(stats_of(buf).lost_disabled_records, 1);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 0), 0);
	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_DRAINS(buf, "aaa");
	relay_buf_release(buf);
}

/* --- fairness --- */

enum { N_WRITERS = 4, SHARE = 2000, RACE_SECONDS = 60 };

static struct {
	struct rchan_buf *buf;
	time_t deadline;
	unsigned long written[N_WRITERS];
} race;

static bool all_have_their_share(void)
{
	for (unsigned i = 0; i < N_WRITERS; i++)
		if (__atomic_load_n(&race.written[i], __ATOMIC_RELAXED) < SHARE)
			return false;
	return true;
}

/* Nobody lets up before the slowest has had his share. */
static void *write_records(void *argument)
{
	unsigned long *written = argument;

	while (!all_have_their_share() && time(NULL) < race.deadline) {
		int err = write_letters(race.buf, 'w', 16);
		CHECK(err == 0 || err == -EBUSY);
		if (!err)
			__atomic_add_fetch(written, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

TEST(no_writer_starves)
{
	pthread_t threads[N_WRITERS];
	unsigned long sum = 0;

	race.buf = make_buf(4096, 2, RELAY_OVERWRITE);
	race.deadline = time(NULL) + RACE_SECONDS;
	for (unsigned i = 0; i < N_WRITERS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, write_records, &race.written[i]), 0);
	for (unsigned i = 0; i < N_WRITERS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (unsigned i = 0; i < N_WRITERS; i++)
		sum += race.written[i];
	CHECK_EQ(stats_of(race.buf).records, sum);
	CHECK(all_have_their_share());
	relay_buf_release(race.buf);
}
