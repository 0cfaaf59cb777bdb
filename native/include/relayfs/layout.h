/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/layout.h>: the shared-memory format of one channel buffer: one file on tmpfs, mapped by every producer,
 * every zero-copy reader and the file server. All state of the buffer is in this file.
 *
 * For tools that look at a buffer's file without the library, and for the numbers in struct relay_spec and relay_stats
 * (store.h). Programs that write and read channels need <relayfs/relay.h> and <relayfs/reader.h> alone.
 *
 *   0                        data_bytes                                              file size
 *   +------------------------+-----------+---------------+-----------------+---------+
 *   | sub-buffer 0 | 1 | ... | (to page) | relay_subbuf  | relay_claim     | relay_  |
 *   | n_subbufs*subbuf_size  |           | [2*n_subbufs] | [n_claims]      | control |
 *   +------------------------+-----------+---------------+-----------------+---------+
 *   page 0: a plain mmap of the first n_subbufs*subbuf_size bytes shows the data     last page
 *
 * Positions. Writers and readers keep their place as one 62-bit word, so that no write needs a division:
 *
 *     lap : index : offset      offset  0 .. subbuf_size    (offset_bits wide)
 *                               index   0 .. n_subbufs-1    (index_bits wide)
 *                               lap     the rest
 *
 * offset == subbuf_size is a full sub-buffer that no write has switched from yet; the next write switches,
 * as in the kernel. offset == 0 is a sub-buffer entered but not begun: the write that begins it first checks
 * that readers have left it (no-overwrite), or calls subbuf_start (callback), and skips the bytes reserved at
 * its start. lap*n_subbufs+index is the free-running number of the sub-buffer, the kernel's `subbufs_produced`.
 *
 * Latches. Two counters that must change together (position and records; records and bytes) form a
 * relay_latch. Its first word is the commit: one plain store of it publishes both, because its top
 * bit selects which of the two second words is valid, and the other one is scratch:
 *
 *     write:  second[!t] = new;  first = new | !t << 63       (in one restartable sequence)
 *     or:     compare-and-swap of the 16 bytes {first, second[0]}, t always 0   (lockless, locking)
 *     or:     the same two stores, if only one thread at a time writes that latch; it may be killed between them
 *     read:   f = first; s = second[f >> 63]; again while first != f
 *
 * The scheme of a buffer never changes, so the ways are never mixed on one latch.
 *
 * Nothing here is trusted: every process copies the geometry once, checks it against the file's
 * size, and checks each position before it becomes an address.
 */
#ifndef RELAYFS_LAYOUT_H
#define RELAYFS_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define RELAY_STATIC_ASSERT static_assert
#else
#define RELAY_STATIC_ASSERT _Static_assert
#endif

#define RELAY_LINE __attribute__((aligned(64))) /* a cache line of its own */

#define RELAY_MAGIC 0x31305346594c4552ull /* "RELYFS01", little-endian */
#define RELAY_LAYOUT_VERSION 9u

enum {
	RELAY_PAGE_BYTES = 4096,
	RELAY_N_CLAIMS = 256,      /* in one buffer, or ring */
	RELAY_N_CLAIMS_KEPT = 192, /* a thread that has used one of the first 192 keeps it */
	RELAY_N_RESERVATIONS =
	    248 /* open reservations per buffer, at most: the last claims are for switches, see buffer/claims.c */
};

/* Geometry limits; sizes need not be powers of two. */
#define RELAY_SUBBUF_SIZE_MAX 0xffffffffull /* bytes */
#define RELAY_N_SUBBUFS_MAX 0xffffffffull   /* sub-buffers */
#define RELAY_DATA_BYTES_MAX (1ull << 40)   /* n_subbufs * subbuf_size */

/* Bit 63 of a latch's first word: which second word is valid. */
#define RELAY_LATCH_INDEX (1ull << 63)
#define RELAY_POSITION_BITS 62
#define RELAY_POSITION_MASK ((1ull << RELAY_POSITION_BITS) - 1)

/* Two words that one compare-and-swap changes. */
struct relay_u128 {
	__attribute__((aligned(16))) uint64_t first;
	uint64_t second;
};

