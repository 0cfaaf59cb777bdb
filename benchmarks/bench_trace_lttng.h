/* SPDX-License-Identifier: MIT */
/* The event of bench_trace.c, for LTTng-UST, which includes this file several times. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "bench_trace_lttng.h"

#if !defined(BENCH_TRACE_LTTNG_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define BENCH_TRACE_LTTNG_H

#include <lttng/tracepoint.h>
#include <stdint.h>

/* clang-format off */
LTTNG_UST_TRACEPOINT_EVENT(bench, payload,
	LTTNG_UST_TP_ARGS(uint64_t, a, uint64_t, b, uint64_t, c, uint64_t, d,
	                  uint64_t, e, uint64_t, f, uint64_t, g, uint64_t, h),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, a, a)
		lttng_ust_field_integer(uint64_t, b, b)
		lttng_ust_field_integer(uint64_t, c, c)
		lttng_ust_field_integer(uint64_t, d, d)
		lttng_ust_field_integer(uint64_t, e, e)
		lttng_ust_field_integer(uint64_t, f, f)
		lttng_ust_field_integer(uint64_t, g, g)
		lttng_ust_field_integer(uint64_t, h, h)))
/* clang-format on */

#endif

#include <lttng/tracepoint-event.h>
