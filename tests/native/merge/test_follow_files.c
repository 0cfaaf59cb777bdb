/* SPDX-License-Identifier: MIT */
/* Files that grow: each event is given out once, whenever and in whatever order what is appended arrives. */
#define _GNU_SOURCE
#include "packets.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

LIBRARY(static);

enum { ROOM = 1 << 20, LOOKS_MAX = 64 };

/* A file as the recorder's: its packets, and an empty one as far as its end. */
struct growing {
	char path[4096];
	uint64_t at, number;
};

static struct growing begin_file(const char *name, uint64_t number)
{
	struct growing file = {.number = number};
	snprintf(file.path, sizeof(file.path), "%s/%s", scratch, name);
	return file;
}

static void put_at(const struct growing *file, uint64_t at, const void *data, size_t length)
{
	int fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, data, length, (off_t)at), length);
	CHECK_EQ(ftruncate(fd, ROOM), 0);
	close(fd);
}

static void put_room(const struct growing *file, uint64_t at, uint64_t end)
{
	struct relay_packet room = {.magic = RELAY_PACKET_MAGIC,
	                            .packet_seq_num = file->number,
	                            .content_size = 8 * sizeof(room),
	                            .packet_size = 8 * (end - at)};
	put_at(file, at, &room, sizeof(room));
}

/* Append a packet as the recorder does. */
static void grow(struct growing *file, struct made *made)
{
	const uint64_t end = file->at + sizeof(made->head) + made->length;
	made->head.packet_seq_num = file->number++;
	put_at(file, file->at + sizeof(made->head), made->events, made->length);
	put_room(file, end, ROOM);
	put_at(file, file->at, &made->head, sizeof(made->head));
	file->at = end;
	free(made);
}

/* Complete a file that others have open. */
static void complete(struct growing *file)
{
	struct growing copy = *file;
	static char bytes[ROOM];
	int fd = open(file->path, O_RDONLY | O_CLOEXEC);
	CHECK_EQ(pread(fd, bytes, file->at, 0), file->at);
	close(fd);
	snprintf(copy.path, sizeof(copy.path), "%s/copy", scratch);
	put_at(&copy, 0, bytes, file->at);
	put_room(&copy, file->at, file->at + sizeof(struct relay_packet));
	CHECK_EQ(truncate(copy.path, (off_t)(file->at + sizeof(struct relay_packet))), 0);
	CHECK_EQ(rename(copy.path, file->path), 0);
}

static void follow(struct relay_merge *merge, uint32_t cpu, const struct growing *file)
{
	CHECK_EQ(relay_merge_follow_files(merge, 0, cpu, (const char *[]){file->path}, 1), 0);
}

TEST(what_is_appended_is_given_out_once)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0), b = begin_file("cpu1", 0);

	put_room(&a, 0, ROOM);
	follow(merge, 0, &a);
	follow(merge, 1, &b); /* it does not exist yet */
	CHECK_TEXT(given_times(merge), "");
	CHECK_EQ(relay_merge_look_at_files(merge), 0);
	grow(&a, packet_of(0, 0, TIMES(10, 20)));
	CHECK_EQ(relay_merge_look_at_files(merge), 20);
	CHECK_TEXT(given_times(merge), "a10 a20");
	CHECK_EQ(relay_merge_look_at_files(merge), 20);
	CHECK_TEXT(given_times(merge), "");
	grow(&a, packet_of(0, 2, TIMES(30)));
	grow(&a, packet_of(0, 3, TIMES(50)));
	grow(&b, packet_of(1, 0, TIMES(15, 40)));
	CHECK_EQ(relay_merge_look_at_files(merge), 50);
	CHECK_TEXT(given_times(merge), "b15 a30 b40 a50");
	CHECK_FIELDS(stats(merge), (events, 6), (late, 1), (damaged, 0), (error, 0));
	relay_merge_finish(merge, 0);
	CHECK_TEXT(given_times(merge), "");
	CHECK(relay_merge_is_ended(merge));
}

