/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/ring_layout.h>: the shared-memory format of one record ring. For consumers that map a ring's file without the
 * library, and for tools; programs that call the library need <relayfs/ring.h> alone.
 *
 * Its first part is, byte for byte, what mmap(2) of a BPF_MAP_TYPE_RINGBUF shows in Linux, so a program that knows only
 * that can consume it from a mapping of the file:
 *
 *   page 0        page 1        page 2           + size             + 2 * size
 *   +-------------+-------------+----------------+------------------+-------+---+--------+---+-------+
 *   | consumer    | producer    | data           | what wrapped     | ready |gap| claims |gap| state |
 *   | position .. | position .. | size bytes     | end of record    | ready |gap| claims |gap| state |
 *   +-------------+-------------+----------------+------------------+-------+---+--------+---+-------+
 *
 * Positions count bytes and never decrease; position & (size - 1) is the offset in the data. A record is a header of 8
 * bytes and its bytes, together rounded up to 8:
 *
 *     length | BUSY | DISCARD    32 bits; BUSY: reserved, not yet committed; DISCARD: to be skipped
 *     page                       32 bits: how many pages the header's page lies behind the kernel's map structure
 *
 * In a ring with `times` the first 8 bytes of each record are its time, and the bytes that its producer wrote follow. The clock is
 * read when the record's position is known, so that times are in the order of positions.
 *
 * The kernel maps the data twice, back to back, so that a record that crosses the end is contiguous. Here the rest of
 * such a record is stored behind the end instead: headers lie in the first `size` bytes only. As in the kernel the ring is
 * never quite full: producer - consumer < size.
 *
 * The bytes that the kernel's format leaves unused in the first two pages hold further words of the same writers. Nothing
 * here is trusted: each position and length is checked before it becomes an address.
 */
#ifndef RELAYFS_RING_LAYOUT_H
#define RELAYFS_RING_LAYOUT_H

#include <relayfs/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELAY_RING_MAGIC 0x31474e4952594c52ull /* "RLYRING1", little-endian */
#define RELAY_RING_VERSION 4u

#define RELAY_RING_BUSY (1u << 31)
#define RELAY_RING_DISCARD (1u << 30)
#define RELAY_RING_RECORD_MAX (0xffffffffu / 4)      /* bytes, independent of the ring's size */
#define RELAY_RING_DATA_AT (2ull * RELAY_PAGE_BYTES) /* bytes, in the file */
#define RELAY_RING_SIZE_MAX (1ull << 40)             /* bytes */

enum {
	RELAY_RING_HEADER_BYTES = 8,
	RELAY_RING_TIME_BYTES = 8, /* of a record's time, with `times` */
	RELAY_RING_FIRST_PAGE = 3, /* second header word of a record in the data's first page */
	RELAY_RING_N_READY = 1024, /* at most so many reserved records have not been passed by the producer position */
	/* Bytes between ready and claims; the rest of the page follows the claims. A load waits for an earlier store to
	 * the same offset in another page. Therefore the claims that are used most lie at other offsets than the words
	 * that producers load and store together with them. */
	RELAY_RING_CLAIMS_GAP = 1024
};

/* How read(2) of a ring's file returns a record. */
enum relay_framing {
	RELAY_FRAMING_RAW = 0,    /* its bytes */
	RELAY_FRAMING_LENGTH = 1, /* its length in 4 bytes, little-endian, then its bytes */
	RELAY_FRAMING_LINE = 2    /* its bytes, and a newline if they do not end with one */
};

/* The consumer's counts. There are two copies: the invalid one is filled, then `current` is changed. */
struct relay_ring_counts {
	uint64_t position;
	uint64_t records;   /* committed records before position */
	uint64_t bytes;     /* their bytes */
	uint64_t discarded; /* records that were skipped: discarded or torn */
	uint64_t missed;    /* of `records`, those that were overwritten unread */
	uint64_t
	    foreign; /* bytes before position that were consumed by programs that know only the kernel's format and do not count records */
	uint64_t unused[2];
};

/* Page 0. Writer: the consumer. */
struct relay_ring_consumer {
	uint64_t position;           /* the kernel's */
	uint64_t lock;               /* owner word of the consumer */
	RELAY_LINE uint32_t current; /* which counts[] is valid */
	uint32_t unused;
	RELAY_LINE struct relay_ring_counts counts[2];
};

