/* SPDX-License-Identifier: MIT */
/*
 * Several processes declare events in one .events and agree on their ids without a lock, because a stopped process
 * would keep a lock:
 *
 *     1. read the new part of .events; if it has the same declaration, take the id from there
 *     2. else append a declaration with a free id, and go to 1
 *
 * Two processes may append declarations with the same id at the same time. The first declaration of an id is valid for
 * all readers, so the process that has appended the second one finds no valid declaration of its event, and appends one
 * with another id. A process may append anything: it can make the events of this directory unreadable, as it can by
 * writing to the buffers.
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
	char *text; /* the first `length` bytes of .events */
	size_t length;
	size_t scanned;                        /* bytes of `text` whose ids are in `taken` */
	uint64_t taken[N_IDS / WORD_BITS + 1]; /* a bit for each id */
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

/* Read the bytes that were appended since the last call. 0 or -errno. */
static int read_new(struct relay_event_ids *ids)
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

/* Return the number at `at`; more than RELAY_TRACE_ID_MAX if there is no number or it is not an id. */
static uint64_t number_at(const struct relay_event_ids *ids, const char *at)
{
	uint64_t number = 0;
	if (at == ids->text + ids->length || *at < '0' || *at > '9')
		return UINT64_MAX;
	for (; at < ids->text + ids->length && *at >= '0' && *at <= '9' && number < N_IDS; at++)
		number = 10 * number + (uint64_t)(*at - '0');
	return number;
}

/* Mark as taken each id in the bytes that are not scanned yet, also if its declaration is not valid. */
static void scan_ids(struct relay_event_ids *ids)
{
	static const char label[] = "\tid = ";
	for (const char *at; (at = find_text(ids, ids->scanned, label));) {
		uint64_t id = number_at(ids, at + sizeof(label) - 1);
		if (id < N_IDS)
			ids->taken[id / WORD_BITS] |= 1ull << id % WORD_BITS;
		ids->scanned = (size_t)(at - ids->text) + sizeof(label) - 1;
	}
}

static uint64_t first_free_id(const struct relay_event_ids *ids)
{
	uint64_t id = 0;
	while (id < N_IDS && ids->taken[id / WORD_BITS] & 1ull << id % WORD_BITS)
		id++;
	return id;
}

/* True if the declaration `block` is at `at` and is the first one with its id. */
static bool is_valid_at(const struct relay_event_ids *ids, const char *at, const char *block, size_t length,
                        uint64_t id)
{
	char line[32];
	if ((size_t)(ids->text + ids->length - at) < length || memcmp(at, block, length) != 0)
		return false;
	snprintf(line, sizeof(line), "\tid = %llu;", (unsigned long long)id);
	const char *first = find_text(ids, 0, line);
	return first && first > at && first < at + length;
}

/* Return the id of the valid declaration of an event. -ENOENT: there is none; -EINVAL: the declaration is too long. */
static int find_id(const struct relay_event_ids *ids, const struct relay_trace_event *event)
{
	char block[RELAY_DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, 0, block, sizeof(block));
	if (length >= sizeof(block))
		return -EINVAL;
	/* The declaration up to its id. */
	char begin[sizeof(block)];
	size_t n = (size_t)((char *)memmem(block, length, "\tid = ", 6) + 6 - block);
	memcpy(begin, block, n);
	begin[n] = 0;
	for (const char *at = ids->text; (at = find_text(ids, at ? (size_t)(at - ids->text) : 0, begin)); at++) {
		uint64_t id = number_at(ids, at + n);
		length = relay_tsdl_event(event, id, block, sizeof(block));
		if (id < N_IDS && length < sizeof(block) && is_valid_at(ids, at, block, length, id))
			return (int)id;
	}
	return -ENOENT;
}

static int append_declaration(const struct relay_event_ids *ids, const struct relay_trace_event *event, uint64_t id)
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
		int err = read_new(ids);
		if (err)
			return err;
		int id = find_id(ids, event);
		if (id != -ENOENT)
			return id;
		scan_ids(ids);
		err = append_declaration(ids, event, first_free_id(ids));
		if (err)
			return err;
	}
	return -EAGAIN;
}
