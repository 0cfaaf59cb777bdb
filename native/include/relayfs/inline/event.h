/* SPDX-License-Identifier: MIT */
/* Writing an event (trace_store.h) into this process's buffer of the only trace that wants it, for <relayfs/producer.h> and the library:
 * the fast path, for an event that fits behind another record in its sub-buffer. trace/tracepoint.c describes the whole. */
#ifndef RELAYFS_INLINE_EVENT_H
#define RELAYFS_INLINE_EVENT_H

#include <relayfs/inline/buffer.h>
#include <relayfs/trace_store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>; bound early, as trace_event.h says of such functions. */
RELAY_TRACE_BOUND_EARLY int relay_write_wake(struct rchan *chan, unsigned cpu);

/* The first fields of struct relay_tracing: a trace to which this process writes. */
#define RELAY_INLINE_TRACING_MEMBERS                                                                                   \
	struct rchan *chan; /* the buffers */                                                                          \
	/* For the fast path: chan's buffers by number, if the scheme is rseq and each event's id is its number - 1 */ \
	struct relay_inline_buf *const *buf;                                                                           \
	uint32_t n_bufs /* 0 if there are none such, or the declaration of an event has failed */

struct relay_inline_tracing {
	RELAY_INLINE_TRACING_MEMBERS;
};

/* relay_trace_thread.inside is |passed 16|nested 16|. */
enum { RELAY_TRACE_NESTED = 0xffff, RELAY_TRACE_PASSED = 0x10000 };

/* A thread that writes events. Programs know the fields up to `tracings`. */
struct relay_trace_thread {
	/* nested: how many events it is writing, more than one if signal handlers write, too; passed: how often nested
	 * has become 0. Writer: the thread */
	uint32_t inside;
	uint32_t tid; /* gettid(2), for the events' context; 0: not asked yet */
	/* At RELAY_INLINE_VERSION: it is known, and not quiet (base/quiet.h). */
	uint8_t is_plain[RELAY_INLINE_VERSIONS];
	struct relay_inline_tracing *const *tracings; /* relay_tracings, if is_plain */
	uint32_t awaited;  /* `inside` at the last relay_trace_retire(); 0: it was not inside. Under threads_lock */
	uint32_t is_known; /* in the list of threads */
	struct relay_trace_thread *next, *previous;
};

/* In the library. */
extern __thread struct relay_trace_thread relay_trace_self RELAY_TLS;

