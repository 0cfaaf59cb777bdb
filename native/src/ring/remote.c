/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "ring/remote.h"

#include "base/directory.h"
#include "base/private.h"
#include "store/framing.h"
#include "store/options.h"
#include "store/remote_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* LOOK_AGAIN_MS: how often callers check rings for which poll(2) does not wait. */
enum { LOOK_AGAIN_MS = 50, MAX_RINGS = 127 };

/* A record that was read. */
struct held {
	struct held *next;
	size_t length;
	unsigned char data[];
};

struct relay_ring_remote {
	struct relay_place place;
	uint32_t cpu;
	bool readable; /* the framing shows where records end, and no record is overwritten */
	uint64_t size;
	int to;   /* descriptor of the relay file for writing */
	int from; /* descriptor for reading; negative: not open */

	struct held *first, *last; /* records that were read and not released yet */
	struct held *given;        /* the last of these that relay_ring_remote_next() has returned; NULL: none */

	/* A record that is being read: its length, then its bytes. */
	unsigned char prefix[4];
	size_t n_prefix, n_bytes; /* read so far */
	struct held *reading;     /* the record being read; NULL: not allocated yet */
};

/* Framings with which records can be read through the mount alone. */
#define IS_READABLE(number, word, before, behind) \
	[number] = (before) == sizeof(((struct relay_ring_remote *)0)->prefix) && !(behind),
static const bool is_readable[] = {RELAY_FRAMINGS(IS_READABLE)};

/* Reservations in all remote rings of this process, because a record's address does not identify its ring. */
static struct relay_private reserved;

/* --- opening --- */

/* Read the option `key` of the channel from the server, and parse it. Returns 0 or -errno. */
static int read_option(const struct relay_place *place, const char *key, uint32_t *to)
{
	const struct relay_option *option = relay_option_find(RELAY_TYPE_RING, key);
	char text[16];
	uint64_t number = 0;
	int err = relay_remote_text(place, option->file, text, sizeof(text));
	if (!err && relay_option_parse(option, text, &number))
		err = -EBADMSG;
	*to = (uint32_t)number;
	return err;
}

int relay_ring_remote_geometry(const struct relay_place *place, struct relay_ring_geometry *geometry)
{
	uint64_t n = 0;
	*geometry = (struct relay_ring_geometry){.magic = RELAY_RING_MAGIC,
	                                         .version = RELAY_RING_VERSION,
	                                         .n_claims = RELAY_N_CLAIMS,
	                                         .n_ready = RELAY_RING_N_READY,
	                                         .scheme = RELAY_LOCKLESS};
	int err = relay_remote_check_type(place, "ring");
	if (!err)
		err = relay_remote_number(place, "ring_size", &geometry->size);
	if (!err)
		err = relay_remote_number(place, "n_buffers", &n);
	if (!err)
		err = read_option(place, "mode", &geometry->mode);
	if (!err)
		err = read_option(place, "buffers", &geometry->buffers);
	if (!err)
		err = read_option(place, "framing", &geometry->framing);
	geometry->n_rings = (uint32_t)n;
	return !err && (n == 0 || n > RELAY_MAX_BUFFERS || !relay_ring_file_bytes(geometry->size)) ? -EBADMSG : err;
}

struct relay_ring_remote *relay_ring_remote_open(const struct relay_place *place,
                                                 const struct relay_ring_geometry *geometry)
{
	struct relay_ring_remote *remote = malloc(sizeof(*remote));
	if (!remote)
		return NULL;
	*remote =
	    (struct relay_ring_remote){.place = {.root = strdup(place->root), .channel = strdup(place->channel)},
	                               .cpu = geometry->cpu,
	                               .readable = is_readable[geometry->framing] && geometry->mode != RELAY_OVERWRITE,
	                               .size = geometry->size,
	                               .from = -1};
	remote->to =
	    remote->place.root && remote->place.channel ? relay_remote_file_append(place, geometry->cpu) : -ENOMEM;
	if (remote->to >= 0)
		return remote;
	int err = -remote->to;
	relay_ring_remote_close(remote);
	errno = err;
	return NULL;
}

