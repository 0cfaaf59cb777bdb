/* SPDX-License-Identifier: MIT */
/*
 * Sub-buffers that begin when a callback says so, as the relay document has it: padding counts kept at the heads of
 * sub-buffers, overwrite and no-overwrite decided by the client, writers that wait, processes that die in it.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <relayfs/relay.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

SCHEMES(rseq, lockless, locking);

/* What the callback was called with last, and how often. */
static struct {
	unsigned calls, yes;
	void *subbuf, *prev_subbuf;
	unsigned prev_padding;
} seen;

static void note(void *subbuf, void *prev_subbuf, unsigned prev_padding)
{
	seen.calls++;
	seen.subbuf = subbuf;
	seen.prev_subbuf = prev_subbuf;
	seen.prev_padding = prev_padding;
}

/* The document's no-overwrite example. */
static int keep(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	note(subbuf, prev_subbuf, prev_padding);
	if (prev_subbuf)
		*((unsigned *)prev_subbuf) = prev_padding;
	if (relay_buf_full(buf))
		return 0;
	subbuf_start_reserve(buf, sizeof(unsigned int));
	seen.yes++;
	return 1;
}

/* The document's overwrite example. */
static int overwrite(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	note(subbuf, prev_subbuf, prev_padding);
	if (prev_subbuf)
		*((unsigned *)prev_subbuf) = prev_padding;
	subbuf_start_reserve(buf, sizeof(unsigned int));
	seen.yes++;
	return 1;
}

/* Neither header nor restraint. */
static int go_on(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)buf;
	note(subbuf, prev_subbuf, prev_padding);
	return 1;
}

static const struct rchan_callbacks keeping = {.subbuf_start = keep};
static const struct rchan_callbacks overwriting = {.subbuf_start = overwrite};
static const struct rchan_callbacks going_on = {.subbuf_start = go_on};

static struct rchan_buf *make_with(const struct rchan_callbacks *cb, uint64_t subbuf_size, uint64_t n_subbufs)
{
	struct rchan_buf *buf = make_buf(subbuf_size, n_subbufs, RELAY_CALLBACK);

	relay_buf_set_callbacks(buf, cb);
	return buf;
}

static unsigned header_at(struct rchan_buf *buf, unsigned index, uint64_t subbuf_size)
{
	unsigned value;
	unsigned char *memory = mmap(NULL, (index + 1) * subbuf_size, PROT_READ, MAP_SHARED, relay_buf_fd(buf), 0);

	CHECK(memory != MAP_FAILED);
	memcpy(&value, memory + index * subbuf_size, sizeof(value));
	munmap(memory, (index + 1) * subbuf_size);
	return value;
}

TEST(the_first_subbuf_is_begun_with_the_callback)
{
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 4);

	CHECK_EQ(seen.calls, 1);
	CHECK(seen.prev_subbuf == NULL && seen.subbuf != NULL);
	CHECK_STATS(buf, (offset, sizeof(unsigned)), (records, 0));
}

TEST(padding_of_the_previous_subbuf_is_told_and_stored)
{
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 4);

	CHECK_EQ(write_letters(buf, 'a', 40), 0); /* 4 + 40: 20 left */
	CHECK_EQ(seen.calls, 1);
	CHECK_EQ(write_letters(buf, 'b', 30), 0);
	CHECK_EQ(seen.calls, 2);
	CHECK_EQ(seen.prev_padding, 20);
	CHECK_EQ((char *)seen.subbuf - (char *)seen.prev_subbuf, 64);
	CHECK_EQ(header_at(buf, 0, 64), 20);
	CHECK_EQ(stats_of(buf).padding, 20);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(header_at(buf, 1, 64), 30);
}

TEST(headers_are_read_with_the_data_and_records_counted_without)
{
	char data[256];
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 4);

	CHECK_EQ(write_each(buf, "ab", 50), 0);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 2 * (4 + 50));
	CHECK_EQ(data[4], 'a');
	CHECK_EQ(data[54 + 4], 'b');
	CHECK_STATS(buf, (read_records, 2), (read_bytes, 108));
}

