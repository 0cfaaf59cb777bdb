/* SPDX-License-Identifier: MIT */
/* A relay_app's output file: what is in it is consumed, whatever happens in between. */
#ifndef RELAYFS_APPS_APP_OUTPUT_H
#define RELAYFS_APPS_APP_OUTPUT_H

#include "buffer/buffer.h"

#include <sys/types.h>

struct app_output {
	int fd;      /* or -1: there is none */
	off_t bytes; /* in it, whole pieces */
};

/* Open `base`CPU, empty unless `append`. 0 or -errno. */
int relay_app_output_open(struct app_output *output, struct rchan_buf *buf, const char *base, bool append);
void relay_app_output_close(struct app_output *output);

/* A reader is about to start, where `stats` says, or has ended. */
void relay_app_output_begin(const struct app_output *output, const struct relay_stats *stats);
void relay_app_output_end(const struct app_output *output);

/* All of it or, in a regular file, nothing. 0 or -errno. */
int relay_app_output_write(struct app_output *output, const void *data, size_t length);

#endif
