/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "channel/remote.h"

#include "base/descriptor.h"
#include "base/private.h"
#include "store/remote_file.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct relay_remote {
	uint64_t largest; /* record that fits, bytes */
	struct relay_private reserved;
	uint32_t n;
	struct relay_descriptor files[]; /* the relay file of each buffer */
};

/* --- opening --- */

static int open_remote_files(struct relay_remote *remote, const struct relay_place *place, uint32_t n)
{
	while (remote->n < n) {
		int fd = relay_remote_file_append(place, remote->n);
		if (fd < 0)
			return fd;
		remote->files[remote->n++] = relay_descriptor_keep(fd);
	}
	return 0;
}

int relay_remote_open(struct rchan *chan)
{
	char mode[16], times[16];
	uint64_t n = 0, size = 0, start = 0, end = 0, head = 0;
	int err = relay_remote_check_type(&chan->place, "relay");
	if (!err)
		err = relay_remote_text(&chan->place, "mode", mode, sizeof(mode));
	if (!err && chan->cb && chan->cb->subbuf_start && strcmp(mode, "callback") == 0)
		err = -EOPNOTSUPP;
	if (!err)
		err = relay_remote_number(&chan->place, "n_buffers", &n);
	if (!err)
		err = relay_remote_number(&chan->place, "subbuf_size", &size);
	if (!err)
		err = relay_remote_number(&chan->place, "start_reserve", &start);
	if (!err)
		err = relay_remote_number(&chan->place, "end_reserve", &end);
	if (!err)
		err = relay_remote_text(&chan->place, "times", times, sizeof(times));
	if (!err && strcmp(times, "none") != 0)
		head = RELAY_HEAD_BYTES;
	if (!err && (n == 0 || n > RELAY_MAX_BUFFERS || start + end + head >= size))
		err = -EBADMSG;
	if (err)
		return err;
	struct relay_remote *remote = calloc(1, sizeof(*remote) + n * sizeof(remote->files[0]));
	if (!remote)
		return -ENOMEM;
	remote->largest = size - start - end - head;
	err = open_remote_files(remote, &chan->place, (uint32_t)n);
	if (err) {
		relay_remote_close(remote);
		return err;
	}
	chan->remote = remote;
	chan->scheme = RELAY_RSEQ;
	chan->has_files = true;
	return 0;
}

void relay_remote_close(struct relay_remote *remote)
{
	if (!remote)
		return;
	relay_private_close(&remote->reserved, remote);
	for (uint32_t i = 0; i < remote->n; i++)
		relay_descriptor_close(&remote->files[i]);
	free(remote);
}

bool relay_remote_is_removed(const struct relay_remote *remote)
{
	struct stat st;
	return fstat(remote->files[0].fd, &st) != 0 || st.st_nlink == 0;
}

/* --- writing --- */

int relay_remote_write(const struct relay_remote *remote, const void *data, size_t length)
{
	if (length == 0)
		return 0;
	int cpu = sched_getcpu();
	const struct relay_descriptor *file = &remote->files[cpu < 0 ? 0 : (uint32_t)cpu % remote->n];
	return relay_descriptor_is_ours(file) ? relay_remote_file_write(file->fd, data, length) : -EBADF;
}

size_t relay_remote_largest(const struct relay_remote *remote)
{
	return remote->largest < RELAY_REMOTE_RECORD_MAX ? remote->largest : RELAY_REMOTE_RECORD_MAX;
}

int relay_remote_reserve(struct relay_remote *remote, size_t length, void **to)
{
	/* An address to which nothing may be written. */
	*to = remote;
	if (length == 0)
		return 0;
	int err = relay_private_reserve(&remote->reserved, remote, length, to);
	if (!err && length > remote->largest) {
		/* The server counts the record as too large, and fails with the error. */
		err = relay_remote_write(remote, *to, length);
		relay_remote_discard(remote, *to);
		return err ? err : -EMSGSIZE;
	}
	return err;
}

void relay_remote_commit(struct relay_remote *remote, void *data)
{
	struct relay_private_record *record = relay_private_end(&remote->reserved, data);
	if (!record)
		return;
	/* If the server refuses the record now, it counts it as lost. */
	relay_remote_write(remote, data, record->length);
	relay_private_free(record);
}

void relay_remote_discard(struct relay_remote *remote, void *data)
{
	struct relay_private_record *record = relay_private_end(&remote->reserved, data);
	if (record)
		relay_private_free(record);
}
