/* SPDX-License-Identifier: MIT */
/* The options of the control file's `create`, for channels that are made without a server; <relayfs/store.h> has the table. */
#ifndef RELAYFS_STORE_OPTIONS_H
#define RELAYFS_STORE_OPTIONS_H

#include <relayfs/layout.h>
#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

/* The row of a key that there is. */
const struct relay_option *relay_option_find(uint32_t type, const char *key);

/* What holds without options; user and group are this process's. The number of buffers is for who parses them. */
void relay_spec_default(struct relay_spec *spec);
void relay_ring_spec_default(struct relay_ring_spec *spec);

/* "key=value ..." into a spec that holds the defaults. 0; -EINVAL: a key or value is not known, or is given twice. */
int relay_options_parse(const char *options, struct relay_spec *spec);
int relay_options_parse_rings(const char *options, struct relay_ring_spec *spec);

/* Is a key, "perm=", among the words? */
bool relay_options_have(const char *options, const char *key);

/* Is each value one that its row allows? */
bool relay_options_allow_spec(const struct relay_spec *spec);
bool relay_options_allow(const struct relay_geometry *geometry);
bool relay_options_allow_ring_spec(const struct relay_ring_spec *spec);
bool relay_options_allow_ring(const struct relay_ring_geometry *geometry);

/* Copy the values that a geometry has, of which scheme=any becomes this machine's. */
void relay_options_to_geometry(const struct relay_spec *spec, struct relay_geometry *geometry);
void relay_options_to_stats(const struct relay_geometry *geometry, struct relay_stats *stats);
void relay_options_to_ring_geometry(const struct relay_ring_spec *spec, struct relay_ring_geometry *geometry);
void relay_options_to_ring_stats(const struct relay_ring_geometry *geometry, struct relay_ring_stats *stats);

#endif
