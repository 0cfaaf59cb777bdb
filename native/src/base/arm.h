/* SPDX-License-Identifier: MIT */
/*
 * Self-paced wake-up: a producer makes no system call unless a consumer sleeps. Knows no rings.
 *
 *     consumer                                 producer
 *     seq = *armed.seq                         publish the record
 *     *armed.flags |= bits                     if (*armed.flags & bits)      one load, in a line it has
 *     membarrier(GLOBAL_EXPEDITED)                     *armed.flags &= ~bits
 *     nothing new? sleep while                         (*armed.seq)++, futex wake
 *        *armed.seq == seq
 *
 * Either the producer sees the bits or the consumer sees the record. Between "publish" and "if" the producer would need a
 * fence, which costs more than the write; the consumer, about to sleep anyway, makes the kernel fence every CPU that runs a
 * registered process instead. Where membarrier(2) is not to be had, sleepers look again every 10 ms. A producer that dies
 * after "publish" and before the wake-up wakes nobody. Therefore callers of relay_wait_armed() pass a timeout and look again.
 */
#ifndef RELAYFS_BASE_ARM_H
#define RELAYFS_BASE_ARM_H

#include "base/futex.h"

/* Two words of shared memory. */
struct relay_armed {
	uint32_t *flags;
	uint32_t *seq;
};

/* The value of *seq for a caller that checks for data before it calls relay_arm(). Pairs with the increment in
 * relay_wake_armed(). */
static inline uint32_t relay_armed_seq(struct relay_armed armed)
{
	return __atomic_load_n(armed.seq, __ATOMIC_SEQ_CST);
}

/* Ask to be woken. Returns the value of *seq at which to sleep, if nothing is new now. */
uint32_t relay_arm(struct relay_armed armed, uint32_t bits);

/* Wake those that armed one of the bits. errno stays. */
void relay_wake_armed(struct relay_armed armed, uint32_t bits);

/* May relay_wait_armed() wait for n words and `stop`? One of RELAY_MAX_WORDS is kept for *stop. */
static inline bool relay_may_wait_for(size_t n, const uint32_t *stop)
{
	return n < RELAY_MAX_WORDS && (n || stop);
}

/* Sleep while each words[i] has its value and, unless stop is NULL, *stop is stop_value; words[n] is overwritten, so words has room
 * for RELAY_MAX_WORDS. At most timeout_ms (-1: no limit), or 10 ms without membarrier(2). 0, or -EINTR. */
int relay_wait_armed(struct relay_futex *words, size_t n, uint32_t *stop, uint32_t stop_value, int timeout_ms);

#endif
