/* SPDX-License-Identifier: MIT */
/* Opening channels of 2003: flags, sizes, paths and ids; and how long they live. */
#define _GNU_SOURCE
#include "classic_channel.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Its tests name their schemes. */
SCHEMES(lockless);

enum { USUAL = RELAY_SCHEME_LOCKLESS | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK };

static const uint32_t schemes[] = {RELAY_SCHEME_LOCKLESS, RELAY_SCHEME_LOCKING, RELAY_SCHEME_ANY};
static const uint32_t usages[] = {RELAY_USAGE_SMP, RELAY_USAGE_GLOBAL};
static const uint32_t deliveries[] = {RELAY_DELIVERY_BULK, RELAY_DELIVERY_PACKET};
static const uint32_t timestamps[] = {0, RELAY_TIMESTAMP_TSC};

static struct relay_stats stats_at(const char *path)
{
	AUTOPTR(rchan_buf) buf = memory_of(path);

	CHECK(buf != NULL);
	return stats_of(buf);
}

TEST(each_combination_of_flags_makes_a_channel_of_one_buffer)
{
	for (unsigned i = 0; i < 24; i++) {
		uint32_t asked = schemes[i / 8], delivery = deliveries[i / 2 % 2], timestamp = timestamps[i % 2];
		uint32_t usage = usages[i / 4 % 2], got = asked == RELAY_SCHEME_ANY ? RELAY_SCHEME_LOCKLESS : asked;
		AUTO_ID id = open_path("/xlog/9", 4096, 2, asked | usage | delivery | timestamp, &noting);
		CHECK(id >= 0);
		CHECK_EQ(info_of(id).flags,
		         got | usage | delivery | (relay_clock_is_available(RELAY_TSC) ? timestamp : 0));
		struct relay_stats stats = stats_at("/xlog/9");
		CHECK_EQ(stats.scheme, got == RELAY_SCHEME_LOCKING ? RELAY_LOCKING : RELAY_LOCKLESS);
		CHECK_EQ(stats.buffers, RELAY_SINGLE);
		CHECK_EQ(stats.delivery, delivery == RELAY_DELIVERY_PACKET ? RELAY_PACKET : RELAY_BULK);
		CHECK_EQ(stats.read, RELAY_READ_WAIT);
		CHECK_EQ(stats.timestamp, timestamp && relay_clock_is_available(RELAY_TSC) ? RELAY_TSC : RELAY_MONO);
		CHECK_EQ(stats.mode, RELAY_CALLBACK);
		CHECK_EQ(write_n(id, 'a', 100), 100);
		CHECK_EQ(stats_at("/xlog/9").records, 1);
	}
}

TEST(without_callbacks_it_is_an_overwrite_channel)
{
	AUTO_ID id = open_path("/log/1", 4096, 2, USUAL, NULL);

	CHECK_EQ(stats_at("/log/1").mode, RELAY_OVERWRITE);
}

TEST(without_a_usage_it_is_global)
{
	AUTO_ID id = open_path("/log/1", 4096, 2, RELAY_SCHEME_LOCKING | RELAY_DELIVERY_BULK, &noting);

	CHECK(id >= 0);
	CHECK(!(info_of(id).flags & RELAY_USAGE_SMP));
}

TEST(flags_that_contradict_each_other_are_refused)
{
	CHECK_EQ(open_path("/log/1", 4096, 2, RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK, &noting), -EINVAL);
	CHECK_EQ(open_path("/log/1", 4096, 2, RELAY_SCHEME_ANY | RELAY_USAGE_GLOBAL, &noting), -EINVAL);
	CHECK_EQ(open_path("/log/1", 4096, 2, USUAL | RELAY_USAGE_SMP, &noting), -EINVAL);
	CHECK_EQ(open_path("/log/1", 4096, 2, USUAL | RELAY_DELIVERY_PACKET, &noting), -EINVAL);
	CHECK_EQ(open_path("/log/1", 4096, 2, USUAL | 0x80, &noting), -EINVAL);
	CHECK_CALLS("");
	CHECK(memory_of("/log/1") == NULL);
}

static int try_sizes(uint32_t asked, uint32_t size, uint32_t n)
{
	int id = open_path("/log/1", size, n, asked | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK, &noting);

	if (id < 0)
		return id;
	struct rchan_info info = info_of(id);
	CHECK_EQ(info.buf_size, size);
	CHECK_EQ(write_n(id, 'a', 1), 1);
	CHECK_EQ(relay_close(id), 0);
	return (int)(info.flags & RELAY_SCHEME_ANY) << 16 | (int)info.n_bufs;
}

