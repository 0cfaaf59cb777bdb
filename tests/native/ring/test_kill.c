/* SPDX-License-Identifier: MIT */
/*
 * SIGKILL at every instruction.
 *
 *     child:   stop    one operation of a ring    stop
 *     tracer:  |  step step step ... k steps, kill
 *
 * and again with k + 1, until the operation ends before. A restartable section cannot be stepped through, because each stop
 * inside restarts it: it is run to a hardware breakpoint, on every byte of it in turn, or behind it. After each kill the
 * ring must go on, and each record be there once or counted as torn.
 *
 * The short form kills where an instruction has changed the ring, and here and there; RELAYFS_STRESS=long everywhere, and it also steps
 * through the first use of a ring by a thread, which looks for a claim.
 */
#define _GNU_SOURCE
#include "ring_check.h"
#include "stepping.h"

/* Records are written without a call: the sections are those of this program. */
#include <relayfs/producer.h>

SCHEMES(rseq, lockless);
/* A kill leaves the same memory in all builds. */
BUILDS(plain);

enum { RING_BYTES = 4096, MAX_STEPS = 200000, LAST = 'z', WATCHDOG_S = 600 };

static struct relay_ring *ring;
static void (*operation)(void);
static bool cold;         /* the child has not used the ring before */
static bool server_first; /* a file server resolves what it left before anybody else comes */

/* What a finished operation adds. */
static unsigned may_commit, may_discard;

static struct relay_ring_stats before;
static uint64_t n_committed; /* by the tracer, since `before`, and by children for certain */

/* --- operations --- */

static void output_one(void)
{
	output_letters(ring, 'c', 20, 0);
}

static void reserve_and_commit(void)
{
	char *record = relay_ring_reserve(ring, 20, 0);

	if (record) {
		memset(record, 'c', 20);
		relay_ring_commit(record, 0);
	}
}

static void reserve_and_discard(void)
{
	char *record = relay_ring_reserve(ring, 20, 0);

	if (record)
		relay_ring_discard(record, 0);
}

static void consume_one(void)
{
	const void *data;
	size_t length;

	if (relay_ring_next(ring, &data, &length) == 1)
		relay_ring_release(ring);
}

static void copy_one(void)
{
	char data[RING_BYTES];

	relay_ring_read(ring, data, sizeof(data), NULL);
}

/* --- the tracer --- */

static void stop_around_operation(void)
{
	if (!cold)
		operation();
	raise(SIGSTOP);
	operation();
	raise(SIGSTOP);
}

static pid_t start_child(void)
{
	return start_stepped(stop_around_operation);
}

/* --- what must hold --- */

static void drain_to_last(void)
{
	char data[RING_BYTES];
	ssize_t length = 0;
	bool last = false;

	while ((length = relay_ring_read(ring, data, sizeof(data), NULL)) >= 0)
		last = length > 0 && data[0] == LAST;
	CHECK_EQ(length, -EAGAIN);
	CHECK(last);
}

static void check_account(void)
{
	struct relay_ring_stats now = ring_stats(ring);
	uint64_t read = now.read_records - before.read_records, skipped = now.skipped_records - before.skipped_records;
	uint64_t torn = now.torn_records - before.torn_records, records = now.records - before.records;

	CHECK_EQ(now.consumer_position, now.producer_position);
	CHECK(read + now.lost_overwritten_records - before.lost_overwritten_records >= n_committed);
	CHECK(read + now.lost_overwritten_records - before.lost_overwritten_records <= n_committed + may_commit);
	CHECK(torn <= 1);
	if (now.mode == RELAY_NO_OVERWRITE) {
		CHECK_EQ(records, read + skipped);
		CHECK(skipped >= torn && skipped <= torn + may_discard);
	}
}

static void begin_round(uint32_t mode)
{
	int i;

	/* Not to have more and more claims of the dead to pass. */
	relay_ring_resolve(ring, 0);
	before = ring_stats(ring);
	n_committed = 0;
	/* Something to overwrite, or to consume. */
	for (i = 0; i < (mode == RELAY_OVERWRITE ? 150 : 3); i++, n_committed++)
		CHECK_EQ(output_letters(ring, 'p', 24, 0), 0);
	if (!cold)
		n_committed += may_commit;
}

static void end_round(void)
{
	int i;

	if (server_first)
		relay_ring_resolve(ring, 0);
	for (i = 0; i < 100; i++, n_committed++) {
		CHECK_EQ(output_letters(ring, i == 99 ? LAST : 'q', 24, RELAY_RING_FORCE_WAKEUP), 0);
		/* The ring holds 127 of these; also the dead consumer's are there. */
		if (i == 60 && before.mode == RELAY_NO_OVERWRITE) {
			CHECK_EQ(output_letters(ring, LAST, 24, 0), 0);
			drain_to_last();
			n_committed++;
		}
	}
	drain_to_last();
	check_account();
}

/* Kill behind k instructions. false: the operation ended before. */
static bool kill_after(long k, uint32_t mode)
{
	bool inside = true;
	pid_t pid;

	begin_round(mode);
	pid = start_child();
	while (k-- > 0 && inside)
		inside = step(pid);
	kill_child(pid);
	end_round();
	return inside;
}

/* Kill before the instruction at this address, if there is one. */
static void kill_at(uint64_t address, uint32_t mode)
{
	begin_round(mode);
	pid_t pid = start_child();

	run_to(pid, address);
	kill_child(pid);
	end_round();
}

