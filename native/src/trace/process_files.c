/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/process_files.h"

#include "base/quiet.h"
#include "trace/join.h"
#include "trace/loaded.h"
#include "trace/states.h"
#include "trace/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- states --- */

static int ask_to_put(const struct relay_tracing *tracing, unsigned place, const void *value, size_t bytes)
{
	char request[32 + RELAY_STATE_BYTES];
	int length = snprintf(request, 32, "state %u\n", place);
	memcpy(request + length, value, bytes);
	return relay_session_ask(tracing->session, request, (size_t)length + bytes);
}

/* Write to a file of this process's directory, which has at most `most` bytes. It is opened each time, because programs such as
 * daemons close descriptors that they do not know. at: the offset; -1: the file's end. 0 or -errno. */
static int put_in_store(const struct relay_tracing *tracing, const char *name, off_t most, off_t at, const void *data,
                        size_t bytes)
{
	const struct relay_place *place = &tracing->chan->place;
	const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (at < 0 ? O_APPEND : 0);
	char *path;
	if (!relay_may_write((uint64_t)most))
		return -EFBIG;
	/* The channel is NAME/PROCESS-PID/cpu. */
	const int length = (int)(strrchr(place->channel, '/') - place->channel);
	if (asprintf(&path, "%s/%.*s/%s", place->root, length, place->channel, name) < 0)
		return -ENOMEM;
	int fd = open(path, flags, RELAY_PERM_OWN);
	ssize_t got = fd < 0 ? -1 : at < 0 ? write(fd, data, bytes) : pwrite(fd, data, bytes, at);
	int err = got == (ssize_t)bytes ? 0 : got < 0 ? -errno : -ENOSPC;
	if (fd >= 0)
		close(fd);
	free(path);
	return err;
}

static int put_state_in_store(const struct relay_tracing *tracing, unsigned place, const void *value, size_t bytes)
{
	return put_in_store(tracing, ".state", 2 * RELAY_STATES * RELAY_STATE_BYTES, (off_t)place * RELAY_STATE_BYTES,
	                    value, bytes);
}

void relay_tracing_put_state(struct relay_tracing *tracing, unsigned index, bool wants)
{
	const struct relay_declared *declared = wants ? relay_state_declared(index) : NULL;
	const uint16_t id = declared ? tracing->ids[declared->number] : 0;
	struct relay_state_value value;
	if (tracing->pid)
		return;
	const size_t bytes = relay_state_value(index, id ? (uint16_t)(id - 1) : RELAY_TRACE_EXTENDED, &value);
	const unsigned place = 2 * index + tracing->halves[index];
	if (tracing->session >= 0 ? ask_to_put(tracing, place, &value, bytes)
	                          : put_state_in_store(tracing, place, &value, bytes))
		tracing->has_unwritten = true;
	else
		tracing->halves[index] = !tracing->halves[index];
}

/* --- what is loaded --- */

static int ask_to_add_objects(const struct relay_tracing *tracing, const char *lines, size_t bytes)
{
	static const char word[] = "objects\n";
	char *request = malloc(sizeof(word) - 1 + bytes);
	if (!request)
		return -ENOMEM;
	memcpy(request, word, sizeof(word) - 1);
	memcpy(request + sizeof(word) - 1, lines, bytes);
	int err = relay_session_ask(tracing->session, request, sizeof(word) - 1 + bytes);
	free(request);
	return err;
}

void relay_tracing_put_objects(struct relay_tracing *tracing)
{
	size_t length;
	const char *lines = relay_loaded_lines(&length);
	const size_t bytes = length - tracing->n_objects_bytes;
	if (tracing->pid || !bytes)
		return;
	lines += tracing->n_objects_bytes;
	const int err = tracing->session >= 0
	                    ? ask_to_add_objects(tracing, lines, bytes)
	                    : put_in_store(tracing, ".objects", RELAY_OBJECTS_BYTES, -1, lines, bytes);
	if (!err)
		__atomic_store_n(&tracing->n_objects_bytes, length, __ATOMIC_RELAXED);
	__atomic_store_n(&tracing->has_objects_left, err != 0, __ATOMIC_RELAXED);
}

static void put_objects_here(void *tracing)
{
	relay_tracing_put_objects(tracing);
}

/* rchan_buf.begun. Nothing tells when a program calls dlopen(3), so it is found out now and then. */
static void note_loaded(struct rchan_buf *buf)
{
	struct relay_tracing *tracing = relay_private(buf->chan);
	if (relay_is_quiet() && !relay_quiet_may_call())
		return;
	relay_loaded_look(false);
	/* Relaxed: if another thread changes them, it writes the lines. */
	if (!__atomic_load_n(&tracing->has_objects_left, __ATOMIC_RELAXED) &&
	    relay_loaded_has_more(__atomic_load_n(&tracing->n_objects_bytes, __ATOMIC_RELAXED)))
		relay_trace_locked(put_objects_here, tracing);
}

void relay_tracing_follow_objects(struct relay_tracing *tracing)
{
	relay_tracing_put_objects(tracing);
	for (uint32_t i = 0; !tracing->pid && i < tracing->chan->n_buffers; i++)
		tracing->chan->bufs[i].begun = note_loaded;
}