TEST(a_client_that_keeps_refuses_when_full_and_is_asked_again)
{
	char data[256];
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 2);

	CHECK_EQ(write_each(buf, "ab", 60), 0);
	CHECK_EQ(write_letters(buf, 'c', 60), -ENOSPC);
	CHECK_EQ(seen.calls, 3);
	void *subbuf = seen.subbuf, *prev_subbuf = seen.prev_subbuf;
	CHECK_EQ(write_letters(buf, 'd', 1), -ENOSPC);
	CHECK_EQ(seen.calls, 4);
	CHECK(seen.subbuf == subbuf && seen.prev_subbuf == prev_subbuf && seen.prev_padding == 0);
	CHECK_STATS(buf, (lost_full_records, 2), (lost_full_bytes, 61), (lost_overwritten_records, 0));
	CHECK_EQ(consume_into(buf, data, 64), 64);
	CHECK_EQ(data[4], 'a');
	CHECK_EQ(write_letters(buf, 'e', 60), 0);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 128);
	CHECK_EQ(data[4], 'b');
	CHECK_EQ(data[68], 'e');
}

TEST(a_client_that_overwrites_loses_the_oldest_and_counts_it)
{
	char data[512];
	AUTOPTR(rchan_buf) buf = make_with(&overwriting, 64, 3);

	CHECK_EQ(write_each(buf, "abcdefgh", 60), 0);
	CHECK_STATS(buf, (lost_full_records, 0), (lost_overwritten_records, 5));
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 3 * 64);
	CHECK(data[4] == 'f' && data[68] == 'g' && data[132] == 'h');
	CHECK_EQ(stats_of(buf).read_records, 3);
}

TEST(a_record_that_the_header_leaves_no_room_for_is_too_large_after_the_switch)
{
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 4);

	CHECK_EQ(write_letters(buf, 'a', 60), 0);
	CHECK_EQ(write_letters(buf, 'b', 61), -EMSGSIZE);
	CHECK_STATS(buf, (produced, 1), (lost_too_large_records, 1));
	CHECK_EQ(write_letters(buf, 'c', 65), -EMSGSIZE);
	CHECK_EQ(stats_of(buf).produced, 1);
}

TEST(without_a_header_a_subbuf_begins_too)
{
	char data[512];
	AUTOPTR(rchan_buf) buf = make_with(&going_on, 64, 2);

	CHECK_EQ(write_each(buf, "abcde", 64), 0);
	CHECK_EQ(seen.calls, 5);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(seen.calls, 7);
	CHECK_EQ(stats_of(buf).produced, 6);
	CHECK_EQ(write_letters(buf, 'f', 10), 0);
	CHECK_EQ(seen.calls, 7);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 10);
	CHECK_EQ(data[0], 'f');
}

TEST(a_header_can_be_all_of_a_subbuf_and_no_more)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_CALLBACK);

	CHECK_EQ(stats_of(buf).offset, 0);
	relay_buf_set_callbacks(buf, &keeping);
	subbuf_start_reserve(buf, 1000); /* outside a callback: no effect */
	CHECK_EQ(stats_of(buf).offset, 4);
}

TEST(flush_asks_at_once_and_what_is_finished_has_been_seen)
{
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 2);

	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_STATS(buf, (produced, 1), (offset, 4));
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_STATS(buf, (produced, 2), (offset, 0));
	CHECK_EQ(seen.calls, 3);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(stats_of(buf).produced, 2);
	CHECK_EQ(seen.calls, 4);
}

TEST(reset_begins_the_first_one_again)
{
	char data[128];
	AUTOPTR(rchan_buf) buf = make_with(&overwriting, 64, 2);

	CHECK_EQ(write_each(buf, "abcde", 60), 0);
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK(seen.prev_subbuf == NULL);
	CHECK_STATS(buf, (produced, 0), (offset, 4));
	CHECK_EQ(write_letters(buf, 'z', 60), 0);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 64);
	CHECK_EQ(data[4], 'z');
}

