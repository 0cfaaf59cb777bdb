/* SPDX-License-Identifier: MIT */
/* One buffer, one thread: what each operation does to data and counts. test_model.c runs them at random. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <relayfs/relay.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

SCHEMES(rseq, lockless, locking);

TEST(a_new_buffer_is_empty)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);
	struct relay_stats f = stats_of(buf);

	CHECK_DRAINS(buf, "");
	CHECK_EQ(relay_buf_state(buf), 0);
	CHECK_FIELDS(f, (subbuf_size, 256), (n_subbufs, 4), (mode, RELAY_NO_OVERWRITE), (scheme, scheme),
	             (cpu, home_cpu), (n_buffers, relay_n_possible_cpus()));
	CHECK_EQ(f.file_bytes, relay_buf_file_bytes(256, 4));
	CHECK_EQ(f.produced | f.consumed | f.offset | f.records | f.bytes | f.padding | f.unread_bytes, 0);
	CHECK_EQ(f.read_records | f.read_bytes | f.reads | f.wakeups, 0);
}

TEST(records_come_out_as_they_went_in)
{
	AUTOPTR(rchan_buf) buf = make_buf(256, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(relay_buf_write(buf, "one ", 4), 0);
	CHECK_EQ(relay_buf_write(buf, "two", 3), 0);
	CHECK_EQ(relay_buf_state(buf), RELAY_HAS_DATA);
	CHECK_STATS(buf, (records, 2), (bytes, 7), (unread_bytes, 7), (offset, 7));
	CHECK_DRAINS(buf, "one two");
	CHECK_STATS(buf, (read_records, 2), (read_bytes, 7), (unread_bytes, 0), (reads, 1));
	CHECK_EQ(relay_buf_state(buf), 0);
}

/*
 * As in the kernel, the switch from a full sub-buffer comes with the next write. Where there is no other
 * sub-buffer, that write finds the one that the reader still stands in.
 */
static void leave_single_subbuf(struct rchan_buf *buf, uint64_t n_subbufs)
{
	if (n_subbufs > 1)
		return;
	CHECK_EQ(write_letters(buf, '!', 1), -ENOSPC);
	CHECK_DRAINS(buf, "");
}

TEST(every_geometry_from_one_byte_up_works)
{
	static const uint64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 17, 100, 255, 1000, 4095, 4097, 65537};
	static const uint64_t counts[] = {1, 2, 3, 5, 8, 17};
	char *out = malloc(1 << 21);
	unsigned i, j, k;

	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (j = 0; j < sizeof(counts) / sizeof(*counts); j++) {
			AUTOPTR(rchan_buf) buf = make_buf(sizes[i], counts[j], RELAY_NO_OVERWRITE);

			/* Three laps and a bit. */
			for (k = 0; k < 3 * counts[j] + 1; k++) {
				CHECK_EQ(write_letters(buf, (char)('A' + k % 26), sizes[i]), 0);
				CHECK_EQ(consume_into(buf, out, 1 << 21), sizes[i]);
				CHECK_EQ(out[0], 'A' + k % 26);
				CHECK_EQ(memcmp(out, out + 1, sizes[i] - 1), 0);
				leave_single_subbuf(buf, counts[j]);
			}
		}
	}
	free(out);
}

TEST(memory_is_what_the_geometry_says)
{
	struct relay_spec spec = a_spec(1000, 9, RELAY_NO_OVERWRITE);
	const char *path = make_channel(&spec);
	AUTOPTR(rchan_buf) buf = relay_buf_open(path);
	struct stat st;

	CHECK(buf != NULL);
	CHECK_EQ(stat(path, &st), 0);
	CHECK_EQ((uint64_t)st.st_size, relay_buf_file_bytes(1000, 9));
	CHECK((uint64_t)st.st_blocks * 512 >= 9000);
	CHECK_EQ(st.st_mode & 07777, 0600);
	CHECK_EQ(write_letters(buf, 'x', 10), 0);
	{
		char begin[10];

		CHECK_EQ(pread(relay_buf_fd(buf), begin, 10, 0), 10);
		CHECK_EQ(memcmp(begin, "xxxxxxxxxx", 10), 0);
	}
}

