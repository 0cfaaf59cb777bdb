/* SPDX-License-Identifier: MIT */
/* Writers of channels of 2003 that are killed in each callback, between reserve and commit, and with the lock. And: no
 * writer starves. */
#define _GNU_SOURCE
#include "classic_writers.h"

#include <pthread.h>

SCHEMES(lockless, locking);

/* --- in a callback --- */

/* It is dead, and its parent has not looked after it yet: first comes the next write. */
static void let_die(struct death of, void (*work)(void), void (*next)(void))
{
	siginfo_t status;
	pid_t pid = fork_child();

	if (pid == 0) {
		death = of;
		work();
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitid(P_PID, (id_t)pid, &status, WEXITED | WNOWAIT), 0);
	CHECK_EQ(status.si_code, CLD_KILLED);
	note_killed();
	next();
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

static void write_one_large(void)
{
	write_large();
}

enum { TIMES = 5, MOST_TIMES = 50 };

static void kill_in_callback(enum death_place where, enum moment last, int full, void (*prepare)(void),
                             void (*next)(void))
{
	struct death of = {.where = where};
	int i;

	open_channel(full);
	for (of.when = BEFORE; of.when <= last; of.when++) {
		/* The clock on the wall is the machine's: one of several deaths at the same place has to do. */
		for (i = 0; i < TIMES || (fastest_ns >= GOES_ON_NS && i < MOST_TIMES); i++) {
			prepare();
			let_die(of, write_one_large, next);
		}
		CHECK(fastest_ns < GOES_ON_NS);
		fastest_ns = UINT64_MAX;
	}
	check_account();
	CHECK_EQ(stats_of(channel.buf).lost_torn_records, 0); /* nothing was reserved yet */
	close_channel();
}

TEST(who_is_killed_in_buffer_start_is_replaced)
{
	kill_in_callback(IN_START, AFTER, 1, fill_one, go_on);
}

TEST(who_is_killed_in_buffer_start_over_unread_data_is_replaced)
{
	kill_in_callback(IN_START, AFTER, 0, fill_all, go_on);
}

TEST(who_is_killed_in_buffer_end_is_replaced)
{
	kill_in_callback(IN_END, AFTER, 1, fill_one, go_on);
}

TEST(who_is_killed_in_deliver_is_replaced)
{
	kill_in_callback(IN_DELIVER, AMID, 1, fill_one, go_on);
}

TEST(who_is_killed_in_buffers_full_is_replaced)
{
	kill_in_callback(IN_FULL, BEFORE, 1, fill_all, go_on_after_resume);
}

/* --- with a reservation, or the lock --- */

static void lock_and_reserve(void)
{
	lock();
	memset(reserve_large(NULL), '#', SMALL);
}

static void kill_with(void (*work)(void), bool torn)
{
	int i;

	open_channel(1);
	for (i = 0; i < TIMES; i++) {
		fill_one();
		let_die((struct death){NOWHERE, BEFORE}, work, go_on);
		CHECK_EQ(stats_of(channel.buf).lost_torn_records, torn ? i + 1 : 0);
	}
	check_account();
	close_channel();
}

TEST(a_dead_holder_loses_the_lock)
{
	kill_with(lock, false);
}

TEST(a_dead_writer_s_reservation_is_torn)
{
	kill_with(lock_and_reserve, true);
}

/* --- fairness --- */

enum { N_WRITERS = 4, SHARE = 2000, UNFAIR = 500, RACE_SECONDS = 60 };

static struct race {
	time_t deadline;
	unsigned long written[N_WRITERS];
} * race;

static bool all_have_their_share(void)
{
	unsigned i;

	for (i = 0; i < N_WRITERS; i++)
		if (__atomic_load_n(&race->written[i], __ATOMIC_RELAXED) < SHARE)
			return false;
	return true;
}

/* Nobody lets up before the slowest has had his share. */
static void *run(void *argument)
{
	unsigned long *written = argument;
	char data[16] = "a fair share";

	while (!all_have_their_share() && time(NULL) < race->deadline)
		if (relay_classic_write(channel.id, data, sizeof(data), 0) == sizeof(data))
			__atomic_add_fetch(written, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void allow_all_cpus(void)
{
	cpu_set_t all;

	memset(&all, 0xff, sizeof(all));
	CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* Two threads and two processes: when the slowest has written 2000 records, the four have not written more than 500
 * times four such shares. */
TEST(no_classic_writer_starves)
{
	pthread_t thread;
	pid_t children[2];
	unsigned long sum = 0;
	unsigned i;

	open_channel(0);
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(race != MAP_FAILED);
	race->deadline = time(NULL) + RACE_SECONDS;
	allow_all_cpus();
	for (i = 0; i < 2; i++) {
		children[i] = fork_child();
		if (children[i] == 0) {
			run(&race->written[i]);
			_exit(0);
		}
	}
	CHECK_EQ(pthread_create(&thread, NULL, run, &race->written[2]), 0);
	run(&race->written[3]);
	pthread_join(thread, NULL);
	for (i = 0; i < 2; i++)
		CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
	for (i = 0; i < N_WRITERS; i++)
		sum += race->written[i];
	CHECK_EQ(stats_of(channel.buf).records, sum);
	CHECK(all_have_their_share());
	CHECK(sum <= (unsigned long)N_WRITERS * SHARE * UNFAIR);
	CHECK_EQ(relay_classic_close(channel.id), 0);
	relay_buf_release(channel.buf);
}
