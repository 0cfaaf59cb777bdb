/* SPDX-License-Identifier: MIT */
/* A relay_app's output file. A program that appends to it first truncates it to the consumed data. */
#ifndef RELAYFS_APPS_APP_OUTPUT_H
#define RELAYFS_APPS_APP_OUTPUT_H

#include "buffer/buffer.h"

#include <sys/types.h>

struct app_output {
	int fd;      /* -1: none */
	off_t bytes; /* of whole pieces in the file */
};

/* Open `base`CPU, empty unless `append`. 0 or -errno. */
int relay_app_output_open(struct app_output *output, struct rchan_buf *buf, const char *base, bool append);
void relay_app_output_close(struct app_output *output);

/* Call begin() before a reader starts at the position in `stats`, and end() after it has ended. */
void relay_app_output_begin(const struct app_output *output, const struct relay_stats *stats);
void relay_app_output_end(const struct app_output *output);

/* Write all of the data or, in a regular file, none of it. 0 or -errno. */
int relay_app_output_write(struct app_output *output, const void *data, size_t length);

#endif