TEST(nonsense_geometry_is_refused)
{
	static const uint64_t wrong[][2] = {{0, 1},
	                                    {1, 0},
	                                    {RELAY_SUBBUF_SIZE_MAX + 1, 1},
	                                    {1, RELAY_N_SUBBUFS_MAX + 1},
	                                    {RELAY_SUBBUF_SIZE_MAX, RELAY_N_SUBBUFS_MAX},
	                                    {~0ull, ~0ull},
	                                    {1ull << 32, 1ull << 32},
	                                    {3, 0x5555555555555556ull}};
	char path[4096];
	struct stat st;
	unsigned i;

	snprintf(path, sizeof(path), "%s/nonsense", scratch);
	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct relay_spec spec = a_spec(wrong[i][0], wrong[i][1], RELAY_NO_OVERWRITE);

		CHECK_EQ(relay_buf_file_bytes(wrong[i][0], wrong[i][1]), 0);
		CHECK_EQ(relay_store_create(path, &spec), -EINVAL);
		CHECK(stat(path, &st) != 0 && errno == ENOENT);
	}
}

TEST(more_than_the_memory_is_enospc_and_leaves_nothing)
{
	struct relay_spec spec = a_spec(RELAY_SUBBUF_SIZE_MAX, 200, RELAY_NO_OVERWRITE);
	char path[4096];
	struct stat st;

	snprintf(path, sizeof(path), "%s/huge", scratch);
	CHECK_EQ(relay_store_create(path, &spec), -ENOSPC);
	CHECK(stat(path, &st) != 0 && errno == ENOENT);
}

TEST(a_channel_is_not_made_twice)
{
	struct relay_spec spec = a_spec(64, 2, RELAY_NO_OVERWRITE);
	char path[4096];

	snprintf(path, sizeof(path), "%s/once", scratch);
	CHECK_EQ(relay_store_create(path, &spec), 0);
	CHECK_EQ(relay_store_create(path, &spec), -EEXIST);
}

TEST(rseq_needs_per_cpu_buffers)
{
	struct relay_spec spec = a_spec(64, 2, RELAY_NO_OVERWRITE);
	char path[4096];

	snprintf(path, sizeof(path), "%s/global", scratch);
	spec.scheme = RELAY_RSEQ;
	spec.buffers = RELAY_GLOBAL;
	spec.n_buffers = 1;
	CHECK_EQ(relay_store_create(path, &spec), -EINVAL);
	CHECK_EQ(relay_scheme_default(RELAY_GLOBAL), RELAY_LOCKLESS);
	CHECK_EQ(relay_scheme_default(RELAY_SINGLE), RELAY_LOCKLESS);
}

TEST(an_exact_fit_leaves_no_padding)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 4), 0);
	CHECK_EQ(write_letters(buf, 'b', 6), 0);
	/* Full, but nobody has switched from it yet. */
	CHECK_STATS(buf, (produced, 0), (offset, 10));
	CHECK_EQ(write_letters(buf, 'c', 1), 0);
	CHECK_STATS(buf, (produced, 1), (offset, 1), (padding, 0));
	CHECK_EQ(relay_buf_state(buf), RELAY_HAS_DATA | RELAY_HAS_FINISHED);
	CHECK_DRAINS(buf, "aaaabbbbbbc");
}

TEST(padding_is_counted_and_left_out)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 7), 0);
	CHECK_EQ(write_letters(buf, 'b', 4), 0);
	CHECK_EQ(write_letters(buf, 'c', 9), 0);
	CHECK_STATS(buf, (produced, 2), (padding, 3 + 6), (bytes, 20), (unread_bytes, 20));
	CHECK_DRAINS(buf, "aaaaaaabbbbccccccccc");
	CHECK_STATS(buf, (read_records, 3), (consumed, 2));
}

