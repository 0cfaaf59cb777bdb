/* SPDX-License-Identifier: MIT */
/*
 * The lists of holes that readers collect are as long as producers make them: up to 3 MiB each, two for each buffer.
 * Their memory in one process, such as a file server that reads many buffers, is limited to MOST_BYTES. If a list
 * cannot grow without exceeding that, other lists are freed, in this order:
 *
 * - First the lists of the user whose lists have the most memory, whether or not the growing list is one of these. A
 *   user is the owner of the buffer's file; users whose numbers are equal modulo N_ACCOUNTS share an account. So no
 *   user loses a list to a user whose lists have more memory.
 * - Of these, the list that was used least recently. A list that is still being collected, or whose last hole no
 *   walk has reached yet, is spared for SPARED_MS after each use, because otherwise it might be freed before it
 *   was of use, again and again.
 * - If all of them are spared, the shortest. If that is the growing list itself, it is freed, so that longer lists are
 *   completed even if readers alternate between many buffers.
 *
 * A list is used by the thread that has the buffer's rchan_buf.walking. A thread takes room_mutex after that mutex, so
 * with room_mutex it only tries to take `walking` of other buffers, and skips the lists of those that are being walked.
 * Therefore the limit may be exceeded by one list for each thread that reads.
 */
#define _GNU_SOURCE
#include "buffer/hole_lists.h"

#include "base/clock.h"

#include <stdlib.h>
#include <sys/stat.h>

enum {
	MOST_BYTES = 64 << 20,
	N_ACCOUNTS = 1024,
	FIRST = 64,       /* the first capacity of a list, in holes */
	SHORT = 4096,     /* shorter lists are collected again so soon that their last use is not noted */
	SPARED_MS = 10000 /* longer than a process on a busy machine needs to read all its buffers once */
};

struct relay_holes_account {
	struct relay_holes *oldest, *newest; /* ends of the list, in the order of last use */
	uint64_t bytes;
};

static struct relay_holes_account accounts[N_ACCOUNTS];
static uint64_t all_bytes;
static pthread_mutex_t room_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks = PTHREAD_ONCE_INIT;

static void lock_for_fork(void)
{
	pthread_mutex_lock(&room_mutex);
}

static void unlock_after_fork(void)
{
	pthread_mutex_unlock(&room_mutex);
}

static void watch_forks(void)
{
	pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}

static uint64_t coarse_ms(void)
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
	/* Relaxed: relay_holes_touch() compares it only with a list that no other thread links at the same time. */
	__atomic_store_n(&account->newest, holes, __ATOMIC_RELAXED);
}

static void unlink_list(struct relay_holes *holes)
{
	struct relay_holes_account *account = holes->account;
	*(holes->older ? &holes->older->newer : &account->oldest) = holes->newer;
	if (holes->newer)
		holes->newer->older = holes->older;
	else
		/* Relaxed: as in link_newest(). */
		__atomic_store_n(&account->newest, holes->older, __ATOMIC_RELAXED);
}

static void free_list(struct relay_holes *holes)
{
	unlink_list(holes);
	holes->account->bytes -= bytes_of(holes);
	all_bytes -= bytes_of(holes);
	free(holes->at);
	*holes = (struct relay_holes){0};
}

void relay_holes_forget(struct relay_holes *holes)
{
	pthread_once(&forks, watch_forks);
	/* The mutex is taken even if the list has no memory: free_one() of another thread may have just freed it,
	 * and may still use the mutex in its buffer. */
	pthread_mutex_lock(&room_mutex);
	if (holes->account)
		free_list(holes);
	pthread_mutex_unlock(&room_mutex);
}

void relay_holes_touch(struct relay_holes *holes)
{
	if (holes->capacity > SHORT)
		holes->used_ms = coarse_ms();
	/* Relaxed: only this thread can make this list the newest; others can only replace it, with the mutex. */
	if (!holes->account || __atomic_load_n(&holes->account->newest, __ATOMIC_RELAXED) == holes)
		return;
	pthread_mutex_lock(&room_mutex);
	unlink_list(holes);
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
	return (holes->next || !holes->is_used) && now - holes->used_ms < SPARED_MS;
}

/* Free the least recently used list of the account that has a capacity of at most `capacity`; with `spared`, also a
 * spared list. Skips the list `grower`. Returns false if there is none. */
static bool free_one(struct relay_holes_account *account, const struct relay_holes *grower, uint32_t capacity,
                     bool spared)
{
	uint64_t now = coarse_ms();
	for (struct relay_holes *holes = account->oldest, *newer; holes; holes = newer) {
		struct rchan_buf *buf = holes->buf;
		newer = holes->newer;
		if (holes == grower || (buf != grower->buf && pthread_mutex_trylock(&buf->walking)))
			continue;
		bool found = holes->capacity <= capacity && (spared || !is_spared(holes, now));
		if (found)
			free_list(holes);
		if (buf != grower->buf)
			pthread_mutex_unlock(&buf->walking);
		if (found)
			return true;
	}
	return false;
}

/* Free lists until there are `more` bytes within MOST_BYTES. Returns false if only lists could be freed that are longer
 * than `grower` and spared. Returns true, and exceeds the limit, if all lists of another account are being walked. */
static bool make_room(const struct relay_holes *grower, uint64_t more)
{
	while (all_bytes + more > MOST_BYTES) {
		struct relay_holes_account *account = heaviest_account();
		bool is_own = account == grower->account;
		uint32_t most = is_own ? grower->capacity : RELAY_N_HOLES;
		bool found = free_one(account, grower, RELAY_N_HOLES, false);
		for (uint32_t capacity = FIRST; !found && capacity <= most; capacity *= 2)
			found = free_one(account, grower, capacity, true);
		if (!found)
			return !is_own;
	}
	return true;
}

/* The caller has room_mutex. */
static bool grow_list(struct relay_holes *holes)
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
	holes->used_ms = coarse_ms();
	bool has_grown = grow_list(holes);
	if (!has_grown)
		free_list(holes);
	pthread_mutex_unlock(&room_mutex);
	return has_grown;
}
