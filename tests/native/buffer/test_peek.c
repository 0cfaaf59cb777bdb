/* SPDX-License-Identifier: MIT */
/* Copying what is unread beside the consumer: all of it, whatever that consumer and the writers do meanwhile, and nothing else. */
#define _GNU_SOURCE
#include "check.h"
#include "random.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

SCHEMES(rseq, lockless);

enum { SUBBUF = 40, N_SUBBUFS = 4, RECORD = 10, PAGE = 4096 };

DEFINE_AUTOPTR(relay_peek, relay_buf_peek_close)

static struct relay_peek *peek_of(struct rchan_buf *buf)
{
	struct relay_peek *peek = relay_buf_peek_open(buf);

	CHECK(peek != NULL);
	return peek;
}

/* Everything that it has left, `size` bytes at once. Valid until the next call. */
static const char *peeked_by(struct relay_peek *peek, size_t size)
{
	static char text[1 << 16];
	size_t n = 0;
	ssize_t got;

	while ((got = relay_buf_peek_copy(peek, text + n, size)) > 0) {
		n += (size_t)got;
		CHECK((size_t)got <= size && n + size < sizeof(text));
	}
	CHECK_EQ(got, 0);
	text[n] = 0;
	return text;
}

#define CHECK_PEEKED(peek, text) CHECK_TEXT(peeked_by(peek, 100), text)

static struct rchan_buf *make_timed(uint32_t mode)
{
	struct relay_spec spec = a_spec(200, N_SUBBUFS, mode);

	spec.times = RELAY_MONO;
	return make_buf_of(spec);
}

TEST(what_was_unread_is_copied_and_stays)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	char out[RECORD];

	CHECK_EQ(write_each(buf, "abcdef", RECORD), 0);
	CHECK_EQ(consume_into(buf, out, 5), 5);
	for (size_t size = 1; size <= 100; size += 33) {
		AUTOPTR(relay_peek) peek = peek_of(buf);
		CHECK_TEXT(peeked_by(peek, size), "aaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff");
		CHECK_PEEKED(peek, "");
		CHECK_EQ(relay_buf_peek_has_skipped(peek), 0);
	}
	CHECK_STATS(buf, (read_bytes, 5), (reads, 1), (unread_bytes, 55));
}

TEST(it_ends_where_the_data_ended_and_can_go_on)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_peek) peek = peek_of(buf);

	CHECK_EQ(write_each(buf, "ab", 2), 0);
	CHECK_PEEKED(peek, "");
	AUTOPTR(relay_peek) later = peek_of(buf);
	CHECK_EQ(write_each(buf, "cd", RECORD), 0);
	CHECK_PEEKED(later, "aabb");
	relay_buf_peek_rewind(later);
	CHECK_TEXT(peeked_by(later, 1), "aabb");
	CHECK_EQ(relay_buf_peek_more(peek), 0);
	CHECK_EQ(relay_buf_peek_more(later), 0);
	CHECK_PEEKED(peek, "aabbccccccccccdddddddddd");
	CHECK_PEEKED(later, "ccccccccccdddddddddd");
}

TEST(what_is_consumed_meanwhile_is_copied_until_it_is_overwritten)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	char one[RECORD + 1] = {0};

	CHECK_EQ(write_each(buf, "abcdefghijklmnop", RECORD), 0);
	AUTOPTR(relay_peek) peek = peek_of(buf);
	CHECK_EQ(relay_buf_peek_copy(peek, one, RECORD), RECORD);
	CHECK_EQ(strlen(drain(buf)), 16 * RECORD);
	CHECK_EQ(relay_buf_peek_copy(peek, one, RECORD), RECORD);
	CHECK_TEXT(one, "bbbbbbbbbb");
	CHECK_EQ(relay_buf_peek_has_skipped(peek), 0);
	/* The first sub-buffer begins anew. All else was consumed, and what comes is not looked for. */
	CHECK_EQ(write_letters(buf, 'x', RECORD), 0);
	CHECK_PEEKED(peek, "");
	CHECK_EQ(relay_buf_peek_has_skipped(peek), 1);
	relay_buf_peek_rewind(peek);
	CHECK_PEEKED(peek, "");
	CHECK_EQ(relay_buf_peek_more(peek), 0);
	CHECK_PEEKED(peek, "xxxxxxxxxx");
}

