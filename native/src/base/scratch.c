/* SPDX-License-Identifier: MIT */
/*
 * One mapping (`pieces`) has N_PIECES pieces; a bit in `taken` says which are in use. A thread keeps a piece while it
 * makes one record, so N_PIECES threads may be interrupted in the middle of one. A piece that was never taken occupies
 * no memory.
 *
 * A record that is longer than a piece gets a mapping of its own (struct own), which relay_scratch_give_back() unmaps.
 */
#define _GNU_SOURCE
#include "base/scratch.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

enum { N_PIECES = 64 };

/* The beginning of a mapping for one record. */
struct own {
	size_t bytes; /* of the whole mapping */
	unsigned char piece[] __attribute__((aligned(64)));
};

static unsigned char *pieces; /* NULL: not mapped yet */
static uint64_t taken;

static unsigned char *map_scratch(void)
{
	unsigned char *mapped, *none = NULL;
	int saved = errno;
	mapped = mmap(NULL, (size_t)N_PIECES * RELAY_SCRATCH_BYTES, PROT_READ | PROT_WRITE,
	              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	errno = saved;
	if (mapped == MAP_FAILED)
		return NULL;
	/* Pairs with the acquire in relay_scratch_take(). It fails if another thread or a signal handler has stored its
	 * mapping first; then that one is used. */
	if (__atomic_compare_exchange_n(&pieces, &none, mapped, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return mapped;
	munmap(mapped, (size_t)N_PIECES * RELAY_SCRATCH_BYTES);
	return none;
}

void relay_scratch_prepare(void)
{
	/* Pairs with the compare-and-swap in map_scratch(). */
	if (!__atomic_load_n(&pieces, __ATOMIC_ACQUIRE))
		map_scratch();
}

void *relay_scratch_take(void)
{
	/* Pairs with the compare-and-swap in map_scratch(). */
	unsigned char *first = __atomic_load_n(&pieces, __ATOMIC_ACQUIRE);
	if (!first && !(first = map_scratch()))
		return NULL;
	/* Relaxed: the compare-and-swap checks the value. */
	uint64_t now = __atomic_load_n(&taken, __ATOMIC_RELAXED);
	while (~now) {
		unsigned free = (unsigned)__builtin_ctzll(~now);
		/* Pairs with the release in relay_scratch_give_back(): the thread that had the piece before no longer
		 * accesses it. */
		if (__atomic_compare_exchange_n(&taken, &now, now | 1ull << free, 1, __ATOMIC_ACQUIRE,
		                                __ATOMIC_RELAXED))
			return first + (size_t)free * RELAY_SCRATCH_BYTES;
	}
	return NULL;
}

void *relay_scratch_map(size_t bytes)
{
	int saved = errno;
	struct own *own = mmap(NULL, sizeof(*own) + bytes, PROT_READ | PROT_WRITE,
	                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	errno = saved;
	if (own == MAP_FAILED)
		return NULL;
	own->bytes = sizeof(*own) + bytes;
	return own->piece;
}

static void unmap(struct own *own)
{
	int saved = errno;
	munmap(own, own->bytes);
	errno = saved;
}

void relay_scratch_give_back(void *piece)
{
	/* Relaxed: a thread that has one of the pieces has loaded the address before; of another mapping, any value
	 * gives an offset outside the pieces. */
	uintptr_t offset = (uintptr_t)piece - (uintptr_t)__atomic_load_n(&pieces, __ATOMIC_RELAXED);
	size_t number = offset / RELAY_SCRATCH_BYTES;
	if (number < N_PIECES)
		/* Pairs with the acquire in relay_scratch_take(). */
		__atomic_fetch_and(&taken, ~(1ull << number), __ATOMIC_RELEASE);
	else
		unmap((struct own *)((unsigned char *)piece - offsetof(struct own, piece)));
}

void relay_scratch_forget(void)
{
	/* Relaxed: the child has one thread. */
	__atomic_store_n(&taken, 0, __ATOMIC_RELAXED);
}