TEST(a_full_buffer_refuses_and_keeps_what_it_has)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 3, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "abc", 10), 0);
	CHECK_EQ(write_letters(buf, 'd', 3), -ENOSPC);
	CHECK_EQ(write_letters(buf, 'e', 10), -ENOSPC);
	CHECK_STATS(buf, (lost_full_records, 2), (lost_full_bytes, 13), (records, 3), (bytes, 30), (unread_bytes, 30));
	CHECK_DRAINS(buf, "aaaaaaaaaabbbbbbbbbbcccccccccc");
	CHECK_EQ(write_letters(buf, 'f', 10), 0);
	CHECK_DRAINS(buf, "ffffffffff");
}

TEST(reading_one_sub_buffer_makes_room_for_one)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 3, RELAY_NO_OVERWRITE);
	char out[16];

	CHECK_EQ(write_each(buf, "abc", 4), 0);
	CHECK_EQ(write_letters(buf, 'd', 4), -ENOSPC);
	CHECK_EQ(consume_into(buf, out, 4), 4);
	CHECK_EQ(write_letters(buf, 'd', 4), 0);
	CHECK_EQ(write_letters(buf, 'e', 4), -ENOSPC);
	CHECK_DRAINS(buf, "bbbbccccdddd");
}

TEST(one_sub_buffer_alone_is_a_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(8, 1, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 8), 0);
	CHECK_EQ(write_letters(buf, 'b', 1), -ENOSPC);
	CHECK_DRAINS(buf, "aaaaaaaa");
	CHECK_EQ(write_letters(buf, 'c', 5), 0);
	CHECK_EQ(write_letters(buf, 'd', 5), -ENOSPC);
	CHECK_DRAINS(buf, "ccccc");
	CHECK_EQ(write_letters(buf, 'e', 5), 0);
	CHECK_DRAINS(buf, "eeeee");
}

TEST(a_record_larger_than_a_sub_buffer_is_refused_and_counted)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 2, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'x', 11), -EMSGSIZE);
	CHECK_EQ(relay_buf_write(buf, "never looked at", (size_t)-1), -EMSGSIZE);
	CHECK_STATS(buf, (lost_too_large_records, 2), (records, 0));
	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
}

TEST(a_record_of_no_length_is_no_record)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 2, RELAY_NO_OVERWRITE);

	CHECK_EQ(relay_buf_write(buf, "", 0), 0);
	CHECK_EQ(relay_buf_write(buf, NULL, 0), 0);
	CHECK_EQ(stats_of(buf).records, 0);
	CHECK_DRAINS(buf, "");
}

TEST(flush_finishes_the_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_EQ(relay_buf_state(buf), RELAY_HAS_DATA);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(relay_buf_state(buf), RELAY_HAS_DATA | RELAY_HAS_FINISHED);
	CHECK_STATS(buf, (produced, 1), (padding, 7));
	CHECK_EQ(write_letters(buf, 'b', 3), 0);
	CHECK_DRAINS(buf, "aaabbb");
}

TEST(flush_of_an_empty_sub_buffer_switches_too)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_STATS(buf, (produced, 2), (padding, 20), (unread_bytes, 0));
	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_DRAINS(buf, "aaa");
	CHECK_EQ(stats_of(buf).consumed, 2);
}

TEST(flush_of_a_full_buffer_loses_nothing)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 2, RELAY_NO_OVERWRITE);
	int i;

	CHECK_EQ(write_each(buf, "ab", 4), 0);
	for (i = 0; i < 5; i++)
		CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_STATS(buf, (produced, 2), (lost_full_records, 0));
	CHECK_EQ(write_letters(buf, 'c', 1), -ENOSPC);
	CHECK_DRAINS(buf, "aaaabbbb");
	CHECK_EQ(write_letters(buf, 'd', 4), 0);
	CHECK_DRAINS(buf, "dddd");
}

