/* SPDX-License-Identifier: MIT */
/*
 * Self-paced wake-up.
 *
 *     reader                                   producer
 *     seq = wake_seq                           publish the record
 *     flags |= ARM                             if (flags & ARM)            one load, in a line it has
 *     membarrier(GLOBAL_EXPEDITED)                     flags &= ~ARM
 *     nothing new? sleep while                         wake_seq++, futex wake
 *        wake_seq == seq
 *
 * Either the producer sees ARM or the reader sees the record. Between "publish" and "if" the producer
 * would need a fence, which costs more than the write; the reader, about to sleep anyway, makes the kernel
 * fence every CPU that runs a registered process instead. Where membarrier is not to be had, sleepers look
 * again every 10 ms. A producer that dies between the two lines wakes nobody: long sleepers look again, too.
 */
#define _GNU_SOURCE
#include "buffer/wake.h"

#include "base/futex.h"
#include "base/quiet.h"

enum { SILENT_MS = 50 };

void relay_wake(struct rchan_buf *buf, uint32_t bits)
{
	struct relay_control *control = buf->control;
	if (buf->never_waits && relay_is_quiet())
		return;
	int saved = errno;
	/* Whoever clears the bits wakes: one system call however many writers see them set. */
	if (__atomic_fetch_and(&control->flags, ~bits, __ATOMIC_SEQ_CST) & bits) {
		/* Pairs with the futex's own comparison in relay_buf_wait_any(). */
		__atomic_add_fetch(&control->wake_seq, 1, __ATOMIC_SEQ_CST);
		relay_wake_word(&control->wake_seq);
	}
	errno = saved;
}

void relay_wake_maker(struct rchan_buf *first)
{
	int saved = errno;
	/* Pairs with the futex's own comparison. */
	__atomic_add_fetch(&first->control->map_seq, 1, __ATOMIC_SEQ_CST);
	relay_wake_word(&first->control->map_seq);
	errno = saved;
}

int relay_buf_arm(struct rchan_buf *buf, uint32_t what, uint32_t *seq)
{
	*seq = relay_buf_wake_seq(buf);
	/* Pairs with relay_wake_record() and relay_wake_switch(), fenced by the membarrier. */
	__atomic_fetch_or(&buf->control->flags, what & RELAY_ARMED, __ATOMIC_SEQ_CST);
	relay_fence_writers();
	return 0;
}

uint32_t relay_buf_wake_seq(const struct rchan_buf *buf)
{
	return __atomic_load_n(&buf->control->wake_seq, __ATOMIC_SEQ_CST);
}

/* How long to sleep for these: not for ever where somebody writes who wakes nobody. */
static int timeout_of(struct rchan_buf *const *bufs, size_t n, int timeout_ms)
{
	bool is_silent = false;
	for (size_t i = 0; i < n; i++)
		/* Relaxed: who sets it wakes those who had not seen it. */
		is_silent |= __atomic_load_n(&bufs[i]->control->flags, __ATOMIC_RELAXED) & RELAY_SILENT;
	timeout_ms = relay_fenced_timeout(timeout_ms);
	return is_silent && (timeout_ms < 0 || timeout_ms > SILENT_MS) ? SILENT_MS : timeout_ms;
}

void relay_silence(struct rchan_buf *buf)
{
	/* Pairs with timeout_of(): whoever is woken sees it. */
	__atomic_fetch_or(&buf->control->flags, RELAY_SILENT, __ATOMIC_SEQ_CST);
	relay_wake(buf, RELAY_ARMED);
}

int relay_buf_wait_any(struct rchan_buf *const *bufs, const uint32_t *seqs, size_t n, uint32_t *stop,
                       uint32_t stop_value, int timeout_ms)
{
	struct relay_futex words[RELAY_MAX_WORDS];
	if (n + !!stop == 0 || n + !!stop > RELAY_MAX_WORDS)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		words[i] = (struct relay_futex){&bufs[i]->control->wake_seq, seqs[i]};
	if (stop)
		words[n] = (struct relay_futex){stop, stop_value};
	return relay_futex_wait_any(words, n + !!stop, n ? timeout_of(bufs, n, timeout_ms) : timeout_ms);
}
