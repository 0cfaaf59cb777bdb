/* SPDX-License-Identifier: MIT */
/* Checks of files that nobody changes, that somebody has damaged, and whose geometry is wrong: <relayfs/check_store.h>. */
#define _GNU_SOURCE
#include "../ring/ring_check.h"
#include "random.h"

#include <relayfs/check_store.h>
#include <sys/stat.h>

SCHEMES(rseq, lockless, locking);

enum { HANG_SECONDS = 600, ROUNDS = 300, WORDS_MAX = 40 };

static struct relay_faults faults;
/* Of relay_buf_check(). */
static int result;

/* Check the geometry, and, if that is sound, all else. Returns the number of faults. */
static uint32_t check_fd(int fd)
{
	memset(&faults, 0, sizeof(faults));
	int type = relay_geometry_check(fd, &faults);
	struct rchan_buf *buf = type == RELAY_TYPE_RELAY && !faults.n ? relay_buf_view(fd) : NULL;
	struct relay_ring *ring = type == RELAY_TYPE_RING && !faults.n ? relay_ring_view(fd) : NULL;
	if (buf)
		result = relay_buf_check(buf, &faults);
	if (ring)
		CHECK_EQ(relay_ring_check(ring, &faults), 0);
	relay_buf_release(buf);
	relay_ring_close(ring);
	CHECK(faults.n <= RELAY_N_FAULTS);
	for (uint32_t i = 0; i < faults.n; i++) {
		CHECK(memchr(faults.fault[i].name, 0, RELAY_FAULT_NAME_BYTES) != NULL);
		CHECK(memchr(faults.fault[i].text, 0, RELAY_FAULT_TEXT_BYTES) != NULL);
		CHECK(faults.fault[i].text[0]);
	}
	return faults.n;
}

/* The files' contents from before, to go back to. */
struct victim {
	int fd;
	size_t bytes;
	unsigned char *saved, *now;
};

static struct victim victim_of(const char *path)
{
	struct victim victim = {.fd = open(path, O_RDWR)};
	struct stat st;
	CHECK(victim.fd >= 0);
	CHECK_EQ(fstat(victim.fd, &st), 0);
	victim.bytes = (size_t)st.st_size;
	victim.saved = malloc(victim.bytes);
	victim.now = malloc(victim.bytes);
	CHECK(victim.saved && victim.now);
	CHECK_EQ(pread(victim.fd, victim.saved, victim.bytes, 0), victim.bytes);
	return victim;
}

static void end(struct victim *victim)
{
	close(victim->fd);
	free(victim->saved);
	free(victim->now);
}

static void check_is_unchanged(struct victim *victim, const unsigned char *contents)
{
	CHECK_EQ(pread(victim->fd, victim->now, victim->bytes, 0), victim->bytes);
	CHECK(memcmp(victim->now, contents, victim->bytes) == 0);
}

static uint64_t some_word(void)
{
	static const uint64_t words[] = {0, 1, 8, 1ull << 31, 1ull << 62, 1ull << 63, UINT64_MAX};
	uint64_t which = random_below(sizeof(words) / sizeof(words[0]) + 3);
	return which < sizeof(words) / sizeof(words[0]) ? words[which] : random_word() >> random_below(64);
}

/* Store words anywhere but in the geometry, and check: nothing else is touched, which the sanitizers see. */
static void damage_and_check(struct victim *victim)
{
	unsigned char *spoilt = malloc(victim->bytes);
	CHECK(spoilt != NULL);
	for (int round = 0; round < ROUNDS; round++) {
		memcpy(spoilt, victim->saved, victim->bytes);
		for (uint64_t n = 1 + random_below(WORDS_MAX); n; n--) {
			uint64_t at = random_below(victim->bytes / 8) * 8, word = some_word();
			bool in_geometry = at - (victim->bytes - RELAY_PAGE_BYTES) < sizeof(struct relay_geometry);
			if (!in_geometry)
				memcpy(spoilt + at, &word, sizeof(word));
		}
		CHECK_EQ(pwrite(victim->fd, spoilt, victim->bytes, 0), victim->bytes);
		check_fd(victim->fd);
		check_is_unchanged(victim, spoilt);
	}
	free(spoilt);
}

