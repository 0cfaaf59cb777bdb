/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace_store.h>: traces, as file servers, recorders and other tools see them; symbols as in <relayfs/store.h>.
 *
 *     STORE/.traces                     the control file: one page for programs, one for each trace
 *     STORE/.traces-lost                how many events programs have lost that could get no buffers
 *     STORE/.traces-lost-UID            the same of programs of other users than the store's
 *     STORE/NAME/                       a trace
 *     STORE/NAME/PROCESS-PID/           one process's part of it; it appears whole, by rename(2)
 *     STORE/NAME/PROCESS-PID/.events    one line about it, then the declarations of its events, in TSDL; locked
 *                                       (fcntl(2), F_RDLCK) as long as a process writes here
 *     STORE/NAME/PROCESS-PID/cpu/mem0   its buffers: a channel whose sub-buffers are read as CTF packets
 *
 *     STORE/.early/NAME/PROCESS-PID/    the same, while there is no trace NAME yet
 *
 * With buffers=peruser PROCESS-PID is user-UID, with buffers=shared it is `shared`.
 *
 * Functions return 0 (or what they say) or a negative errno, and do not trust what the store holds.
 */
#ifndef RELAYFS_TRACE_STORE_H
#define RELAYFS_TRACE_STORE_H

#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <relayfs/trace_event.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	RELAY_N_TRACES = 16,          /* there can be at once */
	RELAY_TRACE_NAME_BYTES = 128, /* of a trace's name, and of a directory's in it, with the null byte */
	RELAY_TRACE_FILTER_BYTES = 512,
	RELAY_TRACE_RULES_BYTES = 2048,
	RELAY_TRACE_BOOT_BYTES = 40
};

/*
 * The head of an event in a packet, little-endian, without padding; the pid, where several processes write; then the fields.
 *
 *     |id 16|time 48|                       an event whose time has the same uppermost 16 bits as the packet's timestamp_begin
 *     |65535|id 16|time 64|                 any other
 *
 * Ids are those of the declarations in the directory's .events: 0, 1, 2 ...
 */
enum { RELAY_TRACE_ID_BITS = 16, RELAY_TRACE_TIME_BITS = 48, RELAY_TRACE_ID_MAX = 65534, RELAY_TRACE_EXTENDED = 65535 };

enum relay_trace_buffers { RELAY_TRACE_PERPROCESS = 0, RELAY_TRACE_PERUSER = 1, RELAY_TRACE_SHARED = 2 };

/* The clocks at one moment. */
struct relay_clocks {
	uint64_t tsc;     /* 0: this machine has no counter of constant rate */
	uint64_t mono_ns; /* CLOCK_MONOTONIC */
	uint64_t real_ns; /* CLOCK_REALTIME */
};
void relay_clocks_read(struct relay_clocks *clocks);

/* A trace, as the control file has it. */
struct relay_trace {
	uint64_t id; /* never used again in this store; 0: there is none */
	uint32_t is_started;
	uint32_t clock;   /* RELAY_MONO or RELAY_TSC */
	uint32_t buffers; /* enum relay_trace_buffers */
	uint32_t mode;    /* RELAY_NO_OVERWRITE or RELAY_OVERWRITE */
	uint64_t subbuf_size, n_subbufs;
	uint64_t memory; /* bytes that the buffers of all processes take at most; 0: as many as there are */
	struct relay_clocks made, latest;  /* at its creation; some time later, if it has been noted */
	char boot[RELAY_TRACE_BOOT_BYTES]; /* /proc/sys/kernel/random/boot_id, in which the clocks are */
	char name[RELAY_TRACE_NAME_BYTES];
	/* Who takes part, "TERM,TERM..."; a TERM is pid:N, uid:N or a GLOB of program names. "": everybody. */
	char filter[RELAY_TRACE_FILTER_BYTES];
	/* Which events, "+GLOB\n" or "-GLOB\n" a line, of "provider:name". The last that matches decides; where none does, an
	 * event is taken unless the first line begins with +. "": all. */
	char rules[RELAY_TRACE_RULES_BYTES];
	/* How often who reads finishes sub-buffers that are not full; 0: never. */
	uint64_t flush_interval_ms;
};

/* The control file of a store, mapped. */
struct relay_traces;

