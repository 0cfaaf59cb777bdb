/* SPDX-License-Identifier: MIT */
/* trace_forms [too-long]: events with enums, arrays and sequences, declared as a program would; or one that no buffer holds. */
#include <inttypes.h>
#include <relayfs/trace.h>
#include <stdlib.h>

enum state { IDLE, BUSY = 7 };

RELAY_TRACE_ENUM(states, u8, {"IDLE", IDLE}, {"BUSY", BUSY}, {"int", 255})
RELAY_TRACE_ENUM(errors, i64, {"LOWEST", INT64_MIN}, {"MINUS", -1}, {"HIGHEST", INT64_MAX})
RELAY_TRACE_ENUM(widths, u64, {"TOP", INT64_MIN})

RELAY_TRACE_EVENT(forms, all, (enum, state, states), (array, pair, u16, 2), (string, text), (sequence, ns, i64),
                  (array, hex, x32, 3), (enum, error, errors), (sequence, reals, f64), (u8, last))
RELAY_TRACE_EVENT(forms, top, (enum, width, widths), (array, one, i8, 1))
RELAY_TRACE_EVENT(forms, longest, (sequence, n, u64), (array, many, u8, 65535))
RELAY_TRACE_EVENT(forms, plain, (u32, n))
RELAY_TRACE_SPAN(forms, span, (enum, state, states), (sequence, n, u16))

int main(int argc, char **argv)
{
	(void)argv;
	const uint16_t pair[] = {1, 65535};
	const int64_t ns[] = {INT64_MIN, -1, 0, INT64_MAX};
	const uint32_t hex[] = {0, 0xbeef, UINT32_MAX};
	const double reals[] = {0.5, -1e300};
	const int8_t one[] = {-128};
	static uint64_t n[300];
	static uint8_t many[65535];
	for (unsigned i = 0; i < 300; i++)
		n[i] = i;
	many[65534] = 9;
	if (argc > 1) {
		trace_forms_longest(n, SIZE_MAX, many);
		return 0;
	}
	trace_forms_all(BUSY, pair, "text", ns, 4, hex, INT64_MIN, reals, 2, 200);
	trace_forms_all(255, pair, "", NULL, 0, hex, 5, reals, 1, 0);
	trace_forms_top(1ull << 63, one);
	trace_forms_longest(n, 300, many);
	trace_forms_plain(5);
	trace_forms_span(IDLE, pair, 2);
	trace_forms_span_end();
	return 0;
}
