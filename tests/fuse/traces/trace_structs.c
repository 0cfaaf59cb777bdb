/* SPDX-License-Identifier: MIT */
/* trace_structs [too-long]: events with structs, of members of all kinds, as a program would have them; or one that no buffer holds. */
#include <relayfs/trace.h>
#include <stdlib.h>

enum state { IDLE, BUSY = 7 };

struct point {
	int x, y;
};

typedef struct {
	const char *path;
	char name[8];
	enum state state;
	unsigned is_open : 1;
	uint16_t pair[2];
	const int64_t *ns;
	size_t ns_length;
	void *body;
	size_t body_length;
	struct point from, to;
	float unused;
	const uint8_t *key;
} request_t;

RELAY_TRACE_ENUM(states, u8, {"IDLE", IDLE}, {"BUSY", BUSY})
RELAY_TRACE_ENUM(signs, i8, {"IDLE", -1})
RELAY_TRACE_STRUCT(point, struct point, (i32, x), (i32, y))
RELAY_TRACE_STRUCT(request, request_t, (string, path), (string, name), (enum, state, states), (u8, is_open),
                   (array, pair, u16, 2), (struct, from, point), (sequence, ns, i64), (struct, to, point),
                   (bytes, body), (array, key, u8, 2))
RELAY_TRACE_EVENT(structs, click, (u32, id), (struct, at, point), (u8, last))
RELAY_TRACE_EVENT(structs, all, (enum, state, signs), (struct, request, request), (struct, at, point))

struct level {
	uint8_t n;
};
/* clang-format off */
#define NEST(inner, outer)                                                                                             \
	struct outer {                                                                                                 \
		struct inner in;                                                                                       \
	};                                                                                                             \
	RELAY_TRACE_STRUCT(outer, struct outer, (struct, in, inner))
/* clang-format on */
RELAY_TRACE_STRUCT(level, struct level, (u8, n))
NEST(level, level2)
NEST(level2, level3)
NEST(level3, level4)
NEST(level4, level5)
NEST(level5, level6)
NEST(level6, level7)
NEST(level7, level8)
RELAY_TRACE_EVENT(structs, deepest, (struct, in, level8), (u8, n))
RELAY_TRACE_SPAN(structs, span, (struct, at, point))

int main(int argc, char **argv)
{
	(void)argv;
	const int64_t ns[] = {INT64_MIN, -1};
	const uint8_t key[] = {1, 255};
	char body[] = "\1\377";
	request_t request = {"/a", "name", BUSY, 1, {1, 65535}, ns, 2, body, 2, {1, -2}, {3, -4}, 0, key};
	struct point at = {5, INT32_MIN};
	struct level8 deepest = {0};
	if (argc > 1) {
		request.ns_length = SIZE_MAX;
		trace_structs_all(-1, &request, &at);
		return 0;
	}
	trace_structs_click(1, &at, 255);
	trace_structs_all(-1, &request, &at);
	trace_structs_all(1, NULL, NULL);
	deepest.in.in.in.in.in.in.in.n = 9;
	trace_structs_deepest(&deepest, 1);
	{
		RELAY_TRACE_SCOPE(structs, span)(&at);
	}
	return 0;
}