/* Where to kill: the instructions after which the ring is another, and a few between; in the long form, all. Returns how many. */
static long find_steps(uint32_t mode, bool *at)
{
	const size_t bytes = (size_t)relay_ring_file_bytes(RING_BYTES);
	void *ring_now = mmap(NULL, bytes, PROT_READ, MAP_SHARED, relay_ring_fd(ring), 0), *seen = malloc(bytes);
	bool inside = true;
	pid_t pid;
	long k;

	CHECK(ring_now != MAP_FAILED && seen != NULL);
	begin_round(mode);
	pid = start_child();
	for (k = 0; inside; k++) {
		CHECK(k < MAX_STEPS);
		memcpy(seen, ring_now, bytes);
		inside = step(pid);
		at[k + 1] = is_long() || k % 16 == 0 || memcmp(seen, ring_now, bytes) != 0;
	}
	kill_child(pid);
	end_round();
	munmap(ring_now, bytes);
	free(seen);
	return k;
}

static void kill_everywhere(void (*what)(void), uint32_t mode, unsigned commits, unsigned discards)
{
	static bool at[MAX_STEPS + 2];
	long k, n, n_killed = 0;
	uint64_t i, byte;

	alarm(WATCHDOG_S);
	operation = what;
	may_commit = commits;
	may_discard = discards * (cold ? 1 : 2);
	ring = make_ring(RING_BYTES, mode);
	n = find_steps(mode, at);
	for (k = 0; k <= 2 * n + 1; k++) {
		server_first = k % 2;
		if (at[k / 2])
			n_killed += kill_after(k / 2, mode);
	}
	/* In scheme rseq a section that ends is one step. */
	CHECK(n_killed > (scheme == RELAY_RSEQ ? 0 : 2));
	CHECK(scheme != RELAY_RSEQ || n_sections > 0 || may_commit + may_discard == 0);
	for (i = 0; i < n_sections; i++) {
		for (byte = 0; byte < sections[i].length; byte++) {
			server_first = byte % 2;
			kill_at(sections[i].start + byte, mode);
		}
	}
	relay_ring_close(ring);
}

static void kill_everywhere_in(void (*what)(void), uint32_t mode, unsigned commits, unsigned discards)
{
	kill_everywhere(what, mode, commits, discards);
	cold = true;
	if (is_long())
		kill_everywhere(what, mode, commits, discards);
}

TEST(output_is_killed_at_every_instruction)
{
	kill_everywhere_in(output_one, RELAY_NO_OVERWRITE, 1, 0);
}

TEST(output_that_overwrites_is_killed_at_every_instruction)
{
	kill_everywhere_in(output_one, RELAY_OVERWRITE, 1, 0);
}

TEST(reserve_and_commit_are_killed_at_every_instruction)
{
	kill_everywhere_in(reserve_and_commit, RELAY_NO_OVERWRITE, 1, 0);
}

TEST(reserve_and_discard_are_killed_at_every_instruction)
{
	kill_everywhere_in(reserve_and_discard, RELAY_NO_OVERWRITE, 0, 1);
}

TEST(next_and_release_are_killed_at_every_instruction)
{
	kill_everywhere_in(consume_one, RELAY_NO_OVERWRITE, 0, 0);
}

TEST(read_is_killed_at_every_instruction)
{
	kill_everywhere_in(copy_one, RELAY_OVERWRITE, 0, 0);
}

/* --- held up --- */

/* A child that has reserved a record in scheme lockless, which the producer position has not passed yet. */
static pid_t start_held_up(void)
{
	const struct relay_ring_producer *producer = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, relay_ring_fd(ring), PAGE);
	pid_t pid;

	CHECK(producer != MAP_FAILED);
	operation = output_one;
	pid = start_child();
	while (producer->tail[0].first == producer->position.first)
		CHECK(step(pid));
	return pid;
}

/* Others go on, behind it; nothing is to be had by the kernel's format before its turn. */
static void produce_behind(void)
{
	struct kernel_ring k = kernel_map(relay_ring_fd(ring), RING_BYTES);
	uint64_t before_it = *k.producer;
	int i;

	CHECK_LETTERS(ring, "c");
	for (i = 0; i < 3; i++)
		CHECK_EQ(output_letters(ring, (char)('x' + i), 24, 0), 0);
	CHECK_EQ(*k.producer, before_it);
	CHECK_LETTERS(ring, "");
}

TEST(who_is_held_up_publishes_also_what_came_behind)
{
	pid_t pid;

	alarm(WATCHDOG_S);
	ring = make_ring(RING_BYTES, RELAY_NO_OVERWRITE);
	if (scheme == RELAY_RSEQ)
		return;
	pid = start_held_up();
	produce_behind();
	CHECK(!resume(pid, PTRACE_CONT));
	CHECK_EQ(relay_ring_query(ring, RELAY_RING_PROD_POS), 5 * 32);
	CHECK_LETTERS(ring, "cxyz");
	kill_child(pid);
	relay_ring_close(ring);
}

TEST(who_dies_held_up_is_torn_and_what_came_behind_is_not)
{
	pid_t pid;

	alarm(WATCHDOG_S);
	ring = make_ring(RING_BYTES, RELAY_NO_OVERWRITE);
	if (scheme == RELAY_RSEQ)
		return;
	pid = start_held_up();
	produce_behind();
	kill_child(pid);
	CHECK_LETTERS(ring, "xyz");
	CHECK_FIELDS(ring_stats(ring), (torn_records, 1), (records, 5));
	relay_ring_close(ring);
}
