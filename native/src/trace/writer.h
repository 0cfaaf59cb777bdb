/* SPDX-License-Identifier: MIT */
/* A trace to which this process writes: its directory in the trace, and writing and declaring events. */
#ifndef RELAYFS_TRACE_WRITER_H
#define RELAYFS_TRACE_WRITER_H

#include "buffer/write.h"
#include "channel/channel.h"
#include "trace/find.h"
#include "trace/threads.h"

#include <relayfs/trace_store.h>

struct relay_tracing {
	union {
		struct relay_inline_tracing fast; /* what programs know of it */
		struct {
			RELAY_INLINE_TRACING_MEMBERS;
		};
	};
	bool has_undeclared; /* the declaration of an event has failed. Under relay_trace_lock() */
	uint64_t id;         /* of the trace */
	uint64_t memory;     /* limit of the buffers of all processes of the trace; 0: none */
	uint32_t pid;        /* stored in each event, if several processes write to the directory; otherwise 0 */
	/* Some of the states that were to be written to .state could not be. This and `halves`: under relay_trace_lock() */
	bool has_unwritten;
	/* How much of relay_loaded_lines() .objects has; and whether more could not be written. Changed under relay_trace_lock() */
	size_t n_objects_bytes;
	bool has_objects_left;
	bool halves[RELAY_STATES]; /* by state, which of its two places in .state to write to next */
	/* One of these two descriptors is open as long as this process may write; the other one is -1. */
	int events;                        /* .events, locked */
	int session;                       /* see trace/join.h */
	char name[RELAY_TRACE_NAME_BYTES]; /* of the directory */
	/* By an event's number, its id in .events + 1; 0: not declared. RELAY_TRACE_ID_MAX + 2 of them. */
	uint16_t *ids;
	struct relay_event_ids *event_ids; /* in a directory of several processes; NULL: no event was declared yet */
	struct relay_retired retired;
};

/* Join a trace: make this process's directory, or have the server make it, and map its buffers. NULL and errno. */
struct relay_tracing *relay_tracing_open(const struct relay_trace_home *home, const struct relay_trace *trace);

/* If the session's server has ended, open a session with the next one. false: that has chosen another directory. */
bool relay_tracing_renew(struct relay_tracing *tracing, const struct relay_trace_home *home,
                         const struct relay_trace *trace);

/* Continue as `trace` in this store, into which the directory was or will be moved. false: no memory. */
bool relay_tracing_move(struct relay_tracing *tracing, const char *store, const struct relay_trace *trace);

/* Allocate all buffers' memory and call relay_silence(), because some threads will write without system calls. If there
 * is no memory, their events are lost and counted. The caller holds relay_trace_lock(). */
void relay_tracing_silence(struct relay_tracing *tracing);

/* Close the buffers and descriptors, and free the memory. The directory stays. */
void relay_tracing_close(struct relay_tracing *tracing);

/* Declare an event in .events, unless that was done before. 0 or -errno. */
int relay_tracing_declare(struct relay_tracing *tracing, const struct relay_trace_event *event);

/* If declarations have failed, call declare_all(), which declares all events. The caller holds relay_trace_lock(). */
void relay_tracing_declare_again(struct relay_tracing *tracing, void (*declare_all)(struct relay_tracing *tracing));

/* relay_tracing_write() for all cases but its fast path. Leaves errno as it was. */
uint64_t relay_tracing_write_slow(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                  size_t length);

/* relay_tracing_write() for a quiet thread (base/quiet.h). */
uint64_t relay_tracing_write_quiet(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                   size_t length);

/*
 * Write one event with this number (relay_trace_event.id). Returns its time; 0: it was lost. The fast path is for a record
 * that fits into the current sub-buffer of this CPU's buffer: it loads head and then the clock; a restartable section
 * checks that head has not changed, copies the record, and publishes it.
 */
static inline uint64_t relay_tracing_write(struct relay_tracing *tracing, uint64_t number,
                                           struct relay_trace_record *record, size_t length)
{
	uint32_t cpu = relay_rseq_cpu();
	if (__builtin_expect(cpu < tracing->n_bufs && record, 1)) {
		struct relay_record_time time = {.rest = (unsigned char *)(record + 1) - RELAY_TRACE_TID_BYTES,
		                                 .is_short = true,
		                                 .id = (uint16_t)(number - 1)};
		size_t bytes = length - sizeof(*record) + RELAY_TRACE_HEAD_BYTES + RELAY_TRACE_TID_BYTES;
		int err = relay_write_rseq_here(&tracing->chan->bufs[cpu], NULL, bytes, &time, false);
		if (__builtin_expect(err <= 0, 1))
			return err ? 0 : time.clock; /* written, or counted as lost */
	}
	return relay_tracing_write_slow(tracing, number, record, length);
}

#endif