TEST(the_lockless_scheme_wants_powers_of_two)
{
	enum { GOT = RELAY_SCHEME_LOCKLESS << 16 };

	for (uint32_t n = 1; n <= RELAY_MAX_BUFS; n *= 2)
		CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 64, n), GOT | (int)n);
	for (uint32_t size = 1; size <= 1 << 20; size *= 4)
		CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, size, 2), GOT | 2);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 63, 2), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 4097, 2), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 64, 3), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 64, RELAY_MAX_BUFS + 1), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 64, 2 * RELAY_MAX_BUFS), -EINVAL);
}

TEST(the_locking_scheme_has_two_sub_buffers_of_any_size)
{
	enum { GOT = RELAY_SCHEME_LOCKING << 16 };
	static const uint32_t sizes[] = {1, 3, 63, 64, 1000, 4097, 99999};

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKING, sizes[i], 2), GOT | 2);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKING, 64, 1), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKING, 64, 4), -EINVAL);
}

TEST(any_scheme_falls_back_to_locking_with_two_sub_buffers)
{
	CHECK_EQ(try_sizes(RELAY_SCHEME_ANY, 64, 8), RELAY_SCHEME_LOCKLESS << 16 | 8);
	CHECK_EQ(try_sizes(RELAY_SCHEME_ANY, 63, 8), RELAY_SCHEME_LOCKING << 16 | 2);
	CHECK_EQ(try_sizes(RELAY_SCHEME_ANY, 64, 7), RELAY_SCHEME_LOCKING << 16 | 2);
	CHECK_EQ(try_sizes(RELAY_SCHEME_ANY, 64, 2), RELAY_SCHEME_LOCKLESS << 16 | 2);
}

TEST(nothing_is_no_size)
{
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(try_sizes(schemes[i], 0, 2), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_ANY, 64, 0), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKLESS, 64, 0), -EINVAL);
	CHECK_EQ(try_sizes(RELAY_SCHEME_LOCKING, 64, 0), -EINVAL);
}

static int try_reserves(uint32_t start, uint32_t end, uint32_t channel_start)
{
	use_store();
	int id = relay_open("/log/1", 64, 2, USUAL, &noting, start, end, channel_start);

	if (id < 0)
		return id;
	struct relay_stats stats = stats_at("/log/1");
	CHECK_FIELDS(stats, (start_reserve, start), (end_reserve, end), (channel_start_reserve, channel_start));
	return relay_close(id);
}

TEST(reserves_are_less_than_a_sub_buffer)
{
	CHECK_EQ(try_reserves(0, 0, 0), 0);
	CHECK_EQ(try_reserves(63, 0, 0), 0);
	CHECK_EQ(try_reserves(0, 63, 0), 0);
	CHECK_EQ(try_reserves(0, 0, 63), 0);
	CHECK_EQ(try_reserves(20, 21, 22), 0);
	CHECK_EQ(try_reserves(64, 0, 0), -EINVAL);
	CHECK_EQ(try_reserves(0, 64, 0), -EINVAL);
	CHECK_EQ(try_reserves(0, 0, 64), -EINVAL);
	CHECK_EQ(try_reserves(22, 21, 21), -EINVAL);
	CHECK_EQ(try_reserves(UINT32_MAX, 2, 0), -EINVAL);
}

TEST(paths_are_absolute_and_directories_come_by_themselves)
{
	AUTO_ID id = open_path("/a/b/c", 64, 2, USUAL, &noting);

	CHECK(id >= 0);
	CHECK_EQ(stats_at("/a/b/c").n_subbufs, 2);
	CHECK_EQ(open_path("a/b/d", 64, 2, USUAL, &noting), -EINVAL);
	CHECK_EQ(open_path("", 64, 2, USUAL, &noting), -EINVAL);
	CHECK_EQ(open_path("/", 64, 2, USUAL, &noting), -EINVAL);
	CHECK_EQ(open_path(NULL, 64, 2, USUAL, &noting), -EINVAL);
	CHECK(open_path("/a/b/c/d", 64, 2, USUAL, &noting) < 0); /* a file is no directory */
}

