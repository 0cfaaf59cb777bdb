/* SPDX-License-Identifier: MIT */
/*
 * A client of 2003, as it is told on the standard input, one command a line:
 *
 *     texts HEADER FOOTER CHANNEL    what buffer_start and buffer_end write, each as long as its reserve; "-": nothing
 *     full N                         what buffers_full returns
 *     open PATH SIZE N FLAGS         the flags as a number
 *     write TEXT   direct TEXT       with relay_write(); with rchan_get() ... rchan_put()
 *     fill BYTES                     a record of so many
 *     get   put                      a reference that is kept
 *     consumed N   resume   close
 *     info                           answered with NAME=VALUE ...
 *
 * Each is answered with one line: 0 or an errno's name. What callbacks are told comes as lines that begin with "*".
 */
#define _GNU_SOURCE
#include "tell.h"

#include <errno.h>
#include <relayfs/classic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 2048 };

static int id = -1, full;
static char header[MAX_WORD], footer[MAX_WORD], channel_header[MAX_WORD];
static struct rchan *kept;

static int put_text(char *at, const char *text)
{
	memcpy(at, text, strlen(text));
	return (int)strlen(text);
}

static int buffer_start(int channel_id, char *at, uint32_t number, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)channel_id, (void)time;
	TELL("* start %u %s\n", number, using_tsc == (tsc != 0) ? "" : "without its clock");
	int length = put_text(at, header);
	return number == 0 ? length + put_text(at + length, channel_header) : length;
}

static int buffer_end(int channel_id, char *at, char *end, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)channel_id, (void)time, (void)tsc, (void)using_tsc;
	TELL("* end %d\n", (int)(end - at));
	return put_text(at, footer);
}

static void deliver(int channel_id, char *from, uint32_t length)
{
	TELL("* deliver %.*s%s\n", length > 40 ? 40 : (int)length, from,
	     channel_id == id || id < 0 ? "" : " of others");
}

static int buffers_full(int channel_id)
{
	(void)channel_id;
	TELL("* full\n");
	return full;
}

static const struct rchan_callbacks callbacks = {buffer_start, buffer_end, deliver, buffers_full};

static size_t reserve_of(char *text)
{
	if (strcmp(text, "-") == 0)
		*text = 0;
	return strlen(text);
}

static int written(int result, size_t length)
{
	return result < 0 ? result : result == (int)length ? 0 : -EIO;
}

static int write_direct(const char *text)
{
	struct rchan *rchan = rchan_get(id);
	int err = rchan ? relay_lock_channel(rchan) : -EBADF;
	if (err)
		return err;
	char *reserved = relay_reserve(rchan, strlen(text), NULL, NULL, &err);
	if (reserved) {
		put_text(reserved, text);
		relay_commit(rchan, reserved, strlen(text));
	}
	relay_unlock_channel(rchan);
	rchan_put(rchan);
	return err;
}

static int write_filled(size_t length)
{
	char *data = malloc(length + 1);
	memset(data, 'x', length);
	int result = written(relay_write(id, data, length, -1), length);
	free(data);
	return result;
}

static int open_channel(const char *path, uint32_t size, uint32_t n, uint32_t flags)
{
	int result = relay_open(path, size, n, flags, &callbacks, (uint32_t)reserve_of(header),
	                        (uint32_t)reserve_of(footer), (uint32_t)reserve_of(channel_header));
	if (result >= 0)
		id = result;
	return result < 0 ? result : 0;
}

static int tell_info(void)
{
	struct rchan_info info;
	int err = relay_info(id, &info);
	if (err)
		return err;
	TELL("flags=%u buf_size=%u n_bufs=%u bufs_produced=%llu bufs_consumed=%llu buf_id=%u events_lost=%llu "
	     "suspended=%u"
	     " unused_bytes=%d,%d buffer_complete=%d,%d\n",
	     info.flags, info.buf_size, info.n_bufs, (unsigned long long)info.bufs_produced,
	     (unsigned long long)info.bufs_consumed, info.buf_id, (unsigned long long)info.events_lost, info.suspended,
	     info.unused_bytes[0], info.unused_bytes[1], info.buffer_complete[0], info.buffer_complete[1]);
	return 1;
}

static int obey(const char *line)
{
	char path[MAX_WORD] = "";
	uint32_t size, n, flags;
	if (sscanf(line, "texts %2047s %2047s %2047s", header, footer, channel_header) == 3)
		return 0;
	if (sscanf(line, "full %d", &full) == 1)
		return 0;
	if (sscanf(line, "open %2047s %u %u %u", path, &size, &n, &flags) == 4)
		return open_channel(path, size, n, flags);
	if (strncmp(line, "write ", 6) == 0)
		return written(relay_write(id, line + 6, strlen(line + 6), -1), strlen(line + 6));
	if (strncmp(line, "direct ", 7) == 0)
		return write_direct(line + 7);
	if (sscanf(line, "fill %u", &size) == 1)
		return write_filled(size);
	if (sscanf(line, "consumed %u", &n) == 1) {
		relay_buffers_consumed(id, n);
		return 0;
	}
	if (strcmp(line, "resume") == 0) {
		relay_resume(id);
		return 0;
	}
	if (strcmp(line, "get") == 0) {
		kept = rchan_get(id);
		return kept ? 0 : -EBADF;
	}
	if (strcmp(line, "put") == 0) {
		rchan_put(kept);
		return 0;
	}
	if (strcmp(line, "info") == 0)
		return tell_info();
	return strcmp(line, "close") == 0 ? relay_close(id) : -ENOSYS;
}

int main(void)
{
	char line[4 * MAX_WORD];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		int result = obey(line);
		if (result <= 0)
			TELL("%s\n", result ? strerrorname_np(-result) : "0");
	}
	return 0;
}