TEST(another_one_goes_on_where_it_was)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	char one[RECORD + 1] = {0}, saved[1024];

	CHECK_EQ(write_each(buf, "abcdef", RECORD), 0);
	AUTOPTR(relay_peek) peek = peek_of(buf);
	CHECK_EQ(relay_buf_peek_copy(peek, one, RECORD), RECORD);
	size_t size = relay_buf_peek_save(peek, saved, sizeof(saved));
	CHECK_EQ(strlen(drain(buf)), 6 * RECORD);
	CHECK_EQ(write_each(buf, "gh", RECORD), 0);
	AUTOPTR(relay_peek) other = peek_of(buf);
	CHECK_EQ(relay_buf_peek_restore(other, saved, size - 1), -EINVAL);
	CHECK_EQ(relay_buf_peek_restore(other, saved, size), 0);
	CHECK_PEEKED(other, "bbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff");
	CHECK_EQ(relay_buf_peek_has_skipped(other), 0);
	relay_buf_peek_rewind(other);
	CHECK_EQ(strlen(peeked_by(other, RECORD)), 6 * RECORD);
	CHECK_EQ(relay_buf_peek_more(other), 0);
	CHECK_PEEKED(other, "gggggggggghhhhhhhhhh");
}

TEST(overwritten_data_is_skipped)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_OVERWRITE);
	char one[RECORD + 1] = {0};

	CHECK_EQ(write_each(buf, "abcdefghijklmnop", RECORD), 0);
	AUTOPTR(relay_peek) peek = peek_of(buf);
	CHECK_EQ(relay_buf_peek_copy(peek, one, RECORD), RECORD);
	CHECK_EQ(write_each(buf, "qrstu", RECORD), 0);
	CHECK_PEEKED(peek, "iiiiiiiiiijjjjjjjjjjkkkkkkkkkkllllllllllmmmmmmmmmmnnnnnnnnnnoooooooooopppppppppp");
	CHECK_EQ(relay_buf_peek_has_skipped(peek), 1);
	AUTOPTR(relay_peek) late = peek_of(buf);
	CHECK_EQ(strlen(peeked_by(late, 7)), 13 * RECORD);
}

TEST(discarded_records_are_never_copied)
{
	for (unsigned seed = 0; seed < 200; seed++) {
		AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
		char expected[N_SUBBUFS * SUBBUF + 1] = {0}, out[8];
		size_t n = 0;

		for (unsigned i = 0; i < 20; i++) {
			char letter = (char)('a' + i);
			void *to;
			if (random_below(2)) {
				CHECK_EQ(relay_buf_reserve(buf, 3, &to), 0);
				memset(to, '#', 3);
				relay_buf_discard(buf, to);
			} else {
				CHECK_EQ(write_letters(buf, letter, 3), 0);
				memset(expected + n, letter, 3);
				n += 3;
			}
		}
		AUTOPTR(relay_peek) peek = peek_of(buf);
		char text[sizeof(expected)] = {0};
		size_t done = 0, consumed = 0;
		ssize_t got;
		while ((got = relay_buf_peek_copy(peek, text + done, 1 + random_below(9))) > 0) {
			done += (size_t)got;
			consumed += consume_into(buf, out, random_below(sizeof(out)));
		}
		CHECK_EQ(got, 0);
		/* It may have skipped what was consumed, and then says so; all else is there, in order. */
		if (!relay_buf_peek_has_skipped(peek))
			CHECK_TEXT(text, expected);
		CHECK(done + consumed >= n);
		const char *at = expected;
		for (size_t i = 0; i < done; i++) {
			at = strchr(at, text[i]);
			CHECK(at++ != NULL);
		}
	}
}

