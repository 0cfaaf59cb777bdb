/* SPDX-License-Identifier: MIT */
/* Writing directly into a channel of 2003: rchan_get, lock, reserve, commit, unlock, put. */
#define _GNU_SOURCE
#include "classic_channel.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

SCHEMES(lockless, locking);

static char *reserve_n(struct rchan *rchan, char letter, size_t n)
{
	int err = 1;
	char *reserved = relay_reserve(rchan, n, NULL, NULL, &err);

	CHECK(reserved != NULL);
	CHECK_EQ(err, 0);
	memset(reserved, letter, n);
	return reserved;
}

static int error_of_reserve(struct rchan *rchan, size_t n)
{
	int err = 0;

	CHECK(relay_reserve(rchan, n, NULL, NULL, &err) == NULL);
	return err;
}

static bool without_lock;

/* The document's sequence. */
static int write_directly(int id, const char *data, size_t n)
{
	struct rchan *rchan = rchan_get(id);
	int err = !rchan ? -EBADF : without_lock ? 0 : relay_lock_channel(rchan);

	if (err)
		return err;
	char *reserved = relay_reserve(rchan, n, NULL, NULL, &err);
	if (reserved) {
		memcpy(reserved, data, n);
		relay_commit(rchan, reserved, n);
	}
	if (!without_lock)
		relay_unlock_channel(rchan);
	rchan_put(rchan);
	return reserved ? (int)n : err;
}

TEST(the_documents_sequence_writes_a_record)
{
	int id = open_plain();

	CHECK_EQ(write_n(id, 'a', 3), 3);
	CHECK_EQ(write_directly(id, "directly", 8), 8);
	CHECK_EQ(write_n(id, 'b', 3), 3);
	CHECK_READS("aaadirectlybbb");
	CHECK_EQ(relay_close(id), 0);
	CHECK_EQ(write_directly(id, "too late", 8), -EBADF);
}

TEST(a_reserved_record_is_read_once_it_is_committed)
{
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);
	char *reserved = reserve_n(rchan, 'r', 10);

	CHECK(reserved == info_of(id).buf_addr);
	CHECK_EQ(info_of(id).cur_idx, 10);
	CHECK_EQ(write_n(id, 'a', 5), 5);
	CHECK_READS("");
	relay_commit(rchan, reserved, 10);
	CHECK_READS("rrrrrrrrrraaaaa");
	rchan_put(rchan);
}

TEST(reserving_begins_sub_buffers_as_writing_does)
{
	answers.header = "head";
	answers.footer = "feet";
	AUTO_ID id = open_channel(64, RELAY_DELIVERY_BULK, &noting, 4, 4, 0);
	char expected[256];

	CHECK_EQ(write_directly(id, text_of('a', 50), 50), 50);
	CHECK_EQ(write_directly(id, text_of('b', 50), 50), 50);
	CHECK_CALLS("seds");
	CHECK_EQ(write_directly(id, text_of('c', 50), 50), 50);
	CHECK_CALLS("edfs");
	snprintf(expected, sizeof(expected), "head%sfeethead%s", text_of('b', 50), text_of('c', 50));
	CHECK_READS(expected);
}

TEST(packet_delivers_what_is_committed)
{
	AUTO_ID id = open_channel(64, RELAY_DELIVERY_PACKET, &noting, 0, 0, 0);
	struct rchan *rchan = rchan_get(id);
	char *reserved = reserve_n(rchan, 'r', 10);

	CHECK_CALLS("s");
	relay_commit(rchan, reserved, 10);
	CHECK_CALLS("d");
	CHECK_FIELDS(*last('d'), (at, reserved), (length, 10));
	rchan_put(rchan);
}

TEST(a_sub_buffer_is_delivered_when_its_last_reservation_is_committed)
{
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);
	char *first = reserve_n(rchan, 'r', 10), *second = reserve_n(rchan, 's', 10);

	CHECK_EQ(write_n(id, 'a', 40), 40);
	CHECK_EQ(write_n(id, 'b', 20), 20);
	CHECK_CALLS("ses"); /* finished, not complete */
	CHECK_EQ(info_of(id).bufs_produced, 1);
	CHECK_EQ(info_of(id).unused_bytes[0], 4);
	CHECK_EQ(info_of(id).buffer_complete[0], 0);
	relay_commit(rchan, second, 10);
	CHECK_CALLS("");
	CHECK_EQ(info_of(id).buffer_complete[0], 0);
	relay_commit(rchan, first, 10);
	CHECK_CALLS("d");
	CHECK_FIELDS(*last('d'), (at, first), (length, 60));
	CHECK_EQ(info_of(id).buffer_complete[0], 1);
	rchan_put(rchan);
}