/* For the one server of the store, which makes it where it is missing. NULL and errno: EBADMSG it is not one; EPROTO it has
 * another version; else as open(2), mmap(2). */
struct relay_traces *relay_traces_serve(const char *store);

/* For everybody else: mapped so that it cannot be written. `file`: STORE/.traces, or a mount's .traces/control. */
struct relay_traces *relay_traces_open(const char *file);
void relay_traces_close(struct relay_traces *traces);

/* Copy one trace. -ENOENT: there is none; -EBADMSG; -EAGAIN: it kept changing. */
int relay_traces_get(const struct relay_traces *traces, unsigned slot, struct relay_trace *trace);

/* Change one trace, or, with id 0, take it away: every program sees it at its next event. For the server. */
void relay_traces_set(struct relay_traces *traces, unsigned slot, const struct relay_trace *trace);

/* A trace that is taken away stays among those that are active, as one that wants nothing, so that programs look once more
 * and let go of its buffers. This ends that, some time later. For the server. */
void relay_traces_settle(struct relay_traces *traces);

/* How many events programs of the store's own user and root have lost of the trace of this id because they could get no buffers
 * for it; also after it was taken away, as long as no other trace has its slot. 0 also if this process may not read the store. */
uint64_t relay_traces_lost(const struct relay_traces *traces, unsigned slot, uint64_t id);

/* The same as programs of another user say, in STORE/.traces-lost-UID: of each slot the trace's id, or 0, and the events. That
 * user can write anything there. 0 or -errno. */
int relay_traces_lost_in(const char *file, uint64_t ids[RELAY_N_TRACES], uint64_t lost[RELAY_N_TRACES]);

/* The file in which programs of another user count, made if it is missing; a descriptor, which stays theirs, for writing.
 * -ENOSPC: there are 1024 of them. For the server. */
int relay_traces_lost_file(struct relay_traces *traces, uint32_t uid);

/* An id that no trace of this store has had. For the server. */
uint64_t relay_traces_new_id(struct relay_traces *traces);

/* Say which channel `log` there is: a number that differs each time one is made; 0: none. For the server. */
void relay_traces_set_log(struct relay_traces *traces, uint32_t log);

/*
 * Make one process's (user's, everybody's) directory in a trace, whose own directory exists.
 *
 * process   the program's name: anything; what may not stand in a path is replaced
 * pid       the process, for buffers=perprocess, as the server sees it
 * vpid      the same as it sees itself, in its own PID namespace
 * uid, gid  whose the files will be; others than the caller's are for root only
 * lock      receives a descriptor of .events, locked for this process; NULL: nobody locks it yet
 * name      receives the directory's name; if PROCESS-PID is taken, it is PROCESS-PID-2 ...
 *
 * 0; with buffers=peruser or shared 1 if it was there already. -ENOSPC no memory; -ENOENT no such trace; -EINVAL.
 */
int relay_trace_make(const char *store, const struct relay_trace *trace, const char *process, uint32_t pid,
                     uint32_t vpid, uint32_t uid, uint32_t gid, int *lock, char name[RELAY_TRACE_NAME_BYTES]);

/*
 * The same of buffers without a name that this process has written elsewhere, with timestamps of CLOCK_MONOTONIC: they are its
 * own, whatever the trace's are; and of the declarations of their events, in TSDL. Errors as relay_store_adopt(), too.
 */
int relay_trace_adopt(const char *store, const struct relay_trace *trace, const char *process, const int *fds, size_t n,
                      const char *declarations, int *lock, char name[RELAY_TRACE_NAME_BYTES]);

/*
 * Give the data of a process's buffer their memory, which is made without.
 *
 * dir     STORE/TRACE
 * memory  how much all processes of the trace may take together; 0: as much as there is
 * mem_fd  the buffer, open for writing
 * bytes   of the file, from its beginning
 *
 * 0, also if they have it already. -ENOSPC: there is none, or it would be more than `memory` though all dead processes have
 * given way; -EINVAL: the file is no regular one, or shorter.
 */
int relay_trace_allocate(const char *dir, uint64_t memory, int mem_fd, uint64_t bytes);

/* Take it out of the store, at once; its buffers are closed. */
int relay_trace_remove(const char *dir);

/* The same unless a process writes to it, or is about to: -EBUSY. None can begin to meanwhile. Not for a process that has the
 * directory itself. */
