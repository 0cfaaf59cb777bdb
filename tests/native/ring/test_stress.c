/* SPDX-License-Identifier: MIT */
/*
 * Many producers on all CPUs, interrupted by signals in which they produce too, moved, killed and replaced: every record is
 * read once, whole, in its producer's order; what is reserved is committed, discarded or torn.
 *
 *     producer p   streams 2p: output, up to HELD reservations at once, ended in any order
 *                          2p + 1: the same in a signal handler
 *     this one     consumes all rings, and keeps account
 *
 * A record says whose it is and which; shorter ones are only counted. RELAYFS_STRESS=long makes it many more.
 */
#define _GNU_SOURCE
#include "random.h"
#include "ring_check.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

SCHEMES(rseq, lockless);

enum {
	N_PRODUCERS = 4,
	N_STREAMS = 2 * N_PRODUCERS,
	HELD = 4,
	RING_BYTES = 1 << 15,
	MAX_RINGS = 1024,
	SIGNAL_US = 300,
	MARK_BYTES = 8,
	ANONYMOUS = 0x5a,
	WATCHDOG_S = 600
};

struct stream {
	uint32_t next;               /* number of the next record. Writer: the producer, before it is reserved */
	uint64_t committed, refused; /* Writer: the producer, afterwards */
	uint64_t discarded;
};

static struct stream *streams; /* shared */
static struct relay_ring *ring_of_cpu[MAX_RINGS];
static struct relay_rings rings = {.ring = ring_of_cpu};
static uint32_t ring_mode;

static unsigned n_records(void)
{
	return is_long() ? 1000000 : 8000;
}

/* --- producing --- */

static unsigned char pattern(uint32_t stream, uint32_t number, size_t i)
{
	return (unsigned char)(stream * 31 + number * 7 + i);
}

static void fill(unsigned char *data, size_t length, uint32_t stream, uint32_t number)
{
	size_t i;

	if (length < MARK_BYTES) {
		memset(data, ANONYMOUS, length);
		return;
	}
	memcpy(data, &stream, 4);
	memcpy(data + 4, &number, 4);
	for (i = MARK_BYTES; i < length; i++)
		data[i] = pattern(stream, number, i);
}

static size_t any_length(uint64_t r)
{
	switch (r % 256) {
	case 0:
		return RING_BYTES - 16;
	case 1:
		return (r >> 8) % (RING_BYTES - 16);
	default:
		return (r >> 8) % 200;
	}
}

static int output(const void *data, size_t length, uint64_t flags)
{
	return relay_rings_output(&rings, data, length, flags);
}

static void *reserve(size_t length)
{
	return relay_rings_reserve(&rings, length, 0);
}

static void end(struct stream *s, void *record, bool discard)
{
	CHECK_EQ(discard ? relay_ring_discard(record, 0) : relay_ring_commit(record, 0), 0);
	if (discard)
		s->discarded++;
	else
		s->committed++;
}

static void refuse(struct stream *s)
{
	s->refused++;
	sched_yield();
}

static void output_next(uint32_t id, uint64_t r)
{
	static unsigned char data[2][RING_BYTES];
	struct stream *s = &streams[id];
	size_t length = any_length(r);
	int err;

	fill(data[id % 2], length, id, s->next++);
	err = output(data[id % 2], length, 0);
	CHECK(err == 0 || err == -EAGAIN);
	if (err)
		refuse(s);
	else
		s->committed++;
}

static void *reserve_next(uint32_t id, uint64_t r)
{
	struct stream *s = &streams[id];
	size_t length = any_length(r);
	uint32_t number = s->next++;
	void *record = reserve(length);

	if (record) {
		fill(record, length, id, number);
	} else {
		CHECK_EQ(errno, EAGAIN);
		refuse(s);
	}
	return record;
}

static uint32_t handler_stream;

static void produce_in_handler(int signal)
{
	static uint64_t r = 7;
	int saved = errno;
	void *record;

	(void)signal;
	r = r * 6364136223846793005ull + 1442695040888963407ull;
	if (r >> 63) {
		output_next(handler_stream, r >> 20);
	} else {
		record = reserve_next(handler_stream, r >> 20);
		if (record)
			end(&streams[handler_stream], record, r >> 62 & 1);
	}
	errno = saved;
}