struct relay_latch {
	uint64_t first;     /* the commit word */
	uint64_t second[2]; /* valid: second[first >> 63] */
	uint64_t unused;
};

/* head.second: records written since creation, and in the top 16 bits what changed head last: the claim (number + 1) of a
 * reservation, 0 for a complete restartable write, or a seal. See buffer/claims.c. */
#define RELAY_OWNER_SHIFT 48
#define RELAY_OWNER_SEAL 0x8000ull /* and above: the buffer was stopped here (not rseq) */
#define RELAY_RECORDS_MASK ((1ull << RELAY_OWNER_SHIFT) - 1)

/* A claim's word: state in the top two bits, the claimed position below. */
#define RELAY_CLAIM_FREE 0ull
#define RELAY_CLAIM_PENDING (1ull << 62) /* announced; taken if head names it, otherwise not */
#define RELAY_CLAIM_TAKEN (2ull << 62)   /* taken, not yet committed */
#define RELAY_CLAIM_HOLE (3ull << 62)    /* abandoned: readers skip it */
#define RELAY_CLAIM_STATE (3ull << 62)
#define RELAY_CLAIM_SWITCH (~0ull) /* claim.length: a switch of sub-buffers, not a record */

/* An owner word: the thread that owns a claim or lock, in one word so that a compare-and-swap can change it. */
#define RELAY_OWNER_TID_BITS 22   /* bits 0-21: thread id in its PID namespace; 0: no owner */
#define RELAY_OWNER_NS_BITS 16    /* bits 22-37: that namespace's inode number, folded */
#define RELAY_OWNER_START_BITS 26 /* bits 38-63: start time, clock ticks, to recognize a reused thread id */

/* The owner of a claim. */
struct relay_claim_owner {
	uint64_t thread; /* owner word; 0: none. Writer: the thread that takes it, by compare-and-swap */
	uint64_t token;  /* the file server's number of the owner's open file, or 0 */
	uint64_t reaper; /* owner word of the thread that ends it for a dead owner. Writer: the same way */
	uint64_t
	    in_use; /* 0 or 1. Writer: owner, by an unlocked instruction; to 0 also the committer, and the reaper */
};

/* A claim, of a buffer or a ring: its state word, three words that describe what is claimed, its owner. */
enum { RELAY_CLAIM_BYTES = 64, RELAY_CLAIM_OWNER_AT = 32 };
enum { RELAY_CLAIM_DISCARDED = 1, RELAY_CLAIM_MORE_SHIFT = 1 }; /* see relay_claim.bytes */

/* One reservation in progress, of one record or of several that lie one after the other. */
struct relay_claim {
	uint64_t word;    /* state and position. Writer: owner; PENDING->TAKEN also other threads that help */
	uint64_t length;  /* bytes, or RELAY_CLAIM_SWITCH. Writer: owner, before word */
	uint64_t records; /* record number at the position. Writer: owner, before word */
	/* Of a switch: stream position. Else RELAY_CLAIM_DISCARDED, of a hole that was, and how many records it has besides
	 * the first, from RELAY_CLAIM_MORE_SHIFT on. Writer: owner, before word */
	uint64_t bytes;
	struct relay_claim_owner owner;
};

/* One lap of a sub-buffer: element (lap & 1) * n_subbufs + index of the array. Written at switches, when the sub-buffer
 * begins or gets a footer, and, for `holes`, when a record is discarded. */
struct relay_subbuf {
	uint64_t end;           /* position behind its last record; padding follows */
	uint64_t start_records; /* records written before it began */
	uint64_t start_bytes;   /* bytes written before it began, padding not counted */
	uint64_t holes; /* RELAY_HOLES | position of its last discarded record; another position: there is none */
	uint64_t start_time_ns; /* CLOCK_REALTIME when it began; with a timestamp only */
	uint64_t start_clock;   /* the same moment by CLOCK_MONOTONIC, ns, or by the TSC */
	uint64_t start_lost;    /* records refused before it began, for any reason. Only with packets or `times` */
	uint64_t unused;
};

