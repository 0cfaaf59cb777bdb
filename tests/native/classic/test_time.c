/* SPDX-License-Identifier: MIT */
/*
 * Time deltas: where they are stored, that they never decrease within a sub-buffer, and that a reader makes wall-clock
 * time of them with what buffer_start and buffer_end are told.
 *
 *     clock   start_time + delta                                        microseconds
 *     TSC     start_time + (delta - start_tsc) * (end_time - start_time) / (end_tsc - start_tsc)
 */
#define _GNU_SOURCE
#include "classic_channel.h"

#include "base/clock.h"
#include <pthread.h>
#include <sys/time.h>

SCHEMES(lockless, locking);

static const uint32_t clocks[] = {0, RELAY_TIMESTAMP_TSC};

static uint64_t us_of(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static uint64_t us_now(void)
{
	return relay_clock_ns(CLOCK_REALTIME) / 1000;
}

static uint64_t delta_at(const char *at)
{
	uint64_t delta;

	memcpy(&delta, at, sizeof(delta));
	return delta;
}

/* --- relay_write and relay_reserve --- */

TEST(the_time_delta_is_stored_at_its_offset_and_nowhere_else)
{
	const char record[] = "abc########defgh";
	AUTO_ID id = open_channel(64, BULK, &noting, 0, 0, 0);
	uint64_t started = us_of(last('s')->time);

	CHECK_EQ(relay_write(id, record, 16, 3), 16);
	CHECK(strcmp(record, "abc########defgh") == 0); /* the caller's copy */
	char *memory = info_of(id).buf_addr;
	CHECK(memcmp(memory, "abc", 3) == 0 && memcmp(memory + 11, "defgh", 5) == 0);
	CHECK(delta_at(memory + 3) <= us_now() - started + 1);
	CHECK_EQ(relay_write(id, record, 16, 0), 16);
	CHECK_EQ(relay_write(id, record, 16, 8), 16);
	CHECK(memcmp(memory + 24, "###defgh", 8) == 0 && memcmp(memory + 32, "abc#####", 8) == 0);
}

TEST(nothing_of_time_is_written_unless_asked)
{
	AUTO_ID id = open_channel(64, BULK | RELAY_TIMESTAMP_TSC, &noting, 0, 0, 0);

	CHECK_EQ(relay_write(id, "just this", 9, -1), 9);
	CHECK_EQ(relay_write(id, " and this", 9, -1000), 9);
	CHECK_READS("just this and this");
}

TEST(without_tsc_the_delta_is_the_microseconds_since_buffer_start)
{
	char record[8] = "";
	AUTO_ID id = open_channel(16, BULK, &noting, 0, 0, 0);

	for (int i = 0; i < 20; i++) {
		uint64_t before = us_now();
		CHECK_EQ(relay_write(id, record, 8, 0), 8);
		uint64_t after = us_now(), started = us_of(last('s')->time);
		uint64_t delta = delta_at(info_of(id).buf_addr + info_of(id).cur_idx - 8);
		CHECK(started + delta + 3 >= before && started + delta <= after + 1);
	}
	CHECK_EQ(last('s')->number, 9);
}

TEST(with_tsc_the_delta_is_the_current_tsc)
{
	char record[8] = "";
	AUTO_ID id = open_channel(16, BULK | RELAY_TIMESTAMP_TSC, &noting, 0, 0, 0);

	for (int i = 0; i < 20 && relay_clock_is_available(RELAY_TSC); i++) {
		uint64_t before = relay_clock_tsc();
		CHECK_EQ(relay_write(id, record, 8, 0), 8);
		uint64_t after = relay_clock_tsc();
		uint64_t delta = delta_at(info_of(id).buf_addr + info_of(id).cur_idx - 8);
		CHECK(delta >= before && delta <= after && delta >= last('s')->tsc);
	}
}

TEST(a_reservation_tells_its_time_both_ways)
{
	for (unsigned i = 0; i < 2; i++) {
		int id = open_channel(64, BULK | clocks[i], &noting, 0, 0, 0), using_tsc = last('s')->using_tsc;
		struct rchan *rchan = rchan_get(id);
		struct timeval stamp;
		uint64_t delta, before = us_now(), tsc = relay_clock_tsc();
		char *reserved = relay_reserve(rchan, 8, &stamp, &delta, NULL);
		CHECK(reserved != NULL);
		CHECK(us_of(stamp) + 1 >= before && us_of(stamp) <= us_now() + 1);
		if (using_tsc)
			CHECK(delta >= tsc && delta <= relay_clock_tsc());
		else
			CHECK(us_of(last('s')->time) + delta + 3 >= before &&
			      us_of(last('s')->time) + delta <= us_now() + 1);
		relay_commit(rchan, reserved, 8);
		rchan_put(rchan);
		CHECK_EQ(relay_close(id), 0);
	}
}

/* --- wall-clock time of any record --- */

enum { MAX_WRITTEN = 4000, TOLERANCE_NS = 1000, RESOLUTION_NS = 2 * 1000 /* start_time and delta are cut */ };

struct event {
	uint32_t number, length;
	uint64_t delta;
	char filling[64];
};

static struct {
	uint64_t before_ns[MAX_WRITTEN], after_ns[MAX_WRITTEN];
	uint32_t written, converted;
	/* Of the sub-buffer that is delivered next. */
	struct timeval start_time, end_time;
	uint64_t start_tsc, end_tsc;
	int using_tsc;
} clocked;

static int clocked_start(int id, char *at, uint32_t number, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)id, (void)at, (void)number;
	clocked.start_time = time;
	clocked.start_tsc = tsc;
	clocked.using_tsc = using_tsc;
	return 0;
}

