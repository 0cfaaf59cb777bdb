/* SPDX-License-Identifier: MIT */
/*
 * A program in the common language of C and C++ that is compiled with <relayfs/producer.h>. It writes and reserves records of all
 * lengths in a channel and a ring, compares them with the memory, and adjusts a counter. Prints how many of its calls reached
 * the library, and how many there were:  WRITES_CALLED OF ADJUSTS_CALLED OF OUTPUTS_CALLED OF RESERVES_CALLED OF
 *
 * To be linked with --wrap= of each function with __wrap_. With ALL_LENGTHS, the compiler knows all lengths of records up to 128
 * bytes, which takes it four times as long; otherwise the least and the greatest of each copy (RELAY_COPIED()), and one between.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <relayfs/producer.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static long writes, writes_called, adjusts, adjusts_called, outputs, outputs_called, reserves, reserves_called;

/* Count the calls of a function that producer.h calls. */
#define WRAPPED(count, type, name, parameters, arguments) \
	type __real_##name parameters;                    \
	type __wrap_##name parameters;                    \
	type __wrap_##name parameters                     \
	{                                                 \
		count++;                                  \
		return __real_##name arguments;           \
	}

WRAPPED(writes_called, int, relay_write_anyhow, (struct rchan * chan, const void *data, size_t length),
        (chan, data, length))
WRAPPED(adjusts_called, int, relay_perf_adjust_anyhow, (struct relay_counters * counters, int instance, int64_t delta),
        (counters, instance, delta))
WRAPPED(outputs_called, int, relay_rings_output_anyhow,
        (struct relay_rings * rings, const void *data, size_t length, uint64_t flags), (rings, data, length, flags))
WRAPPED(outputs_called, int, relay_ring_output_anyhow,
        (struct relay_ring * ring, const void *data, size_t length, uint64_t flags), (ring, data, length, flags))
WRAPPED(reserves_called, void *, relay_reserve_anyhow, (struct rchan * chan, size_t length), (chan, length))
WRAPPED(reserves_called, void *, relay_try_reserve_anyhow, (struct rchan * chan, size_t length), (chan, length))
WRAPPED(reserves_called, void *, relay_rings_reserve_anyhow,
        (struct relay_rings * rings, size_t length, uint64_t flags), (rings, length, flags))
WRAPPED(reserves_called, void *, relay_ring_reserve_anyhow, (struct relay_ring * ring, size_t length, uint64_t flags),
        (ring, length, flags))
WRAPPED(reserves_called, int, relay_ring_commit_anyhow, (void *record, uint64_t flags), (record, flags))
WRAPPED(reserves_called, int, relay_ring_discard_anyhow, (void *record, uint64_t flags), (record, flags))

void __real_relay_commit_anyhow(struct rchan *chan, void *reserved);
void __wrap_relay_commit_anyhow(struct rchan *chan, void *reserved);
void __wrap_relay_commit_anyhow(struct rchan *chan, void *reserved)
{
	reserves_called++;
	__real_relay_commit_anyhow(chan, reserved);
}

enum { SUBBUF = 1 << 20, LONGEST = 600, ADJUSTS = 1000 };

static unsigned cpu;
static char *memory; /* of the sub-buffer */
static char expected[SUBBUF];
static size_t used;

static int begin(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)prev_subbuf, (void)prev_padding;
	if (relay_buf_cpu(buf) == cpu)
		memory = (char *)subbuf;
	return 1;
}

static void check(int is_right, const char *what, long value)
{
	if (is_right)
		return;
	fprintf(stderr, "%s: %ld\n", what, value);
	exit(1);
}

/* The next record; it is different from all that were written before. */
static const char *next_record(size_t length)
{
	static char record[4096];
	size_t i;

	for (i = 0; i < length; i++)
		record[i] = (char)((size_t)writes * 31 + i);
	check(used + length <= SUBBUF, "too many records", writes);
	memcpy(expected + used, record, length);
	used += length;
	writes++;
	return record;
}

#define BOUNDS(OF)                                                                                                \
	OF(1), OF(3), OF(4), OF(5), OF(7), OF(8), OF(9), OF(12), OF(15), OF(16), OF(17), OF(24), OF(31), OF(32),  \
	    OF(33), OF(48), OF(63), OF(64), OF(65), OF(96), OF(127), OF(128), OF(129), OF(192), OF(255), OF(256), \
	    OF(257), OF(767), OF(768), OF(4096)