/*
 * A discarded record, stored in its own first bytes: an element of the list whose head is relay_subbuf.holes. A shorter
 * record keeps its claim, in state HOLE, until a reader passes it.
 */
#define RELAY_HOLES (1ull << 62)
struct relay_hole {
	uint32_t next;   /* offset of the record discarded before it, + 1; 0: none */
	uint32_t length; /* bytes */
	uint32_t record; /* number of the record within the sub-buffer */
	uint32_t count;  /* length of the list from here on, at most RELAY_N_HOLES */
};
enum { RELAY_N_HOLES = 1 << 18 };

/* The consumer's state. There are two copies: the invalid one is filled, then `current` is changed. */
struct relay_consumer {
	uint64_t position;
	uint64_t records; /* record number at position */
	uint64_t bytes;   /* stream position at position */
	uint64_t overwritten_records;
	uint64_t overwritten_bytes;
	uint64_t torn_records; /* reservations whose producer died before it committed them */
	uint64_t torn_bytes;
	uint64_t reads;             /* consumptions that returned data */
	uint64_t discarded_records; /* reservations taken back by their producer */
	uint64_t discarded_bytes;
	uint64_t unused[6];
};

/* relay_control.flags. The bits of STOPPED are tested inside every write's critical section. */
enum {
	RELAY_CLOSED = 1u << 0,    /* removed: writes fail with EPIPE */
	RELAY_DISABLED = 1u << 1,  /* writes are refused and counted */
	RELAY_RESETTING = 1u << 2, /* the same, during a reset */
	RELAY_STOPPED = RELAY_CLOSED | RELAY_DISABLED | RELAY_RESETTING,
	RELAY_ARM_SWITCH = 1u << 3, /* a reader sleeps until the next switch */
	RELAY_ARM_RECORD = 1u << 4, /* a reader sleeps until the next record */
	RELAY_ARMED = RELAY_ARM_SWITCH | RELAY_ARM_RECORD,
	RELAY_FINALIZED = 1u << 5, /* the maker is closing the channel: no further sub-buffer begins (classic.h) */
	RELAY_SILENT = 1u << 6, /* a writer must not make system calls and wakes no reader: readers poll every 50 ms */
	/* The data has no memory yet, and no sub-buffer has begun. A writer first allocates the memory, then clears this
	 * flag, which is never set again. Only in buffers of one process (geometry.pid) */
	RELAY_UNALLOCATED = 1u << 7,
	/* The process has ended its part of the trace in order: its library was unloaded, as by exit(3). Never cleared.
	 * Only in buffer 0 of one process (geometry.pid) */
	RELAY_LEFT = 1u << 8
};

enum relay_mode {
	RELAY_NO_OVERWRITE = 0,
	RELAY_OVERWRITE = 1,
	RELAY_CALLBACK = 2 /* subbuf_start decides at each switch */
};
enum relay_scheme {
	RELAY_ANY_SCHEME = 0,
	RELAY_RSEQ = 1,
	RELAY_LOCKLESS = 2,
	RELAY_LOCKING = 3 /* as LOCKLESS, by one writer at a time */
};
enum relay_buffers { RELAY_PERCPU = 0, RELAY_GLOBAL = 1, RELAY_SINGLE = 2 };
enum relay_delivery { RELAY_BULK = 0, RELAY_PACKET = 1 };
enum relay_read { RELAY_READ_NOWAIT = 0, RELAY_READ_WAIT = 1 };
enum relay_reserve { RELAY_RESERVE_COMMIT = 0, RELAY_RESERVE_VISIBLE = 1 };     /* when readers see a reservation */
enum relay_timestamp { RELAY_NO_TIMESTAMP = 0, RELAY_MONO = 1, RELAY_TSC = 2 }; /* the clock of start_clock */
/* What readers get: the bytes; or each finished sub-buffer as a packet, whose header (struct relay_packet in
 * trace_store.h) replaces the first bytes of the sub-buffer. */
enum relay_format { RELAY_STREAM = 0, RELAY_PACKETS = 1 };

