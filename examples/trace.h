/* The format that tracer.c writes and trace_reader.c reads. Each sub-buffer:
 *
 *     +--------+-------+-------+--   --+--------+
 *     | header | event | event |  ...  | footer | unused: read(2) leaves it out
 *     +--------+-------+-------+--   --+--------+
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdint.h>

enum { BUFSIZE = 16384, TEXT_BYTES = 80, HEADER = 0x48445254, FOOTER = 0x46545254, EVENT = 0x56455254 };

/* The beginning of header and footer: wall clock and TSC at one moment. Two such moments are needed to convert a TSC. */
struct moment {
	uint32_t magic;     /* HEADER or FOOTER */
	uint32_t buffer_id; /* counts sub-buffers */
	int64_t seconds, microseconds;
	uint64_t tsc; /* 0: time deltas are microseconds since the header's moment */
};

struct header {
	struct moment start;
};

struct footer {
	struct moment end;
	uint64_t unused; /* bytes behind the last event, including this footer */
};

struct event {
	uint32_t magic;      /* EVENT */
	uint16_t length;     /* bytes, text included */
	uint16_t thread;     /* the thread that wrote it */
	uint64_t time_delta; /* stored by relay_write() */
	char text[TEXT_BYTES];
};

#endif
