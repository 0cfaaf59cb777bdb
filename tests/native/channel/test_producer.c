/* SPDX-License-Identifier: MIT */
/* What <relayfs/producer.h> compiles into a program: interrupted anywhere, killed anywhere, refused, and heard. */
#define _GNU_SOURCE
#include "check.h"
#include "stepping.h"

#include "channel/channel.h"
#include "counters/format.h"

#include <relayfs/producer.h>
#include <relayfs/store.h>
#include <sys/time.h>

/* Sections are the same in all builds, and are stepped through. */
BUILDS(plain);

enum { SUBBUF = 1000, N_SUBBUFS = 3, BYTES = 24, SIGNALS = 400, SIGNAL_US = 50, MAX_STEPS = 5000 };

static struct rchan *chan;
static struct rchan_buf *buf;
static struct relay_counters *counters;
static int instance;

static void open_channel(const char *options)
{
	static struct rchan_callbacks cb;

	cb.options = options;
	chan = relay_open(NULL, NULL, SUBBUF, N_SUBBUFS, &cb, NULL);
	CHECK(chan != NULL);
	CHECK(chan->fast.n_rseq[RELAY_INLINE_VERSION] > home_cpu);
	buf = &chan->bufs[home_cpu];
}

static int write_letter(char letter)
{
	char record[BYTES];

	memset(record, letter, BYTES);
	return relay_write(chan, record, BYTES);
}

/* The letters of the records that are there; each record is of one letter. */
static const char *drain_letters(void)
{
	static char letters[1 << 16];
	const char *text = drain(buf);
	size_t n = strlen(text) / BYTES, i;

	CHECK_EQ(strlen(text) % BYTES, 0);
	for (i = 0; i < n * BYTES; i++)
		CHECK_EQ(text[i], text[i / BYTES * BYTES]);
	for (i = 0; i < n; i++)
		letters[i] = text[i * BYTES];
	letters[n] = 0;
	return letters;
}

static int64_t sum_of_counter(void)
{
	int64_t sum;

	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_sum(counters, instance, &sum), 0);
	return sum;
}

TEST(only_programs_of_this_version_find_buffers)
{
	open_channel("");
	for (int i = 0; i < RELAY_INLINE_VERSIONS; i++)
		CHECK((chan->fast.n_rseq[i] != 0) == (i == RELAY_INLINE_VERSION));
	relay_close(chan);
}

TEST(what_is_refused_is_counted_by_cause)
{
	static char long_record[SUBBUF + 1];

	open_channel("");
	CHECK_EQ(relay_write(chan, "", 0), 0);
	CHECK_EQ(relay_write(NULL, "a", 1), -EBADF);
	CHECK_EQ(relay_write(chan, long_record, SUBBUF + 1), -EMSGSIZE);
	CHECK_EQ(relay_write(chan, long_record, (size_t)-1), -EMSGSIZE);
	int written = 0;
	while (write_letter('w') == 0)
		written++;
	CHECK_EQ(written, SUBBUF / BYTES * N_SUBBUFS);
	CHECK_EQ(write_letter('l'), -ENOSPC);
	CHECK_EQ(relay_write(chan, "abc", 3), -ENOSPC);
	CHECK_EQ(relay_write(chan, long_record, SUBBUF + 1), -EMSGSIZE);
	CHECK_STATS(buf, (records, written), (lost_full_records, 3), (lost_full_bytes, 2 * BYTES + 3),
	            (lost_too_large_records, 3));
	CHECK_EQ(relay_buf_stop(buf, RELAY_DISABLED, 1), 0);
	CHECK_EQ(write_letter('d'), -ECANCELED);
	CHECK_STATS(buf, (lost_full_records, 3), (lost_disabled_records, 1));
	CHECK_EQ(strlen(drain_letters()), written);
	relay_close(chan);
}

TEST(a_reader_that_sleeps_is_woken)
{
	uint32_t seq;

	open_channel("");
	CHECK_EQ(write_letter('a'), 0);
	CHECK_EQ(relay_buf_arm(buf, RELAY_ARM_RECORD, &seq), 0);
	CHECK_EQ(write_letter('b'), 0);
	CHECK_EQ(relay_buf_wake_seq(buf), seq + 1);
	CHECK_EQ(write_letter('c'), 0);
	CHECK_EQ(relay_buf_wake_seq(buf), seq + 1);
	relay_close(chan);
}

/* --- a signal handler that writes where the program does --- */

static volatile sig_atomic_t handled;
static long handler_written, handler_lost;

static void write_in_handler(int number)
{
	(void)number;
	int err = write_letter('h');
	handler_written += err == 0;
	handler_lost += err == -ENOSPC;
	relay_perf_adjust(counters, instance, 1);
	handled++;
}

