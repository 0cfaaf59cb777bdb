/* SPDX-License-Identifier: MIT */
/* Checking the geometry of a mem file, whichever type it has: relay_geometry_check() of <relayfs/check_store.h>. */
#define _GNU_SOURCE
#include "base/faults.h"
#include "buffer/geometry.h"
#include "ring/geometry.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/* The unit of st_blocks. */
enum { BLOCK_BYTES = 512 };

/* All memory of a mem file is allocated when it is made; that of the data of a buffer of one process later. This is checked
 * before the file is mapped, because loads would allocate it. */
static int check_memory(const struct stat *st, uint64_t least, struct relay_faults *faults)
{
	uint64_t taken = (uint64_t)st->st_blocks * BLOCK_BYTES;
	if (taken >= least)
		return 0;
	return relay_fault_value(faults, 0, taken, "its memory",
	                         "at least %" PRIu64 " bytes: somebody has freed pages of it", least);
}

int relay_geometry_check(int fd, struct relay_faults *faults)
{
	union {
		uint64_t magic;
		struct relay_geometry buffer;
		struct relay_ring_geometry ring;
	} of;
	struct relay_layout layout;
	struct relay_ring_layout ring_layout;
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	uint64_t bytes = (uint64_t)st.st_size;
	if (!S_ISREG(st.st_mode) || st.st_size < RELAY_PAGE_BYTES || bytes % RELAY_PAGE_BYTES)
		return relay_fault_value(faults, 0, bytes, "the size of the file",
		                         "whole pages of %d bytes, with a control page", RELAY_PAGE_BYTES);
	ssize_t got = pread(fd, &of, sizeof(of), (off_t)(bytes - RELAY_PAGE_BYTES));
	if (got != (ssize_t)sizeof(of))
		return got < 0 ? -errno : -EAGAIN; /* it was truncated just now */
	if (of.magic == RELAY_RING_MAGIC) {
		if (!relay_ring_check_geometry(&of.ring, bytes, &ring_layout, faults))
			check_memory(&st, bytes, faults);
		return RELAY_TYPE_RING;
	}
	int err = relay_check_geometry(&of.buffer, bytes, &layout, faults);
	if (!err)
		check_memory(&st, bytes - (of.buffer.pid ? layout.subbufs_at : 0), faults);
	return of.magic == RELAY_MAGIC ? RELAY_TYPE_RELAY : err;
}