TEST(who_has_no_callback_fills_what_has_begun_and_begins_nothing)
{
	AUTOPTR(rchan_buf) other = make_buf(64, 4, RELAY_CALLBACK), *buf = open_again(other);

	CHECK_EQ(write_letters(other, 'x', 1), -ENOSPC);
	relay_buf_set_callbacks(buf, &keeping);
	CHECK_EQ(write_letters(other, 'x', 60), 0);
	CHECK_EQ(write_letters(other, 'y', 1), -ENOSPC);
	CHECK_EQ(stats_of(other).produced, 1); /* and what is finished is for readers */
	CHECK(relay_buf_state(other) & RELAY_HAS_FINISHED);
	CHECK_EQ(write_letters(buf, 'z', 60), 0);
	CHECK_EQ(header_at(buf, 0, 64), 0);
	CHECK_EQ(stats_of(buf).lost_full_records, 2);
}

/* --- writing in the callback --- */

static int results[2];

static int write_in_callback(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)subbuf, (void)prev_padding;
	if (prev_subbuf)
		results[0] = relay_buf_write(buf, "x", 1);
	return 1;
}

TEST(a_callback_may_not_write_to_its_channel)
{
	const struct rchan_callbacks cb = {.subbuf_start = write_in_callback};
	AUTOPTR(rchan_buf) buf = make_with(&cb, 64, 4);

	CHECK_EQ(write_each(buf, "ab", 64), 0);
	CHECK_EQ(results[0], -EDEADLK);
	CHECK_EQ(stats_of(buf).records, 2);
}

/* --- signals --- */

static struct rchan_buf *signalled;
static volatile sig_atomic_t handled, in_callback, handled_inside;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
	handled_inside += in_callback;
	CHECK_EQ(relay_buf_write(signalled, "S", 1), 0);
}

static int raise_in_callback(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	in_callback = 1;
	raise(SIGUSR1);
	in_callback = 0;
	return overwrite(buf, subbuf, prev_subbuf, prev_padding);
}

TEST(a_signal_handler_that_writes_runs_after_the_callback)
{
	const struct rchan_callbacks cb = {.subbuf_start = raise_in_callback};
	struct sigaction action = {.sa_handler = on_signal};

	signalled = make_buf(64, 4, RELAY_CALLBACK);
	sigaction(SIGUSR1, &action, NULL);
	relay_buf_set_callbacks(signalled, &cb);
	CHECK_EQ(write_each(signalled, "ab", 59), 0);
	CHECK_EQ(handled, 2);
	CHECK_EQ(handled_inside, 0);
	CHECK_EQ(stats_of(signalled).records, 4);
	relay_buf_release(signalled);
}

/* --- waiting and dying --- */

static struct {
	int reached[2], go[2];
} pipes;

/* Stop in the middle of the callback, until told to go on. */
static int stop_in_callback(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	char byte = 'r';

	if (prev_subbuf) {
		memset(subbuf, '#', 8); /* as a client would that is going to say yes */
		CHECK_EQ(write(pipes.reached[1], &byte, 1), 1);
		CHECK_EQ(read(pipes.go[0], &byte, 1), 1);
	}
	return overwrite(buf, subbuf, prev_subbuf, prev_padding);
}

static const struct rchan_callbacks stopping = {.subbuf_start = stop_in_callback};

/* A process that is in the callback of the switch that `letter` needs. */
static pid_t stopped_writer(const struct rchan_buf *shared, char letter)
{
	char byte;

	CHECK(pipe(pipes.reached) == 0 && pipe(pipes.go) == 0);
	pid_t pid = fork_child();
	if (pid == 0) {
		struct rchan_buf *buf = open_again(shared);
		relay_buf_set_callbacks(buf, &stopping);
		_exit(write_letters(buf, letter, 60) != 0);
	}
	CHECK_EQ(read(pipes.reached[0], &byte, 1), 1);
	return pid;
}

static void *write_c(void *shared)
{
	AUTOPTR(rchan_buf) buf = open_again(shared);

	relay_buf_set_callbacks(buf, &overwriting);
	CHECK_EQ(write_letters(buf, 'c', 60), 0);
	return NULL;
}

