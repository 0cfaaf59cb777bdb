/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/klog.h>: log statements anywhere in a program, whether or not there is a channel to log to.
 *
 *     klog("%s has %d entries\n", name, n);       no channel registered: a load and a branch
 *
 * and where the program has a channel and wants the log:
 *
 *     klog_register(chan);                        from now on every klog() is a record
 *     klog_unregister(chan);                      no thread is inside klog() any more: chan may be closed
 *
 * Follows the klog functions of the relay-apps. With -DKLOG_OFF the compiler checks the arguments of the statements
 * and generates no code; the program then does not need the library.
 *
 * Thread-safety: any thread may call any function. klog_raw() may also be called in signal handlers; klog() may not,
 * because it formats with vsnprintf(3). A child of fork() continues to log.
 */
#ifndef RELAYFS_KLOG_H
#define RELAYFS_KLOG_H

#include <relayfs/relay.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KLOG_CHECKED __attribute__((__format__(__printf__, 1, 2)))

/* The registered channel or NULL. The macros below load it, and programs may; only the library changes it. */
extern struct rchan *klog_handler;

/*
 * Write formatted text, as printf(3), without the final null byte, as one record. It is never truncated.
 *
 * Returns 1: the record is written. 0: no channel is registered. Else an error of relay_write(), or -ENOMEM: the text is
 * longer than 511 bytes and there is no memory to format it; -EILSEQ, -EOVERFLOW: it cannot be formatted. Leaves errno
 * unchanged. Never blocks. As a macro, klog() evaluates its arguments only if a channel is registered.
 */
KLOG_CHECKED int klog(const char *format, ...);

/* Write one record of `length` bytes as it is. Returns as klog(). */
int klog_raw(const void *data, size_t length);

/*
 * Make the statements write to a channel. It stays the caller's, who must not close it before klog_unregister().
 *
 * Returns 0; -EBUSY: a channel is registered already; -EINVAL: `chan` is NULL.
 */
int klog_register(struct rchan *chan);

/*
 * Make the statements write nothing. Waits until no thread is inside a statement, and so must not be called by a signal
 * handler that may have interrupted one.
 *
 * Returns 0, or -ENOENT: another channel is registered, or none.
 */
int klog_unregister(struct rchan *chan);

#ifdef KLOG_OFF
#define KLOG_IF_REGISTERED(statement)             \
	__extension__({                           \
		int klog_written = 0;             \
		if (0)                            \
			klog_written = statement; \
		klog_written;                     \
	})
#else
/* Relaxed, because the function loads klog_handler again, ordered, before it uses it. */
#define KLOG_IF_REGISTERED(statement) \
	(__builtin_expect(!!__atomic_load_n(&klog_handler, __ATOMIC_RELAXED), 0) ? statement : 0)
#endif
#define klog(...) KLOG_IF_REGISTERED((klog)(__VA_ARGS__))
#define klog_raw(data, length) KLOG_IF_REGISTERED((klog_raw)(data, length))

#ifdef __cplusplus
}
#endif
#endif
