/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/producer.h>: relay_write(), reserving and committing records in channels, the same in rings, relay_perf_adjust()
 * and the events of <relayfs/trace.h>, compiled into the program.
 *
 *     #include <relayfs/producer.h>     in place of, or beside, <relayfs/relay.h>, ring.h and counters.h
 *
 * The program stays as it is: names, results and errors are those of the three headers, which this one includes. It is linked
 * with -lrelayfs, or has the library in itself (below). A record that fits into the current sub-buffer is written or reserved without a call, and, if the
 * compiler knows its length, written without a branch that depends on the length. A record that is refused because the buffer is
 * full is counted without a call, too. The library is called to enter the next sub-buffer, to wake a reader that sleeps, to reserve
 * behind another thread's reservation, and for what is not written by a restartable sequence: in another scheme than rseq, with
 * `times`, or longer than 767 bytes on x86-64.
 *
 * If it is included before the events are declared (<relayfs/trace.h>), so are these: an event that one trace of this process's own
 * buffers wants is written without a call but for the clock's. The library is called for the others: for the first, where a sub-buffer begins,
 * if the buffer is full, if several traces want it or one has a condition, and for events of more than 512 bytes.
 *
 * Each place where relay_write() is called grows by some 300 bytes, with a length that the compiler does not know by 600.
 * So programs choose it by including this header; others call the library.
 *
 * A program that was compiled with one version of this header runs with every later version of the library. If the library's
 * structs differ from those that the program was compiled for, it calls the library for each record. It always does so with C libraries that
 * do not register restartable sequences (musl; glibc before 2.35), and with compilers other than gcc and clang.
 *
 * A shared object that was compiled with this header may be unloaded, see RELAY_RSEQ_FORGET() in inline/rseq.h.
 *
 * A program or a shared object that shall not depend on the library has a copy of it, made by one C file with these lines, which is
 * compiled with any options:
 *
 *     #define _GNU_SOURCE
 *     #define RELAYFS_IMPLEMENTATION
 *     #include <relayfs/producer.h>
 *
 * That is channels, rings, counters and events; not <relayfs/classic.h>, relay_app.h, klog.h and merge.h. Nothing of the copy is
 * visible to other shared objects, so that each may have one, of its own version. Link a shared object with -Wl,-z,nodelete: like the library, it
 * must not be unloaded.
 */
#ifndef RELAYFS_PRODUCER_H
#define RELAYFS_PRODUCER_H

#ifdef RELAYFS_IMPLEMENTATION
#include <relayfs/implementation.h>
#else

#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of these names without _anyhow, without what is inlined, for all cases. Return as these. */
int relay_write_anyhow(struct rchan *chan, const void *data, size_t length);
int relay_perf_adjust_anyhow(struct relay_counters *counters, int instance, int64_t delta);

int relay_ring_output_anyhow(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);
int relay_rings_output_anyhow(struct relay_rings *rings, const void *data, size_t length, uint64_t flags);

void *relay_reserve_anyhow(struct rchan *chan, size_t length);
void *relay_try_reserve_anyhow(struct rchan *chan, size_t length);
void relay_commit_anyhow(struct rchan *chan, void *reserved);

void *relay_ring_reserve_anyhow(struct relay_ring *ring, size_t length, uint64_t flags);
void *relay_rings_reserve_anyhow(struct relay_rings *rings, size_t length, uint64_t flags);
int relay_ring_commit_anyhow(void *record, uint64_t flags);
int relay_ring_discard_anyhow(void *record, uint64_t flags);

/* Wake the readers that sleep until the next record of a CPU's buffer. For the functions in this header: relay_write() of the
 * library does so itself. Returns 0. Thread-safe, async-signal-safe. */
int relay_write_wake(struct rchan *chan, unsigned cpu);

/* The same after the record that was reserved at position `pos` was committed. */
void relay_commit_wake(struct rchan *chan, unsigned cpu, uint64_t pos);

/* The same for the readers of a ring, after the record at `pos`, by the flags of its commit. */
int relay_ring_output_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags);

#ifdef __cplusplus
}
#endif

#if defined(__GNUC__) && defined(__LP64__) && (defined(__SSE2__) || defined(__aarch64__))
#if __has_include(<sys/rseq.h>)
#include <relayfs/inline/write.h>
#endif
#endif

#endif /* RELAYFS_IMPLEMENTATION */
#endif