int relay_trace_remove_dead(const char *dir);

/* 1: a process writes to the directory (or has been told of it within the last ten seconds); 0: nobody does or will. Not
 * for a process that has the directory itself: the lock goes with any descriptor of the file that it closes. */
int relay_trace_is_alive(const char *dir);

/*
 * Reading the buffer of a trace, which only gives whole packets: relay_consume_begin() in store.h, or, without consuming:
 *
 * Copy the packet of sub-buffer *number (the kernel's free-running count), or of the first one after it that is not
 * overwritten yet; *number becomes the one that was copied. The packet's count of lost events takes all before as lost that
 * are in none of the packets copied before it, *records of them; it becomes one more packet's.
 *
 * Returns its bytes; 0: it is not finished; -EMSGSIZE: it is longer than `size` (no packet is longer than subbuf_size);
 * -EBADMSG.
 */
ssize_t relay_packet_copy(struct rchan_buf *buf, uint64_t *number, uint64_t *records, void *to, size_t size);

/*
 * Begin to do so: *number becomes the first that can be copied, and *records those before it that are not lost, because
 * somebody else has consumed them. What is consumed is copied, too, as long as it is not overwritten. 0; -EINVAL: this buffer
 * has no packets; -EBADMSG.
 */
int relay_packet_start(struct rchan_buf *buf, uint64_t *number, uint64_t *records);

/*
 * Checking packets of programs that one does not trust: are the events in them what the program has declared?
 *
 * Layouts tell how long events are, by id. context_bytes: between each event's head and its first field, 4 in buffers of
 * several processes, else 0. NULL: no memory.
 */
struct relay_layouts;
struct relay_layouts *relay_layouts_new(uint32_t context_bytes);
void relay_layouts_free(struct relay_layouts *layouts);

/* Add an event whose fields are of these types (enum relay_trace_type). 0; -EEXIST: the id is known already; -EINVAL: there is
 * no such type, or there are too many fields; -ENOMEM. */
int relay_layouts_add(struct relay_layouts *layouts, uint64_t id, const uint32_t *types, uint32_t n_types);

enum relay_packet_fault {
	RELAY_PACKET_GOOD = 0,
	RELAY_PACKET_CUT = 1,        /* what is left is shorter than an event's head */
	RELAY_PACKET_TIME = 2,       /* an event is older than the one before it, or not of the packet's time */
	RELAY_PACKET_UNDECLARED = 3, /* no event of this id is declared */
	RELAY_PACKET_FIELDS = 4      /* the fields go beyond the packet */
};

struct relay_packet_checked {
	uint64_t good_bytes; /* of events before the first that is wrong */
	uint64_t n_events;   /* so many of them */
	uint64_t time;       /* of the last of them; of none: `begin` */
	uint64_t id;         /* of the wrong one, if its id or its fields are what is wrong */
	uint32_t fault;      /* enum relay_packet_fault */
	uint32_t unused;
};

/*
 * Check `length` bytes of events, which follow a packet's head, up to the first that a viewer could not read. The memory is
 * not to change meanwhile: it is a copy. begin, end: what the head says of times.
 */
void relay_packet_check(const struct relay_layouts *layouts, const void *events, size_t length, uint64_t begin,
                        uint64_t end, struct relay_packet_checked *checked);

/* The head of each packet: CTF's packet header and context. Little-endian; nothing is padded. */
struct relay_packet {
	uint32_t magic;              /* 0xc1fc1fc1 */
	uint32_t stream_id;          /* 0 */
	uint64_t stream_instance_id; /* the CPU */
	/* In which order these make an appended packet valid: see relayfs_fuse/record/stream.py. */
	uint64_t packet_size;      /* bits */
	uint64_t events_discarded; /* lost up to the packet's end, since the buffer was made */
	uint64_t packet_seq_num;   /* the sub-buffer's number */
	uint64_t timestamp_end, timestamp_begin;
	uint64_t content_size; /* bits */
	uint32_t cpu_id;
	uint32_t pid; /* 0: of several */
};
#define RELAY_PACKET_MAGIC 0xc1fc1fc1u
RELAY_STATIC_ASSERT(sizeof(struct relay_packet) == 72, "programs read it from disk");

#ifdef __cplusplus
}
#endif
#endif
