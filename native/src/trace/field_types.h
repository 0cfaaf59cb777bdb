/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_TRACE_FIELD_TYPES_H
#define RELAYFS_TRACE_FIELD_TYPES_H

#include <relayfs/trace_store.h>

/* By enum relay_trace_type. */
extern const struct relay_field_type relay_field_types[RELAY_N_TRACE_TYPES];

#endif