TEST(other_writers_wait_for_a_callback_and_readers_read_on)
{
	char data[256];
	pthread_t thread;
	AUTOPTR(rchan_buf) buf = make_with(&overwriting, 64, 4);

	CHECK_EQ(write_letters(buf, 'a', 60), 0);
	pid_t pid = stopped_writer(buf, 'b');
	/* What is finished is not announced before the callback has seen it, but can be read. */
	CHECK_EQ(stats_of(buf).produced, 0);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 64);
	CHECK_EQ(pthread_create(&thread, NULL, write_c, buf), 0);
	CHECK_EQ(write(pipes.go[1], "g", 1), 1);
	CHECK_EQ(result_of(pid), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(stats_of(buf).records, 3);
}

TEST(who_has_no_callback_waits_for_none)
{
	size_t total;
	struct relay_span span;
	struct rchan_buf *buf = make_with(&overwriting, 64, 2);

	CHECK_EQ(write_each(buf, "ab", 60), 0);
	pid_t pid = stopped_writer(buf, 'c');
	struct rchan_buf *other = open_again(buf);
	relay_buf_release(buf);
	buf = other;
	if (scheme == RELAY_LOCKING) { /* the writer that is stopped has the channel's lock */
		CHECK_EQ(write_letters(buf, 'd', 1), -EBUSY);
		CHECK_EQ(relay_buf_flush(buf), -EBUSY);
	} else {
		CHECK_EQ(write_letters(buf, 'd', 1), -ENOSPC);
		CHECK_EQ(relay_buf_flush(buf), 0);
		CHECK_EQ(stats_of(buf).produced, 2);
	}
	/* What may be overwritten at any moment cannot be read; that is said and does not wait. */
	CHECK_EQ(relay_consume_begin(buf, 1, &span, 1, &total), 1);
	CHECK_EQ(relay_consume_valid(buf), -EOVERFLOW);
	relay_consume_abort(buf);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	relay_buf_release(buf);
}

TEST(a_writer_killed_in_the_callback_is_replaced_and_what_it_spoiled_is_not_read)
{
	char data[512];
	AUTOPTR(rchan_buf) buf = make_with(&overwriting, 64, 2);

	CHECK_EQ(write_each(buf, "ab", 60), 0);
	pid_t pid = stopped_writer(buf, 'c'); /* in the memory of a */
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	CHECK_EQ(write_letters(buf, 'd', 60), 0);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 128);
	CHECK(data[4] == 'b' && data[68] == 'd');
	CHECK_EQ(stats_of(buf).lost_overwritten_records, 1);
}

TEST(a_reader_finds_what_a_killed_callback_spoiled)
{
	size_t total;
	char data[512];
	struct relay_span span;
	AUTOPTR(rchan_buf) buf = make_with(&overwriting, 64, 2);

	CHECK_EQ(write_each(buf, "ab", 60), 0);
	pid_t pid = stopped_writer(buf, 'c');
	CHECK_EQ(relay_consume_begin(buf, 1, &span, 1, &total), 1);
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	/* It looks whether the callback let its data be overwritten, and finds it dead. */
	CHECK_EQ(relay_consume_valid(buf), -EOVERFLOW);
	relay_consume_abort(buf);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 64);
	CHECK_EQ(data[4], 'b');
	CHECK_EQ(stats_of(buf).lost_overwritten_records, 1);
}

TEST(a_full_buffer_is_read_whole_though_the_callback_is_asked_all_the_time)
{
	char data[256];
	AUTOPTR(rchan_buf) buf = make_with(&keeping, 64, 2);

	CHECK_EQ(write_each(buf, "ab", 60), 0);
	for (int i = 0; i < 100; i++)
		CHECK_EQ(write_letters(buf, 'c', 60), -ENOSPC);
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 128);
	CHECK(data[4] == 'a' && data[68] == 'b');
	CHECK_EQ(stats_of(buf).lost_overwritten_records, 0);
}
