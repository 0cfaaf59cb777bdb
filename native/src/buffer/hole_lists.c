/* SPDX-License-Identifier: MIT */
/*
 * The lists of holes that readers keep are as long as producers make them: up to 3 MiB, two for each buffer. So that a
 * process that reads many buffers, as a file server does, needs no more than MOST_BYTES for them, a list that grows takes
 * the place of others:
 *
 * - Those of the user whose lists take the most memory, be it the one whose list grows or not. A user is who owns the
 *   buffer's file; users whose numbers are equal modulo N_ACCOUNTS share an account. So nobody loses a list to a user
 *   who keeps more.
 * - First the one that was used the longest time ago. A list that is still being collected, or that no walk has come to
 *   the end of since, is spared for PATIENCE_MS after each use; otherwise it might have been collected for nothing, again and again.
 * - If there are only such lists, the shortest. If that is the list that grows, it is forgotten itself, so that the
 *   longer ones get finished, however many buffers are read in turn.
 *
 * A list is its buffer's, and used by the thread that has rchan_buf.walking; the mutex here is taken after that one, so
 * other buffers' are only tried. What is being walked along at this moment is not forgotten: the limit may be exceeded by
 * a list for each thread that reads.
 */
#define _GNU_SOURCE
#include "buffer/hole_lists.h"

#include "base/clock.h"

#include <stdlib.h>
#include <sys/stat.h>

enum {
	MOST_BYTES = 64 << 20,
	N_ACCOUNTS = 1024,
	FIRST = 64,         /* holes that a list has room for at first */
	SHORT = 4096,       /* holes that are soon collected again, so that it does not matter when they were used */
	PATIENCE_MS = 10000 /* more than a process takes on a busy machine to come round to each of its buffers */
};

struct relay_holes_account {
	struct relay_holes *oldest, *newest; /* in the order in which they were used */
	uint64_t bytes;
};

static struct relay_holes_account accounts[N_ACCOUNTS];
static uint64_t all_bytes;
static pthread_mutex_t room_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&room_mutex);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&room_mutex);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork);
}

static uint64_t now_ms(void)
{
	return relay_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000;
}

static uint64_t bytes_of(const struct relay_holes *holes)
{
	return (uint64_t)holes->capacity * sizeof(*holes->at);
}

static struct relay_holes_account *account_of(const struct rchan_buf *buf)
{
	struct stat st;
	bool is_known = buf->mapping.file.fd >= 0 && fstat(buf->mapping.file.fd, &st) == 0;
	return &accounts[is_known ? st.st_uid % N_ACCOUNTS : 0];
}

static void link_newest(struct relay_holes *holes)
{
	struct relay_holes_account *account = holes->account;
	holes->newer = NULL;
	holes->older = account->newest;
	*(holes->older ? &holes->older->newer : &account->oldest) = holes;
	/* Relaxed: relay_holes_touch() compares it with a list that no other thread links meanwhile. */
	__atomic_store_n(&account->newest, holes, __ATOMIC_RELAXED);
}

static void unlink_it(struct relay_holes *holes)
{
	struct relay_holes_account *account = holes->account;
	*(holes->older ? &holes->older->newer : &account->oldest) = holes->newer;
	if (holes->newer)
		holes->newer->older = holes->older;
	else
		/* Relaxed: as in link_newest(). */
		__atomic_store_n(&account->newest, holes->older, __ATOMIC_RELAXED);
}

static void forget(struct relay_holes *holes)
{
	unlink_it(holes);
	holes->account->bytes -= bytes_of(holes);
	all_bytes -= bytes_of(holes);
	free(holes->at);
	*holes = (struct relay_holes){0};
}

void relay_holes_forget(struct relay_holes *holes)
{
	pthread_once(&forks, watch_forks);
	/* Also for a list that takes no memory: who has just forgotten it may still have the buffer's mutex. */
	pthread_mutex_lock(&room_mutex);
	if (holes->account)
		forget(holes);
	pthread_mutex_unlock(&room_mutex);
}

void relay_holes_touch(struct relay_holes *holes)
{
	if (holes->capacity > SHORT)
		holes->used_ms = now_ms();
	/* Relaxed: only this thread makes this list the newest, or another one instead of it under the mutex. */
	if (!holes->account || __atomic_load_n(&holes->account->newest, __ATOMIC_RELAXED) == holes)
		return;
	pthread_mutex_lock(&room_mutex);
	unlink_it(holes);
	link_newest(holes);
	pthread_mutex_unlock(&room_mutex);
}

static struct relay_holes_account *heaviest_account(void)
{
	struct relay_holes_account *heaviest = &accounts[0];
	for (int i = 1; i < N_ACCOUNTS; i++)
		if (accounts[i].bytes > heaviest->bytes)
			heaviest = &accounts[i];
	return heaviest;
}

static bool is_spared(const struct relay_holes *holes, uint64_t now)
{
	return (holes->next || !holes->is_used) && now - holes->used_ms < PATIENCE_MS;
}

/* Forget the account's oldest list for which there is room for no more than `capacity` holes; spared ones, too, or not.
 * false: there is none, besides `grower`. */
static bool forget_one(struct relay_holes_account *account, const struct relay_holes *grower, uint32_t capacity,
                       bool spared)
{
	uint64_t now = now_ms();
	for (struct relay_holes *holes = account->oldest, *newer; holes; holes = newer) {
		struct rchan_buf *buf = holes->buf;
		newer = holes->newer;
		if (holes == grower || (buf != grower->buf && pthread_mutex_trylock(&buf->walking)))
			continue;
		bool found = holes->capacity <= capacity && (spared || !is_spared(holes, now));
		if (found)
			forget(holes);
		if (buf != grower->buf)
			pthread_mutex_unlock(&buf->walking);
		if (found)
			return true;
	}
	return false;
}

/* false: only lists that are longer, and not finished yet, could make room for this one. */
static bool make_room(const struct relay_holes *grower, uint64_t more)
{
	while (all_bytes + more > MOST_BYTES) {
		struct relay_holes_account *account = heaviest_account();
		bool is_own = account == grower->account;
		uint32_t most = is_own ? grower->capacity : RELAY_N_HOLES;
		bool found = forget_one(account, grower, RELAY_N_HOLES, false);
		for (uint32_t capacity = FIRST; !found && capacity <= most; capacity *= 2)
			found = forget_one(account, grower, capacity, true);
		if (!found)
			return !is_own;
	}
	return true;
}

/* With the mutex. */
static bool grow(struct relay_holes *holes)
{
	uint32_t capacity = holes->capacity ? 2 * holes->capacity : FIRST;
	uint64_t more = capacity * sizeof(*holes->at) - bytes_of(holes);
	void *at = make_room(holes, more) ? realloc(holes->at, capacity * sizeof(*holes->at)) : NULL;
	if (!at)
		return false;
	holes->at = at;
	holes->capacity = capacity;
	holes->account->bytes += more;
	all_bytes += more;
	return true;
}

bool relay_holes_grow(struct rchan_buf *buf, struct relay_holes *holes)
{
	struct relay_holes_account *account = holes->account ? holes->account : account_of(buf);
	pthread_once(&forks, watch_forks);
	pthread_mutex_lock(&room_mutex);
	if (!holes->account) {
		holes->account = account;
		holes->buf = buf;
		link_newest(holes);
	}
	holes->used_ms = now_ms();
	bool has_grown = grow(holes);
	if (!has_grown)
		forget(holes);
	pthread_mutex_unlock(&room_mutex);
	return has_grown;
}