static void move_somewhere(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(random_below((uint64_t)sysconf(_SC_NPROCESSORS_ONLN)), &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static _Noreturn void run_producer(uint32_t p, bool signals)
{
	struct sigaction action = {.sa_handler = produce_in_handler, .sa_flags = SA_RESTART};
	struct itimerval interval = {{0, SIGNAL_US}, {0, SIGNAL_US}};
	void *held[HELD] = {NULL};
	unsigned i;

	random_state += p * 1234577ull + (uint64_t)getpid();
	handler_stream = 2 * p + 1;
	sigaction(SIGALRM, &action, NULL);
	if (signals)
		setitimer(ITIMER_REAL, &interval, NULL);
	while (streams[2 * p].committed < n_records()) {
		uint64_t r = random_below(1ull << 50);

		i = r % HELD;
		if (r % 5 < 2)
			output_next(2 * p, r >> 8);
		else if (held[i])
			end(&streams[2 * p], held[i], r >> 8 & 1);
		held[i] = r % 5 < 2 ? held[i] : held[i] ? NULL : reserve_next(2 * p, r >> 8);
		if (r % 997 == 0)
			move_somewhere();
	}
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
	for (i = 0; i < HELD; i++)
		if (held[i])
			end(&streams[2 * p], held[i], false);
	_exit(0);
}

/* --- consuming --- */

static uint64_t last_number[MAX_RINGS][N_STREAMS]; /* + 1 */
static uint64_t n_seen, n_missed;

static void check_record(unsigned ring, const unsigned char *data, size_t length)
{
	uint32_t stream, number;
	size_t i;

	n_seen++;
	for (i = 0; length < MARK_BYTES && i < length; i++)
		CHECK_EQ(data[i], ANONYMOUS);
	if (length < MARK_BYTES)
		return;
	memcpy(&stream, data, 4);
	memcpy(&number, data + 4, 4);
	CHECK(stream < N_STREAMS && number < streams[stream].next);
	CHECK(number + 1 > last_number[ring][stream]);
	last_number[ring][stream] = number + 1ull;
	for (i = MARK_BYTES; i < length; i++)
		CHECK_EQ(data[i], pattern(stream, number, i));
}

typedef void consumer(unsigned ring);

static void consume_in_place(unsigned ring)
{
	const void *data;
	size_t length;
	int result;

	while ((result = relay_ring_next(rings.ring[ring], &data, &length)) == 1) {
		check_record(ring, data, length);
		relay_ring_release(rings.ring[ring]);
	}
	CHECK_EQ(result, 0);
}

static void consume_copies(unsigned ring)
{
	static unsigned char data[RING_BYTES];
	uint64_t missed;
	ssize_t length;

	while ((length = relay_ring_read(rings.ring[ring], data, sizeof(data), &missed)) >= 0) {
		n_missed += missed;
		check_record(ring, data, (size_t)length);
	}
	n_missed += missed;
	CHECK_EQ(length, -EAGAIN);
}

/* By the kernel's format alone: whatever lies before the producer position has a header. */
static void consume_as_the_kernel(unsigned ring)
{
	static struct kernel_ring k[MAX_RINGS];
	const unsigned char *data;
	uint32_t length;

	if (!k[ring].data)
		k[ring] = kernel_map(relay_ring_fd(rings.ring[ring]), RING_BYTES);
	while (kernel_next(&k[ring], &data, &length)) {
		CHECK(length <= RING_BYTES - 16);
		check_record(ring, data, length);
		kernel_done(&k[ring], length);
	}
}

/* --- a run --- */

static void make_rings(uint32_t mode)
{
	char path[4096];
	struct relay_ring_spec spec = a_ring_spec(RING_BYTES, mode);
	unsigned i;

	snprintf(path, sizeof(path), "%s/stress", scratch);
	CHECK_EQ(relay_ring_create(path, &spec), 0);
	ring_mode = mode;
	rings.n = spec.n_rings;
	CHECK(rings.n <= MAX_RINGS);
	for (i = 0; i < rings.n; i++) {
		snprintf(path, sizeof(path), "%s/stress/mem%u", scratch, i);
		rings.ring[i] = open_ring(path);
	}
	streams = mmap(NULL, sizeof(*streams) * N_STREAMS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(streams != MAP_FAILED);
}

static pid_t start_producer(uint32_t p, bool signals)
{
	pid_t pid = fork_child();

	if (pid == 0)
		run_producer(p, signals);
	return pid;
}

static struct relay_ring_stats sum_stats(void)
{
	struct relay_ring_stats sum = {0};
	unsigned i;

	for (i = 0; i < rings.n; i++) {
		struct relay_ring_stats stats = ring_stats(rings.ring[i]);

		sum.records += stats.records;
		sum.read_records += stats.read_records;
		sum.skipped_records += stats.skipped_records;
		sum.torn_records += stats.torn_records;
		sum.lost_full_records += stats.lost_full_records;
		sum.lost_overwritten_records += stats.lost_overwritten_records;
	}
	return sum;
}

static struct stream sum_streams(void)
{
	struct stream sum = {0};
	unsigned i;

	for (i = 0; i < N_STREAMS; i++) {
		sum.next += streams[i].next;
		sum.committed += streams[i].committed;
		sum.discarded += streams[i].discarded;
		sum.refused += streams[i].refused;
	}
	return sum;
}

/* Start, consume until all have ended, `n_kills` of them by force. */
static void run(consumer *consume, bool signals, unsigned n_kills)
{
	pid_t pid[N_PRODUCERS];
	unsigned p, i, n_running = N_PRODUCERS, killed = 0;
	int status;

	alarm(is_long() ? 3000 : WATCHDOG_S);
	for (p = 0; p < N_PRODUCERS; p++)
		pid[p] = start_producer(p, signals);
	while (n_running > 0) {
		relay_ring_wait(rings.ring, rings.n, 10);
		for (i = 0; i < rings.n; i++)
			consume(i);
		p = (unsigned)random_below(N_PRODUCERS);
		if (killed < n_kills && pid[p] && n_seen / 100 > killed) {
			CHECK_EQ(kill(pid[p], SIGKILL), 0);
			CHECK_EQ(waitpid(pid[p], &status, 0), pid[p]);
			/* It may have come to its end before. */
			killed++;
			n_running -= !WIFSIGNALED(status);
			pid[p] = WIFSIGNALED(status) ? start_producer(p, signals) : 0;
		}
		for (p = 0; p < N_PRODUCERS; p++) {
			if (!pid[p] || waitpid(pid[p], &status, WNOHANG) != pid[p])
				continue;
			CHECK_EQ(status, 0);
			pid[p] = 0;
			n_running--;
		}
	}
	for (i = 0; i < rings.n; i++)
		consume(i);
}

static void check_exact_account(void)
{
	struct relay_ring_stats stats = sum_stats();
	struct stream sum = sum_streams();

	CHECK(sum.committed >= N_PRODUCERS * n_records() && sum.discarded > 0);
	CHECK_EQ(n_seen + n_missed, sum.committed);
	CHECK_EQ(stats.records, sum.committed + sum.discarded);
	CHECK_EQ(stats.lost_full_records, sum.refused);
	CHECK_EQ(stats.torn_records, 0);
}

TEST(what_is_committed_is_read_once_in_order)
{
	make_rings(RELAY_NO_OVERWRITE);
	run(consume_in_place, true, 0);
	check_exact_account();
	CHECK_EQ(sum_stats().read_records, n_seen);
	CHECK_EQ(sum_stats().skipped_records, sum_streams().discarded);
}

TEST(the_kernels_format_holds_at_every_moment)
{
	make_rings(RELAY_NO_OVERWRITE);
	run(consume_as_the_kernel, true, 0);
	check_exact_account();
}

TEST(what_is_overwritten_is_missed_exactly)
{
	make_rings(RELAY_OVERWRITE);
	run(consume_copies, true, 0);
	check_exact_account();
	CHECK_EQ(sum_stats().lost_overwritten_records, n_missed);
}

/* Who is killed may not have noted what he did last; what he held is torn. */
TEST(killed_producers_lose_only_what_they_held)
{
	const unsigned n_kills = is_long() ? 500 : 25;
	struct relay_ring_stats stats;
	struct stream sum;

	make_rings(RELAY_NO_OVERWRITE);
	run(consume_in_place, true, n_kills);
	stats = sum_stats();
	sum = sum_streams();
	CHECK_EQ(stats.records, n_seen + stats.skipped_records);
	CHECK_EQ(stats.read_records, n_seen);
	CHECK(stats.torn_records > 0 && stats.torn_records <= n_kills * (HELD + 2));
	CHECK(n_seen >= sum.committed && n_seen <= sum.committed + 2 * n_kills);
	CHECK(stats.skipped_records - stats.torn_records >= sum.discarded);
	CHECK(stats.skipped_records - stats.torn_records <= sum.discarded + 2 * n_kills);
}

/* --- wake-ups --- */

/* Sleep with nobody to look again: a wake-up that is missed is one for ever. */
static void sleep_until_record(struct relay_ring *ring)
{
	while (relay_ring_state(ring) == 0) {
		uint32_t seq = relay_ring_arm(ring);

		if (relay_ring_state(ring) != 0)
			return;
		CHECK_EQ(relay_ring_wait_any(&ring, &seq, 1, NULL, 0, WATCHDOG_S * 1000), 0);
		CHECK(relay_ring_wake_seq(ring) != seq);
	}
}

TEST(no_wakeup_is_missed)
{
	const char *path = make_ring_file(4096, 0);
	struct relay_ring *ring = open_ring(path);
	unsigned n = is_long() ? 1000000 : 4000, i, got = 0;
	int status;
	pid_t pid;

	alarm(WATCHDOG_S + 10);
	pid = fork_child();
	if (pid == 0) {
		for (i = 0; i < n; i++) {
			char *record = NULL;

			while (!(record = relay_ring_reserve(ring, 8, 0)))
				sched_yield();
			if (i % 3 == 0)
				while (output_letters(ring, 'b', 8, 0) != 0)
					sched_yield();
			CHECK_EQ(relay_ring_commit(memset(record, 'a', 8), 0), 0);
			if (i % 7 == 0)
				sched_yield();
		}
		_exit(0);
	}
	while (got < n + (n + 2) / 3) {
		sleep_until_record(ring);
		got += (unsigned)strlen(drain_letters(ring));
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_LETTERS(ring, "");
}
