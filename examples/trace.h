/* What tracer.c writes and trace_reader.c reads. Each sub-buffer:
 *
 *     +--------+-------+-------+--   --+--------+
 *     | header | event | event |  ...  | footer | unused: read(2) leaves it out
 *     +--------+-------+-------+--   --+--------+
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdint.h>

enum { BUFSIZE = 16384, TEXT_BYTES = 80, HEADER = 0x48445254, FOOTER = 0x46545254, EVENT = 0x56455254 };

/* How both of them begin: wall clock and TSC of one moment. With two such moments a TSC can be converted. */
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
	uint64_t unused; /* bytes behind the last event, this footer's included */
};

struct event {
	uint32_t magic;      /* EVENT */
	uint16_t length;     /* bytes, text included */
	uint16_t thread;     /* who wrote it */
	uint64_t time_delta; /* relay_write() fills it in */
	char text[TEXT_BYTES];
};

#endif