#define WRITE(length) check(relay_write(chan, next_record(length), length) == 0, "relay_write", (long)(length))
#define WRITE_8(n)                                                                                                \
	WRITE(n), WRITE((n) + 1), WRITE((n) + 2), WRITE((n) + 3), WRITE((n) + 4), WRITE((n) + 5), WRITE((n) + 6), \
	    WRITE((n) + 7)
#define WRITE_64(n)                                                                                               \
	WRITE_8(n), WRITE_8((n) + 8), WRITE_8((n) + 16), WRITE_8((n) + 24), WRITE_8((n) + 32), WRITE_8((n) + 40), \
	    WRITE_8((n) + 48), WRITE_8((n) + 56)

static void write_all(struct rchan *chan)
{
	size_t length;

	for (length = 1; length < LONGEST; length++) {
		__asm__ volatile("" : "+r"(length)); /* the compiler does not know it */
		WRITE(length);
	}
	BOUNDS(WRITE);
#ifdef ALL_LENGTHS
	WRITE_64(1), WRITE_64(65), WRITE_8(188), WRITE_8(252), WRITE_8(764);
#endif
	check(memcmp(memory, expected, used) == 0, "other bytes than written", writes);
}

static void commit_one(struct rchan *chan, size_t length, void *reserved)
{
	check(reserved != NULL, "relay_reserve", (long)length);
	memcpy(reserved, next_record(length), length);
	relay_commit(chan, reserved);
	writes--;
	reserves += 2;
}

/* Records of less than 16 bytes are reserved by the library. */
static void reserve_all(struct rchan *chan)
{
	size_t length;

	for (length = 16; length < LONGEST; length++)
		commit_one(chan, length, length % 2 ? relay_reserve(chan, length) : relay_try_reserve(chan, length));
	commit_one(chan, 64, relay_reserve(chan, 64));
	/* While the thread's claim is in use, the library takes another one. The order of commits is free. */
	char *first = (char *)relay_reserve(chan, 32), *second = (char *)relay_reserve(chan, 32);
	check(first != NULL && second == first + 32, "two reservations", 0);
	memcpy(first, next_record(32), 32);
	memcpy(second, next_record(32), 32);
	writes -= 2;
	relay_commit(chan, first);
	relay_commit(chan, second);
	relay_commit(chan, second); /* of no reservation: nothing happens */
	commit_one(chan, 16, relay_reserve(chan, 16));
	check(memcmp(memory, expected, used) == 0, "other bytes than reserved", reserves);
	check(relay_reserve(NULL, 64) == NULL && errno == EBADF, "without a channel", errno);
	check(relay_reserve(chan, SUBBUF + 1) == NULL && errno == EMSGSIZE, "too long", errno);
	relay_commit(NULL, first);
	relay_commit(chan, NULL);
}

static void check_output(struct relay_ring *ring, int err, const char *record, size_t length)
{
	const void *data;
	size_t got;

	outputs++;
	check(err == 0, "output", err);
	check(relay_ring_next(ring, &data, &got) == 1, "no record", (long)length);
	check(got == length && memcmp(data, record, length) == 0, "another record", (long)length);
	relay_ring_release(ring);
}

#define OUTPUT(length)                                                                                  \
	(record[0]++, check_output(ring, relay_rings_output(rings, record, length, 0), record, length), \
	 check_output(ring, relay_ring_output(ring, record, length, 0), record, length))
#define OUTPUT_8(n)                                                                                     \
	OUTPUT(n), OUTPUT((n) + 1), OUTPUT((n) + 2), OUTPUT((n) + 3), OUTPUT((n) + 4), OUTPUT((n) + 5), \
	    OUTPUT((n) + 6), OUTPUT((n) + 7)

static void output_all(struct relay_rings *rings)
{
	struct relay_ring *ring = rings->ring[rings->n > cpu ? cpu : 0];
	char record[4096];
	size_t length;

	memset(record, 'r', sizeof(record));
	for (length = 0; length < LONGEST; length++) {
		__asm__ volatile("" : "+r"(length));
		OUTPUT(length);
	}
	BOUNDS(OUTPUT);
#ifdef ALL_LENGTHS
	OUTPUT_8(1), OUTPUT_8(9), OUTPUT_8(17), OUTPUT_8(25), OUTPUT_8(33), OUTPUT_8(60), OUTPUT_8(124), OUTPUT_8(252);
#endif
	check(relay_ring_output(NULL, record, 1, 0) == -9, "without a ring", 0);       /* EBADF */
	check(relay_rings_output(rings, NULL, 1, 0) == -22, "without data", 0);        /* EINVAL */
	check(relay_rings_output(rings, record, 1, 1 << 20) == -22, "other flags", 0); /* EINVAL */
}