TEST(a_clock_that_is_ahead_does_not_decide_what_is_given_out)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const struct relay_merge_process process = a_process(one_u32());
	struct growing a = begin_file("cpu0", 0), b = begin_file("cpu1", 0);

	CHECK_EQ(relay_merge_add_process(merge, &process), 1);
	relay_merge_limit(merge, 5);
	grow(&a, packet_of(0, 0, TIMES(10, 30)));
	grow(&b, packet_of(0, 0, TIMES(1020, 1040)));
	follow(merge, 0, &a);
	CHECK_EQ(relay_merge_follow_files(merge, 1, 1, (const char *[]){b.path}, 1), 0);
	CHECK_EQ(relay_merge_look_at_files(merge), 0); /* the merge opens them at its next turn */
	CHECK_TEXT(given_times(merge), "");
	CHECK_EQ(relay_merge_look_at_files(merge), 1040);
	CHECK_EQ(relay_merge_latest(merge, 0), 30);
	CHECK_EQ(relay_merge_latest(merge, 1), 1040);
	CHECK_EQ(relay_merge_set_ahead(merge, 1, 1000), 0);
	CHECK_EQ(relay_merge_look_at_files(merge), 40);
	CHECK_TEXT(given_times(merge), "");
	relay_merge_limit(merge, 25);
	CHECK_TEXT(given_times(merge), "a10 b1020");
	relay_merge_limit(merge, 40);
	CHECK_TEXT(given_times(merge), "a30 b1040");
	CHECK_FIELDS(stats(merge), (events, 4), (late, 0), (time, 40));
	CHECK_EQ(relay_merge_set_ahead(merge, 2, 1), -EINVAL);
	CHECK_EQ(relay_merge_latest(merge, 2), 0);
}

/* Have the merge, and the test, find a file at another path. */
static void move(struct relay_merge *merge, struct growing *file, const char *name)
{
	const struct growing moved = begin_file(name, file->number);
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, file->path, moved.path), 0);
	memcpy(file->path, moved.path, sizeof(file->path));
}

TEST(a_directory_that_is_renamed_is_followed_under_its_new_name)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	char old[4096], new[4096];
	snprintf(old, sizeof(old), "%s/old", scratch);
	snprintf(new, sizeof(new), "%s/new", scratch);
	CHECK_EQ(mkdir(old, 0700), 0);
	struct growing a = begin_file("old/cpu0", 0), next = begin_file("old/cpu0_1", 2);

	grow(&a, packet_of(0, 0, TIMES(10)));
	grow(&next, packet_of(0, 0, TIMES(30)));
	follow(merge, 0, &a);
	follow(merge, 0, &next);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(rename(old, new), 0);
	/* Until it is known where they are, none was removed. */
	CHECK_EQ(relay_merge_look_at_files(merge), 10);
	CHECK_TEXT(given_times(merge), "");
	move(merge, &a, "new/cpu0");
	move(merge, &next, "new/cpu0_1");
	grow(&a, packet_of(0, 0, TIMES(20)));
	complete(&a);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a20 a30");
}

TEST(another_file_with_the_path_of_one_that_was_read_to_its_end_is_not_read)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0);

	grow(&a, packet_of(0, 0, TIMES(10)));
	complete(&a);
	follow(merge, 0, &a);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK(!relay_merge_needs_file(merge, 0, 0, a.path));
	CHECK_EQ(unlink(a.path), 0);
	a.at += sizeof(struct relay_packet);
	grow(&a, packet_of(0, 0, TIMES(20)));
	CHECK_EQ(relay_merge_look_at_files(merge), 10);
	CHECK_TEXT(given_times(merge), "");
}

TEST(a_stream_of_files_that_do_not_grow_is_not_continued)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0);
	const char *const paths[] = {a.path};

	grow(&a, packet_of(0, 0, TIMES(10)));
	CHECK_EQ(relay_merge_add_files(merge, 0, 0, paths, 1), 0);
	CHECK_EQ(relay_merge_follow_files(merge, 0, 0, paths, 1), -EINVAL);
	CHECK_TEXT(given_times(merge), "a10");
}

TEST(a_limit_holds_events_back_and_later_packets_are_seen_meanwhile)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0), b = begin_file("cpu1", 0);

	relay_merge_limit(merge, 25);
	grow(&a, packet_of(0, 0, TIMES(10, 30)));
	grow(&a, packet_of(0, 2, TIMES(60)));
	put_room(&b, 0, ROOM);
	follow(merge, 0, &a);
	follow(merge, 1, &b);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(relay_merge_look_at_files(merge), 60);
	grow(&b, packet_of(1, 0, TIMES(20, 40)));
	CHECK_EQ(relay_merge_look_at_files(merge), 60);
	CHECK_TEXT(given_times(merge), "b20");
	relay_merge_limit(merge, 60);
	CHECK_TEXT(given_times(merge), "a30 b40 a60");
	CHECK_EQ(stats(merge).late, 0);
}

TEST(a_clock_may_be_ahead_before_there_is_a_stream)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	CHECK_EQ(relay_merge_set_ahead(merge, 0, 10), 0);
	CHECK_TEXT(given_times(merge), "");
}

