/* SPDX-License-Identifier: MIT */
/* Directories of processes in a trace come into sight, and go out of it, as a whole: by rename(2) from and to hidden ones. */
#ifndef RELAYFS_TRACE_REMOVE_H
#define RELAYFS_TRACE_REMOVE_H

#include <limits.h>

/* A directory that is no symbolic link. Its descriptor or -errno. */
int relay_trace_open_dir(const char *path);

/* Make a hidden directory of a name of its own in dir_fd, ".WHY-PID-N". 0 or -errno. */
int relay_trace_make_hidden(int dir_fd, const char *why, char name[NAME_MAX]);

#endif