static void check_sound_and_damaged(const char *path)
{
	struct victim victim = victim_of(path);
	CHECK_EQ(check_fd(victim.fd), 0);
	check_is_unchanged(&victim, victim.saved);
	damage_and_check(&victim);
	end(&victim);
}

static void fill(struct rchan_buf *buf)
{
	for (int i = 0; i < 30; i++) {
		write_letters(buf, (char)('a' + i % 26), 60);
		if (i == 20)
			drain(buf);
	}
}

TEST(sound_memory_has_no_faults_and_damage_does_no_harm)
{
	alarm(HANG_SECONDS);
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		for (uint32_t times = RELAY_NO_TIMESTAMP; times <= RELAY_MONO; times++) {
			struct relay_spec spec = a_spec(200, 5, mode);
			spec.times = times;
			const char *path = make_channel(&spec);
			struct rchan_buf *buf = relay_buf_open(path);
			CHECK(buf != NULL);
			fill(buf);
			relay_buf_release(buf);
			check_sound_and_damaged(path);
		}
	}
}

TEST(the_same_of_a_ring)
{
	alarm(HANG_SECONDS);
	for (uint32_t mode = RELAY_NO_OVERWRITE; scheme != RELAY_LOCKING && mode <= RELAY_OVERWRITE; mode++) {
		const char *path = make_ring_file(RELAY_PAGE_BYTES, mode);
		struct relay_ring *ring = open_ring(path);
		for (int i = 0; i < 100; i++)
			output_letters(ring, 'a', 100, 0);
		relay_ring_close(ring);
		check_sound_and_damaged(path);
	}
}

TEST(more_pieces_than_one_look_sees_hide_no_later_sub_buffer)
{
	enum { SUBBUF = 65536, LENGTH = 5, EACH = LENGTH + sizeof(struct relay_timed_head), PIECES = 1100 };
	const off_t at = SUBBUF + EACH;
	struct relay_spec spec = a_spec(SUBBUF, 4, RELAY_NO_OVERWRITE);
	spec.times = spec.timestamp = RELAY_MONO;
	const char *path = make_channel(&spec);
	struct rchan_buf *buf = relay_buf_open(path);
	CHECK(buf != NULL);
	for (int i = 0; i < PIECES; i++) {
		void *to;
		CHECK_EQ(write_letters(buf, 'a', LENGTH), 0);
		CHECK_EQ(relay_buf_reserve(buf, LENGTH, &to), 0);
		relay_buf_discard(buf, to);
	}
	for (size_t i = 0; i < 2 * SUBBUF / EACH; i++)
		CHECK_EQ(write_letters(buf, 'b', LENGTH), 0);
	struct victim victim = victim_of(path);
	CHECK_EQ(check_fd(victim.fd), 0);
	CHECK_EQ(result, -EAGAIN);
	/* The head of the second record in sub-buffer 1, whose offset is odd. */
	uint32_t wrong = 0x12345678;
	CHECK_EQ(pwrite(victim.fd, &wrong, sizeof(wrong), at), sizeof(wrong));
	CHECK_EQ(check_fd(victim.fd), 1);
	CHECK_EQ(faults.fault[0].at, at);
	CHECK_EQ(faults.fault[0].value, wrong);
	relay_buf_release(buf);
	end(&victim);
}

TEST(the_value_that_is_wrong_is_named)
{
	struct relay_spec spec = a_spec(200, 5, RELAY_NO_OVERWRITE);
	struct victim victim = victim_of(make_channel(&spec));
	uint64_t at = victim.bytes - RELAY_PAGE_BYTES + offsetof(struct relay_geometry, n_claims);
	uint32_t wrong = 7;
	CHECK_EQ(pwrite(victim.fd, &wrong, sizeof(wrong), (off_t)at), sizeof(wrong));
	CHECK_EQ(check_fd(victim.fd), 1);
	CHECK_EQ(faults.fault[0].kind, RELAY_FAULT_DAMAGE);
	CHECK_EQ(faults.fault[0].at, at);
	CHECK_EQ(faults.fault[0].value, wrong);
	CHECK_EQ(strcmp(faults.fault[0].name, "relay_geometry.n_claims"), 0);
	CHECK_EQ(strcmp(faults.fault[0].text, "256"), 0);
	CHECK(relay_buf_view(victim.fd) == NULL);
	CHECK_EQ(errno, EBADMSG);
	end(&victim);
}
