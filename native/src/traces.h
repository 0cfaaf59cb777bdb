/* SPDX-License-Identifier: MIT */
/* The mapped control file, for those who show its first page to programs. */
#ifndef RELAYFS_TRACES_H
#define RELAYFS_TRACES_H

#include <relayfs/trace_store.h>

/* Its first page, as long as it is open. */
struct relay_trace_page *relay_traces_page(const struct relay_traces *traces);

#endif
