/* SPDX-License-Identifier: MIT */
/* relay_ring_wait() of <relayfs/ring.h>: sleeping until one of several rings has a record. */
#define _GNU_SOURCE
#include "base/futex.h"
#include "ring/remote.h"
#include "ring/wake.h"

#include <errno.h>

/* The longest sleeps. A producer can die between its commit and the wake-up (LOOK_AGAIN_MS), or before its
 * commit (LOOK_FOR_DEAD_MS). */
enum { LOOK_AGAIN_MS = 1000, LOOK_FOR_DEAD_MS = 50 };

static bool is_any_ready(struct relay_ring *const *rings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (relay_ring_state(rings[i]) & ~RELAY_IS_HELD)
			return true;
	return false;
}

/* The longest sleep: shorter if one of the rings has a reservation, whose owner may have died. */
static int longest_sleep_ms(struct relay_ring *const *rings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (relay_ring_reserved(rings[i]) != relay_ring_consumed(rings[i]))
			return LOOK_FOR_DEAD_MS;
	return LOOK_AGAIN_MS;
}

static bool is_any_missing(struct relay_ring *const *rings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!rings[i])
			return true;
	return false;
}

static bool is_any_held(struct relay_ring *const *rings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (rings[i]->n_held)
			return true;
	return false;
}

static bool is_any_remote(struct relay_ring *const *rings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (rings[i]->remote)
			return true;
	return false;
}

/* relay_pace() of the first ring, for what all have consumed together. */
static int pace(struct relay_ring *const *rings, size_t n)
{
	uint64_t consumed = 0;
	for (size_t i = 0; i < n; i++)
		consumed += relay_ring_consumed(rings[i]);
	return relay_pace(&rings[0]->pace, consumed, rings[0]->size);
}

/* Sleep for `ms` at most; seqs: the results of relay_ring_arm() for the rings. Returns 0 or -EINTR. */
static int sleep_a_while(struct relay_ring *const *rings, const uint32_t *seqs, size_t n, int ms)
{
	return is_any_remote(rings, n) ? relay_ring_remote_wait(rings, n, ms)
	                               : relay_ring_wait_any(rings, seqs, n, NULL, 0, ms);
}

int relay_ring_wait(struct relay_ring *const *rings, size_t n, int timeout_ms)
{
	if (n == 0 || n > RELAY_RING_N_WAITED_FOR)
		return -EINVAL;
	if (!rings || is_any_missing(rings, n))
		return -EBADF;
	if (is_any_held(rings, n))
		return -EALREADY;
	uint32_t seqs[RELAY_RING_N_WAITED_FOR];
	int64_t until = timeout_ms < 0 ? INT64_MAX : relay_now_ms() + timeout_ms;
	while (!is_any_ready(rings, n)) {
		int64_t left = timeout_ms < 0 ? LOOK_AGAIN_MS : until - relay_now_ms();
		if (left <= 0)
			return 0;
		int err = is_any_remote(rings, n) ? 0 : pace(rings, n);
		if (err < 0)
			return err;
		if (err)
			continue;
		for (size_t i = 0; i < n; i++)
			seqs[i] = relay_ring_arm(rings[i]);
		if (is_any_ready(rings, n))
			break;
		int most = longest_sleep_ms(rings, n);
		err = sleep_a_while(rings, seqs, n, left < most ? (int)left : most);
		if (err)
			return err;
	}
	return 1;
}
