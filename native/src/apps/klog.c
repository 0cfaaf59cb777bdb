/* SPDX-License-Identifier: MIT */
/*
 * Log statements that write only while a channel is registered.
 *
 *     statement                                klog_unregister()
 *     inside++                                 klog_handler = NULL
 *     klog_handler? write the record           sleep while inside
 *     inside--; if it is zero and awaited: wake
 *
 * Either the statement loads NULL or klog_unregister() finds it inside. `inside` is counted in slots, by CPU, so that
 * threads do not contend for a cache line. klog_unregister() waits until it has seen each slot at zero once after it
 * has stored NULL; a statement that enters the slot later loads NULL.
 */
#define _GNU_SOURCE
#include "base/rseq.h"

#include <errno.h>
#include <pthread.h>
#include <relayfs/klog.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Define the functions themselves, which the macros call. */
#undef klog
#undef klog_raw

enum { N_SLOTS = 64, TEXT_BYTES = 512 };

struct rchan *klog_handler; /* Writer: the holder of `lock` */

static struct {
	RELAY_LINE uint32_t inside; /* statements under way. Writers: their threads */
} slots[N_SLOTS];

static uint32_t awaited; /* 1: a thread sleeps until slots are zero. Writer: the holder of `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Enter a statement, and return the registered channel; also if that is NULL, leave() must be called. */
static struct rchan *enter(uint32_t **inside)
{
	*inside = &slots[relay_rseq_cpu() % N_SLOTS].inside;
	/* Pairs with wait_until_left(): either it sees this, or this thread loads the NULL that it stored before. */
	__atomic_add_fetch(*inside, 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&klog_handler, __ATOMIC_SEQ_CST);
}

static void leave(uint32_t *inside)
{
	/* Pairs with wait_until_left(): either it sees zero, or this thread sees that it waits. */
	if (!__atomic_sub_fetch(inside, 1, __ATOMIC_SEQ_CST) && __atomic_load_n(&awaited, __ATOMIC_SEQ_CST))
		relay_wake_word(inside);
}

static void wait_until_left(void)
{
	__atomic_store_n(&awaited, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < N_SLOTS; i++) {
		uint32_t n;
		/* Pairs with enter() and leave(). */
		while ((n = __atomic_load_n(&slots[i].inside, __ATOMIC_SEQ_CST)))
			relay_buf_wait_any(NULL, NULL, 0, &slots[i].inside, n, -1);
	}
	/* Relaxed: a needless wake-up does no harm. */
	__atomic_store_n(&awaited, 0, __ATOMIC_RELAXED);
}

/* --- fork --- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* In the child, reset the slots: threads that were inside a statement do not exist there. */
static void after_fork_in_child(void)
{
	for (int i = 0; i < N_SLOTS; i++)
		__atomic_store_n(&slots[i].inside, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	/* If there is no memory for this, klog_unregister() does not return in a child whose parent was inside a
	 * statement at fork(). */
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* --- the API --- */

int klog_register(struct rchan *chan)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (!chan)
		return -EINVAL;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	int err = klog_handler ? -EBUSY : 0;
	if (!err)
		/* Pairs with enter(): the channel before its address. */
		__atomic_store_n(&klog_handler, chan, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&lock);
	return err;
}

int klog_unregister(struct rchan *chan)
{
	pthread_mutex_lock(&lock);
	int err = chan && klog_handler == chan ? 0 : -ENOENT;
	if (!err) {
		/* Pairs with enter(). */
		__atomic_store_n(&klog_handler, NULL, __ATOMIC_SEQ_CST);
		wait_until_left();
	}
	pthread_mutex_unlock(&lock);
	return err;
}

/* Format text that is longer than the buffer on the stack. `length`: its length by the first formatting. */
static int write_long(struct rchan *chan, int length, const char *format, va_list args)
{
	size_t bytes = (size_t)length + 1;
	char *text = malloc(bytes);
	if (!text)
		return -ENOMEM;
	/* Another thread may have changed an argument meanwhile. */
	int again = vsnprintf(text, bytes, format, args);
	int err = again < 0 ? -EILSEQ : relay_write(chan, text, (size_t)(again < length ? again : length));
	free(text);
	return err;
}

static int write_text(struct rchan *chan, int saved, const char *format, va_list args)
{
	char text[TEXT_BYTES];
	va_list again;
	va_copy(again, args);
	errno = saved; /* for %m */
	int length = vsnprintf(text, sizeof(text), format, args);
	int err;
	if (length < 0) {
		err = -errno;
	} else if ((size_t)length < sizeof(text)) {
		err = relay_write(chan, text, (size_t)length);
	} else {
		errno = saved;
		err = write_long(chan, length, format, again);
	}
	va_end(again);
	return err;
}

int klog(const char *format, ...)
{
	int saved = errno, err = 0;
	uint32_t *inside;
	struct rchan *chan = enter(&inside);
	if (chan) {
		va_list args;
		va_start(args, format);
		err = write_text(chan, saved, format, args);
		va_end(args);
	}
	leave(inside);
	errno = saved;
	return err ? err : chan != NULL;
}

int klog_raw(const void *data, size_t length)
{
	int saved = errno;
	uint32_t *inside;
	struct rchan *chan = enter(&inside);
	int err = chan ? relay_write(chan, data, length) : 0;
	leave(inside);
	errno = saved;
	return err ? err : chan != NULL;
}
