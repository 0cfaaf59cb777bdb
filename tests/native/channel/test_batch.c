/* SPDX-License-Identifier: MIT */
/* relay_write_batch(), which writes records together where threads of all CPUs write to a buffer. Nothing but the time
 * may tell them from records that were written one by one; and what a dying writer tears are all records that it wrote
 * together. */
#define _GNU_SOURCE
#include "half_written.h"

#include "channel/channel.h"

#include <pthread.h>
#include <relayfs/relay.h>

SCHEMES(rseq, lockless, locking);

enum { N_SUBBUFS = 4, MOST = 400, N_THREADS = 3, ROUNDS = 300, DEATHS = 15 };

static struct rchan *open_channel(size_t subbuf_size, const char *mode)
{
	static const char *const names[] = {"any", "rseq", "lockless", "locking"};
	static char options[64];
	static struct rchan_callbacks cb = {.options = options};

	snprintf(options, sizeof(options), "scheme=%s mode=%s", names[scheme], mode);
	struct rchan *chan = relay_open(NULL, NULL, subbuf_size, N_SUBBUFS, &cb, NULL);
	CHECK(chan != NULL);
	return chan;
}

/* Records of 1 to 64 letters, and some of 0. Returns how many bytes they have. */
static size_t make_records(char *data, size_t *lengths, size_t n)
{
	size_t total = 0;

	for (size_t i = 0; i < n; i++) {
		lengths[i] = i % 50 == 7 ? 0 : 1 + i * i * 7 % 64;
		memset(data + total, (int)('a' + i % 26), lengths[i]);
		total += lengths[i];
	}
	return total;
}

TEST(records_of_a_batch_lie_as_if_they_were_written_one_by_one)
{
	static char data[MOST * 64], expected[MOST * 64 + 1];
	size_t lengths[MOST], at = 0;

	for (size_t subbuf_size = 64; subbuf_size <= 16384; subbuf_size *= 4) {
		struct rchan *one = open_channel(subbuf_size, "no-overwrite"),
			     *all = open_channel(subbuf_size, "no-overwrite");
		long n = 0;
		int err = 0;

		make_records(data, lengths, MOST);
		for (at = 0; n < MOST && !(err = relay_write(one, data + at, lengths[n])); n++)
			at += lengths[n];
		CHECK_EQ(relay_write_batch(all, data, lengths, MOST), n);
		struct relay_stats stats = stats_of(&one->bufs[home_cpu]);
		CHECK_STATS(&all->bufs[home_cpu], (records, stats.records), (bytes, stats.bytes),
		            (padding, stats.padding), (produced, stats.produced),
		            (lost_full_records, stats.lost_full_records), (lost_full_bytes, stats.lost_full_bytes));
		snprintf(expected, sizeof(expected), "%s", drain(&one->bufs[home_cpu]));
		CHECK_DRAINS(&all->bufs[home_cpu], expected);
		CHECK(subbuf_size < 4096 ? err == -ENOSPC : n == MOST);
		relay_close(one);
		relay_close(all);
	}
}

TEST(a_batch_that_is_refused_counts_the_record_at_which_it_ends)
{
	struct rchan *chan = open_channel(256, "no-overwrite");
	size_t lengths[] = {10, 10, 300, 10};
	static char data[330];

	CHECK_EQ(relay_write_batch(chan, data, lengths, 4), 2);
	CHECK_EQ(relay_write_batch(chan, data, lengths + 2, 2), -EMSGSIZE);
	CHECK_EQ(relay_buf_stop(&chan->bufs[home_cpu], RELAY_DISABLED, 1), 0);
	CHECK_EQ(relay_write_batch(chan, data, lengths, 2), -ECANCELED);
	CHECK_STATS(&chan->bufs[home_cpu], (records, 2), (lost_too_large_records, 2), (lost_disabled_records, 1),
	            (lost_disabled_bytes, 10));
	relay_close(chan);
}

