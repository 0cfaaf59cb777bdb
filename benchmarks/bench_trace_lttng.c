/* SPDX-License-Identifier: MIT */
/* Trace into LTTng-UST:  bench_trace_lttng CPU     takes samples, see bench_trace.h */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "bench_trace_lttng.h"

#define EVENT(n) lttng_ust_tracepoint(bench, payload, n, n, n, n, n, n, n, n)
#include "bench_trace.h"

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	pin(atoi(argv[1]));
	take_samples();
	return 0;
}