TEST(the_packet_that_the_merge_is_reading_counts_as_seen)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0);

	relay_merge_limit(merge, 25);
	grow(&a, packet_of(0, 0, TIMES(10, 30)));
	follow(merge, 0, &a);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(relay_merge_look_at_files(merge), 30);
	relay_merge_limit(merge, 30);
	CHECK_TEXT(given_times(merge), "a30");
}

TEST(a_file_that_is_completed_as_a_copy_is_followed_by_the_next_one)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing first = begin_file("cpu0", 0), second = begin_file("cpu0_1", 7);

	grow(&first, packet_of(0, 0, TIMES(10)));
	follow(merge, 0, &first);
	CHECK_TEXT(given_times(merge), "a10");
	grow(&first, packet_of(0, 1, TIMES(20)));
	complete(&first);
	grow(&second, packet_of(0, 2, TIMES(30)));
	follow(merge, 0, &second);
	CHECK_EQ(relay_merge_look_at_files(merge), 20);
	CHECK_TEXT(given_times(merge), "a20 a30");
	grow(&second, packet_of(0, 3, TIMES(40)));
	CHECK_EQ(relay_merge_look_at_files(merge), 40);
	CHECK_TEXT(given_times(merge), "a40");
}

/* As its recorder does while it completes a file that nobody else has open. */
static int lease(const struct growing *file)
{
	int fd = open(file->path, O_RDWR | O_CLOEXEC);
	signal(SIGIO, SIG_IGN);
	CHECK_EQ(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
	return fd;
}

TEST(a_file_is_read_when_its_recorder_has_completed_it)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0);

	grow(&a, packet_of(0, 0, TIMES(10, 20)));
	int leased = lease(&a);
	follow(merge, 0, &a);
	CHECK_TEXT(given_times(merge), "");
	CHECK_EQ(relay_merge_look_at_files(merge), 0);
	CHECK_TEXT(given_times(merge), "");
	close(leased);
	CHECK_EQ(relay_merge_look_at_files(merge), 20);
	CHECK_TEXT(given_times(merge), "a10 a20");
	CHECK_EQ(stats(merge).error, 0);
}

static void *close_soon(void *fd)
{
	nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	close((int)(intptr_t)fd);
	return NULL;
}

TEST(a_file_that_is_not_followed_is_waited_for)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing a = begin_file("cpu0", 0), b = begin_file("cpu1", 0);
	const char *const paths[] = {a.path};
	pthread_t thread;

	grow(&a, packet_of(0, 0, TIMES(10, 20)));
	grow(&b, packet_of(1, 0, TIMES(15)));
	CHECK_EQ(relay_merge_add_files(merge, 0, 0, paths, 1), 0);
	follow(merge, 1, &b);
	pthread_create(&thread, NULL, close_soon, (void *)(intptr_t)lease(&a));
	CHECK_TEXT(given_times(merge), "a10 b15 a20");
	pthread_join(thread, NULL);
	/* Also when a file that was followed is read to its end. */
	grow(&b, packet_of(1, 1, TIMES(25)));
	pthread_create(&thread, NULL, close_soon, (void *)(intptr_t)lease(&b));
	relay_merge_finish(merge, 0);
	CHECK_TEXT(given_times(merge), "b25");
	pthread_join(thread, NULL);
	CHECK_EQ(stats(merge).error, 0);
}

TEST(the_next_file_waits_for_what_is_missing_in_this_one)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing first = begin_file("cpu0", 0), second = begin_file("cpu0_1", 2);

	grow(&first, packet_of(0, 0, TIMES(10)));
	grow(&second, packet_of(0, 2, TIMES(30)));
	follow(merge, 0, &first);
	follow(merge, 0, &second);
	CHECK_TEXT(given_times(merge), "a10");
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "");
	CHECK_TEXT(relay_merge_unfinished(merge, 0, 0), first.path);
	grow(&first, packet_of(0, 1, TIMES(20)));
	relay_merge_look_at_files(merge);
	CHECK(!relay_merge_unfinished(merge, 0, 0));
	CHECK_TEXT(given_times(merge), "a20 a30");
	CHECK(!relay_merge_unfinished(merge, 0, 0));
	CHECK(!relay_merge_unfinished(merge, 0, 1));
}

TEST(the_next_file_is_read_if_what_is_missing_in_this_one_is_left_out)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing first = begin_file("cpu0", 0), second = begin_file("cpu0_1", 2);

	grow(&first, packet_of(0, 0, TIMES(10)));
	follow(merge, 0, &first);
	CHECK_TEXT(given_times(merge), "a10");
	follow(merge, 0, &second);
	CHECK(!relay_merge_unfinished(merge, 0, 0)); /* it does not exist yet */
	grow(&second, packet_of(0, 2, TIMES(30)));
	CHECK_TEXT(relay_merge_unfinished(merge, 0, 0), first.path);
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, first.path, NULL), 0);
	CHECK(!relay_merge_unfinished(merge, 0, 0));
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a30");
}

