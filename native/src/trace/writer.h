/* SPDX-License-Identifier: MIT */
/* One trace, as far as this process writes it. */
#ifndef RELAYFS_TRACE_WRITER_H
#define RELAYFS_TRACE_WRITER_H

#include "buffer/write.h"
#include "channel/channel.h"
#include "trace/find.h"
#include "trace/threads.h"

#include <relayfs/trace_store.h>

struct relay_tracing {
	uint64_t id;        /* of the trace */
	struct rchan *chan; /* where its events go */
	uint64_t memory;    /* that its processes may take together; 0: any */
	uint32_t pid;       /* said in each event, where several processes write; 0: in none */
	/* The channel's, for the fast path: none unless it is rseq, and no pid is said, because ids are then the events' numbers. */
	struct rchan_buf *bufs;
	uint32_t n_bufs;     /* 0 also while some event is not declared */
	bool has_undeclared; /* an event's declaration was refused. Under relay_trace_lock() */
	/* One of these two says, as long as it is open, that this process writes. -1: none. */
	int events;                        /* descriptor of .events, locked */
	int session;                       /* trace/join.h */
	char name[RELAY_TRACE_NAME_BYTES]; /* of the directory, in the trace's */
	/* By an event's number, the id that it has in .events, + 1; 0: it does not stand there. RELAY_TRACE_ID_MAX + 2 of them. */
	uint16_t *ids;
	struct relay_event_ids *event_ids; /* where several processes declare events; NULL: none did yet */
	struct relay_retired retired;
};

/* Take part in a trace: make this process's directory, or have the server make it, and map its buffers. NULL and errno. */
struct relay_tracing *relay_tracing_open(const struct relay_trace_home *home, const struct relay_trace *trace);

/* After its server has ended, have the next one know that this process writes there. false: it is not to write there any more. */
bool relay_tracing_renew(struct relay_tracing *tracing, const struct relay_trace_home *home,
                         const struct relay_trace *trace);

/* Its directory has become, or is about to become, part of a trace in this store, as which it goes on. false: no memory. */
bool relay_tracing_move(struct relay_tracing *tracing, const char *store, const struct relay_trace *trace);

/* Some threads of this process write without a system call from now on, so they find all memory there. What cannot be had now is
 * lost, and counted, as they write. Under relay_trace_lock(). */
void relay_tracing_silence(struct relay_tracing *tracing);

/* Forget it; what was written stays. */
void relay_tracing_close(struct relay_tracing *tracing);

/* Have an event's declaration in .events, which gives it its id. 0 or -errno. */
int relay_tracing_declare(struct relay_tracing *tracing, const struct relay_trace_event *event);

/* If declarations were refused, try them again with declare_all(), which declares all events. Under relay_trace_lock(). */
void relay_tracing_declare_again(struct relay_tracing *tracing, void (*declare_all)(struct relay_tracing *tracing));

/* Write one event, all cases. Leaves errno as it was. As relay_tracing_write(). */
uint64_t relay_tracing_write_slow(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                  size_t length);

/* The same of a quiet thread (base/quiet.h). */
uint64_t relay_tracing_write_quiet(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                   size_t length);

/*
 * Write one event, of this number (relay_trace_event.id), and return its time, 0 if it was lost. The fast path, for a record that
 * fits into the current sub-buffer of this CPU's buffer: read where, then the clock, then a restartable section that checks
 * that nobody was there meanwhile, copies and publishes.
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
		int err = relay_write_rseq_here(&tracing->bufs[cpu], NULL, bytes, &time, false);
		if (__builtin_expect(err <= 0, 1))
			return err ? 0 : time.clock; /* written, or counted as lost */
	}
	return relay_tracing_write_slow(tracing, number, record, length);
}

#endif