TEST(sub_buffers_are_delivered_in_order)
{
	use_store();
	AUTO_ID id = relay_open("/log/1", 64, 4, RELAY_SCHEME_LOCKLESS | RELAY_DELIVERY_BULK, &noting, 0, 0, 0);
	struct rchan *rchan = rchan_get(id);
	char *memory = info_of(id).buf_addr, *reserved = reserve_n(rchan, 'r', 64);

	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), 64);
	CHECK_CALLS("seses");
	CHECK_EQ(info_of(id).buffer_complete[0], 0);
	CHECK_EQ(info_of(id).buffer_complete[1], 1);
	relay_commit(rchan, reserved, 64);
	CHECK_CALLS("dd");
	CHECK(calls[n_calls - 2].at == memory && calls[n_calls - 1].at == memory + 64);
	rchan_put(rchan);
}

TEST(what_a_slow_writer_has_reserved_is_not_overwritten)
{
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);
	char *reserved = reserve_n(rchan, 'r', 64);

	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), -ENOSPC);
	CHECK_FIELDS(info_of(id), (suspended, 0), (events_lost, 1));
	relay_commit(rchan, reserved, 64);
	CHECK_EQ(write_n(id, 'c', 64), 64);
	char expected[256];
	snprintf(expected, sizeof(expected), "%s%s", text_of('a', 64), text_of('c', 64));
	CHECK_READS(expected);
	rchan_put(rchan);
}

TEST(errors_of_a_reservation_are_those_of_a_write)
{
	answers.full = 1;
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);

	CHECK_EQ(error_of_reserve(rchan, 65), -EMSGSIZE);
	CHECK(relay_reserve(rchan, 65, NULL, NULL, NULL) == NULL); /* who does not want to know */
	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), 64);
	CHECK_EQ(error_of_reserve(rchan, 1), -ENOSPC);
	CHECK_FIELDS(info_of(id), (suspended, 1), (events_lost, 1));
	relay_resume(id);
	relay_commit(rchan, reserve_n(rchan, 'r', 64), 64);
	rchan_put(rchan);
}

TEST(a_reservation_of_the_dead_is_skipped_and_counted)
{
	int status, id = open_plain();
	pid_t child = fork();

	if (child == 0) {
		struct rchan *rchan = rchan_get(id);
		CHECK_EQ(relay_lock_channel(rchan), 0);
		reserve_n(rchan, 'r', 10);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(write_n(id, 'a', 10), 10);
	CHECK_READS("aaaaaaaaaa");
	struct rchan_buf *buf = open_memory();
	CHECK_EQ(stats_of(buf).lost_torn_records, 1);
	relay_buf_release(buf);
	CHECK_EQ(relay_close(id), 0);
}

/* --- the lock --- */

static void *write_b(void *id)
{
	CHECK_EQ(write_n(*(int *)id, 'b', 10), 10);
	return NULL;
}

TEST(who_holds_the_lock_is_the_only_writer)
{
	pthread_t thread;
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);

	CHECK_EQ(relay_lock_channel(rchan), 0);
	CHECK_EQ(pthread_create(&thread, NULL, write_b, &id), 0);
	if (scheme == RELAY_LOCKING) {
		/* Wherever it is meanwhile: what is written with the lock comes first. */
		char *first = reserve_n(rchan, 'r', 10), *second = reserve_n(rchan, 's', 10);
		CHECK(second == first + 10);
		relay_commit(rchan, first, 10);
		relay_commit(rchan, second, 10);
		relay_unlock_channel(rchan);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK_READS("rrrrrrrrrrssssssssssbbbbbbbbbb");
	} else {
		CHECK_EQ(pthread_join(thread, NULL), 0); /* it locks nobody out */
		CHECK_READS("bbbbbbbbbb");
		relay_unlock_channel(rchan);
	}
	rchan_put(rchan);
}