TEST(flush_after_full_and_room_again_begins_the_next_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 2, RELAY_NO_OVERWRITE);
	int by_flush;

	for (by_flush = 0; by_flush <= 1; by_flush++) {
		CHECK_EQ(write_letters(buf, 'a', 64), 0);
		CHECK_EQ(write_letters(buf, 'b', 57), 0);
		if (by_flush)
			CHECK_EQ(relay_buf_flush(buf), 0);
		else
			CHECK_EQ(write_letters(buf, 'c', 57), -ENOSPC);
		CHECK_EQ(relay_buf_subbufs_consumed(buf, 1), 0);
		CHECK_EQ(relay_buf_flush(buf), 0);
		CHECK_EQ(stats_of(buf).produced, 2);
		CHECK_EQ(write_letters(buf, 'd', 57), 0);
		CHECK_EQ(relay_buf_flush(buf), 0);
		CHECK_STATS(buf, (produced, 3), (padding, 14), (lost_full_records, !by_flush));
		CHECK_EQ(relay_buf_reset(buf), 0);
	}
}

/* Two sub-buffers of four bytes, and a record that was refused for want of a third. */
static struct rchan_buf *make_full(void)
{
	struct rchan_buf *buf = make_buf(4, 2, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "ab", 4), 0);
	CHECK_EQ(write_letters(buf, 'c', 4), -ENOSPC);
	return buf;
}

TEST(a_record_of_no_length_begins_nothing)
{
	AUTOPTR(rchan_buf) buf = make_full();

	CHECK_EQ(relay_buf_write(buf, "", 0), 0);
	CHECK_EQ(stats_of(buf).lost_full_records, 1);
	CHECK_DRAINS(buf, "aaaabbbb");
	CHECK_EQ(relay_buf_write(buf, "", 0), 0);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 2);
}

TEST(a_second_flush_after_full_finishes_an_empty_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_full();

	CHECK_DRAINS(buf, "aaaabbbb");
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 2);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_STATS(buf, (produced, 3), (padding, 4));
}

TEST(a_reset_forgets_that_the_buffer_was_full)
{
	AUTOPTR(rchan_buf) buf = make_full();

	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_EQ(write_letters(buf, 'd', 4), 0);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_DRAINS(buf, "dddd");
	CHECK_EQ(relay_buf_flush(buf), 0);
	/* The third sub-buffer, which waited for room before the reset, had room when it was entered now. */
	CHECK_EQ(stats_of(buf).produced, 2);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 3);
}

TEST(reset_is_the_initial_state)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 2, RELAY_NO_OVERWRITE);
	struct relay_stats f;
	int i;

	for (i = 0; i < 5; i++)
		write_letters(buf, 'a', 8);
	CHECK_EQ(write_letters(buf, 'x', 11), -EMSGSIZE);
	CHECK_EQ(relay_buf_reset(buf), 0);
	f = stats_of(buf);
	CHECK_EQ(f.produced | f.consumed | f.offset | f.records | f.bytes | f.padding | f.unread_bytes, 0);
	CHECK_EQ(f.read_records | f.read_bytes | f.reads, 0);
	CHECK_EQ(f.lost_full_records | f.lost_full_bytes | f.lost_too_large_records | f.lost_too_large_bytes, 0);
	CHECK_DRAINS(buf, "");
	CHECK_EQ(write_each(buf, "bc", 8), 0);
	CHECK_EQ(write_letters(buf, 'd', 8), -ENOSPC);
	CHECK_DRAINS(buf, "bbbbbbbbcccccccc");
}

TEST(a_disabled_buffer_refuses_and_counts)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_EQ(stats_of(buf).disabled, 1);
	CHECK_EQ(write_letters(buf, 'b', 5), -ECANCELED);
	CHECK_STATS(buf, (lost_disabled_records, 1), (lost_disabled_bytes, 5));
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 0), 0);
	CHECK_EQ(write_letters(buf, 'c', 3), 0);
	CHECK_DRAINS(buf, "aaaccc");
	CHECK_EQ(stats_of(buf).disabled, 0);
}