static void free_records(struct held *held)
{
	while (held) {
		struct held *next = held->next;
		free(held);
		held = next;
	}
}

void relay_ring_remote_close(struct relay_ring_remote *remote)
{
	if (!remote)
		return;
	relay_private_close(&reserved, remote);
	free_records(remote->first);
	free(remote->reading);
	/* After this close(2), the server returns a record that was read in part to the next reader. */
	if (remote->from >= 0)
		close(remote->from);
	if (remote->to >= 0)
		close(remote->to);
	relay_place_free(&remote->place);
	free(remote);
}

/* --- producing --- */

static uint64_t largest(const struct relay_ring_remote *remote)
{
	return remote->size - 2 * RELAY_RING_HEADER_BYTES;
}

int relay_ring_remote_output(const struct relay_ring_remote *remote, const void *data, size_t length)
{
	if (length == 0)
		return -EOPNOTSUPP;
	int err = relay_remote_file_write(remote->to, data, length);
	if (err == -ENOSPC || (err == -EMSGSIZE && length > largest(remote)))
		return -EAGAIN;
	return err;
}

/* Have the server count a record as too large. A record longer than one write(2) can carry is written only in part,
 * which is enough for that. Returns -EAGAIN if it was counted. */
static int refuse_through_server(const struct relay_ring_remote *remote, size_t length)
{
	size_t part = length <= RELAY_REMOTE_RECORD_MAX ? length : RELAY_REMOTE_RECORD_MAX + 1;
	void *record;
	int err = relay_private_reserve(&reserved, remote, part, &record);
	if (err)
		return err;
	err = relay_ring_remote_output(remote, record, part);
	relay_ring_remote_discard(record);
	return err == -EMSGSIZE && length > largest(remote) ? -EAGAIN : err ? err : -EBADMSG;
}

int relay_ring_remote_reserve(const struct relay_ring_remote *remote, size_t length, void **record)
{
	if (length == 0)
		return -EOPNOTSUPP;
	if (length > largest(remote) || length > RELAY_REMOTE_RECORD_MAX)
		return refuse_through_server(remote, length);
	return relay_private_reserve(&reserved, remote, length, record);
}

int relay_ring_remote_commit(const void *data)
{
	struct relay_private_record *record = relay_private_end(&reserved, (void *)data);
	if (!record)
		return -EINVAL;
	int err = relay_ring_remote_output(record->owner, data, record->length);
	relay_private_free(record);
	return err;
}

int relay_ring_remote_discard(const void *data)
{
	struct relay_private_record *record = relay_private_end(&reserved, (void *)data);
	if (!record)
		return -EINVAL;
	relay_private_free(record);
	return 0;
}

/* --- relay_ring_query() --- */

static uint64_t read_statistic(const struct relay_ring_remote *remote, const char *name)
{
	char path[64];
	uint64_t number;
	snprintf(path, sizeof(path), "buffer%u/%s", remote->cpu, name);
	return relay_remote_number(&remote->place, path, &number) ? 0 : number;
}

uint64_t relay_ring_remote_query(const struct relay_ring_remote *remote, uint64_t what)
{
	switch (what) {
	case RELAY_RING_AVAIL_DATA:
		return read_statistic(remote, "unread_bytes");
	case RELAY_RING_RING_SIZE:
		return remote->size;
	case RELAY_RING_CONS_POS:
		return read_statistic(remote, "consumer_position");
	case RELAY_RING_PROD_POS:
		return read_statistic(remote, "producer_position");
	default:
		return 0;
	}
}

/* --- consuming --- */

/* Open the descriptor for reading when it is first needed, because the server keeps state for
 * each reader. 0 or -errno. */
static int open_source(struct relay_ring_remote *remote)
{
	if (remote->from < 0)
		/* relay_remote_file_open() sets O_NONBLOCK, so read_on() does not wait. */
		remote->from = relay_remote_file_open(&remote->place, remote->cpu, O_RDONLY);
	return remote->from < 0 ? remote->from : 0;
}

