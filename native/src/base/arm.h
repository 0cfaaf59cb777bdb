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
 * between the two lines wakes nobody, so that consumers do not sleep for ever, but look again from time to time.
 */
#ifndef RELAYFS_BASE_ARM_H
#define RELAYFS_BASE_ARM_H

#include "base/futex.h"

/* Two words of shared memory. */
struct relay_armed {
	uint32_t *flags;
	uint32_t *seq;
};

/* The value of *seq at which to sleep, for who looks before he arms. */
static inline uint32_t relay_armed_seq(struct relay_armed armed)
{
	return __atomic_load_n(armed.seq, __ATOMIC_SEQ_CST);
}

/* Ask to be woken. Returns the value of *seq at which to sleep, if nothing is new now. */
uint32_t relay_arm(struct relay_armed armed, uint32_t bits);

/* Wake those that armed one of the bits. errno stays. */
void relay_wake_armed(struct relay_armed armed, uint32_t bits);

/* May n words be waited for at once, and a word to stop at, which there always is room for? */
static inline bool relay_may_wait_for(size_t n, const uint32_t *stop)
{
	return n < RELAY_MAX_WORDS && (n || stop);
}

/* Sleep while all n words, as relay_may_wait_for() allows, have their values and, unless stop is NULL, *stop is stop_value. words
 * has room for RELAY_MAX_WORDS. As relay_futex_wait_any(). */
int relay_wait_armed(struct relay_futex *words, size_t n, uint32_t *stop, uint32_t stop_value, int timeout_ms);

#endif