/* Reserve a record, and end it; `ends` is relay_ring_commit() or its like. */
#define END_RESERVED(reserve, ends)                             \
	do {                                                    \
		char *reserved = (char *)(reserve);             \
		check(reserved != NULL, #reserve, (long)errno); \
		memset(reserved, (int)(length & 127), length);  \
		check((ends) == 0, #ends, (long)length);        \
		reserves += 2;                                  \
	} while (0)

static void reserve_in_rings(struct relay_rings *rings)
{
	struct relay_ring *ring = rings->ring[rings->n > cpu ? cpu : 0];
	char expected_record[LONGEST];
	size_t length;

	for (length = 0; length < LONGEST; length++) {
		memset(expected_record, (int)(length & 127), length);
		END_RESERVED(relay_ring_reserve(ring, length, RELAY_RING_WILL_RETRY), relay_ring_discard(reserved, 0));
		END_RESERVED(relay_ring_reserve(ring, length, 0), relay_ring_commit(reserved, RELAY_RING_NO_WAKEUP));
		check_output(ring, 0, expected_record, length);
		END_RESERVED(relay_rings_reserve(rings, length, 0), relay_ring_commit(reserved, 0));
		check_output(ring, 0, expected_record, length);
		outputs -= 2;
	}
	void *first = relay_ring_reserve(ring, 8, 0), *second = relay_ring_reserve(ring, 8, 0);
	check(first && second == (char *)first + 16, "two reservations", 0);
	check(relay_ring_commit(first, 1 << 20) == -EINVAL, "other flags", 0);
	check(relay_ring_commit(first, 0) == 0 && relay_ring_discard(second, 0) == 0, "in order", 0);
	check(relay_ring_commit(first, 0) == -EINVAL && relay_ring_discard(second, 0) == -EINVAL, "ended twice", 0);
	check(relay_ring_commit(NULL, 0) == -EINVAL, "NULL", 0);
	check(relay_ring_reserve(NULL, 8, 0) == NULL && errno == EBADF, "without a ring", errno);
	check(relay_rings_reserve(rings, 8, 1) == NULL && errno == EINVAL, "other flags", errno);
	check(relay_ring_reserve(ring, 1 << 20, 0) == NULL && errno == EAGAIN, "too long", errno);
}

static void adjust(struct relay_counters *counters)
{
	int instance = relay_perf_add(counters, "producer/adjusted");
	int64_t sum = 0;

	check(instance > 0, "relay_perf_add", instance);
	for (adjusts = 0; adjusts < ADJUSTS; adjusts++)
		check(relay_perf_adjust(counters, instance, adjusts) == 0, "relay_perf_adjust", adjusts);
	check(relay_counters_refresh(counters) >= 0 && relay_counters_sum(counters, instance, &sum) == 0, "sum", 0);
	check(sum == ADJUSTS * (ADJUSTS - 1) / 2, "sum", (long)sum);
	check(relay_perf_adjust(NULL, instance, 1) == 0, "without counters", 0);
	check(relay_perf_adjust(counters, RELAY_PERF_SLOTS, 1) == -2, "of the flag", 0); /* ENOENT */
	check(relay_perf_adjust(counters, -1, 1) == -2, "of a negative number", 0);
}

int main(void)
{
	struct rchan_callbacks callbacks;
	cpu_set_t set;

	cpu = (unsigned)sched_getcpu();
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(sched_setaffinity(0, sizeof(set), &set) == 0, "sched_setaffinity", cpu);
	memset(&callbacks, 0, sizeof(callbacks));
	callbacks.subbuf_start = begin;
	struct rchan *chan = relay_open(NULL, NULL, SUBBUF, 2, &callbacks, NULL);
	check(chan != NULL, "relay_open", 0);
	write_all(chan);
	reserve_all(chan);
	struct relay_counters *counters = relay_counters_open(NULL);
	check(counters != NULL, "relay_counters_open", 0);
	adjust(counters);
	char path[4096];
	snprintf(path, sizeof(path), "%s/ring", getenv("RELAYFS"));
	struct relay_rings *rings = relay_rings_create(path, "buffers=percpu size=64K");
	check(rings != NULL, path, 0);
	output_all(rings);
	reserve_in_rings(rings);
	printf("%ld %ld %ld %ld %ld %ld ", writes_called, writes, adjusts_called, adjusts, outputs_called, outputs);
	printf("%ld %ld\n", reserves_called, reserves);
	relay_rings_close(rings);
	relay_counters_close(counters);
	relay_close(chan);
	return 0;
}

#ifdef __cplusplus
}
#endif