static void count_letters(long *m, long *h)
{
	for (const char *letter = drain_letters(); *letter; letter++) {
		CHECK(*letter == 'm' || *letter == 'h');
		++*(*letter == 'm' ? m : h);
	}
}

TEST(a_signal_handler_writes_and_counts_inside_a_section)
{
	const struct itimerval often = {{0, SIGNAL_US}, {0, SIGNAL_US}}, never = {{0, 0}, {0, 0}};
	long written = 0, lost = 0, adjusted = 0, m = 0, h = 0;
	sigset_t alarms;

	open_channel("");
	counters = relay_counters_open(NULL);
	instance = relay_perf_add(counters, "producer/handled");
	CHECK(instance > 0);
	signal(SIGALRM, write_in_handler);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
	while (handled < SIGNALS) {
		int err = write_letter('m');
		CHECK(err == 0 || err == -ENOSPC);
		written += err == 0;
		lost += err != 0;
		adjusted += relay_perf_adjust(counters, instance, 1) == 0;
		if (err) {
			sigprocmask(SIG_BLOCK, &alarms, NULL);
			count_letters(&m, &h);
			sigprocmask(SIG_UNBLOCK, &alarms, NULL);
		}
	}
	CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
	count_letters(&m, &h);
	CHECK_EQ(m, written);
	CHECK_EQ(h, handler_written);
	CHECK_STATS(buf, (records, written + handler_written), (lost_full_records, lost + handler_lost));
	CHECK_EQ(sum_of_counter(), adjusted + handled);
	relay_counters_close(counters);
	relay_close(chan);
}

/* --- killed at every instruction --- */

static void (*operation)(void);

static void write_one(void)
{
	write_letter('k');
}

/* A length that the compiler does not know. */
static void write_some(void)
{
	char record[BYTES];
	volatile size_t length = BYTES;

	memset(record, 'k', length);
	relay_write(chan, record, length);
}

static void adjust_one(void)
{
	relay_perf_adjust(counters, instance, 1);
}

static void stop_around_operation(void)
{
	operation();
	raise(SIGSTOP);
	operation();
	raise(SIGSTOP);
}

/* What must hold after each kill; the child has carried out the operation once or twice. */
static void (*check_after)(void);

static void check_records(void)
{
	struct relay_stats before = stats_of(buf);

	CHECK_EQ(write_letter('a'), 0);
	const char *letters = drain_letters();
	CHECK(strcmp(letters, "ka") == 0 || strcmp(letters, "kka") == 0);
	CHECK_STATS(buf, (records, before.records + 1), (lost_torn_records, 0), (unread_bytes, 0));
}

static uint64_t n_lost;

static void check_refusals(void)
{
	uint64_t now = stats_of(buf).lost_full_records;

	CHECK(now == n_lost + 1 || now == n_lost + 2);
	CHECK_EQ(stats_of(buf).lost_full_bytes, now * BYTES);
	n_lost = now;
}

static void check_sum(void)
{
	static int64_t sum;
	int64_t now = sum_of_counter();

	CHECK(now == sum + 1 || now == sum + 2);
	sum = now;
}

/* Kill behind k instructions, or before the one at `address`. False: the operation ended before. */
static bool kill_there(long k, uint64_t address)
{
	pid_t pid = start_stepped(stop_around_operation);
	bool inside = true;

	if (address)
		run_to(pid, address);
	while (!address && k-- > 0 && inside)
		inside = step(pid);
	kill_child(pid);
	check_after();
	return inside;
}

static void kill_everywhere(void (*work)(void), void (*check)(void), unsigned least_sections)
{
	long k = 0;

	operation = work;
	check_after = check;
	n_sections = 0;
	while (kill_there(k, 0))
		CHECK(k++ < MAX_STEPS);
	CHECK(n_sections >= least_sections);
	for (unsigned i = 0; i < n_sections; i++)
		for (uint64_t at = 0; at < sections[i].length; at++)
			kill_there(0, sections[i].start + at);
}

TEST(a_producer_is_killed_at_any_instruction_of_a_write)
{
	open_channel("");
	kill_everywhere(write_one, check_records, 1);
	kill_everywhere(write_some, check_records, 1);
	relay_close(chan);
}

TEST(a_producer_is_killed_at_any_instruction_of_a_refusal)
{
	open_channel("");
	while (write_letter('f') == 0)
		;
	n_lost = stats_of(buf).lost_full_records;
	kill_everywhere(write_one, check_refusals, 1);
	relay_close(chan);
}

TEST(a_producer_is_killed_at_any_instruction_of_an_adjustment)
{
	counters = relay_counters_open(NULL);
	instance = relay_perf_add(counters, "producer/killed");
	CHECK(instance > 0);
	kill_everywhere(adjust_one, check_sum, 1);
	relay_counters_close(counters);
}
