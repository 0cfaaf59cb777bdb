/* SPDX-License-Identifier: MIT */
/*
 * The shared-memory format of one record ring. Its first part is, byte for byte, what Linux lets one mmap of a
 * BPF_MAP_TYPE_RINGBUF, so programs that know only that can consume it from a plain mapping of the file:
 *
 *   page 0        page 1        page 2           2 + size           2 + 2 * size
 *   +-------------+-------------+----------------+------------------+-------+---+--------+---+-------+
 *   | consumer    | producer    | data           | what wrapped     | ready |gap| claims |gap| state |
 *   | position .. | position .. | size bytes     | size bytes       |       |   |        |   |       |
 *   +-------------+-------------+----------------+------------------+-------+---+--------+---+-------+
 *
 * Positions count bytes and only ever grow; position & (size - 1) is where in the data. A record is a header of 8 bytes
 * and its bytes, together rounded up to 8:
 *
 *     length | BUSY | DISCARD    32 bits; BUSY: reserved, not yet committed; DISCARD: to be skipped
 *     page                       32 bits: how many pages the header's page lies behind the kernel's map structure
 *
 * The kernel maps the data twice, back to back, so that a record that passes the end shows in one piece. Here its tail
 * is stored behind the end instead: headers lie in the first `size` bytes only. As in the kernel the ring is never quite
 * full: producer - consumer < size.
 *
 * What the kernel's format leaves unused of the first two pages holds more words of the same writers. Nothing here is
 * trusted: each position and length is checked before it becomes an address.
 */
#ifndef RELAYFS_RING_LAYOUT_H
#define RELAYFS_RING_LAYOUT_H

#include <relayfs/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELAY_RING_MAGIC 0x31474e4952594c52ull /* "RLYRING1", little-endian */
#define RELAY_RING_VERSION 3u

#define RELAY_RING_BUSY (1u << 31)
#define RELAY_RING_DISCARD (1u << 30)
#define RELAY_RING_RECORD_MAX (0xffffffffu / 4)      /* bytes, whatever the ring's size */
#define RELAY_RING_DATA_AT (2ull * RELAY_PAGE_BYTES) /* bytes, in the file */
#define RELAY_RING_SIZE_MAX (1ull << 40)             /* bytes */

enum {
	RELAY_RING_HEADER_BYTES = 8,
	RELAY_RING_FIRST_PAGE = 3, /* second header word of a record in the data's first page */
	RELAY_RING_N_READY = 1024, /* records reserved and not yet behind the producer position */
	/* Bytes between ready and claims; what is missing to a page follows the claims. A CPU takes a load for one of what it
	 * has just stored at the same offset in another page, and waits: the claims that are used most lie at other offsets
	 * than what producers load and change together with them. */
	RELAY_RING_CLAIMS_GAP = 1024
};

/* What read(2) of a ring's file gives of a record. */
enum relay_framing {
	RELAY_FRAMING_RAW = 0,    /* its bytes */
	RELAY_FRAMING_LENGTH = 1, /* how many they are, in 4 bytes, little-endian, before them */
	RELAY_FRAMING_LINE = 2    /* its bytes, and a newline if they do not end with one */
};

/* What has been consumed. Two copies: the spare is filled, then `current` flips. */
struct relay_ring_counts {
	uint64_t position;
	uint64_t records;   /* committed ones before position */
	uint64_t bytes;     /* of these */
	uint64_t discarded; /* records that were skipped: discarded or torn */
	uint64_t missed;    /* of `records`, those that were overwritten unread */
	uint64_t
	    foreign; /* bytes before position that consumers of the kernel's format alone passed, who count no records */
	uint64_t unused[2];
};

/* Page 0. Writer: the consumer. */
struct relay_ring_consumer {
	uint64_t position;           /* the kernel's */
	uint64_t lock;               /* owner word of who is consuming */
	RELAY_LINE uint32_t current; /* which counts[] is valid */
	uint32_t unused;
	RELAY_LINE struct relay_ring_counts counts[2];
};