TEST(a_path_that_is_open_is_refused)
{
	int id = open_path("/log/1", 64, 2, USUAL, &noting), other = open_path("/log/2", 64, 2, USUAL, &noting);

	CHECK(id >= 0 && other >= 0 && id != other);
	CHECK_EQ(open_path("/log/1", 64, 2, USUAL, &noting), -EEXIST);
	CHECK_EQ(open_path("/log/1", 4096, 4, USUAL, NULL), -EEXIST);
	CHECK_EQ(write_n(id, 'a', 10), 10); /* and is as it was */
	CHECK_EQ(relay_close(id), 0);
	id = open_path("/log/1", 64, 2, USUAL, &noting);
	CHECK(id >= 0);
	CHECK_EQ(relay_close(id), 0);
	CHECK_EQ(relay_close(other), 0);
}

TEST(channels_do_not_share_what_is_written)
{
	int first = open_path("/log/1", 64, 2, USUAL, &noting), second = open_path("/log/2", 64, 2, USUAL, &noting);

	CHECK_EQ(write_n(first, 'a', 10), 10);
	CHECK_EQ(write_n(second, 'b', 5), 5);
	CHECK_EQ(stats_at("/log/1").bytes, 10);
	CHECK_EQ(stats_at("/log/2").bytes, 5);
	CHECK_EQ(relay_close(first), 0);
	CHECK_EQ(write_n(second, 'c', 6), 6);
	CHECK_EQ(relay_close(second), 0);
}

TEST(ids_that_are_no_channels_are_told)
{
	static const int wrong[] = {-1, 0, 1, 1023, 1024, 12345678, -12345678};
	struct rchan_info info;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		CHECK_EQ(write_n(wrong[i], 'a', 1), -EBADF);
		CHECK_EQ(relay_info(wrong[i], &info), -EBADF);
		CHECK_EQ(relay_close(wrong[i]), -EBADF);
		CHECK(rchan_get(wrong[i]) == NULL);
		relay_buffers_consumed(wrong[i], 1);
		relay_resume(wrong[i]);
	}
}

TEST(a_closed_id_is_none)
{
	struct rchan_info info;
	int id = open_path("/log/1", 64, 2, USUAL, &noting);

	CHECK_EQ(relay_close(id), 0);
	CHECK_EQ(write_n(id, 'a', 1), -EBADF);
	CHECK_EQ(relay_info(id, &info), -EBADF);
	CHECK_EQ(relay_close(id), -EBADF);
	CHECK(rchan_get(id) == NULL);
}

TEST(a_closed_id_is_not_that_of_the_next_channel)
{
	int old = open_path("/log/1", 64, 2, USUAL, &noting);

	CHECK_EQ(relay_close(old), 0);
	AUTO_ID id = open_path("/log/1", 64, 2, USUAL, &noting);
	CHECK(id >= 0 && id != old);
	CHECK_EQ(write_n(old, 'a', 1), -EBADF);
	CHECK(rchan_get(old) == NULL);
	CHECK_EQ(relay_close(old), -EBADF);
	CHECK_EQ(write_n(id, 'a', 1), 1);
}

TEST(many_channels_can_be_open)
{
	enum { MOST = 1024 };
	static int ids[MOST];
	struct rlimit files = {4 * MOST, 4 * MOST};
	char path[32];

	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
	for (int i = 0; i < MOST; i++) {
		snprintf(path, sizeof(path), "/many/%d", i);
		ids[i] = open_path(path, 1, 1, USUAL, NULL);
		CHECK_EQ(ids[i] < 0 ? ids[i] : 0, 0);
	}
	CHECK_EQ(open_path("/many/more", 1, 1, USUAL, NULL), -EMFILE);
	CHECK(memory_of("/many/more") == NULL);
	for (int i = 1; i < MOST; i++)
		CHECK_EQ(relay_close(ids[i]), 0);
	int again = open_path("/many/more", 1, 1, USUAL, NULL);
	CHECK(again >= 0);
	CHECK_EQ(write_n(ids[0], 'a', 1), 1);
	CHECK_EQ(relay_close(again), 0);
	CHECK_EQ(relay_close(ids[0]), 0);
}

TEST(time_deltas_must_fit_into_the_record)
{
	char record[16] = "0123456789abcde";
	AUTO_ID id = open_path("/log/1", 64, 2, USUAL, &noting);

	CHECK_EQ(relay_write(id, record, 16, 8), 16);
	CHECK_EQ(relay_write(id, record, 16, 9), -EINVAL);
	CHECK_EQ(relay_write(id, record, 16, INT32_MAX), -EINVAL);
	CHECK_EQ(relay_write(id, record, 7, 0), -EINVAL);
	CHECK_EQ(relay_write(id, record, 0, 0), -EINVAL);
	CHECK_EQ(relay_write(id, record, 16, -1), 16);
	CHECK_EQ(relay_write(id, record, 16, INT32_MIN), 16);
	CHECK_EQ(stats_at("/log/1").records, 3);
	CHECK_EQ(info_of(id).events_lost, 0);
}

