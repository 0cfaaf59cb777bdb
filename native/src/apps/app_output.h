/* SPDX-License-Identifier: MIT */
/* A relay_app's output file. A program that appends to it first truncates it to the consumed data. */
#ifndef RELAYFS_APPS_APP_OUTPUT_H
#define RELAYFS_APPS_APP_OUTPUT_H

#include "apps/app_room.h"

struct app_output {
	int fd;         /* -1: none */
	bool is_cached; /* it cannot be written past the page cache */
	off_t bytes;    /* of whole pieces in the file */
	/* Bytes a millisecond of the last large piece, with and without the page cache; UINT64_MAX: unknown. */
	uint64_t cached_rate, direct_rate;
};

/* Open `base`CPU, empty unless `append`. room: with which its reader takes data. 0 or -errno. */
int relay_app_output_open(struct app_output *output, struct rchan_buf *buf, struct app_room *room, const char *base,
                          bool append);
void relay_app_output_close(struct app_output *output);

/* Call begin() before a reader starts at the position in `stats`, and end() after it has ended. */
void relay_app_output_begin(const struct app_output *output, const struct relay_stats *stats);
void relay_app_output_end(const struct app_output *output);

/* Write all of the data or, in a regular file, none of it. is_urgent: the buffer is filling up. 0 or -errno. */
int relay_app_output_write(struct app_output *output, const void *data, size_t length, bool is_urgent);

#endif
