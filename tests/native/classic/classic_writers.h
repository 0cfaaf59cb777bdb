/* SPDX-License-Identifier: MIT */
/*
 * A channel of 2003 whose writers are killed: a process opens it, a child makes a call and dies in it; then the process,
 * which has the same callbacks, goes on, and reads all that there is: the marks and records of classic_marks.h, each once
 * and in order, but for the one record of the child.
 *
 *     open_channel(1);
 *     fill_one();               the next write switches
 *     ...                       a child dies
 *     note_killed();
 *     go_on();                  the next write is stored in time
 *     check_account();
 *     close_channel();
 */
#ifndef CLASSIC_WRITERS_H
#define CLASSIC_WRITERS_H

#define RELAYFS_CLASSIC_LONG_NAMES
#include "check.h"

#include <relayfs/classic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "classic_marks.h"

enum {
	N_BUFS_MAX = 4,
	SMALL = 300, /* the longest record, with its delta, of this process; the child's are longer */
	LARGE = 600,
	PARENT = 0, /* streams */
	CHILD = 1,
	N_IDS = 1 << 20,
	GOES_ON_NS = 100000000,
	SLEEP_NS = 200000 /* twice what it asks for */
};

/* --- the channel --- */

/* Where in a callback to die. */
enum death_place { NOWHERE, IN_START, IN_END, IN_DELIVER, IN_FULL };
enum moment { BEFORE, AMID, AFTER };

struct death {
	enum death_place where;
	enum moment when;
};
static struct death death; /* this process's */

static int full_answer;

static struct channel {
	int id;
	char path[64], mem_file[4096];
	struct rchan_buf *buf; /* to read with */
	unsigned char *memory;
	size_t memory_bytes;
	struct walk walk;
	uint64_t next_written, next_read; /* the parent's records */
	uint64_t n_written, n_entered;
	unsigned n_killed;
} channel;

/* What callbacks of all processes note. */
static struct {
	uint64_t current_id;
	uint8_t delivered[N_IDS];
} * shared;

static inline void die_if(enum death_place where, enum moment when)
{
	if (death.where == where && death.when == when)
		kill(getpid(), SIGKILL);
}

static inline int on_start(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
                           uint64_t start_tsc, int using_tsc)
{
	struct mark mark = {
	    .buffer_id = buffer_id, .time_us = mark_us(start_time), .tsc = start_tsc, .using_tsc = (uint64_t)using_tsc};

	(void)channel_id;
	die_if(IN_START, BEFORE);
	memset(current_write_pos, '#', MARK_BYTES / 2);
	die_if(IN_START, AMID);
	__atomic_store_n(&shared->current_id, buffer_id, __ATOMIC_RELAXED);
	put_mark(current_write_pos, MARK_HEADER, mark);
	die_if(IN_START, AFTER);
	return MARK_BYTES;
}

static inline int on_end(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
                         uint64_t end_tsc, int using_tsc)
{
	struct mark mark = {.buffer_id = __atomic_load_n(&shared->current_id, __ATOMIC_RELAXED),
	                    .time_us = mark_us(end_time),
	                    .tsc = end_tsc,
	                    .using_tsc = (uint64_t)using_tsc,
	                    .unused = (uint64_t)(end_of_buffer - current_write_pos)};

	(void)channel_id;
	die_if(IN_END, BEFORE);
	memset(current_write_pos, '#', MARK_BYTES / 2);
	die_if(IN_END, AMID);
	put_mark(current_write_pos, MARK_FOOTER, mark);
	die_if(IN_END, AFTER);
	return MARK_BYTES;
}

static inline void on_deliver(int channel_id, char *from, uint32_t len)
{
	struct mark first;

	(void)channel_id;
	die_if(IN_DELIVER, BEFORE);
	memcpy(&first, from, sizeof(first));
	CHECK(len >= 2 * MARK_BYTES && first.buffer_id < N_IDS);
	__atomic_store_n(&shared->delivered[first.buffer_id], 1, __ATOMIC_RELAXED);
	die_if(IN_DELIVER, AFTER);
}

static inline int on_full(int channel_id)
{
	(void)channel_id;
	die_if(IN_FULL, BEFORE);
	return full_answer;
}

static const struct relay_classic_callbacks callbacks = {
    .buffer_start = on_start, .buffer_end = on_end, .deliver = on_deliver, .buffers_full = on_full};

static inline void enter(struct walk *walk, const struct stress_record *record);
static inline void make_large(void);