TEST(a_disabled_channel_refuses_and_counts)
{
	AUTO_ID id = open_path("/log/1", 64, 2, USUAL, &noting);
	AUTOPTR(rchan_buf) buf = memory_of("/log/1");

	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_EQ(write_n(id, 'a', 10), -ECANCELED);
	CHECK_EQ(stats_of(buf).lost_disabled_records, 1);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 0), 0);
	CHECK_EQ(write_n(id, 'a', 10), 10);
}

/* --- references --- */

TEST(who_has_got_a_channel_keeps_it_beyond_relay_close)
{
	int err, id = open_path("/log/1", 64, 2, USUAL, &noting);
	struct rchan *rchan = rchan_get(id);

	CHECK(rchan != NULL);
	CHECK_EQ(relay_lock_channel(rchan), 0);
	char *reserved = relay_reserve(rchan, 8, NULL, NULL, &err);
	CHECK(reserved != NULL);
	CHECK_EQ(err, 0);
	relay_unlock_channel(rchan);
	CHECK_EQ(relay_close(id), 0);
	memcpy(reserved, "it lives", 8); /* the memory is there */
	relay_commit(rchan, reserved, 8);
	CHECK(relay_reserve(rchan, 8, NULL, NULL, &err) == NULL);
	CHECK_EQ(err, -EPIPE);
	CHECK(rchan_get(id) == NULL);
	rchan_put(rchan);
}

TEST(what_is_reserved_when_the_channel_is_closed_is_delivered_with_its_commit)
{
	int id = open_path("/log/1", 64, 2, USUAL, &noting);
	struct rchan *rchan = rchan_get(id);

	char *reserved = relay_reserve(rchan, 8, NULL, NULL, NULL);
	CHECK(reserved != NULL);
	CHECK_EQ(relay_close(id), 0);
	CHECK_CALLS("se");
	memcpy(reserved, "deliver!", 8);
	relay_commit(rchan, reserved, 8);
	CHECK_CALLS("d");
	CHECK_FIELDS(*last('d'), (at, reserved), (length, 8));
	rchan_put(rchan);
}

TEST(references_are_counted)
{
	int id = open_path("/log/1", 64, 2, USUAL, &noting);
	struct rchan *first = rchan_get(id), *second = rchan_get(id);

	CHECK(first != NULL && second != NULL);
	rchan_put(first);
	char *reserved = relay_reserve(second, 8, NULL, NULL, NULL);
	CHECK(reserved != NULL);
	memset(reserved, 'r', 8);
	relay_commit(second, reserved, 8);
	CHECK_EQ(relay_close(id), 0);
	CHECK_EQ(reserved[7], 'r');
	rchan_put(second);
}

/* --- fork --- */

TEST(a_child_uses_the_channel_and_its_end_closes_nothing)
{
	int status, id = open_path("/log/1", 64, 2, USUAL, &noting);

	CHECK_EQ(write_n(id, 'p', 10), 10);
	pid_t child = fork();
	if (child == 0) {
		struct rchan *rchan = rchan_get(id);
		char *reserved = relay_reserve(rchan, 5, NULL, NULL, NULL);
		CHECK(reserved != NULL);
		memset(reserved, 'r', 5);
		relay_commit(rchan, reserved, 5);
		CHECK_EQ(write_n(id, 'c', 10), 10);
		CHECK_EQ(info_of(id).cur_idx, 25);
		_exit(0); /* a leak check could wait for a lock of a thread that is not there */
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(write_n(id, 'p', 5), 5);
	CHECK_READS("pppppppppprrrrrccccccccccppppp");
	CHECK_EQ(relay_close(id), 0);
}

TEST(a_killed_makers_channel_stays)
{
	int pipes[2];
	char byte;

	use_store();
	CHECK_EQ(pipe(pipes), 0);
	pid_t child = fork();
	if (child == 0) {
		int id = open_path("/log/1", 64, 2, USUAL, &noting);
		CHECK_EQ(write_n(id, 'c', 10), 10);
		CHECK_EQ(write(pipes[1], "k", 1), 1);
		pause();
	}
	CHECK_EQ(read(pipes[0], &byte, 1), 1);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_READS("cccccccccc");
	CHECK_EQ(open_path("/log/1", 64, 2, USUAL, &noting), -EEXIST);
}