/* As relay_ring_state(), by poll(2) of the relay file. */
static int state_of(int fd)
{
	struct pollfd file = {.fd = fd, .events = POLLIN};
	if (poll(&file, 1, 0) <= 0)
		return 0;
	return (file.revents & POLLIN ? RELAY_HAS_DATA : 0) |
	       (file.revents & (POLLERR | POLLHUP) ? RELAY_IS_CLOSED : 0);
}

/* Continue reading up to `size` bytes, of which *n were read before. Returns 1: all were read; 0: there are no more
 * now; or an error of relay_ring_next(). */
static int read_on(const struct relay_ring_remote *remote, unsigned char *to, size_t *n, size_t size)
{
	while (*n < size) {
		ssize_t got = read(remote->from, to + *n, size - *n);
		/* ENOBUFS: the server keeps parts of records for too many other readers. */
		if (got < 0)
			return errno == EAGAIN ? 0 : errno == ENOBUFS ? -EBUSY : -errno;
		if (got == 0)
			return state_of(remote->from) == RELAY_IS_CLOSED ? -EPIPE : 0;
		*n += (size_t)got;
	}
	return 1;
}

static uint32_t length_of(const unsigned char prefix[4])
{
	return prefix[0] | (uint32_t)prefix[1] << 8 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 24;
}

/*
 * Read only one record, so that no other one is lost if this process dies: a read(2) of the length alone gets this part
 * of one record, and the next read gets the rest. Returns as relay_ring_next().
 */
static int read_record(struct relay_ring_remote *remote)
{
	int result = open_source(remote);
	if (!result)
		result = read_on(remote, remote->prefix, &remote->n_prefix, sizeof(remote->prefix));
	if (result != 1)
		return result;
	uint32_t length = length_of(remote->prefix);
	if (length > largest(remote))
		return -EBADMSG;
	if (!remote->reading)
		remote->reading = malloc(sizeof(*remote->reading) + length);
	if (!remote->reading)
		return -ENOMEM;
	result = read_on(remote, remote->reading->data, &remote->n_bytes, length);
	if (result != 1)
		return result;
	struct held *held = remote->reading;
	held->next = NULL;
	held->length = length;
	if (remote->first)
		remote->last->next = held;
	else
		remote->first = held;
	remote->last = held;
	remote->reading = NULL;
	remote->n_prefix = remote->n_bytes = 0;
	return 1;
}

int relay_ring_remote_next(struct relay_ring_remote *remote, const void **data, size_t *length)
{
	if (!remote->readable)
		return -EOPNOTSUPP;
	struct held *next = remote->given ? remote->given->next : remote->first;
	if (!next) {
		int result = read_record(remote);
		if (result != 1)
			return result;
		next = remote->last;
	}
	remote->given = next;
	*data = next->data;
	*length = next->length;
	return 1;
}

void relay_ring_remote_release(struct relay_ring_remote *remote)
{
	if (!remote->given)
		return;
	struct held *given = remote->first;
	remote->first = remote->given->next;
	remote->given->next = NULL;
	remote->given = NULL;
	free_records(given);
}

void relay_ring_remote_abort(struct relay_ring_remote *remote)
{
	remote->given = NULL;
}

/* --- waiting --- */

int relay_ring_remote_state(struct relay_ring_remote *remote)
{
	if (remote->first)
		return RELAY_HAS_DATA;
	if (open_source(remote))
		/* relay_ring_remote_next() returns the error. */
		return RELAY_LOOK_AGAIN;
	return state_of(remote->from);
}

int relay_ring_remote_wait(struct relay_ring *const *rings, size_t n, int ms)
{
	struct pollfd files[MAX_RINGS];
	size_t n_files = 0;
	for (size_t i = 0; i < n; i++)
		if (rings[i]->remote && !open_source(rings[i]->remote))
			files[n_files++] = (struct pollfd){.fd = rings[i]->remote->from, .events = POLLIN};
	if (n_files < n && ms > LOOK_AGAIN_MS)
		ms = LOOK_AGAIN_MS;
	return poll(files, n_files, ms) < 0 ? -errno : 0;
}