TEST(the_next_file_waits_for_no_files_that_were_removed)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing first = begin_file("cpu0", 0), second = begin_file("cpu0_1", 5), third = begin_file("cpu0_2", 9);

	grow(&first, packet_of(0, 0, TIMES(10)));
	grow(&third, packet_of(0, 0, TIMES(30)));
	follow(merge, 0, &first);
	follow(merge, 0, &second);
	follow(merge, 0, &third);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(unlink(first.path), 0);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "");
	CHECK(relay_merge_needs_file(merge, 0, 0, first.path));
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, first.path, NULL), 0);
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, second.path, NULL), 0);
	CHECK(!relay_merge_needs_file(merge, 0, 0, second.path));
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, second.path, NULL), -EINVAL);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a30");
}

TEST(the_rest_of_a_file_that_was_moved_is_given_out)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing first = begin_file("cpu0", 0), second = begin_file("cpu0_1", 2);
	char moved[4096 + 8];

	grow(&first, packet_of(0, 0, TIMES(10)));
	follow(merge, 0, &first);
	follow(merge, 0, &second);
	CHECK_TEXT(given_times(merge), "a10");
	grow(&first, packet_of(0, 1, TIMES(20)));
	complete(&first);
	snprintf(moved, sizeof(moved), "%s.moved", first.path);
	CHECK_EQ(rename(first.path, moved), 0);
	grow(&second, packet_of(0, 5, TIMES(30)));
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "");
	CHECK_EQ(relay_merge_move_file(merge, 0, 0, first.path, moved), 0);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a20 a30");
	CHECK(!relay_merge_needs_file(merge, 0, 0, moved));
	CHECK(relay_merge_needs_file(merge, 0, 0, second.path));
}

TEST(events_wait_for_their_declarations_but_not_for_ever)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}};
	const struct relay_trace_event event = {.provider = "p", .name = "late", .fields = fields, .n_fields = 1};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing file = begin_file("cpu0", 0);
	struct made *made = packet_of(0, 0, TIMES(10));
	const uint32_t n = 1;

	put_event(made, 20, 1, &n, sizeof(n));
	put_event(made, 30, 0, &n, sizeof(n));
	grow(&file, made);
	follow(merge, 0, &file);
	CHECK_TEXT(given_times(merge), "a10");
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "");
	CHECK_EQ(relay_layouts_declare(relay_merge_layouts(merge, 0), 1, &event), 0);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a20 a30");
	made = packet_of(0, 0, TIMES(40));
	put_event(made, 50, 2, &n, sizeof(n));
	grow(&file, made);
	grow(&file, packet_of(0, 0, TIMES(60)));
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a40");
	for (int i = 1; i < LOOKS_MAX; i++) {
		relay_merge_look_at_files(merge);
		CHECK_TEXT(given_times(merge), "");
	}
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "a60");
	CHECK_EQ(stats(merge).damaged, 1);
}

TEST(what_a_recorder_has_not_finished_is_given_out_in_the_end)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing file = begin_file("cpu0", 0);
	struct made *made = packet_of(0, 0, TIMES(10));

	made->head.packet_size = 8 * ROOM;
	put_at(&file, sizeof(made->head), made->events, made->length);
	put_at(&file, 0, &made->head, sizeof(made->head));
	free(made);
	follow(merge, 0, &file);
	relay_merge_look_at_files(merge);
	CHECK_TEXT(given_times(merge), "");
	relay_merge_finish(merge, 0);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK(relay_merge_is_ended(merge));
}

TEST(another_map_of_a_clock_is_that_of_what_is_read_from_then_on)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct growing file = begin_file("cpu0", 0);
	const struct relay_time_knot before[] = {{0, 1000, 1}, {5, 1005, 2}, {6, 1006, 3}}, after = {0, 2000, 4};

	CHECK_EQ(relay_merge_map_clock(merge, 0, before, 3, 0, EVER), 0);
	grow(&file, packet_of(0, 0, TIMES(10)));
	follow(merge, 0, &file);
	CHECK_TEXT(given_times(merge), "a1010");
	CHECK_EQ(relay_merge_map_clock(merge, 0, &after, 1, 0, EVER), 0);
	grow(&file, packet_of(0, 1, TIMES(20)));
	CHECK_EQ(relay_merge_look_at_files(merge), 2020);
	const struct relay_event *event = relay_merge_next(merge);
	CHECK(event != NULL && event->time == 2020 && relay_event_error(event) == 4);
}
