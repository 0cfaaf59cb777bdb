/* SPDX-License-Identifier: MIT */
/* What trace/tracepoint.c has for the library besides its API. */
#ifndef RELAYFS_TRACE_TRACEPOINT_H
#define RELAYFS_TRACE_TRACEPOINT_H

#include <stdint.h>

/* relay_trace_page.log as it is now, once the traces have been looked for. */
uint32_t relay_tracepoint_log(void);

#endif
