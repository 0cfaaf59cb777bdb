/* SPDX-License-Identifier: MIT */
/* The function of trace/tracepoint.c for trace/log.c. */
#ifndef RELAYFS_TRACE_TRACEPOINT_H
#define RELAYFS_TRACE_TRACEPOINT_H

#include <stdint.h>

/* Return relay_trace_page.log. The first call in this process searches for the traces. */
uint32_t relay_tracepoint_log(void);

#endif
