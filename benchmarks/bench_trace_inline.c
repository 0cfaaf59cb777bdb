/* SPDX-License-Identifier: MIT */
/* bench_trace.c, with events that are compiled into the program. */
#define _GNU_SOURCE
#include <relayfs/producer.h>

#undef _GNU_SOURCE
#include "bench_trace.c"