/*
 * Fields of a buffer's geometry, its spec and its statistics (store.h): the options of `create`; and format and pid,
 * which are no options. New ones are appended. start_reserve, end_reserve and channel_start_reserve are bytes that
 * records do not use, at the start of each sub-buffer, at the end of each, and behind start_reserve in the very first;
 * together less than subbuf_size.
 */
#define RELAY_OPTION_FIELDS                                                                                     \
	uint32_t mode;              /* enum relay_mode */                                                       \
	uint32_t scheme;            /* enum relay_scheme */                                                     \
	uint32_t buffers;           /* enum relay_buffers */                                                    \
	uint32_t delivery;          /* enum relay_delivery */                                                   \
	uint32_t read;              /* enum relay_read */                                                       \
	uint32_t flush_interval_ms; /* 0: never; at most INT32_MAX */                                           \
	uint32_t reserve;           /* enum relay_reserve */                                                    \
	uint32_t timestamp;         /* enum relay_timestamp */                                                  \
	uint32_t start_reserve, end_reserve, channel_start_reserve;                                             \
	uint32_t format; /* enum relay_format: packets need a timestamp and a start_reserve for their header */ \
	uint32_t pid;    /* the process that writes, in a format with packets; 0: several processes */          \
	uint32_t times   /* enum relay_timestamp: the clock of each record's own time (struct relay_timed_head) */

/*
 * The head before each record in a buffer with `times`. Head and record have the format of a trace's event with id 0 and one
 * field, of the type bytes (trace_store.h). The clock is read when the record's position is known, so that times are in the
 * order of positions.
 */
struct relay_timed_head {
	uint16_t extended; /* RELAY_TRACE_EXTENDED */
	uint16_t id;       /* 0 */
	uint32_t time[2];  /* lower and upper half of the time */
	uint32_t length;   /* bytes of the record, which follow */
};

/* The parameters of the buffer. Constant after creation. */
struct relay_geometry {
	uint64_t magic;       /* RELAY_MAGIC */
	uint32_t version;     /* RELAY_LAYOUT_VERSION */
	uint32_t cpu;         /* number of the buffer in the channel */
	uint64_t subbuf_size; /* bytes, 1 .. RELAY_SUBBUF_SIZE_MAX */
	uint64_t n_subbufs;   /* 1 .. RELAY_N_SUBBUFS_MAX */
	uint64_t file_bytes;  /* the whole file */
	uint32_t n_buffers;   /* of the channel */
	uint32_t n_claims;
	RELAY_OPTION_FIELDS; /* scheme is never ANY; with `times`, timestamp is the same clock */
	uint32_t unused[6];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_geometry) == 128, "a new option's field is taken from `unused`");

/* relay_control.asked: (number + 1) << RELAY_ASKED_SHIFT of the sub-buffer that a writer tried to begin last, and these
 * bits as the result. If sub-buffers begin with the switch that enters them, it is the last sub-buffer that was entered
 * while the buffer was full, with YES once a flush has begun it. */
#define RELAY_ASKED_SHIFT 4
#define RELAY_ASKED_YES 1ull /* it has begun, with no record reserved */
#define RELAY_ASKED_SPOILED \
	2ull                   /* a process died in its callback: the previous data in its memory may be overwritten */
#define RELAY_ASKED_ENDED 4ull /* the previous sub-buffer is complete, including its footer */
#define RELAY_ASKED_SUSPENDED 8ull /* it may not begin before relay_resume() */

/* A record written by write(2), for the maker's deliver() (classic.h). */
struct relay_note {
	uint64_t position;
	uint64_t length; /* bytes */
};
enum { RELAY_N_NOTES = 32 };

/* The last page of the file. One cache line per writer. */
struct relay_control {
	struct relay_geometry geometry;

	/* Writers: producers. One line for the whole fast path. */
	RELAY_LINE struct relay_latch head; /* {position, records and owner} */
	uint32_t flags;                     /* Writers: readers arm, producers disarm, control stops */
	uint32_t n_claims_used;             /* claims ever taken are below this. Writers: producers */
	uint64_t switch_time_ns;            /* CLOCK_REALTIME_COARSE of the last switch */
	uint64_t head_unused;

