/* SPDX-License-Identifier: MIT */
/* Replies to READDIRPLUS, in which pyfuse3 gives the attributes of every name. */
#ifndef RELAY_TAP_DIRENTRIES_H
#define RELAY_TAP_DIRENTRIES_H

#include <stddef.h>

/* Let the entries of a reply, `bytes` of struct fuse_direntplus, give the attributes of directories only. Of other names the
 * kernel would drop them at once, since their timeout is 0, so the server does not look for them. */
void relay_tap_name_files_only(void *entries, size_t bytes);

#endif
