/* SPDX-License-Identifier: MIT */
/* A channel, opened by this process: what its parts share. */
#ifndef RELAYFS_CHANNEL_H
#define RELAYFS_CHANNEL_H

#include "buf.h"
#include "mountpoint.h"

struct rchan {
	struct rchan_buf *bufs;
	uint32_t n_buffers;
	uint32_t scheme;
	bool owned; /* made by relay_open(): removed when it is closed */
	struct relay_place place;
	const struct rchan_callbacks *cb; /* NULL: none */
	void *private_data;
	uint64_t bench_at; /* of relay_bench_copy() only */
};

#endif