TEST(a_closed_buffer_is_read_to_its_end)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 3), 0);
	CHECK_EQ(relay_buf_stop(buf, RELAY_CLOSED, 1), 0);
	CHECK_EQ(write_letters(buf, 'b', 5), -EPIPE);
	CHECK_EQ(stats_of(buf).closed, 1);
	CHECK(relay_buf_state(buf) & RELAY_IS_CLOSED);
	CHECK(relay_buf_state(buf) & RELAY_HAS_DATA);
	CHECK_DRAINS(buf, "aaa");
	CHECK_EQ(relay_buf_state(buf), RELAY_IS_CLOSED);
}

static void *write_when_armed(void *argument)
{
	struct rchan_buf *buf = argument;
	struct relay_control control;
	off_t at = (off_t)stats_of(buf).file_bytes - RELAY_PAGE_BYTES;
	time_t deadline = time(NULL) + 20;

	/* The reader says in the flags that it sleeps. */
	do {
		CHECK_EQ(pread(relay_buf_fd(buf), &control, sizeof(control), at), sizeof(control));
		CHECK(time(NULL) < deadline);
	} while (!(control.flags & RELAY_ARMED));
	CHECK_EQ(write_letters(buf, 'w', 5), 0);
	return NULL;
}

/* A producer on a mapping of its own wakes the reader, once per arming. */
TEST(an_armed_reader_is_woken)
{
	AUTOPTR(rchan_buf) reader = make_buf(10, 4, RELAY_NO_OVERWRITE), *writer = open_again(reader);
	pthread_t thread;
	uint32_t seq;

	CHECK_EQ(pthread_create(&thread, NULL, write_when_armed, writer), 0);
	CHECK_EQ(relay_buf_arm(reader, RELAY_ARM_RECORD, &seq), 0);
	while (!(relay_buf_state(reader) & RELAY_HAS_DATA))
		CHECK_EQ(relay_buf_wait_any(&reader, &seq, 1, NULL, 0, 20000), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(relay_buf_wake_seq(reader) - seq, 1);
	CHECK_EQ(write_letters(writer, 'x', 5), 0);
	CHECK_EQ(stats_of(reader).wakeups, 1);
	CHECK_DRAINS(reader, "wwwwwxxxxx");
}

TEST(an_arm_for_switches_ignores_records)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	uint32_t seq;

	CHECK_EQ(relay_buf_arm(buf, RELAY_ARM_SWITCH, &seq), 0);
	CHECK_EQ(write_letters(buf, 'a', 9), 0);
	CHECK_EQ(relay_buf_wake_seq(buf), seq);
	CHECK_EQ(write_letters(buf, 'b', 9), 0);
	CHECK_EQ(relay_buf_wake_seq(buf), seq + 1);
}

/* As relay_open() returns it when it fails. */
TEST(calls_without_a_channel_do_nothing)
{
	const size_t length = 4;
	char bytes[4] = "abc";

	CHECK_EQ(relay_write(NULL, bytes, length), -EBADF);
	CHECK_EQ(__relay_write(NULL, bytes, length), -EBADF);
	CHECK_EQ(relay_write(NULL, NULL, 0), -EBADF);
	CHECK_EQ(relay_write_batch(NULL, bytes, &length, 1), -EBADF);
	CHECK_EQ(relay_write_batch(NULL, NULL, NULL, 0), 0);
	errno = 0;
	CHECK(!relay_reserve(NULL, length) && errno == EBADF);
	relay_commit(NULL, bytes);
	relay_discard(NULL, NULL);
	CHECK_EQ(relay_flush(NULL), -EBADF);
	CHECK_EQ(relay_reset(NULL), -EBADF);
	CHECK_EQ(relay_subbufs_consumed(NULL, 0, 1), -EBADF);
	CHECK_EQ(relay_late_setup_files(NULL, "late", NULL), -EINVAL);
	CHECK(!relay_private(NULL));
	relay_close(NULL);
}