static inline void map_memory(void)
{
	struct stat status;

	channel.buf = relay_buf_open(channel.mem_file);
	CHECK(channel.buf != NULL);
	CHECK_EQ(fstat(relay_buf_fd(channel.buf), &status), 0);
	channel.memory_bytes = (size_t)status.st_size;
	channel.memory = mmap(NULL, channel.memory_bytes, PROT_READ, MAP_SHARED, relay_buf_fd(channel.buf), 0);
	CHECK(channel.memory != MAP_FAILED);
}

static inline void open_channel(int full)
{
	static unsigned n;
	char mount[4096], store[4000];
	bool locking = scheme == RELAY_LOCKING;
	uint32_t flags = RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK | RELAY_TIMESTAMP_TSC;

	memset(&channel, 0, sizeof(channel));
	snprintf(mount, sizeof(mount), "%s/mnt", scratch);
	snprintf(store, sizeof(store), "%s/store", scratch);
	mkdir(mount, 0755);
	CHECK_EQ(setenv("RELAYFS", mount, 1), 0);
	CHECK_EQ(setenv("RELAYFS_STORE", store, 1), 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	snprintf(channel.path, sizeof(channel.path), "/classic%d-%u", (int)getpid(), n++);
	snprintf(channel.mem_file, sizeof(channel.mem_file), "%s%s/mem0", store, channel.path);
	full_answer = full;
	channel.id = relay_classic_open(channel.path, locking ? 2000 : 2048, locking ? 2 : N_BUFS_MAX,
	                                flags | (locking ? RELAY_SCHEME_LOCKING : RELAY_SCHEME_LOCKLESS), &callbacks,
	                                MARK_BYTES, MARK_BYTES, 0);
	CHECK(channel.id >= 0);
	channel.walk = (struct walk){.has_holes = true, .loses = full == 0, .enter = enter};
	map_memory();
	make_large();
}

static inline struct rchan_info info_of_channel(void)
{
	struct rchan_info info;

	CHECK_EQ(relay_classic_info(channel.id, &info), 0);
	return info;
}

/* --- records --- */

static inline uint32_t length_of(uint32_t stream, uint64_t sequence)
{
	return stress_length(stream, (uint32_t)sequence) + DELTA_BYTES;
}

/* The first of the stream's records from `sequence` on that is longer than `above` and not longer than `most`. */
static inline uint64_t next_of(uint32_t stream, uint64_t sequence, uint32_t above, uint32_t most)
{
	while (length_of(stream, sequence) <= above || length_of(stream, sequence) > most)
		sequence++;
	return sequence;
}

static inline void enter(struct walk *walk, const struct stress_record *record)
{
	uint64_t expected = next_of(PARENT, channel.next_read, 0, SMALL);

	if (record->stream == STRESS_SUBBUF)
		return;
	channel.n_entered++;
	if (record->stream == CHILD)
		return;
	CHECK_EQ(record->stream, PARENT);
	if (walk->loses)
		CHECK(record->sequence >= expected);
	else
		CHECK_EQ(record->sequence, expected);
	channel.next_read = record->sequence + 1;
}

static struct record {
	char data[LARGE];
	uint64_t sequence;
	uint32_t length;
	int delta_at; /* -1: none */
} own, large;

static inline void make_record(struct record *record, uint32_t stream, uint64_t sequence)
{
	record->sequence = sequence;
	record->length = fill_record(record->data, stream, sequence, NO_DELTA);
	record->delta_at = has_delta(stream, sequence) ? (int)(record->length - DELTA_BYTES) : -1;
}

static inline int write_record(const struct record *record)
{
	int result = relay_classic_write(channel.id, record->data, record->length, record->delta_at);

	CHECK(result < 0 || result == (int)record->length);
	return result < 0 ? result : 0;
}

static inline int write_own(void)
{
	int err;

	make_record(&own, PARENT, next_of(PARENT, channel.next_written, 0, SMALL));
	err = write_record(&own);
	if (!err) {
		channel.next_written = own.sequence + 1;
		channel.n_written++;
	}
	return err;
}

/* The next child's: it is made before there is one. */
static inline void make_large(void)
{
	make_record(&large, CHILD, next_of(CHILD, large.sequence + 1, SMALL, LARGE));
}

static inline int write_large(void)
{
	return write_record(&large);
}

static inline void read_all(void)
{
	static char data[1 << 16];
	const char *problem;
	size_t n, at;

	while ((n = consume_into(channel.buf, data, sizeof(data))) > 0) {
		problem = walk_piece(&channel.walk, data, n, &at);
		if (problem)
			fprintf(stderr, "sub-buffer %llu, at %zu of %zu, kill %u: %s\n",
			        (unsigned long long)channel.walk.next_id - 1, at, n, channel.n_killed, problem);
		CHECK(problem == NULL);
	}
}

static inline uint32_t bytes_left(const struct rchan_info *info)
{
	return info->buf_size - info->cur_idx % info->buf_size - MARK_BYTES;
}

/* Until the next record of the child must switch, `n_finished` sub-buffers being unread. */
static inline void fill_up(uint64_t n_finished)
{
	struct rchan_info info = info_of_channel();

	while (info.bufs_produced - info.bufs_consumed < n_finished || info.cur_idx % info.buf_size == 0 ||
	       bytes_left(&info) > SMALL) {
		CHECK_EQ(write_own(), 0);
		info = info_of_channel();
	}
}

static inline void fill_one(void)
{
	fill_up(0);
}

static inline void fill_all(void)
{
	fill_up(info_of_channel().n_bufs - 1);
}

/* --- going on --- */

static uint64_t fastest_ns = UINT64_MAX;

static inline uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline long n_sleeps(void)
{
	struct rusage usage;

	CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

/* The next write is stored within 100 ms. Of a machine that is busy elsewhere so much cannot be said; but what this
 * thread ran, and how often it went to sleep for what the library sleeps at once. */
static inline void write_in_time(void)
{
	uint64_t start = now_ns(CLOCK_MONOTONIC), ran = now_ns(CLOCK_THREAD_CPUTIME_ID), took;
	long sleeps = n_sleeps();

	CHECK_EQ(write_own(), 0);
	took = now_ns(CLOCK_MONOTONIC) - start;
	ran = now_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
	CHECK(ran + (uint64_t)(n_sleeps() - sleeps) * SLEEP_NS < GOES_ON_NS);
	if (took < fastest_ns)
		fastest_ns = took;
}

static inline void go_on(void)
{
	write_in_time();
	read_all();
}

/* The channel is suspended, or the next write makes it so. */
static inline void go_on_after_resume(void)
{
	struct rchan_info info;

	while (!write_own())
		;
	info = info_of_channel();
	CHECK(info.suspended);
	CHECK_EQ(info.bufs_produced - info.bufs_consumed, info.n_bufs);
	read_all();
	CHECK_EQ(write_own(), -ENOSPC);
	relay_classic_resume(channel.id);
	go_on();
}

/* All of it has been read; what was lost is known. */
static inline void check_account(void)
{
	struct relay_stats stats;
	struct rchan_info info = info_of_channel();
	uint32_t last = info.buf_id;
	uint64_t id;

	/* The last one in which somebody died is delivered, too. */
	while (info.bufs_produced <= last) {
		CHECK_EQ(write_own(), 0);
		read_all();
		info = info_of_channel();
	}
	for (id = 0; id < info.bufs_produced; id++)
		CHECK(shared->delivered[id]);
	stats = stats_of(channel.buf);
	CHECK_EQ(stats.unread_bytes, 0);
	CHECK_EQ(stats.records, stats.read_records + stats.lost_overwritten_records + stats.lost_torn_records);
	CHECK(stats.lost_torn_records <= channel.n_killed);
	CHECK(stats.records >= channel.n_written && stats.records <= channel.n_written + channel.n_killed);
	if (channel.walk.loses)
		return;
	CHECK_EQ(stats.read_records, channel.n_entered);
	CHECK_EQ(stats.lost_overwritten_records, 0);
}

static inline void close_channel(void)
{
	CHECK_EQ(relay_classic_close(channel.id), 0);
	read_all();
	CHECK(!channel.walk.inside);
	if (!channel.walk.loses)
		CHECK_EQ(channel.n_entered + stats_of(channel.buf).lost_torn_records, stats_of(channel.buf).records);
	munmap(channel.memory, channel.memory_bytes);
	relay_buf_release(channel.buf);
	munmap(shared, sizeof(*shared));
}

/* --- children --- */

static inline void note_killed(void)
{
	channel.n_killed++;
	make_large();
}

static struct rchan *rchan;

static inline char *reserve_large(uint64_t *delta)
{
	int err;
	char *to = relay_classic_reserve(rchan, large.length, NULL, delta, &err);

	CHECK(to != NULL && err == 0);
	return to;
}

static inline void lock(void)
{
	rchan = rchan_get(channel.id);
	CHECK(rchan != NULL);
	CHECK_EQ(relay_lock_channel(rchan), 0);
}

#endif
