/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/klog.h>: log statements anywhere in a program, whether or not there is a channel to log to.
 *
 *     klog("%s has %d entries\n", name, n);       nobody listens: a load and a branch
 *
 * and where the program has a channel and wants the log:
 *
 *     klog_register(chan);                        from now on every klog() is a record
 *     klog_unregister(chan);                      no thread is inside any more: chan may be closed
 *
 * Follows the klog functions of the relay-apps. Compiled with -DKLOG_OFF the statements check their arguments
 * and generate no code; the program then needs no library.
 *
 * Who may call what at the same time: everything, from any thread. klog_raw() may also be called in signal
 * handlers; klog() formats with vsnprintf(3) and may not. A child of fork() goes on logging.
 */
#ifndef RELAYFS_KLOG_H
#define RELAYFS_KLOG_H

#include <relayfs/relay.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KLOG_CHECKED __attribute__((__format__(__printf__, 1, 2)))

/* The registered channel or NULL. To be read by the macros below and written by the library only. */
extern struct rchan *klog_handler;

/*
 * Write formatted text, as printf(3), without the final null byte, as one record. It is never truncated.
 *
 * Returns 1: it is written. 0: nobody listens. Else an error of relay_write(), or -ENOMEM: it is longer than 511
 * bytes and memory to format it in cannot be had; -EILSEQ, -EOVERFLOW: it cannot be formatted. Leaves errno as
 * it was. Never blocks. As a macro, klog() evaluates its arguments only if somebody listens.
 */
KLOG_CHECKED int klog(const char *format, ...);

/* Write one record of `length` bytes as it is. Returns as klog(). */
int klog_raw(const void *data, size_t length);

/*
 * Let the statements write to a channel. It stays the caller's, who must not close it before klog_unregister().
 *
 * Returns 0, -EBUSY: another one is registered, or this one already; -EINVAL: NULL.
 */
int klog_register(struct rchan *chan);

/*
 * Let them write nowhere. Waits until no thread is inside a statement, and so must not be called in one: from
 * a signal handler that may have interrupted it.
 *
 * Returns 0, or -ENOENT: it is not this channel that is registered.
 */
int klog_unregister(struct rchan *chan);

#ifdef KLOG_OFF
#define KLOG_IF_HEARD(statement)                  \
	__extension__({                           \
		int klog_written = 0;             \
		if (0)                            \
			klog_written = statement; \
		klog_written;                     \
	})
#else
/* Relaxed: whoever gets past it looks again, in order, inside. */
#define KLOG_IF_HEARD(statement) \
	(__builtin_expect(!!__atomic_load_n(&klog_handler, __ATOMIC_RELAXED), 0) ? statement : 0)
#endif
#define klog(...) KLOG_IF_HEARD((klog)(__VA_ARGS__))
#define klog_raw(data, length) KLOG_IF_HEARD((klog_raw)(data, length))

#ifdef __cplusplus
}
#endif
#endif
