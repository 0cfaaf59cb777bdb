/* cc -O2 -o trace_reader trace_reader.c $(pkg-config --cflags --libs relayfs) */
#include "trace.h"

#include <err.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Print the events of tracer, with their times, until the tracer ends: trace_reader MNT/xlog/9
 * It only reads the file: read(2) waits for data, and leaves out unused bytes. */

enum { EVENT_BYTES = offsetof(struct event, text) }; /* without its text */

/* The events of one sub-buffer, kept until its footer is read, which is needed to compute the rate of the TSC. */
static struct event events[BUFSIZE / EVENT_BYTES];

/* Say what is wrong at a byte of a sub-buffer. */
__attribute__((format(printf, 3, 4))) static int fail(uint32_t subbuf, size_t byte, const char *format, ...)
{
	va_list values;
	fprintf(stderr, "trace_reader: sub-buffer %u, byte %zu: ", subbuf, byte);
	va_start(values, format);
	vfprintf(stderr, format, values);
	va_end(values);
	fputc('\n', stderr);
	return 1;
}

static double microseconds_of(const struct moment *m)
{
	return (double)m->seconds * 1e6 + (double)m->microseconds;
}

/* Return when an event was written, in microseconds after the header's moment. */
static double time_of(const struct event *event, const struct moment *start, const struct moment *end)
{
	if (!start->tsc)
		return (double)event->time_delta;
	double elapsed = microseconds_of(end) - microseconds_of(start), ticks = (double)(end->tsc - start->tsc);
	return elapsed * ((double)(event->time_delta - start->tsc) / ticks);
}

static void print(const struct event *event, const struct moment *start, const struct moment *end)
{
	char text[32];
	long after = (long)time_of(event, start, end) + start->microseconds;
	time_t seconds = start->seconds + after / 1000000;
	struct tm local;
	strftime(text, sizeof(text), "%F %T", localtime_r(&seconds, &local));
	printf("%s.%06ld thread %u %.*s\n", text, after % 1000000, event->thread, (int)(event->length - EVENT_BYTES),
	       event->text);
}

/* Read the rest of a struct whose first word has been read. */
static int read_rest(FILE *file, void *to, size_t length)
{
	return fread((char *)to + sizeof(uint32_t), length - sizeof(uint32_t), 1, file) == 1;
}

static int read_event(FILE *file, struct event *event)
{
	if (!read_rest(file, event, EVENT_BYTES) || event->length < EVENT_BYTES || event->length > sizeof(*event))
		return 0;
	size_t length = event->length - (size_t)EVENT_BYTES;
	return fread(event->text, 1, length, file) == length;
}

/* Read and print a sub-buffer whose header has been read. 0; 1: it is not valid. */
static int read_subbuf(FILE *file, const struct header *header)
{
	struct footer footer;
	uint32_t magic, id = header->start.buffer_id;
	size_t n = 0, used = sizeof(*header);
	while (fread(&magic, sizeof(magic), 1, file) == 1 && magic == EVENT) {
		if (used > BUFSIZE - EVENT_BYTES || !read_event(file, &events[n]))
			return fail(id, used, "there is no whole event; its length is %u", events[n].length);
		used += events[n++].length;
	}
	if (feof(file) || (magic == FOOTER && !read_rest(file, &footer, sizeof(footer))))
		return fail(id, used, "the file ends before the end of the footer");
	if (magic != FOOTER)
		return fail(id, used, "there is %#x where an event or the footer was expected", magic);
	if (footer.end.buffer_id != id || used + footer.unused != BUFSIZE)
		return fail(id, used, "there is the footer of sub-buffer %u, with %lu unused bytes",
		            footer.end.buffer_id, (unsigned long)footer.unused);
	for (size_t i = 0; i < n; i++)
		print(&events[i], &header->start, &footer.end);
	return 0;
}

int main(int argc, char **argv)
{
	struct header header;
	if (argc != 2)
		errx(2, "usage: trace_reader MNT/xlog/9");
	FILE *file = fopen(argv[1], "r");
	if (!file)
		errx(1, "%s: %s", argv[1], strerror(errno));
	for (uint32_t id = 0; fread(&header, sizeof(header), 1, file) == 1; id++) {
		if (header.start.magic != HEADER || header.start.buffer_id != id)
			return fail(id, 0, "there is %#x, of sub-buffer %u, where its header was expected",
			            header.start.magic, header.start.buffer_id);
		if (read_subbuf(file, &header))
			return 1;
		fflush(stdout);
	}
	if (!ferror(file))
		return 0;
	warnx("%s: %s", argv[1], strerror(errno));
	return 1;
}
