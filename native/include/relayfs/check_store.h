/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/check_store.h>: checks of the files of a store, for tools; symbols as in <relayfs/store.h>.
 *
 *     struct relay_faults *faults = calloc(1, sizeof(*faults));
 *     if (relay_geometry_check(fd, faults) == RELAY_TYPE_RELAY) {
 *         struct rchan_buf *buf = relay_buf_view(fd);
 *         relay_buf_check(buf, faults);
 *     }
 *
 * The functions change no file. Programs may write and read meanwhile: then what is loaded at different moments can
 * contradict each other, so only a fault that further calls, some milliseconds apart, find again is one. Each check adds the
 * faults that it finds to `faults`, RELAY_N_FAULTS at most.
 */
#ifndef RELAYFS_CHECK_STORE_H
#define RELAYFS_CHECK_STORE_H

#include <relayfs/counters.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>
#include <relayfs/trace_store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The versions of the formats in a store, which the file servers of a store must share, and the tools that read it. */
enum relay_store_format {
	RELAY_FORMAT_BUFFER = RELAY_LAYOUT_VERSION,
	RELAY_FORMAT_RING = RELAY_RING_VERSION,
	RELAY_FORMAT_COUNTERS = RELAY_PERF_VERSION,
	RELAY_FORMAT_NAMES = 2, /* names of counters; version 1 had 64 domains, and did not reuse numbers */
	RELAY_FORMAT_TRACES = 5 /* the control file of traces */
};

enum relay_fault_kind {
	RELAY_FAULT_DAMAGE = 0,
	RELAY_FAULT_VERSION = 1, /* the file has the format of another version of the library */
	RELAY_FAULT_DEAD = 2     /* a thread has died in the middle of something; others will complete it */
};

enum { RELAY_N_FAULTS = 32, RELAY_FAULT_NAME_BYTES = 80, RELAY_FAULT_TEXT_BYTES = 176 };

/* A value in a file that is wrong. */
struct relay_fault {
	uint32_t kind;      /* enum relay_fault_kind */
	uint32_t has_value; /* 1; 0: `text` alone says what is wrong */
	uint64_t at;        /* offset in the file, bytes */
	uint64_t value;
	char name[RELAY_FAULT_NAME_BYTES]; /* of the value, as "relay_geometry.n_claims" */
	char text[RELAY_FAULT_TEXT_BYTES]; /* what is allowed: "at most 8"; of RELAY_FAULT_DEAD what completes it */
};

struct relay_faults {
	uint32_t n;      /* that are in `fault` */
	uint32_t n_more; /* for which there was no room */
	struct relay_fault fault[RELAY_N_FAULTS];
};

/*
 * Read the geometry of a mem file, and its size, and compare each value with what is allowed.
 *
 * Returns RELAY_TYPE_RELAY or RELAY_TYPE_RING, which the magic number says, also if there are faults; -EBADMSG: it says
 * neither; else as fstat(2) and pread(2).
 */
int relay_geometry_check(int fd, struct relay_faults *faults);

/*
 * Map a file that is open for reading, for functions that look at it: what they store goes to private copies of the
 * memory's pages, so the file does not change. NULL and errno as relay_buf_open() and relay_ring_open(). fd stays the
 * caller's.
 */
struct rchan_buf *relay_buf_view(int fd);
struct relay_ring *relay_ring_view(int fd);

/*
 * Check what a view shows: positions, the consumer's state, the entries of sub-buffers or the headers of records, claims
 * and locks, and the account. 0; -EAGAIN: the check did not end: a reset came, or there were too many discarded records.
 *
 * In a ring, each reserved record must be returned, discarded, torn or unread. This is checked while nothing moves, and not
 * in mode overwrite, nor after a consumer that knows only the kernel's format, because neither counts all records. In a
 * buffer, the bytes written must be those passed by the consumer, and those from there to head; in buffers with `times`, the
 * records in each sub-buffer must also be as many as its entries say.
 */
int relay_buf_check(struct rchan_buf *view, struct relay_faults *faults);
int relay_ring_check(struct relay_ring *view, struct relay_faults *faults);

/*
 * Check the files `counters` and `names` of a store's directory .counters. 0; -EAGAIN: other processes keep changing
 * them; else as open(2) and mmap(2).
 */
int relay_counters_check(const char *dir, struct relay_faults *faults);

/* Check the control file of traces, STORE/.traces, which is open for reading. 0, or as fstat(2) and mmap(2). */
int relay_traces_check(int fd, struct relay_faults *faults);

#ifdef __cplusplus
}
#endif
#endif
