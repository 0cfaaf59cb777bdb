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
#include "wake.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { UNFENCED_SLEEP_MS = 10, MAX_WAITERS = 128 };

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

static long membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

void relay_wake_register(void)
{
	/* Refused (old kernel, seccomp): readers find out with the command below. */
	membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

int64_t relay_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

void relay_wake_word(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void relay_wake(struct rchan_buf *buf, uint32_t bits)
{
	struct relay_control *control = buf->control;
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

bool relay_wake_fence(void)
{
	return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
}

int relay_buf_arm(struct rchan_buf *buf, uint32_t what, uint32_t *seq)
{
	*seq = relay_buf_wake_seq(buf);
	/* Pairs with relay_wake_record() and relay_wake_switch(), fenced by the membarrier. */
	__atomic_fetch_or(&buf->control->flags, what & RELAY_ARMED, __ATOMIC_SEQ_CST);
	membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
	return 0;
}

uint32_t relay_buf_wake_seq(const struct rchan_buf *buf)
{
	return __atomic_load_n(&buf->control->wake_seq, __ATOMIC_SEQ_CST);
}

static bool can_fence(void)
{
	static int answer = -1; /* the same for all threads: no harm if two ask */
	int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
	if (known < 0) {
		long commands = membarrier(MEMBARRIER_CMD_QUERY);
		known = commands > 0 && commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED;
		__atomic_store_n(&answer, known, __ATOMIC_RELAXED);
	}
	return known;
}

static int wait_one(uint32_t *word, uint32_t value, int timeout_ms)
{
	struct timespec relative = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000l};
	long woken = syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ms < 0 ? NULL : &relative, NULL, 0);
	return woken < 0 && errno == EINTR ? -EINTR : 0;
}

int relay_buf_wait_any(struct rchan_buf *const *bufs, const uint32_t *seqs, size_t n, uint32_t *stop,
                       uint32_t stop_value, int timeout_ms)
{
	if (n + !!stop == 0 || n + !!stop > MAX_WAITERS)
		return -EINVAL;
	if (n && !can_fence() && (timeout_ms < 0 || timeout_ms > UNFENCED_SLEEP_MS))
		timeout_ms = UNFENCED_SLEEP_MS;
	if (n == 1 && !stop)
		return wait_one(&bufs[0]->control->wake_seq, seqs[0], timeout_ms);
	struct futex_waitv waiters[MAX_WAITERS] = {0};
	for (size_t i = 0; i < n; i++)
		waiters[i] = (struct futex_waitv){
		    .val = seqs[i], .uaddr = (uintptr_t)&bufs[i]->control->wake_seq, .flags = FUTEX_32};
	if (stop)
		waiters[n] = (struct futex_waitv){.val = stop_value, .uaddr = (uintptr_t)stop, .flags = FUTEX_32};
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000l;
	if (until.tv_nsec >= 1000000000l) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000l;
	}
	if (syscall(SYS_futex_waitv, waiters, n + !!stop, 0, timeout_ms < 0 ? NULL : &until, CLOCK_MONOTONIC) >= 0)
		return 0;
	if (errno == ENOSYS) /* before Linux 5.16: sleep on one, look at the others every 10 ms */
		return wait_one(stop ? stop : &bufs[0]->control->wake_seq, stop ? stop_value : seqs[0],
		                UNFENCED_SLEEP_MS);
	return errno == EINTR ? -EINTR : 0;
}
