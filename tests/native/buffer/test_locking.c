/* SPDX-License-Identifier: MIT */
/* Scheme locking: one writer at a time, and what becomes of the lock when it dies. */
#define _GNU_SOURCE
#include "half_written.h"
#include "stepping.h"

#include <pthread.h>

SCHEMES(locking);

TEST(a_killed_writer_loses_the_lock_and_its_record)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);
	CHECK_EQ(write_letters(buf, 'b', 10), -EBUSY); /* it lives: nobody else may write */
	CHECK_EQ(relay_buf_flush(buf), -EBUSY);
	kill_writer(&writer);
	CHECK_EQ(write_letters(buf, 'c', 10), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaacccccccccc");
	CHECK_STATS(buf, (lost_torn_records, 1), (lost_torn_bytes, 20), (records, 3));
}

TEST(a_flush_takes_the_lock_from_the_dead)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);

	kill_writer(&writer);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 1);
	CHECK_DRAINS(buf, "");
	CHECK_STATS(buf, (lost_torn_records, 1), (unread_bytes, 0));
}

TEST(a_stopped_writer_goes_on_where_it_was)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);
	void *to;

	CHECK_EQ(relay_buf_reserve(buf, 10, &to), -EBUSY);
	CHECK_EQ(stats_of(buf).lost_full_records, 0); /* not lost: who gets EBUSY comes again */
	continue_writer(&writer);
	CHECK_EQ(relay_buf_reserve(buf, 10, &to), 0);
	memcpy(to, "rrrrrrrrrr", 10);
	relay_buf_commit(buf, to);
	CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxrrrrrrrrrr");
	CHECK_EQ(stats_of(buf).lost_torn_records, 0);
}

/* It has reserved its record already. */
TEST(a_buffer_that_is_disabled_keeps_the_record_of_the_writer_that_is_in_it)
{
	AUTOPTR(rchan_buf) buf = make_buf(100, 4, RELAY_NO_OVERWRITE);
	struct writer writer = start_writer(buf, 'x', 20, 0, 1);

	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	continue_writer(&writer);
	CHECK_EQ(write_letters(buf, 'a', 3), -ECANCELED);
	CHECK_EQ(stats_of(buf).lost_disabled_records, 1);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 0), 0);
	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_DRAINS(buf, "xxxxxxxxxxxxxxxxxxxxaaa");
}

/* Nobody else may flush it, so that the writer finishes the sub-buffer under its own lock. */
TEST(a_writer_that_gets_no_claim_finishes_the_sub_buffer_under_its_lock)
{
	AUTOPTR(rchan_buf) buf = make_buf(8192, 3, RELAY_NO_OVERWRITE);

	die_with_all_reservations(buf, 20);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(write_letters(buf, 'a', 10), -ENOSPC);
	CHECK_STATS(buf, (lost_full_records, 4), (produced, 1));
	CHECK_DRAINS(buf, "");
	CHECK_EQ(stats_of(buf).lost_torn_records, RELAY_N_RESERVATIONS);
	CHECK_EQ(write_letters(buf, 'b', 10), 0);
	CHECK_DRAINS(buf, "bbbbbbbbbb");
}

/* --- SIGKILL at every instruction --- */

enum { LENGTH = 20 };

static struct rchan_buf *stepped;

static void stop_around_write(void)
{
	write_letters(stepped, 'p', LENGTH); /* what the linker and the kernel do once is not stepped through */
	raise(SIGSTOP);
	write_letters(stepped, 'c', LENGTH);
	raise(SIGSTOP);
}

/* Kill a writer behind the n-th instruction that changes the buffer's file: whoever comes later finds the same if it dies
 * at one of those between. false: the write ended before. */
static bool kill_behind_change(unsigned n)
{
	size_t bytes = (size_t)stats_of(stepped).file_bytes;
	void *now = mmap(NULL, bytes, PROT_READ, MAP_SHARED, relay_buf_fd(stepped), 0), *seen = malloc(bytes);
	pid_t pid = start_stepped(stop_around_write);
	bool inside = true;

	CHECK(now != MAP_FAILED && seen != NULL);
	memcpy(seen, now, bytes);
	while (n > 0 && (inside = resume(pid, PTRACE_SINGLESTEP))) {
		if (memcmp(seen, now, bytes) == 0)
			continue;
		n--;
		memcpy(seen, now, bytes);
	}
	kill_child(pid);
	munmap(now, bytes);
	free(seen);
	return inside;
}

/* Kill a writer there. What it leaves is met by a reader first, or by the next writer. Returns whether its record is torn. */
static bool write_killed(unsigned n, bool *inside)
{
	struct relay_stats before = stats_of(stepped), now;
	char text[4 * LENGTH + 1] = "";

	*inside = kill_behind_change(n);
	if (n % 2)
		strcpy(text, drain(stepped));
	CHECK_EQ(write_letters(stepped, 'n', LENGTH), 0);
	strcat(text, drain(stepped));
	now = stats_of(stepped);
	uint64_t torn = now.lost_torn_records - before.lost_torn_records;
	if (strlen(text) == 2 * LENGTH)
		CHECK_TEXT(text, "ppppppppppppppppppppnnnnnnnnnnnnnnnnnnnn");
	else
		CHECK_TEXT(text, "ppppppppppppppppppppccccccccccccccccccccnnnnnnnnnnnnnnnnnnnn");
	CHECK(*inside || strlen(text) == 3 * LENGTH);
	CHECK_EQ(now.records - before.records, strlen(text) / LENGTH + torn);
	CHECK_EQ(now.lost_torn_bytes - before.lost_torn_bytes, torn * LENGTH);
	CHECK_EQ(now.unread_bytes + now.lost_full_records, 0);
	return torn;
}

static void kill_writers_everywhere(uint64_t subbuf_size)
{
	unsigned n_torn = 0;
	bool inside = true;

	stepped = make_buf(subbuf_size, 4, RELAY_NO_OVERWRITE);
	for (unsigned n = 0; inside; n++)
		n_torn += write_killed(n, &inside);
	CHECK(n_torn > 1);
	relay_buf_release(stepped);
}

TEST(a_writer_that_is_killed_at_any_instruction_loses_at_most_its_record)
{
	kill_writers_everywhere(1000);
}

TEST(a_writer_that_is_killed_while_it_switches_loses_at_most_its_record)
{
	kill_writers_everywhere(LENGTH);
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
