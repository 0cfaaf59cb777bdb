/* SPDX-License-Identifier: MIT */
/*
 * Several processes declare events in one .events, and agree on ids without a lock, which a process that stops would keep:
 *
 *     read what stands there; is the same declaration there?  ---yes--->  its id
 *     append it with an id that is free, and look again
 *
 * Two may append declarations with the same id at the same time. For all readers the first one counts, so the other process
 * finds that its own does not, and takes another id. What stands there may be anything: a process that writes nonsense spoils the
 * directory's events, which it could do in their buffers, too.
 */
#define _GNU_SOURCE
#include "trace/event_ids.h"

#include "trace/join.h"
#include "trace/tsdl.h"

#include <errno.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRIES = 100, N_IDS = RELAY_TRACE_ID_MAX + 1, WORD_BITS = 64 };

struct relay_event_ids {
	int fd;
	char *text; /* of .events, as far as it was read */
	size_t length;
	size_t scanned; /* up to where `taken` knows it */
	uint64_t taken[N_IDS / WORD_BITS + 1];
};

int relay_events_append(int fd, const char *text, size_t length)
{
	if (!relay_may_write(RELAY_EVENTS_BYTES))
		return -EFBIG;
	ssize_t written = write(fd, text, length);
	return written == (ssize_t)length ? 0 : written < 0 ? -errno : -ENOSPC;
}

struct relay_event_ids *relay_event_ids_new(int fd)
{
	struct relay_event_ids *ids = calloc(1, sizeof(*ids));
	if (ids)
		ids->fd = fd;
	return ids;
}

void relay_event_ids_free(struct relay_event_ids *ids)
{
	if (ids)
		free(ids->text);
	free(ids);
}

/* Read what is new. 0 or -errno. */
static int read_on(struct relay_event_ids *ids)
{
	struct stat st;
	if (fstat(ids->fd, &st))
		return -errno;
	size_t size = st.st_size < RELAY_EVENTS_BYTES ? (size_t)st.st_size : RELAY_EVENTS_BYTES;
	if (size <= ids->length)
		return 0;
	char *more = realloc(ids->text, size);
	if (!more)
		return -ENOMEM;
	ids->text = more;
	while (ids->length < size) {
		ssize_t got = pread(ids->fd, more + ids->length, size - ids->length, (off_t)ids->length);
		if (got <= 0)
			return got < 0 ? -errno : 0;
		ids->length += (size_t)got;
	}
	return 0;
}

static const char *find_text(const struct relay_event_ids *ids, size_t from, const char *what)
{
	return from < ids->length ? memmem(ids->text + from, ids->length - from, what, strlen(what)) : NULL;
}

/* The number at `at`; more than RELAY_TRACE_ID_MAX: it is no id. */
static uint64_t number_at(const struct relay_event_ids *ids, const char *at)
{
	uint64_t number = 0;
	if (at == ids->text + ids->length || *at < '0' || *at > '9')
		return UINT64_MAX;
	for (; at < ids->text + ids->length && *at >= '0' && *at <= '9' && number < N_IDS; at++)
		number = 10 * number + (uint64_t)(*at - '0');
	return number;
}

/* Note the ids of all that looks like a declaration. */
static void scan(struct relay_event_ids *ids)
{
	static const char label[] = "\tid = ";
	for (const char *at; (at = find_text(ids, ids->scanned, label));) {
		uint64_t id = number_at(ids, at + sizeof(label) - 1);
		if (id < N_IDS)
			ids->taken[id / WORD_BITS] |= 1ull << id % WORD_BITS;
		ids->scanned = (size_t)(at - ids->text) + sizeof(label) - 1;
	}
}

static uint64_t first_free(const struct relay_event_ids *ids)
{
	uint64_t id = 0;
	while (id < N_IDS && ids->taken[id / WORD_BITS] & 1ull << id % WORD_BITS)
		id++;
	return id;
}

/* Does this block stand at `at`, and none with its id before it? */
static bool counts(const struct relay_event_ids *ids, const char *at, const char *block, size_t length, uint64_t id)
{
	char line[32];
	if ((size_t)(ids->text + ids->length - at) < length || memcmp(at, block, length) != 0)
		return false;
	snprintf(line, sizeof(line), "\tid = %llu;", (unsigned long long)id);
	const char *first = find_text(ids, 0, line);
	return first && first > at && first < at + length;
}

/* -ENOENT: it is not declared yet. */
static int find_id(const struct relay_event_ids *ids, const struct relay_trace_event *event)
{
	char block[RELAY_DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, 0, block, sizeof(block));
	if (length >= sizeof(block))
		return -EINVAL;
	/* Up to its id. */
	char begin[sizeof(block)];
	size_t n = (size_t)((char *)memmem(block, length, "\tid = ", 6) + 6 - block);
	memcpy(begin, block, n);
	begin[n] = 0;
	for (const char *at = ids->text; (at = find_text(ids, at ? (size_t)(at - ids->text) : 0, begin)); at++) {
		uint64_t id = number_at(ids, at + n);
		length = relay_tsdl_event(event, id, block, sizeof(block));
		if (id < N_IDS && length < sizeof(block) && counts(ids, at, block, length, id))
			return (int)id;
	}
	return -ENOENT;
}

static int append(const struct relay_event_ids *ids, const struct relay_trace_event *event, uint64_t id)
{
	char block[RELAY_DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, id, block, sizeof(block));
	if (id >= N_IDS || ids->length + length > RELAY_EVENTS_BYTES)
		return -ENOSPC;
	return relay_events_append(ids->fd, block, length);
}

int relay_event_ids_get(struct relay_event_ids *ids, const struct relay_trace_event *event)
{
	for (int tries = 0; tries < MAX_TRIES; tries++) {
		int err = read_on(ids);
		if (err)
			return err;
		int id = find_id(ids, event);
		if (id != -ENOENT)
			return id;
		scan(ids);
		err = append(ids, event, first_free(ids));
		if (err)
			return err;
	}
	return -EAGAIN;
}