/* Page 1. Writers: producers. The fast path stores to the first line and only loads the second. */
struct relay_ring_producer {
	/* {the kernel's producer position, number of records before it}. The latter only in scheme lockless, where it
	 * is one too large for a moment: see ring/publish.c. */
	struct relay_u128 position;
	/* Mode overwrite: {the kernel's overwrite position, which is the position of the oldest record that is not
	 * overwritten; scheme lockless: committed records before it}. It is stored before a producer stores to the memory
	 * that it has passed. In scheme rseq it is a copy of relay_ring_state.oldest. Otherwise 0. */
	struct relay_u128 overwritten;
	/* lockless: tail[0] is {position up to which records are reserved, records | claim}: see ring/reserve.c.
	 * rseq: the valid one of the two, whose `first` is the producer position, is {position, records before it}. */
	struct relay_u128 tail[2];
	RELAY_LINE uint64_t last; /* rseq: the last reservation: claim (number + 1) and position. See ring/reserve.c */
	uint32_t
	    flags; /* RELAY_CLOSED, RELAY_DISABLED, RELAY_ARM_RECORD. Writers: also control.c and sleeping readers */
	uint32_t n_claims_used; /* claims ever taken are below this */
};

/* One reservation in progress. Its word is {state and position, torn records so far}, because reaping changes both at once. */
struct relay_ring_claim {
	struct relay_u128
	    word; /* RELAY_CLAIM_ states, or RELAY_RING_REAPED. Writer: owner; PENDING->TAKEN also other threads that help */
	uint64_t length; /* bytes. Writer: owner, before it reserves */
	uint64_t number; /* of the record: lockless only. Writer: owner, the same */
	struct relay_claim_owner owner;
};
#define RELAY_RING_REAPED RELAY_CLAIM_HOLE /* its owner died, it is counted as torn, and becomes DISCARD next */

/* Fields of a ring's geometry, its spec and its statistics (ring_store.h): the options of `create`. New ones are appended. */
#define RELAY_RING_OPTION_FIELDS                                                           \
	uint32_t mode;    /* enum relay_mode, never CALLBACK */                            \
	uint32_t scheme;  /* RELAY_ANY_SCHEME; RELAY_RSEQ, per CPU only; RELAY_LOCKLESS */ \
	uint32_t buffers; /* enum relay_buffers */                                         \
	uint32_t read;    /* enum relay_read. This and framing are for file servers */     \
	uint32_t framing; /* enum relay_framing */                                         \
	uint32_t times    /* enum relay_timestamp: the clock of each record's own time */

/* The parameters of the ring. Constant after creation. */
struct relay_ring_geometry {
	uint64_t magic;   /* RELAY_RING_MAGIC */
	uint32_t version; /* RELAY_RING_VERSION */
	uint32_t cpu;     /* number of the ring in the channel */
	uint64_t size;    /* bytes of data: a power of two, whole pages */
	uint64_t file_bytes;
	uint32_t n_rings;
	uint32_t n_claims;
	uint32_t n_ready;
	RELAY_RING_OPTION_FIELDS; /* scheme is never ANY */
	uint32_t unused[15];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_geometry) == 128, "a new option's field is taken from `unused`");

/* The last page. */
struct relay_ring_state {
	struct relay_ring_geometry geometry;

	/* Mode overwrite, scheme rseq: {position of the oldest record that is not overwritten, committed records before it}.
	 * Writers: producers. */
	RELAY_LINE struct relay_latch oldest;

	/* Writers: producers whose records are refused: {records, bytes}. */
	RELAY_LINE struct relay_latch lost_full;
	struct relay_latch lost_disabled;
	RELAY_LINE struct relay_latch lost_too_large;

	/* Writers: producers that found the ring armed. */
	RELAY_LINE uint32_t wake_seq; /* futex: wake-ups so far */
	uint32_t wake_unused[15];

	/* Writer: the file server. {producer position, CLOCK_REALTIME ns when the server first saw it} */
	RELAY_LINE struct relay_latch mtime;
};

RELAY_STATIC_ASSERT(sizeof(struct relay_u128) == 16, "one compare-and-swap");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_counts) == 64, "one line per copy");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_consumer) == 256, "consumers share it");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_producer) == 128, "two lines");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_claim) == RELAY_CLAIM_BYTES, "one line per claim");
RELAY_STATIC_ASSERT(offsetof(struct relay_ring_claim, owner) == RELAY_CLAIM_OWNER_AT,
                    "one offset for buffers and rings");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_geometry) == 128, "two lines of constants");
RELAY_STATIC_ASSERT(sizeof(struct relay_ring_state) <= RELAY_PAGE_BYTES, "the state is one page");
/* Buffer and ring files both have their magic in the first 8 bytes of their last page, which tells them apart. */
RELAY_STATIC_ASSERT(offsetof(struct relay_ring_state, geometry.magic) == offsetof(struct relay_control, geometry.magic),
                    "a ring's magic lies where a buffer's does");

#ifdef __cplusplus
}
#endif
#endif