static void *lock_and_tell(void *rchan)
{
	int err = relay_lock_channel(rchan);

	if (!err)
		relay_unlock_channel(rchan);
	return (void *)(intptr_t)err;
}

TEST(a_lock_that_is_held_too_long_or_twice_is_refused)
{
	pthread_t thread;
	void *err;
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);

	CHECK_EQ(relay_lock_channel(rchan), 0);
	CHECK_EQ(relay_lock_channel(rchan), scheme == RELAY_LOCKING ? -EDEADLK : 0);
	CHECK_EQ(pthread_create(&thread, NULL, lock_and_tell, rchan), 0);
	CHECK_EQ(pthread_join(thread, &err), 0);
	CHECK_EQ((intptr_t)err, scheme == RELAY_LOCKING ? -EBUSY : 0);
	relay_unlock_channel(rchan);
	CHECK_EQ((intptr_t)lock_and_tell(rchan), 0);
	rchan_put(rchan);
}

TEST(signals_are_blocked_while_the_lock_is_held)
{
	sigset_t now;
	AUTO_ID id = open_plain();
	struct rchan *rchan = rchan_get(id);

	CHECK_EQ(relay_lock_channel(rchan), 0);
	CHECK_EQ(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	CHECK_EQ(sigismember(&now, SIGUSR1), scheme == RELAY_LOCKING);
	CHECK_EQ(sigismember(&now, SIGSEGV), 0);
	relay_unlock_channel(rchan);
	CHECK_EQ(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	CHECK_EQ(sigismember(&now, SIGUSR1), 0);
	rchan_put(rchan);
}

/* --- many at once --- */

enum { N_WRITERS = 4, N_RECORDS = 2000, RECORD = 16 };

static struct {
	int id;
	unsigned seen[N_WRITERS], delivered;
} many;

/* Each record is whole, and the next of its writer. */
static void check_records(int id, char *from, uint32_t length)
{
	CHECK_EQ(id, many.id);
	CHECK_EQ(length % RECORD, 0);
	for (uint32_t at = 0; at < length; at += RECORD) {
		unsigned writer = 0, number = 0;
		char text[RECORD + 1] = "";
		memcpy(text, from + at, RECORD);
		CHECK_EQ(sscanf(text, "%u:%13u;", &writer, &number), 2);
		CHECK_EQ(text[RECORD - 1], ';');
		CHECK(writer < N_WRITERS);
		CHECK_EQ(number, many.seen[writer]);
		many.seen[writer]++;
		many.delivered++;
	}
}

/* Refused is only who would overwrite what another writer has reserved and not yet filled. */
static void write_surely(unsigned writer, const char *text)
{
	int result = -ENOSPC;

	while (result == -ENOSPC) {
		result = writer % 2 ? write_directly(many.id, text, RECORD) : relay_write(many.id, text, RECORD, -1);
		if (result == -ENOSPC)
			sched_yield();
	}
	CHECK_EQ(result, RECORD);
}

static void *write_many(void *number)
{
	unsigned writer = (unsigned)(uintptr_t)number;

	for (unsigned i = 0; i < N_RECORDS; i++) {
		char text[RECORD + 1];
		snprintf(text, sizeof(text), "%u:%013u;", writer, i);
		write_surely(writer, text);
	}
	return NULL;
}

static void write_from_all(void)
{
	static const struct rchan_callbacks checking = {.deliver = check_records};
	cpu_set_t all;

	memset(&all, 0xff, sizeof(all));
	CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
	many.id = open_channel(1024, RELAY_USAGE_SMP | RELAY_DELIVERY_BULK, &checking, 0, 0, 0);
	run_threads(N_WRITERS, write_many);
	CHECK_EQ(relay_close(many.id), 0);
	CHECK_EQ(many.delivered, N_WRITERS * N_RECORDS);
}

TEST(direct_and_copied_records_of_many_threads_are_delivered_once_and_whole)
{
	write_from_all();
}

TEST(direct_records_without_the_lock_are_whole_too)
{
	without_lock = true;
	write_from_all();
}