	/* Writers: producers whose records are refused: {records, bytes}. */
	RELAY_LINE struct relay_latch lost_full;
	struct relay_latch lost_disabled;
	RELAY_LINE struct relay_latch lost_too_large;

	/* Writer: the holder of reader_lock. Producers read `consumed` at switches. */
	RELAY_LINE uint64_t consumed; /* position up to which memory is free again */
	uint32_t current;             /* which consumer[] is valid */
	uint32_t resets;              /* resets begun and ended so far: odd while one is under way */
	uint64_t reader_lock;         /* owner word of the consumer */
	RELAY_LINE struct relay_consumer consumer[2];

	/* Writer: the file server. It counts opens that can map the buffer, without those of the maker. */
	RELAY_LINE uint32_t map_seq; /* futex; only buffer 0's, for the whole channel: wake-ups of the maker so far */
	uint32_t map_unused;
	uint64_t mapped;          /* opens */
	uint64_t unmapped;        /* ended opens */
	struct relay_latch mtime; /* {bytes written so far, CLOCK_REALTIME ns when the server first saw this count} */

	/* Writers: producers that found the buffer armed. */
	RELAY_LINE uint32_t wake_seq; /* futex: wake-ups so far */
	uint32_t wake_unused[15];

	/* Writer: the holder of switch_lock. Used in buffers with callbacks, reserved bytes or timestamps, see
	 * buffer/subbuf_start.c. In other buffers only `asked` is used, by the thread that switches or flushes a full buffer,
	 * see buffer/try_reserve.c. */
	RELAY_LINE uint64_t switch_lock; /* owner word of the thread that begins a sub-buffer */
	uint64_t asked;
	uint64_t delivered; /* sub-buffers that deliver() has been called for (classic.h) */
	uint64_t caught_up; /* sub-buffers that do not count as unread since relay_resume() */
	/* The arguments of buffer_end(), in case its process dies: sub-buffer number + 1, its end, start_bytes of the next. */
	uint64_t ending, ending_at, ending_bytes;
	uint64_t starting; /* number + 1 of the sub-buffer whose memory a callback may have changed */
	uint64_t wanted;   /* number + 1 of the sub-buffer that the maker should begin. Writers: all */
	uint64_t
	    maker; /* owner word of the thread that begins sub-buffers for writers that may not; 0: none. Writer: it */

	/* Writer: the holder of write_lock, scheme LOCKING only. */
	RELAY_LINE uint64_t write_lock; /* owner word of the writer */
	uint64_t write_unused[7];

	/* Writers: threads that discard records or reap claims. */
	RELAY_LINE uint64_t n_holes; /* discarded and torn records so far */
	uint64_t holes_unused[7];

	/* Records written by write(2), a queue for the maker's deliver() (classic.h); see buffer/deliveries.h. */
	RELAY_LINE uint64_t notes_added; /* since creation. Writer: the file server */
	struct relay_note notes[RELAY_N_NOTES];
	RELAY_LINE uint64_t notes_told; /* removed since creation. Writer: the maker's thread */
};

RELAY_STATIC_ASSERT(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "all formats are little-endian");
RELAY_STATIC_ASSERT(sizeof(struct relay_latch) == 32, "part of the format");
RELAY_STATIC_ASSERT(sizeof(struct relay_claim) == RELAY_CLAIM_BYTES, "one line per claim");
RELAY_STATIC_ASSERT(offsetof(struct relay_claim, owner) == RELAY_CLAIM_OWNER_AT, "one offset for buffers and rings");
RELAY_STATIC_ASSERT(sizeof(struct relay_subbuf) == 64, "one line per entry");
RELAY_STATIC_ASSERT(sizeof(struct relay_hole) == 16, "part of the format");
RELAY_STATIC_ASSERT(sizeof(struct relay_timed_head) == 16, "part of the format");
RELAY_STATIC_ASSERT(sizeof(struct relay_consumer) == 128, "two lines per copy");
RELAY_STATIC_ASSERT(sizeof(struct relay_geometry) == 128, "two lines of constants");
RELAY_STATIC_ASSERT(sizeof(struct relay_control) <= RELAY_PAGE_BYTES, "the control page is one page");

#ifdef __cplusplus
}
#endif
#endif