/* Page 1. Writers: producers. The first line is what the fast path changes, the second one what it only looks at. */
struct relay_ring_producer {
	/* {the kernel's producer position, how many records lie before it}. The latter in scheme lockless only, and for a
	 * moment it is one ahead: see ring/publish.c. */
	struct relay_u128 position;
	/* Mode overwrite: {the kernel's overwrite position: where the oldest record lies that stands, scheme lockless:
	 * committed records before it}. It is stored before anything is stored over what it has passed. In scheme rseq it
	 * follows relay_ring_state.oldest. Otherwise 0. */
	struct relay_u128 overwritten;
	/* lockless: tail[0] is {reserved up to here, records | claim}: see ring/reserve.c.
	 * rseq: {position, records before it} in the one of the two whose `first` is the producer position. */
	struct relay_u128 tail[2];
	RELAY_LINE uint64_t last; /* rseq: the last reservation: claim (number + 1) and where. See ring/reserve.c */
	uint32_t flags;         /* RELAY_CLOSED, RELAY_DISABLED, RELAY_ARM_RECORD. Writers: also control and sleepers */
	uint32_t n_claims_used; /* claims ever taken are below this */
};

/* One reservation in progress. {state and position, torn records ever}: reaping changes both at once. */
struct relay_ring_claim {
	struct relay_u128
	    word; /* RELAY_CLAIM_ states; reaped: RELAY_RING_REAPED. Writer: owner; PENDING->TAKEN also helpers */
	uint64_t length; /* bytes. Writer: owner, before it reserves */
	uint64_t number; /* of the record: lockless only. Writer: owner, the same */
	struct relay_claim_owner owner;
};
#define RELAY_RING_REAPED RELAY_CLAIM_HOLE /* its owner died and it is counted as torn; to become DISCARD */

/* Constant from creation on. */
struct relay_ring_geometry {
	uint64_t magic;   /* RELAY_RING_MAGIC */
	uint32_t version; /* RELAY_RING_VERSION */
	uint32_t cpu;     /* which ring of those made together */
	uint64_t size;    /* bytes of data: a power of two, whole pages */
	uint64_t file_bytes;
	uint32_t n_rings;
	uint32_t n_claims;
	uint32_t n_ready;
	uint32_t mode;    /* enum relay_mode, never CALLBACK */
	uint32_t scheme;  /* RELAY_RSEQ or RELAY_LOCKLESS */
	uint32_t buffers; /* enum relay_buffers */
	uint32_t read;    /* enum relay_read. This and the next are for file servers */
	uint32_t framing; /* enum relay_framing */
	uint32_t unused[16];
};

/* The last page. */
struct relay_ring_state {
	struct relay_ring_geometry geometry;

	/* Mode overwrite, scheme rseq: {where the oldest record lies that stands, committed records before it}. Writers:
	 * producers. */
	RELAY_LINE struct relay_latch oldest;

	/* Writers: producers, when they are refused: {records, bytes}. */
	RELAY_LINE struct relay_latch lost_full;
	struct relay_latch lost_disabled;
	RELAY_LINE struct relay_latch lost_too_large;

	/* Writers: producers that found the ring armed. */
	RELAY_LINE uint32_t wake_seq; /* futex: wake-ups so far */
	uint32_t wake_unused[15];

	/* Writer: the file server. {producer position, CLOCK_REALTIME ns when it first saw the ring there} */
	RELAY_LINE struct relay_latch mtime;
};

RELAY_STATIC_ASSERT(sizeof(struct relay_u128) == 16, "one compare-and-swap");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_counts) == 64, "one line per copy");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_consumer) == 256, "consumers share it");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_producer) == 128, "two lines");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_claim) == RELAY_CLAIM_BYTES, "one line per claim");
RELAY_STATIC_ASSERT(offsetof(struct relay_ring_claim, owner) == RELAY_CLAIM_OWNER_AT, "all claims say it there");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_geometry) == 128, "two lines of constants");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_state) <= RELAY_PAGE_BYTES, "the state is one page");
/* Both kinds of file have it in the first 8 bytes of their last page, and so each is known from the other. */
RELAY_STATIC_ASSERT(offsetof(struct relay_ring_state, geometry.magic) == offsetof(struct relay_control, geometry.magic),
                    "a ring's magic lies where a buffer's does");

#ifdef __cplusplus
}
#endif
#endif