TEST(a_writer_that_dies_tears_all_records_that_it_wrote_together)
{
	if (scheme != RELAY_LOCKLESS)
		return;
	for (int reads_between = 0; reads_between < 2; reads_between++) {
		struct rchan *chan = child.batches_to = open_channel(100, "no-overwrite");
		struct rchan_buf *buf = &chan->bufs[home_cpu];

		CHECK_EQ(write_letters(buf, 'a', 10), 0);
		struct writer writer = start_claimed(buf, 'x', 5 * BATCH_LETTERS);
		CHECK_EQ(write_letters(buf, 'b', 10), 0);
		if (reads_between)
			CHECK_DRAINS(buf, "aaaaaaaaaa");
		kill_writer(&writer);
		CHECK_DRAINS(buf, reads_between ? "bbbbbbbbbb" : "aaaaaaaaaabbbbbbbbbb");
		CHECK_STATS(buf, (records, 7), (read_records, 2), (lost_torn_records, 5), (lost_torn_bytes, 20));
		relay_close(chan);
	}
}

/* A record says who wrote it, and how many it wrote before. */
struct numbered {
	uint32_t writer, number;
};

/* Write up to n batches of different lengths; n is 0: until it is killed. */
static void write_numbered(struct rchan *chan, uint32_t writer, int n)
{
	static __thread struct numbered records[MOST];
	static __thread size_t lengths[MOST];
	uint32_t number = 0;

	for (int i = 0; !n || i < n; i++) {
		size_t many = 1 + (size_t)(i * 37 + (int)writer) % MOST;

		for (size_t k = 0; k < many; k++) {
			records[k] = (struct numbered){writer, number++};
			lengths[k] = sizeof(*records);
		}
		CHECK_EQ(relay_write_batch(chan, records, lengths, many), (long)many);
	}
}

/* Read all records; those of each writer come in order. Returns how many. */
static uint64_t check_order(struct rchan_buf *buf, uint32_t *next)
{
	static struct numbered records[1 << 16];
	uint64_t n_read = 0;

	for (size_t n; (n = consume_into(buf, (char *)records, sizeof(records))) > 0; n_read += n / sizeof(*records)) {
		CHECK_EQ(n % sizeof(*records), 0);
		for (size_t i = 0; i < n / sizeof(*records); i++) {
			CHECK(records[i].writer < N_THREADS && records[i].number >= next[records[i].writer]);
			next[records[i].writer] = records[i].number + 1;
		}
	}
	return n_read;
}

static struct rchan *shared_chan;

static void *run_thread(void *number)
{
	write_numbered(shared_chan, (uint32_t)(uintptr_t)number, ROUNDS);
	return NULL;
}

TEST(batches_of_many_threads_are_each_in_order)
{
	pthread_t thread[N_THREADS];
	uint32_t next[N_THREADS] = {0};

	shared_chan = open_channel(1 << 20, "no-overwrite");
	for (uintptr_t i = 0; i < N_THREADS; i++)
		CHECK_EQ(pthread_create(&thread[i], NULL, run_thread, (void *)i), 0);
	for (int i = 0; i < N_THREADS; i++)
		CHECK_EQ(pthread_join(thread[i], NULL), 0);
	struct relay_stats stats = stats_of(&shared_chan->bufs[home_cpu]);
	CHECK_EQ(check_order(&shared_chan->bufs[home_cpu], next), stats.records);
	CHECK_EQ(next[0] + next[1] + next[2], stats.records);
	relay_close(shared_chan);
}

TEST(of_writers_that_are_killed_each_record_is_read_or_counted)
{
	struct rchan *chan = open_channel(4096, "overwrite");
	struct rchan_buf *buf = &chan->bufs[home_cpu];
	uint64_t n_read = 0;

	for (int i = 0; i < DEATHS; i++) {
		uint32_t next[N_THREADS] = {0};
		uint64_t before = stats_of(buf).records;
		pid_t pid = fork_child();

		if (pid == 0)
			write_numbered(chan, 0, 0);
		while (stats_of(buf).records < before + 1000)
			sched_yield();
		CHECK_EQ(kill(pid, SIGKILL), 0);
		CHECK_EQ(waitpid(pid, NULL, 0), pid);
		n_read += check_order(buf, next);
	}
	struct relay_stats stats = stats_of(buf);
	CHECK_EQ(stats.read_records, n_read);
	CHECK_EQ(stats.records, n_read + stats.lost_torn_records + stats.lost_overwritten_records);
	relay_close(chan);
}
