/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "buffer/wake.h"

#include "base/arm.h"
#include "base/quiet.h"
#include "base/wait_set.h"

enum { SILENT_MS = 50 };

static struct relay_armed armed_of(const struct rchan_buf *buf)
{
	return (struct relay_armed){&buf->control->flags, &buf->control->wake_seq};
}

void relay_wake(struct rchan_buf *buf, uint32_t bits)
{
	if (!buf->never_waits || !relay_is_quiet())
		relay_wake_armed(armed_of(buf), bits);
}

void relay_wake_maker(struct rchan_buf *first)
{
	int saved = errno;
	/* Pairs with the kernel's comparison of the futex word when the maker's thread goes to sleep. */
	__atomic_add_fetch(&first->control->map_seq, 1, __ATOMIC_SEQ_CST);
	relay_wake_word(&first->control->map_seq);
	errno = saved;
}

int relay_buf_arm(struct rchan_buf *buf, uint32_t what, uint32_t *seq)
{
	*seq = relay_arm(armed_of(buf), what & RELAY_ARMED);
	return 0;
}

uint32_t relay_buf_wake_seq(const struct rchan_buf *buf)
{
	return relay_armed_seq(armed_of(buf));
}

/* Return timeout_ms, but at most SILENT_MS if the writers of one of the buffers wake no readers. */
static int timeout_of(struct rchan_buf *const *bufs, size_t n, int timeout_ms)
{
	bool is_silent = false;
	for (size_t i = 0; i < n; i++)
		/* Relaxed: relay_silence() wakes the readers that have not seen the flag. */
		is_silent |= __atomic_load_n(&bufs[i]->control->flags, __ATOMIC_RELAXED) & RELAY_SILENT;
	return is_silent && (timeout_ms < 0 || timeout_ms > SILENT_MS) ? SILENT_MS : timeout_ms;
}

void relay_silence(struct rchan_buf *buf)
{
	/* Pairs with timeout_of(): a reader that is woken sees the flag. */
	__atomic_fetch_or(&buf->control->flags, RELAY_SILENT, __ATOMIC_SEQ_CST);
	relay_wake(buf, RELAY_ARMED);
}

int relay_buf_wait_any(struct rchan_buf *const *bufs, const uint32_t *seqs, size_t n, uint32_t *stop,
                       uint32_t stop_value, int timeout_ms)
{
	struct relay_futex words[RELAY_MAX_WORDS];
	if (!relay_may_wait_for(n, stop))
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		words[i] = (struct relay_futex){&bufs[i]->control->wake_seq, seqs[i]};
	return relay_wait_armed(words, n, stop, stop_value, timeout_of(bufs, n, timeout_ms));
}

static uint64_t glance(const void *waited_for)
{
	const struct rchan_buf *buf = waited_for;
	const struct relay_control *control = buf->control;
	/* Relaxed: only whether they differ counts, and who finds that out looks at all of it again. */
	uint64_t seen = relay_mix(0, __atomic_load_n(&control->geometry.magic, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->head.first, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->flags, __ATOMIC_RELAXED) & ~(uint32_t)RELAY_ARMED);
	seen = relay_mix(seen, __atomic_load_n(&control->consumed, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->current, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->resets, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->asked, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&control->caught_up, __ATOMIC_RELAXED));
	return relay_mix(seen, __atomic_load_n(&control->n_holes, __ATOMIC_RELAXED));
}

void relay_wait_set_put_buf(struct relay_wait_set *set, uint32_t slot, struct rchan_buf *buf, uint32_t seq)
{
	relay_wait_set_put(set, slot, buf, armed_of(buf), seq, glance);
}
