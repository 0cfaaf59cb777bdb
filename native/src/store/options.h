/* SPDX-License-Identifier: MIT */
/* The options of the control file's `create`, for a process that makes a channel itself. A row of the table of options
 * is a struct relay_option (<relayfs/store.h>). `type` is an enum relay_type. */
#ifndef RELAYFS_STORE_OPTIONS_H
#define RELAYFS_STORE_OPTIONS_H

#include <relayfs/layout.h>
#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

struct relay_faults; /* base/faults.h */

/* Return the row of a key. NULL: this type has no such option. */
const struct relay_option *relay_option_find(uint32_t type, const char *key);

/* Fill a spec with the default of each option, and with the user and group of this process. The number of buffers is 0
 * until options are parsed. */
void relay_spec_default(struct relay_spec *spec);
void relay_ring_spec_default(struct relay_ring_spec *spec);

/* Parse "key=value ..." into a spec that holds the defaults, and set its number of buffers. 0; -EINVAL: a key is
 * unknown or is given twice, or its value is not allowed. */
int relay_options_parse(const char *options, struct relay_spec *spec);
int relay_options_parse_rings(const char *options, struct relay_ring_spec *spec);

/* True if an option begins with `key`, for example "perm=". options: NULL: there are none. */
bool relay_options_have(const char *options, const char *key);

/* True if each value is one that its row allows. Permission, user and group are not checked, as a geometry has none. */
bool relay_options_allow_spec(const struct relay_spec *spec);
bool relay_options_allow_ring_spec(const struct relay_ring_spec *spec);

/* The same for a geometry, which lies at offset `at` of its file. Returns 0; -EBADMSG: a value is not allowed, which is added
 * to `faults` (base/faults.h), or NULL. */
int relay_options_check(const struct relay_geometry *geometry, uint64_t at, struct relay_faults *faults);
int relay_options_check_ring(const struct relay_ring_geometry *geometry, uint64_t at, struct relay_faults *faults);

/* Copy the values of all options that have a field in the geometry. In a geometry, scheme=any is replaced by
 * relay_scheme_default(). */
void relay_options_to_geometry(const struct relay_spec *spec, struct relay_geometry *geometry);
void relay_options_to_stats(const struct relay_geometry *geometry, struct relay_stats *stats);
void relay_options_to_ring_geometry(const struct relay_ring_spec *spec, struct relay_ring_geometry *geometry);
void relay_options_to_ring_stats(const struct relay_ring_geometry *geometry, struct relay_ring_stats *stats);

#endif
