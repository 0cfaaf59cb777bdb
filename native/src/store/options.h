/* SPDX-License-Identifier: MIT */
/* The keys of the control file's `create`, for channels that are made without a server. */
#ifndef RELAYFS_STORE_OPTIONS_H
#define RELAYFS_STORE_OPTIONS_H

#include <relayfs/ring.h>
#include <relayfs/store.h>
#include <stdbool.h>

/* "key=value ..." into a spec that holds the defaults. 0; -EINVAL: a key or value is not known, or is given twice. */
int relay_options_parse(const char *options, struct relay_spec *spec);
int relay_options_parse_rings(const char *options, struct relay_ring_spec *spec);

/* Is a key, "perm=", among the words? */
bool relay_options_have(const char *options, const char *key);

#endif