static int clocked_end(int id, char *at, char *end, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)id, (void)at, (void)end;
	CHECK_EQ(using_tsc, clocked.using_tsc);
	clocked.end_time = time;
	clocked.end_tsc = tsc;
	return 0;
}

static double ns_since_start(uint64_t delta)
{
	if (!clocked.using_tsc)
		return (double)delta * 1000;
	double ns = (double)(us_of(clocked.end_time) - us_of(clocked.start_time)) * 1000;
	return (double)(delta - clocked.start_tsc) * ns / (double)(clocked.end_tsc - clocked.start_tsc);
}

static void clocked_deliver(int id, char *from, uint32_t length)
{
	const uint64_t start_ns = us_of(clocked.start_time) * 1000;
	struct event event;

	(void)id;
	for (uint32_t at = 0; at < length; at += event.length) {
		memcpy(&event, from + at, offsetof(struct event, filling));
		CHECK(event.number == clocked.converted++ && event.length <= sizeof(event));
		double ns = ns_since_start(event.delta);
		double error_before = (double)(int64_t)(clocked.before_ns[event.number] - start_ns) - ns;
		double error_after = ns - (double)(int64_t)(clocked.after_ns[event.number] - start_ns);
		CHECK(error_before <= TOLERANCE_NS + RESOLUTION_NS);
		CHECK(error_after <= TOLERANCE_NS + RESOLUTION_NS);
	}
}

static const struct rchan_callbacks clocking = {clocked_start, clocked_end, clocked_deliver, NULL};

static void move_to(unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK(sched_setaffinity(0, sizeof(set), &set) == 0 || errno == EINVAL);
}

TEST(any_delta_becomes_wall_clock_time)
{
	for (unsigned i = 0; i < 2; i++) {
		memset(&clocked, 0, sizeof(clocked));
		int id = open_channel(1024, BULK | clocks[i], &clocking, 0, 0, 0);
		for (uint32_t n = 0; n < MAX_WRITTEN; n++) {
			struct event event = {.number = n, .length = offsetof(struct event, filling) + n % 60};
			if (n % 500 == 0)
				move_to(n / 500 % relay_n_possible_cpus());
			clocked.before_ns[n] = relay_clock_ns(CLOCK_REALTIME);
			CHECK_EQ(relay_write(id, &event, event.length, offsetof(struct event, delta)), event.length);
			clocked.after_ns[n] = relay_clock_ns(CLOCK_REALTIME);
		}
		CHECK_EQ(relay_close(id), 0);
		CHECK_EQ(clocked.converted, MAX_WRITTEN);
	}
}

/* --- order --- */

enum { N_WRITERS = 4, N_RECORDS = 5000 };

static struct {
	int id;
	char *started[2]; /* a sub-buffer may be delivered after the next one has begun */
	uint64_t start_tsc[2];
	uint32_t delivered;
} ordered;

static int ordered_start(int id, char *at, uint32_t number, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)id, (void)time, (void)using_tsc;
	ordered.started[number % 2] = at;
	ordered.start_tsc[number % 2] = tsc;
	return 0;
}

static void ordered_deliver(int id, char *from, uint32_t length)
{
	(void)id;
	for (uint64_t at = 0, before = ordered.start_tsc[from == ordered.started[1]]; at < length; at += 8) {
		uint64_t delta = delta_at(from + at);
		CHECK(delta >= before);
		before = delta;
		ordered.delivered++;
	}
}

/* Refused is only who would overwrite what another writer has reserved and not yet filled. */
static void write_surely(const uint64_t *delta)
{
	int result;

	while ((result = relay_write(ordered.id, delta, sizeof(*delta), 0)) == -ENOSPC)
		sched_yield();
	CHECK_EQ(result, sizeof(*delta));
}

static void *write_deltas(void *number)
{
	unsigned writer = (unsigned)(uintptr_t)number;
	uint64_t delta = 0;

	for (unsigned i = 0; i < N_RECORDS; i++) {
		if (i % 1000 == 0)
			move_to((writer + i / 1000) % relay_n_possible_cpus());
		write_surely(&delta);
	}
	return NULL;
}

TEST(deltas_never_decrease_within_a_sub_buffer_across_cpus_and_writers)
{
	static const struct rchan_callbacks ordering = {.buffer_start = ordered_start, .deliver = ordered_deliver};

	for (unsigned i = 0; i < 2; i++) {
		ordered.delivered = 0;
		ordered.id = open_channel(4096, BULK | clocks[i], &ordering, 0, 0, 0);
		run_threads(N_WRITERS, write_deltas);
		CHECK_EQ(relay_close(ordered.id), 0);
		CHECK_EQ(ordered.delivered, N_WRITERS * N_RECORDS);
	}
}
