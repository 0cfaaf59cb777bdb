/* SPDX-License-Identifier: MIT */
/* The FUSE protocol, with what older headers lack. */
#ifndef RELAY_TAP_PROTOCOL_H
#define RELAY_TAP_PROTOCOL_H

#include <linux/fuse.h>
#include <stdint.h>

/* Definitions of FUSE protocol 7.40, for older headers. The running kernel says in INIT what it has. */
#define TAP_PASSTHROUGH_FLAG2 (1u << 5) /* FUSE_PASSTHROUGH is bit 37, the 5th of the second word */
#define TAP_FOPEN_PASSTHROUGH (1u << 7)
#define TAP_BACKING_OPEN _IOW(229, 1, struct tap_backing_map)
#define TAP_BACKING_CLOSE _IOW(229, 2, uint32_t)

struct tap_backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

/* struct fuse_init_out up to max_stack_depth, which older headers lack. */
struct tap_init_out {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2;
	uint32_t max_stack_depth;
};

/* struct fuse_open_out, in which older headers have padding in place of backing_id. */
struct tap_open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
};

/* Of protocol 7.40: the kernel sends requests again that it has sent and that were not answered. In INIT this is bit 39,
 * the 7th of the second word. Such a request has the number that it had, with TAP_RESENT set. */
#define TAP_HAS_RESEND_FLAG2 (1u << 7)
#define TAP_NOTIFY_RESEND 7
#define TAP_RESENT (1ull << 63)
/* Set in the number of an answer: it answers the FUSE_INTERRUPT of this request. */
#define TAP_INTERRUPT_BIT 1ull

#endif
