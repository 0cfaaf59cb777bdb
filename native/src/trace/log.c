/* SPDX-License-Identifier: MIT */
/*
 * relay_log(): write lines of text to the channel `log`, if it exists.
 *
 * relay_trace_page.log, which the file server writes, is 0 while there is no such channel, and a new number each time
 * one is made. A thread that sees a new number attaches the channel anew; the previous one is freed when no thread is
 * writing to it.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "trace/process.h"
#include "trace/threads.h"
#include "trace/tracepoint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 }; /* longer lines are built in allocated memory */

/* An attached channel `log`. */
struct logging {
	uint32_t number;    /* relay_trace_page.log */
	struct rchan *chan; /* NULL: it could not be attached, for `err` */
	int err;
	struct relay_retired retired;
};

static struct logging *logging;

static void attach_log(struct logging *new)
{
	new->chan = relay_chan_new(0, NULL, NULL);
	new->err = !new->chan ? -ENOMEM : relay_traced_place(&new->chan->place, "log") ? 0 : -ENOENT;
	if (!new->err)
		new->err = relay_chan_attach(new->chan);
	if (new->err &&new->chan) {
		relay_chan_free(new->chan);
		new->chan = NULL;
	}
}

static void free_logging(void *arg)
{
	struct logging *old = arg;
	if (old->chan)
		relay_chan_free(old->chan);
	free(old);
}

/* Attach the channel `log` with this number and retire the previous one. The caller is inside (relay_trace_enter()).
 * NULL: no memory. */
static struct logging *attach_anew(uint32_t number)
{
	sigset_t before;
	struct logging *new = calloc(1, sizeof(*new));
	if (!new)
		return NULL;
	new->number = number;
	attach_log(new);
	relay_trace_lock(&before);
	struct logging *old = logging;
	/* Pairs with the acquire in logging_of(): the struct's members before the pointer. */
	__atomic_store_n(&logging, new, __ATOMIC_RELEASE);
	if (old)
		relay_trace_retire(&old->retired, free_logging, old);
	relay_trace_free_retired();
	relay_trace_unlock(&before);
	return new;
}

/* Return the attached channel with this number. The caller is inside. NULL: no memory. */
static struct logging *logging_of(uint32_t number)
{
	/* Pairs with the release in attach_anew(). */
	struct logging *now = __atomic_load_n(&logging, __ATOMIC_ACQUIRE);
	return now && now->number == number ? now : attach_anew(number);
}

int relay_log_is_heard(void)
{
	return relay_tracepoint_log() != 0;
}

/* Store "[12345.678901] program[1234]: ". Returns its length. */
static size_t put_head(char *line)
{
	uint64_t us = relay_clock_ns(CLOCK_MONOTONIC) / 1000;
	return (size_t)snprintf(line, LINE_BYTES, "[%5llu.%06llu] %.64s[%ld]: ", (unsigned long long)(us / 1000000),
	                        (unsigned long long)(us % 1000000), program_invocation_short_name, (long)getpid());
}

static int write_line(uint32_t number, const char *text, size_t length)
{
	char room[LINE_BYTES], *line = room;
	size_t head = put_head(room), whole = head + length + 1;
	if (whole > sizeof(room)) {
		line = malloc(whole);
		if (!line)
			return -ENOMEM;
		memcpy(line, room, head);
	}
	memcpy(line + head, text, length);
	line[whole - 1] = '\n';
	relay_trace_enter();
	struct logging *log = logging_of(number);
	int err = !log ? -ENOMEM : log->err ? log->err : relay_write(log->chan, line, whole);
	relay_trace_leave();
	if (line != room)
		free(line);
	return err ? err : 1;
}

int relay_log_text(const char *text, size_t length)
{
	uint32_t number = relay_tracepoint_log();
	int saved = errno;
	while (number && length && text[length - 1] == '\n')
		length--;
	int result = number ? write_line(number, text, length) : 0;
	errno = saved;
	return result;
}

int relay_log(const char *format, ...)
{
	char room[LINE_BYTES], *text = room;
	int saved = errno;
	va_list args, again;
	if (__builtin_expect(!relay_tracepoint_log(), 1))
		return 0;
	va_start(args, format);
	va_copy(again, args);
	int length = vsnprintf(room, sizeof(room), format, args);
	if (length >= (int)sizeof(room))
		length = vasprintf(&text, format, again);
	va_end(again);
	va_end(args);
	int result = length < 0 ? -EILSEQ : relay_log_text(text, (size_t)length);
	if (text != room && length >= 0)
		free(text);
	errno = saved;
	return result;
}
