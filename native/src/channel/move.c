/* SPDX-License-Identifier: MIT */
/*
 * A channel without files lies in unnamed files whose descriptors the program keeps. A server of another user does not
 * take these files into its store, because the program could truncate them later. It copies them:
 *
 *     program                                    server
 *     each buffer: reader's lock, RELAY_RESETTING,
 *         no reservation is open, switch lock
 *     adopt PATH descriptors              ->     new files of the same contents, locks and flag included
 *     each buffer: map the new file over the old memory, unlock
 *
 * No thread stores into the memory between the copy and the new mapping: a writer of this process that finds the flag
 * waits (wait_or_refuse() in buffer/try_reserve.c). For other processes, which have the old memory by fork(), the
 * channel is closed.
 */
#define _GNU_SOURCE
#include "channel/move.h"

#include "buffer/claims.h"
#include "buffer/consumer.h"
#include "buffer/head.h"
#include "buffer/subbuf_start.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CLAIMS_WAIT_MS = 1000 };

bool relay_is_foreign(const struct relay_place *place)
{
	struct stat st;
	char *control = NULL;
	bool foreign = !place->in_store && asprintf(&control, "%s/control", place->root) >= 0 &&
	               stat(control, &st) == 0 && st.st_uid != geteuid();
	free(control);
	return foreign;
}

/* The signal mask that relay_switch_lock() saves is not used, because all signals are blocked here anyway. */
static int lock_switch(struct rchan_buf *buf)
{
	sigset_t blocked;
	return relay_switch_lock(buf, &blocked);
}

static void unlock_buffer(struct rchan_buf *buf)
{
	relay_buf_stop(buf, RELAY_RESETTING, 0);
	relay_reader_unlock(buf);
	/* Pairs with the acquire in moves_of() in buffer/try_reserve.c: a writer that sees `moves` even also sees the flag unset. */
	__atomic_add_fetch(&buf->moves, 1, __ATOMIC_RELEASE);
}

static int wait_for_writers(struct rchan_buf *buf)
{
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second))
		return -EBADMSG;
	for (int waited = 0; relay_claims_busy(buf); waited++) {
		if (waited >= CLAIMS_WAIT_MS)
			return -EBUSY;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return 0;
}

static int hold(struct rchan_buf *buf)
{
	if (buf->reserve == RELAY_RESERVE_VISIBLE)
		return -EOPNOTSUPP;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	/* Pairs with the acquire in moves_of() in buffer/try_reserve.c: a writer that sees the flag also sees `moves` odd. */
	__atomic_add_fetch(&buf->moves, 1, __ATOMIC_RELEASE);
	err = relay_buf_stop(buf, RELAY_RESETTING, 1);
	if (!err)
		err = wait_for_writers(buf);
	if (!err)
		err = lock_switch(buf);
	if (err)
		unlock_buffer(buf);
	return err;
}

static void unhold(struct rchan_buf *buf, const sigset_t *blocked)
{
	relay_switch_unlock(buf, blocked);
	unlock_buffer(buf);
}

/* Open the new files of the buffers. */
static int open_new_files(const struct rchan *chan, const struct relay_place *place, int *fds)
{
	int err = 0;
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		struct stat st;
		char *mem = relay_place_mem(place, i);
		fds[i] = err ? err : mem ? relay_mapping_open(mem, O_RDWR, true) : -ENOMEM;
		free(mem);
		if (!err && fds[i] < 0)
			err = fds[i];
		else if (!err && (fstat(fds[i], &st) || (uint64_t)st.st_size != chan->bufs[i].mapping.bytes))
			err = -EBADMSG;
	}
	return err;
}

/* Check that the mount can map the files, at other addresses, because mapping over the old memory cannot be undone. */
static int try_to_map(const struct rchan *chan, const int *fds)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		struct relay_mapping mapping;
		int copy = relay_descriptor_copy(fds[i]);
		int err = copy < 0 ? copy : relay_mapping_map(&mapping, copy);
		if (err && copy >= 0)
			close(copy);
		if (err)
			return err;
		relay_mapping_unmap(&mapping);
	}
	return 0;
}

static int replace(struct rchan_buf *buf, int fd)
{
	/* A process that still has the old memory, by fork(), must not use it as the channel. */
	__atomic_fetch_or(&buf->control->flags, RELAY_CLOSED, __ATOMIC_SEQ_CST);
	if (mmap(buf->mapping.base, buf->mapping.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED) {
		int err = -errno;
		__atomic_fetch_and(&buf->control->flags, ~(uint32_t)RELAY_CLOSED, __ATOMIC_SEQ_CST);
		close(fd);
		return err;
	}
	close(fd);
	relay_descriptor_close(&buf->mapping.file);
	return 0;
}

/* Move all buffers, whose locks the caller has. */
static int move(struct rchan *chan, const struct relay_place *place, const struct relay_operation *operation)
{
	int *fds = malloc(chan->n_buffers * sizeof(*fds));
	int err = fds ? operation->in_mount(place, operation->arg) : -ENOMEM;
	if (err) {
		free(fds);
		return err;
	}
	err = open_new_files(chan, place, fds);
	if (!err)
		err = try_to_map(chan, fds);
	for (uint32_t i = 0; i < chan->n_buffers; i++) {
		if (!err)
			err = replace(&chan->bufs[i], fds[i]);
		else if (fds[i] >= 0)
			close(fds[i]);
	}
	if (err)
		relay_place_control(place, "remove", "");
	free(fds);
	return err;
}

int relay_chan_move(struct rchan *chan, const struct relay_place *place, const struct relay_operation *operation)
{
	sigset_t all, before;
	/* Block signals, because a handler that writes would wait for this thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	uint32_t n_held = 0;
	int err = 0;
	while (!err && n_held < chan->n_buffers) {
		err = hold(&chan->bufs[n_held]);
		n_held += !err;
	}
	if (!err)
		err = move(chan, place, operation);
	while (n_held)
		unhold(&chan->bufs[--n_held], &all);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}