/* relay_trace_enter() for a thread that is in the list. */
RELAY_INLINE void relay_trace_enter_known(void)
{
	/* Pairs with relay_fence_writers() in note_inside(), which orders this store before the caller's load of a
	 * pointer. Here only the compiler has to keep the order. */
	__atomic_store_n(&relay_trace_self.inside, relay_trace_self.inside + 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

RELAY_INLINE void relay_trace_leave(void)
{
	uint32_t inside = relay_trace_self.inside - 1;
	/* Pairs with the acquire loads in has_left() and note_inside(): the thread's use of the memory before it. */
	__atomic_store_n(&relay_trace_self.inside, inside & RELAY_TRACE_NESTED ? inside : inside + RELAY_TRACE_PASSED,
	                 __ATOMIC_RELEASE);
}

/* struct timespec and clock_gettime(2), which <time.h> does not declare in each program. */
struct relay_inline_time {
	int64_t seconds, ns;
};
RELAY_TRACE_BOUND_EARLY extern int relay_inline_gettime(int clock,
                                                        struct relay_inline_time *now) __asm__("clock_gettime");

/* The time by one of the clocks that are read inline, which are all of base/clock.h. */
RELAY_INLINE uint64_t relay_inline_now(uint32_t timestamp)
{
	struct relay_inline_time now;
	const int clock_monotonic = 1;
	if (timestamp == RELAY_TSC)
		return relay_clock_tsc();
	relay_inline_gettime(clock_monotonic, &now);
	return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.ns;
}

/*
 * Write an event with a short head at `head`, to the address from relay_inline_place(): the head, and the bytes at `rest`. The clock
 * is read after head was loaded, and the section checks that head did not change, so that times are in the order of positions.
 * Returns the time; 0: nothing was done.
 */
RELAY_INLINE uint64_t relay_inline_event_at(const struct relay_inline_buf *buf, uint64_t head, unsigned char *to,
                                            uint16_t id, const void *rest, size_t rest_bytes, uint32_t cpu)
{
	uint64_t clock = relay_inline_now(buf->timestamp), stamp = clock << RELAY_TRACE_ID_BITS | id;
	uint64_t next = (head + RELAY_TRACE_HEAD_BYTES + rest_bytes) ^ RELAY_LATCH_INDEX;
	/* Relaxed: the sub-buffer at head began no earlier than the one for which it was set. */
	if (__builtin_expect(clock >> RELAY_TRACE_TIME_BITS != __atomic_load_n(&buf->epoch, __ATOMIC_RELAXED), 0))
		return 0;
	RELAY_PUBLISHES(&buf->control->head.first);
	return relay_rseq_stamped_record(buf->control, head, next, to, stamp, rest, rest_bytes, cpu) == RELAY_RSEQ_DONE
	           ? clock
	           : 0;
}

/* relay_trace_emit(), for a thread that counts as inside. Returns false: nothing was done. */
RELAY_INLINE bool relay_inline_emit_inside(const struct relay_trace_event *event, const struct relay_trace_page *page,
                                           struct relay_trace_record *record, size_t length)
{
	uint64_t wanted = __atomic_load_n(&event->wanted, __ATOMIC_RELAXED);
	uint32_t bits = (uint32_t)wanted, cpu = relay_rseq_cpu();
	/* Acquire: as in emit() in trace/tracepoint.c. */
	if (__builtin_expect((wanted ^ __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE)) >> 31 || !bits ||
	                         (bits & (bits - 1)),
	                     0))
		return false;
	struct relay_inline_tracing *const *tracings = relay_trace_self.tracings;
	const struct relay_inline_tracing *tracing =
	    tracings ? __atomic_load_n(&tracings[__builtin_ctz(bits)], __ATOMIC_ACQUIRE) : NULL;
	if (__builtin_expect(!tracing || cpu >= __atomic_load_n(&tracing->n_bufs, __ATOMIC_RELAXED), 0))
		return false;
	const struct relay_inline_buf *buf = tracing->buf[cpu];
	unsigned char *to, *rest = (unsigned char *)(record + 1) - RELAY_TRACE_TID_BYTES;
	size_t rest_bytes = length - sizeof(*record) + RELAY_TRACE_TID_BYTES;
	/* Relaxed: only this CPU writes it, and the section checks that it did not change. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	if (__builtin_expect(!relay_inline_place(buf, head, RELAY_TRACE_HEAD_BYTES + rest_bytes, &to), 0))
		return false;
	__builtin_memcpy(rest, &relay_trace_self.tid, RELAY_TRACE_TID_BYTES);
	if (__builtin_expect(!relay_inline_event_at(buf, head, to, (uint16_t)(event->id - 1), rest, rest_bytes, cpu),
	                     0))
		return false;
	if (relay_inline_is_armed(buf->control))
		relay_write_wake(tracing->chan, cpu);
	return true;
}

/* relay_trace_emit(), for a record of at most RELAY_TRACE_STACK_MAX bytes. */
RELAY_INLINE void relay_inline_emit(struct relay_trace_event *event, const struct relay_trace_page *page,
                                    struct relay_trace_record *record, size_t length)
{
	if (__builtin_expect(relay_trace_self.is_plain[RELAY_INLINE_VERSION] && length <= RELAY_TRACE_STACK_MAX, 1)) {
		relay_trace_enter_known();
		bool is_written = relay_inline_emit_inside(event, page, record, length);
		relay_trace_leave();
		if (__builtin_expect(is_written, 1))
			return;
	}
	relay_trace_emit(event, record, length);
}

/* For the macros of <relayfs/trace.h>. */
#undef RELAY_TRACE_EMIT_
#define RELAY_TRACE_EMIT_(event, record, length) relay_inline_emit(event, &relay_trace_page_.page, record, length)

#ifdef __cplusplus
}
#endif
#endif