TEST(a_reservation_ends_it_until_it_is_committed)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	void *to;

	CHECK_EQ(write_letters(buf, 'a', 2), 0);
	CHECK_EQ(relay_buf_reserve(buf, 2, &to), 0);
	CHECK_EQ(write_letters(buf, 'c', 2), 0);
	AUTOPTR(relay_peek) peek = peek_of(buf);
	CHECK_PEEKED(peek, "aa");
	memset(to, 'b', 2);
	relay_buf_commit(buf, to);
	CHECK_PEEKED(peek, "bbcc");
}

TEST(a_reset_ends_it)
{
	AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "abc", RECORD), 0);
	AUTOPTR(relay_peek) peek = peek_of(buf);
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_EQ(write_each(buf, "xy", RECORD), 0);
	CHECK_PEEKED(peek, "");
	CHECK_EQ(relay_buf_peek_more(peek), 0);
	CHECK_PEEKED(peek, "xxxxxxxxxxyyyyyyyyyy");
}

TEST(records_with_times_are_copied_whole_without_their_heads)
{
	const uint32_t modes[] = {RELAY_NO_OVERWRITE, RELAY_OVERWRITE};

	for (size_t i = 0; i < 2; i++) {
		AUTOPTR(rchan_buf) buf = make_timed(modes[i]);
		char one[2];
		void *to;

		CHECK_EQ(write_each(buf, "abc", 50), 0);
		CHECK_EQ(relay_buf_reserve(buf, 20, &to), 0);
		relay_buf_discard(buf, to);
		CHECK_EQ(write_each(buf, "de", 3), 0);
		for (size_t size = 50; size < 400; size += 49) {
			AUTOPTR(relay_peek) peek = peek_of(buf);
			const char *text = peeked_by(peek, size);
			CHECK_EQ(strlen(text), 156);
			CHECK_TEXT(text + 149, "cdddeee");
		}
		AUTOPTR(relay_peek) peek = peek_of(buf);
		CHECK_EQ(relay_buf_peek_copy(peek, one, sizeof(one)), -EMSGSIZE);
		CHECK_EQ(strlen(peeked_by(peek, 60)), 156);
	}
}

TEST(packets_have_no_peeks)
{
	AUTOPTR(rchan_buf) buf = make_packet_buf(300, N_SUBBUFS, RELAY_NO_OVERWRITE);

	errno = 0;
	CHECK(!relay_buf_peek_open(buf));
	CHECK_EQ(errno, EINVAL);
}

static struct {
	struct rchan_buf *buf; /* another mapping of the buffer */
	char *pages;
} faulting;

/* The first half of the data was copied. */
static void overwrite_on_fault(int signal)
{
	(void)signal;
	CHECK_EQ(mprotect(faulting.pages + PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
	drain(faulting.buf);
	CHECK_EQ(write_each(faulting.buf, "ABCDEFGH", RECORD), 0);
}

TEST(what_is_overwritten_while_it_is_copied_is_not_returned)
{
	const uint32_t modes[] = {RELAY_NO_OVERWRITE, RELAY_OVERWRITE};
	struct sigaction action = {.sa_handler = overwrite_on_fault};

	CHECK_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	for (size_t i = 0; i < 2; i++) {
		AUTOPTR(rchan_buf) buf = make_buf(SUBBUF, N_SUBBUFS, modes[i]);
		AUTOPTR(rchan_buf) other = open_again(buf);
		faulting.buf = other;
		faulting.pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(faulting.pages != MAP_FAILED);
		CHECK_EQ(write_each(buf, "abcdefghijklmnop", RECORD), 0);
		AUTOPTR(relay_peek) peek = peek_of(buf);
		CHECK_EQ(mprotect(faulting.pages + PAGE, PAGE, PROT_NONE), 0);
		char *to = faulting.pages + PAGE - RECORD;
		ssize_t got = relay_buf_peek_copy(peek, to, 2 * RECORD);
		/* All was consumed before it was overwritten; in mode overwrite, too. */
		CHECK_EQ(got, 0);
		CHECK_EQ(relay_buf_peek_has_skipped(peek), 1);
		munmap(faulting.pages, 2 * PAGE);
	}
}
