/* SPDX-License-Identifier: MIT */
/*
 * Waking consumers. A consumer that is about to sleep arms the wake-up: it sets bits in a word of flags. A producer
 * makes a system call only if it sees these bits.
 *
 *     consumer                                 producer
 *     seq = *armed.seq                         publish the record
 *     *armed.flags |= bits                     if (*armed.flags & bits)      in a cache line already loaded
 *     membarrier(GLOBAL_EXPEDITED)                     *armed.flags &= ~bits
 *     if there is no new record,                       (*armed.seq)++, futex wake
 *        sleep while *armed.seq == seq
 *
 * Either the producer sees the bits or the consumer sees the record. For this, the producer would need a fence between
 * "publish" and "if", which costs more than the write. Instead the consumer has the kernel fence every CPU that runs a
 * registered process. If membarrier(2) is not available, relay_wait_armed() sleeps for 10 ms at most. A producer that
 * dies after "publish" and before the wake-up wakes nobody. Therefore callers of relay_wait_armed() pass a timeout and
 * check for data again.
 */
#ifndef RELAYFS_BASE_ARM_H
#define RELAYFS_BASE_ARM_H

#include "base/futex.h"

/* The two words of shared memory by which one buffer or ring wakes its consumers. */
struct relay_armed {
	uint32_t *flags; /* consumers set bits in it; other bits have other uses */
	uint32_t *seq;   /* futex: wake-ups so far */
};

/* The value of *seq for a caller that checks for data before it calls relay_arm(). Pairs with the increment in
 * relay_wake_armed(). */
static inline uint32_t relay_armed_seq(struct relay_armed armed)
{
	return __atomic_load_n(armed.seq, __ATOMIC_SEQ_CST);
}

/* Set `bits` in the flags, so that a producer wakes the caller. Returns the value of *seq before; the caller checks for
 * data and, if there is none, sleeps while *seq has this value. */
uint32_t relay_arm(struct relay_armed armed, uint32_t bits);

/* Clear `bits` in the flags and, if one of them was set, wake all threads that sleep on *seq. Leaves errno as it
 * was. */
void relay_wake_armed(struct relay_armed armed, uint32_t bits);

/* True if relay_wait_armed() can wait for n words and `stop`: there is one of them at least, and at most RELAY_MAX_WORDS, of
 * which `stop` is one. */
static inline bool relay_may_wait_for(size_t n, const uint32_t *stop)
{
	return n < RELAY_MAX_WORDS && (n || stop);
}

/*
 * Sleep while each words[i] has its value and, unless `stop` is NULL, *stop is stop_value; for timeout_ms at most (-1:
 * no limit) or, if n is not 0 and membarrier(2) is not available, for 10 ms at most. Returns 0, or -EINTR: a signal was
 * caught. `words` has room for n + 1 entries, because words[n] is overwritten if `stop` is not NULL.
 */
int relay_wait_armed(struct relay_futex *words, size_t n, uint32_t *stop, uint32_t stop_value, int timeout_ms);

#endif
