/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "remote.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reservations that can be open at a time; and what a page of theirs begins with. */
enum { N_RESERVED = 256, HEADER_BYTES = 64 };

/* Of a reservation, before its data. */
struct reserved {
	size_t length;
	size_t bytes; /* mapped */
};

struct relay_remote {
	uint64_t largest; /* record that fits, bytes */
	/* Addresses of what is reserved. Writers: reserve, from NULL, and commit or discard, to NULL. */
	void *open[N_RESERVED];
	uint32_t n;
	int files[];
};

/* --- opening --- */

int relay_remote_fact(const struct relay_place *place, const char *name, char *text, size_t size)
{
	char *path;
	if (asprintf(&path, "%s/.channels/%s/%s", place->root, place->channel, name) < 0)
		return -ENOMEM;
	int fd = relay_shm_open(path, O_RDONLY, true);
	free(path);
	if (fd < 0)
		return fd;
	ssize_t got = read(fd, text, size - 1);
	int err = got < 0 ? -errno : 0;
	close(fd);
	text[got > 0 ? got : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return err;
}

static int number_of(const struct relay_place *place, const char *name, uint64_t *number)
{
	char text[32], *end;
	int err = relay_remote_fact(place, name, text, sizeof(text));
	if (err)
		return err;
	*number = strtoull(text, &end, 10);
	return end == text || *end ? -EBADMSG : 0;
}

static int open_file(const struct relay_place *place, bool single, uint32_t i)
{
	char *path;
	int n = single ? asprintf(&path, "%s/%s", place->root, place->channel)
	               : asprintf(&path, "%s/%s%u", place->root, place->channel, i);
	int fd = n < 0 ? -ENOMEM : relay_shm_open(path, O_WRONLY | O_APPEND, true);
	if (n >= 0)
		free(path);
	/* A full buffer is ENOSPC to writers that would wait, and EAGAIN, which is another error, to those that would not. */
	if (fd >= 0)
		fcntl(fd, F_SETFL, O_APPEND);
	return fd;
}

static int open_files(struct relay_remote *remote, const struct relay_place *place, uint32_t n)
{
	char buffers[16];
	int err = relay_remote_fact(place, "buffers", buffers, sizeof(buffers));
	while (!err && remote->n < n) {
		int fd = open_file(place, strcmp(buffers, "single") == 0, remote->n);
		if (fd >= 0)
			remote->files[remote->n++] = fd;
		else
			err = fd;
	}
	return err;
}

int relay_remote_open(struct rchan *chan)
{
	char mode[16];
	uint64_t n = 0, size = 0, start = 0, end = 0;
	int err = relay_remote_fact(&chan->place, "mode", mode, sizeof(mode));
	if (!err && chan->cb && chan->cb->subbuf_start && strcmp(mode, "callback") == 0)
		err = -EOPNOTSUPP;
	if (!err)
		err = number_of(&chan->place, "n_buffers", &n);
	if (!err)
		err = number_of(&chan->place, "subbuf_size", &size);
	if (!err)
		err = number_of(&chan->place, "start_reserve", &start);
	if (!err)
		err = number_of(&chan->place, "end_reserve", &end);
	if (!err && (n == 0 || n > RELAY_MAX_BUFFERS || start + end >= size))
		err = -EBADMSG;
	if (err)
		return err;
	struct relay_remote *remote = calloc(1, sizeof(*remote) + n * sizeof(remote->files[0]));
	if (!remote)
		return -ENOMEM;
	remote->largest = size - start - end;
	err = open_files(remote, &chan->place, (uint32_t)n);
	if (err) {
		relay_remote_close(remote);
		return err;
	}
	chan->remote = remote;
	chan->scheme = RELAY_RSEQ;
	chan->has_files = true;
	return 0;
}

static void take_back(struct reserved *reserved)
{
	munmap(reserved, reserved->bytes);
}

static struct reserved *header_of(void *data)
{
	return (struct reserved *)((char *)data - HEADER_BYTES);
}

void relay_remote_close(struct relay_remote *remote)
{
	if (!remote)
		return;
	for (int i = 0; i < N_RESERVED; i++)
		if (remote->open[i])
			take_back(header_of(remote->open[i]));
	for (uint32_t i = 0; i < remote->n; i++)
		close(remote->files[i]);
	free(remote);
}

bool relay_remote_is_removed(const struct relay_remote *remote)
{
	struct stat st;
	return fstat(remote->files[0], &st) != 0 || st.st_nlink == 0;
}

/* --- writing --- */

int relay_remote_write(const struct relay_remote *remote, const void *data, size_t length)
{
	if (length == 0)
		return 0;
	int saved = errno, cpu = sched_getcpu(), err = 0;
	if (write(remote->files[cpu < 0 ? 0 : (uint32_t)cpu % remote->n], data, length) < 0)
		err = -errno;
	errno = saved;
	return err;
}

static struct reserved *map(size_t length)
{
	size_t bytes = HEADER_BYTES + length;
	struct reserved *reserved = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (reserved == MAP_FAILED)
		return NULL;
	*reserved = (struct reserved){.length = length, .bytes = bytes};
	return reserved;
}

int relay_remote_reserve(struct relay_remote *remote, size_t length, void **to)
{
	/* Nothing, somewhere. */
	*to = remote;
	if (length == 0)
		return 0;
	/* No malloc(): a signal handler may reserve. */
	struct reserved *reserved = map(length);
	if (!reserved)
		return -ENOMEM;
	*to = (char *)reserved + HEADER_BYTES;
	if (length > remote->largest) {
		/* The server counts it as too large, and says so. */
		int err = relay_remote_write(remote, *to, length);
		take_back(reserved);
		return err ? err : -EMSGSIZE;
	}
	for (int i = 0; i < N_RESERVED; i++) {
		void *none = NULL;
		/* Pairs with the exchange in find(): the header before the address. */
		if (__atomic_compare_exchange_n(&remote->open[i], &none, *to, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_RELAXED))
			return 0;
	}
	take_back(reserved);
	return -ENOMEM;
}

/* End the reservation at this address; NULL: there is none, or somebody else ends it. */
static struct reserved *find(struct relay_remote *remote, void *data)
{
	for (int i = 0; data && i < N_RESERVED; i++) {
		void *found = data;
		/* Pairs with the exchange in relay_remote_reserve(). */
		if (__atomic_compare_exchange_n(&remote->open[i], &found, NULL, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_RELAXED))
			return header_of(data);
	}
	return NULL;
}

void relay_remote_commit(struct relay_remote *remote, void *data)
{
	struct reserved *reserved = find(remote, data);
	if (!reserved)
		return;
	/* What is refused now, the server counts as lost. */
	relay_remote_write(remote, data, reserved->length);
	take_back(reserved);
}

void relay_remote_discard(struct relay_remote *remote, void *data)
{
	struct reserved *reserved = find(remote, data);
	if (reserved)
		take_back(reserved);
}
