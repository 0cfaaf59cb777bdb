/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "polls.h"

#include "handover.h"
#include "tap.h"

#include <poll.h>
#include <pthread.h>
#include <relayfs/store.h>
#include <sys/uio.h>
#include <time.h>

enum { POLLED_HEADS = 1024 };

/* So long the thread that has notified the kernel lets the FUSE loop sleep in relay_tap_wait(), where it answers the FUSE_POLL
 * that the kernel sends meanwhile. */
enum { ASKED_NS = 200 * 1000 };

static struct relay_polled *heads[POLLED_HEADS];
/* Protects the lists of slots. */
static pthread_mutex_t slots_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct relay_polled **find(uint64_t fh)
{
	struct relay_polled **polled = &heads[fh % POLLED_HEADS];
	while (*polled && (*polled)->fh != fh)
		polled = &(*polled)->next;
	return polled;
}

void relay_tap_polled_open(struct relay_polled *polled, struct relay_polled **slot)
{
	struct relay_polled **head = &heads[polled->fh % POLLED_HEADS];
	polled->next = *head;
	*head = polled;
	if (!slot)
		return;
	pthread_mutex_lock(&slots_mutex);
	polled->next_of_slot = *slot;
	*slot = polled;
	pthread_mutex_unlock(&slots_mutex);
}

void relay_tap_polled_close(struct relay_polled *polled, struct relay_polled **slot)
{
	struct relay_polled **at = find(polled->fh);
	if (*at)
		*at = polled->next;
	if (!slot)
		return;
	pthread_mutex_lock(&slots_mutex);
	while (*slot && *slot != polled)
		slot = &(*slot)->next_of_slot;
	if (*slot)
		*slot = polled->next_of_slot;
	pthread_mutex_unlock(&slots_mutex);
}

int relay_tap_polled_notify(struct relay_polled *polled)
{
	/* Pairs with the store in relay_polls_answer(): if the kernel has asked since, it is notified again. */
	if (__atomic_exchange_n(&polled->is_notified, 1, __ATOMIC_SEQ_CST))
		return 0;
	relay_handover_notify_poll(relay_tap_session_fd(), polled->kernel_handle);
	return 1;
}

int relay_tap_sleep(const struct relay_wait_set *set, struct relay_polled *const *slots, uint32_t *stop,
                    uint32_t stop_value, int timeout_ms)
{
	uint32_t woken[RELAY_WAIT_SET_SLOTS];
	int result = relay_wait_set_sleep(set, stop, stop_value, timeout_ms);
	uint32_t n = relay_wait_set_woken(set, woken);
	int will_ask = 0;
	pthread_mutex_lock(&slots_mutex);
	for (uint32_t i = 0; i < n; i++)
		for (struct relay_polled *polled = slots[woken[i]]; polled; polled = polled->next_of_slot)
			will_ask |= relay_tap_polled_notify(polled);
	pthread_mutex_unlock(&slots_mutex);
	if (will_ask)
		nanosleep(&(struct timespec){.tv_nsec = ASKED_NS}, NULL);
	return result;
}

int relay_polls_answer(int fd, const struct fuse_in_header *in, size_t length)
{
	const struct fuse_poll_in *poll_in = (const void *)(in + 1);
	struct relay_polled *polled;
	uint64_t progress;
	int events;
	if (in->opcode != FUSE_POLL || length < sizeof(*in) + sizeof(*poll_in))
		return 0;
	polled = *find(poll_in->fh);
	/* Python notes when a program begins and ends to wait for room. */
	if (!polled || !polled->buf || !(polled->reported & POLLOUT))
		return 0;
	const int will_wait = !!(poll_in->flags & FUSE_POLL_SCHEDULE_NOTIFY);
	/* Before the buffer is looked at: what comes later is notified. Pairs with relay_tap_polled_notify(). */
	if (will_wait)
		__atomic_store_n(&polled->is_notified, 0, __ATOMIC_SEQ_CST);
	events = relay_buf_ready(polled->buf, &progress);
	if (events < 0 || events & POLLERR || !(events & POLLOUT))
		return 0;
	if (will_wait) {
		polled->reported = (uint32_t)events;
		polled->progress = progress;
	}
	struct fuse_poll_out body = {.revents = (uint32_t)events};
	struct fuse_out_header out = {.len = sizeof(out) + sizeof(body), .unique = in->unique};
	const struct iovec pieces[] = {{&out, sizeof(out)}, {&body, sizeof(body)}};
	/* ENOENT: the program does not wait for the answer any more. */
	(void)!writev(fd, pieces, 2);
	return 1;
}
