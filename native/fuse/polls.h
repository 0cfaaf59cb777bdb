/* SPDX-License-Identifier: MIT */
/*
 * Files that programs poll. A program that sleeps in poll(2) or epoll_wait(2) is woken in two steps, for which no Python code of
 * the server runs:
 *
 *     producer  -- futex -->    relay_tap_sleep(), a thread of the server     -- FUSE_NOTIFY_POLL -->  kernel
 *     kernel    -- FUSE_POLL -> relay_polls_answer(), the loop's thread       -- the events      -->  program
 *
 * Then the thread returns to Python (relayfs_fuse/fs/requests/waiting.py), which arms the buffer again and checks it. So Python
 * tells of all that comes without a wake-up, or between the wake-up and the next time that the buffer is armed. It answers the
 * first FUSE_POLL of an open file, and those of files that are damaged, closed, full, or not of a relay buffer.
 */
#ifndef RELAY_TAP_POLLS_H
#define RELAY_TAP_POLLS_H

#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>

struct rchan_buf;
struct relay_wait_set;

/* An open file that a program polls. It belongs to Python, which changes it in the thread that runs the FUSE loop. */
struct relay_polled {
	uint64_t fh;            /* the kernel's number of the file */
	uint64_t kernel_handle; /* by which the kernel is notified */
	struct rchan_buf *buf;  /* is mapped while the file is open; NULL: Python answers each FUSE_POLL */
	uint64_t progress;      /* as relay_buf_ready() stored it when the kernel was told last */
	uint32_t reported;      /* the events that the kernel was told last */
	/* The kernel was notified, and has not asked since: whoever sleeps on the file will ask. Written by all threads. */
	uint32_t is_notified;
	struct relay_polled *next, *next_of_slot;
};

/* Answer FUSE_POLLs of this file from now on, until relay_tap_polled_close(). slot: the list of those that relay_tap_sleep()
 * notifies when it is woken by their buffer; NULL: none. */
void relay_tap_polled_open(struct relay_polled *polled, struct relay_polled **slot);
void relay_tap_polled_close(struct relay_polled *polled, struct relay_polled **slot);

/* Have the kernel ask what the file is ready for, and return 1. 0: it has been notified, and has not asked yet. */
int relay_tap_polled_notify(struct relay_polled *polled);

/* As relay_wait_set_sleep() (<relayfs/store.h>); then notify the kernel for the files in slots[i] of each buffer i of the set that
 * has woken this thread. Other threads may open and close such files meanwhile. */
int relay_tap_sleep(const struct relay_wait_set *set, struct relay_polled *const *slots, uint32_t *stop,
                    uint32_t stop_value, int timeout_ms);

/* ---- for at_once.c ---- */

/* Answer a message of the kernel, and return 1. 0: it is not one that is answered here. */
int relay_polls_answer(int fd, const struct fuse_in_header *in, size_t length);

#endif
