/* SPDX-License-Identifier: MIT */
/*
 * The directory of this process in a trace (struct relay_tracing):
 *
 *     STORE/NAME/PROCESS-PID/.events     the declarations of events, each appended by one write(2) before its first event
 *                            cpu/memN    the buffers
 *                            .objects    the program and its libraries: trace/loaded.h
 *                            .state      the last values of events of RELAY_TRACE_STATE(): trace_store.h
 *
 * If the store belongs to another user, or RLIMIT_FSIZE does not allow files of that size, the server makes the directory
 * and writes .events (trace/join.h). The memory of a buffer's data is allocated before the first event is written to it:
 * by this process if it may open files of the store, otherwise by the server.
 */
#define _GNU_SOURCE
#include "trace/writer.h"

#include "base/clock.h"
#include "base/quiet.h"
#include "buffer/subbuf_start.h"
#include "buffer/try_reserve.h"
#include "buffer/write.h"
#include "trace/declared.h"
#include "trace/event_ids.h"
#include "trace/join.h"
#include "trace/threads.h"
#include "trace/tsdl.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHANNEL_BYTES = 2 * RELAY_TRACE_NAME_BYTES + 8, RETRY_MS = 100 };

/* --- memory --- */

/* Call relay_trace_allocate() for the trace's directory: the first name in the channel's path TRACE/PROCESS/cpu. */
static int allocate_in_store(const struct relay_tracing *tracing, const struct rchan_buf *buf, uint64_t bytes)
{
	const struct relay_place *place = &tracing->chan->place;
	char *dir;
	if (!relay_descriptor_is_ours(&buf->mapping.file))
		return -EBADF;
	if (asprintf(&dir, "%s/%.*s", place->root, (int)strcspn(place->channel, "/"), place->channel) < 0)
		return -ENOMEM;
	int err = relay_trace_allocate(dir, tracing->memory, buf->mapping.file.fd, bytes);
	free(dir);
	return err;
}

static int ask_to_allocate(const struct relay_tracing *tracing, const struct rchan_buf *buf)
{
	char request[32];
	int length = snprintf(request, sizeof(request), "allocate %u\n", buf->cpu);
	return tracing->session < 0 ? -EBADF : relay_session_ask(tracing->session, request, (size_t)length);
}

/* Allocate the memory as stores to it would, because the server has ended. 0 or -errno. */
static int populate(const struct rchan_buf *buf, uint64_t bytes)
{
	int err = relay_mapping_populate(buf->data, bytes);
	/* Free the part that was allocated. */
	if (err)
		madvise(buf->data, bytes, MADV_REMOVE);
	return err;
}

/* The caller holds relay_trace_lock(). */
static int allocate(struct relay_tracing *tracing, struct rchan_buf *buf)
{
	uint64_t bytes = (uint64_t)((unsigned char *)buf->subbufs - buf->data);
	if (!relay_is_unallocated(buf))
		return 0;
	/* A descriptor of a file of the mount cannot allocate. */
	bool is_ours = tracing->chan->place.in_store;
	int err = is_ours ? allocate_in_store(tracing, buf, bytes) : ask_to_allocate(tracing, buf);
	if (!is_ours && (err == -ENOTCONN || err == -ECONNABORTED))
		err = populate(buf, bytes);
	if (!err) {
		relay_note_allocated(buf);
		relay_buf_close_fd(buf);
	}
	return err;
}

struct allocation {
	struct rchan_buf *buf;
	bool is_done;
};

static int64_t now_ms(void)
{
	return relay_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000;
}

static void allocate_here(void *arg)
{
	struct allocation *allocation = arg;
	struct rchan_buf *buf = allocation->buf;
	/* Another thread may have tried meanwhile. */
	if (relay_is_unallocated(buf) && now_ms() < buf->allocate_again_ms)
		return;
	allocation->is_done = allocate(relay_private(buf->chan), buf) == 0;
	if (!allocation->is_done)
		/* Relaxed, as in allocate_first(): the time only limits how often a thread tries. */
		__atomic_store_n(&buf->allocate_again_ms, now_ms() + RETRY_MS, __ATOMIC_RELAXED);
}

/* rchan_buf.allocate, which a thread calls before it writes the first event to a buffer. */
static bool allocate_first(struct rchan_buf *buf)
{
	struct allocation allocation = {buf, false};
	if (relay_is_quiet() && !relay_quiet_may_call())
		return false;
	if (now_ms() >= __atomic_load_n(&buf->allocate_again_ms, __ATOMIC_RELAXED))
		relay_trace_locked(allocate_here, &allocation);
	return allocation.is_done;
}

void relay_tracing_silence(struct relay_tracing *tracing)
{
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++) {
		allocate(tracing, &tracing->chan->bufs[i]);
		relay_silence(&tracing->chan->bufs[i]);
	}
}

/* --- joining --- */

/* True if this process may make .events and the buffers itself. */
static bool makes_files(const struct relay_trace_home *home, const struct relay_trace *trace)
{
	return home->store && relay_may_write(relay_buf_file_bytes(trace->subbuf_size, trace->n_subbufs)) &&
	       relay_may_write(RELAY_EVENTS_BYTES);
}

/* Make this process's directory or, if several processes use one, find it. 0 or -errno. */
static int join_as_process(struct relay_tracing *tracing, const struct relay_trace_home *home,
                           const struct relay_trace *trace)
{
	const char *program = program_invocation_short_name;
	if (makes_files(home, trace)) {
		int err = relay_trace_make(home->store, trace, program, relay_trace_pid(home), (uint32_t)getpid(),
		                           geteuid(), getegid(), &tracing->events, tracing->name);
		return err < 0 ? err : 0;
	}
	if (!home->mount)
		return -EFBIG;
	tracing->session = relay_session_open(home->mount, trace->name, program, tracing->name);
	return tracing->session < 0 ? tracing->session : 0;
}

static int attach_tracing(struct relay_tracing *tracing, const struct relay_trace_home *home, const char *trace)
{
	char channel[CHANNEL_BYTES];
	const char *root = home->store ? home->store : home->mount;
	snprintf(channel, sizeof(channel), "%s/%s/cpu", trace, tracing->name);
	tracing->chan = relay_chan_new(0, NULL, tracing);
	if (!tracing->chan)
		return -errno;
	tracing->chan->place =
	    (struct relay_place){.root = strdup(root), .in_store = home->store, .channel = strdup(channel)};
	if (!tracing->chan->place.root || !tracing->chan->place.channel)
		return -ENOMEM;
	int err = relay_chan_attach(tracing->chan);
	/* Without buffers, each event would take a write(2) to a relay file, so the trace is not joined. */
	return err ? err : tracing->chan->n_buffers ? 0 : -ENODEV;
}

static struct relay_tracing *fail(struct relay_tracing *tracing, int err)
{
	relay_tracing_close(tracing);
	errno = -err;
	return NULL;
}

static struct relay_tracing *ready(struct relay_tracing *tracing)
{
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++) {
		tracing->chan->bufs[i].never_waits = true;
		tracing->chan->bufs[i].allocate = allocate_first;
	}
	if (tracing->pid == 0 && tracing->chan->scheme == RELAY_RSEQ) {
		tracing->buf = tracing->chan->fast.buf;
		tracing->n_bufs = tracing->chan->n_buffers;
	}
	return tracing;
}

static struct relay_tracing *new_tracing(void)
{
	struct relay_tracing *tracing = calloc(1, sizeof(*tracing));
	if (!tracing)
		return NULL;
	tracing->events = tracing->session = -1;
	tracing->ids = calloc(RELAY_N_NUMBERS, sizeof(*tracing->ids));
	if (tracing->ids)
		return tracing;
	free(tracing);
	return NULL;
}

struct relay_tracing *relay_tracing_open(const struct relay_trace_home *home, const struct relay_trace *trace)
{
	struct relay_tracing *tracing = new_tracing();
	if (!tracing)
		return NULL;
	int err = join_as_process(tracing, home, trace);
	if (!err)
		err = attach_tracing(tracing, home, trace->name);
	if (err)
		return fail(tracing, err);
	tracing->id = trace->id;
	tracing->memory = trace->memory;
	tracing->pid = trace->buffers == RELAY_TRACE_PERPROCESS ? 0 : (uint32_t)getpid();
	return ready(tracing);
}

bool relay_tracing_renew(struct relay_tracing *tracing, const struct relay_trace_home *home,
                         const struct relay_trace *trace)
{
	char name[RELAY_TRACE_NAME_BYTES];
	if (tracing->session < 0 || !home->mount || relay_session_is_served(tracing->session))
		return true;
	int session = relay_session_open(home->mount, trace->name, program_invocation_short_name, name);
	if (session < 0)
		return true; /* the trace is stopped, or no server runs; the next server changes the control file */
	if (strcmp(name, tracing->name) != 0) {
		close(session);
		return false;
	}
	close(tracing->session);
	tracing->session = session;
	return true;
}

bool relay_tracing_move(struct relay_tracing *tracing, const char *store, const struct relay_trace *trace)
{
	char *root = strdup(store);
	if (!root)
		return false;
	free(tracing->chan->place.root);
	tracing->chan->place.root = root;
	tracing->id = trace->id;
	tracing->memory = trace->memory;
	return true;
}

void relay_tracing_close(struct relay_tracing *tracing)
{
	if (tracing->chan)
		relay_chan_free(tracing->chan);
	if (tracing->events >= 0)
		close(tracing->events);
	if (tracing->session >= 0)
		close(tracing->session);
	relay_event_ids_free(tracing->event_ids);
	free(tracing->ids);
	free(tracing);
}

/* --- declarations --- */

static int write_declaration(struct relay_tracing *tracing, const struct relay_trace_event *event, uint64_t id)
{
	char text[RELAY_DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, id, text, sizeof(text));
	if (length >= sizeof(text))
		return -EINVAL;
	if (tracing->session >= 0)
		return relay_session_ask(tracing->session, text, length);
	return relay_events_append(tracing->events, text, length);
}

/* Declare an event in a directory of one process, where its id is its number - 1. Returns the id or -errno. */
static int declare_own(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	int err = write_declaration(tracing, event, event->id - 1);
	return err ? err : (int)(event->id - 1);
}

/* Declare an event in a directory of several processes; trace/event_ids.c or the server chooses the id. */
static int declare_with_others(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	if (tracing->session >= 0) {
		int err = write_declaration(tracing, event, 0);
		return err ? err : relay_session_declared(tracing->session);
	}
	if (!tracing->event_ids)
		tracing->event_ids = relay_event_ids_new(tracing->events);
	return tracing->event_ids ? relay_event_ids_get(tracing->event_ids, event) : -ENOMEM;
}

int relay_tracing_declare(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	uint16_t *to = &tracing->ids[event->id];
	if (*to)
		return 0;
	int id = tracing->pid == 0 ? declare_own(tracing, event) : declare_with_others(tracing, event);
	if (id < 0) {
		tracing->has_undeclared = true;
		/* relay_tracing_write() does not check ids, so it must call relay_tracing_write_slow(), which counts this
		 * event as lost. Relaxed: a thread gets the event only after this function, and so sees the store. */
		__atomic_store_n(&tracing->n_bufs, 0, __ATOMIC_RELAXED);
		return id;
	}
	/* Relaxed: no other memory depends on the id. */
	__atomic_store_n(to, (uint16_t)(id + 1), __ATOMIC_RELAXED);
	return 0;
}

void relay_tracing_declare_again(struct relay_tracing *tracing, void (*declare_all)(struct relay_tracing *tracing))
{
	if (!tracing->has_undeclared)
		return;
	tracing->has_undeclared = false;
	declare_all(tracing);
	/* Release: the ids before n_bufs, because relay_tracing_write() does not check them. */
	if (!tracing->has_undeclared && tracing->buf)
		__atomic_store_n(&tracing->n_bufs, tracing->chan->n_buffers, __ATOMIC_RELEASE);
}

/* --- events --- */

/* The length of an event's context, which is between its head and its fields. */
static size_t context_bytes(const struct relay_tracing *tracing)
{
	return RELAY_TRACE_TID_BYTES + (tracing->pid ? RELAY_TRACE_PID_BYTES : 0);
}

/* Count an event as lost, such as one that has no id, or no record because it is too long or there was no memory. */
static void count_lost(const struct relay_tracing *tracing, size_t length)
{
	const struct rchan *chan = tracing->chan;
	size_t bytes = length - sizeof(struct relay_trace_record) + RELAY_TRACE_HEAD_BYTES + context_bytes(tracing);
	for (int err = RELAY_WRONG_CPU; err == RELAY_WRONG_CPU;) {
		uint32_t cpu = chan->scheme == RELAY_RSEQ ? relay_rseq_cpu() : (uint32_t)sched_getcpu();
		struct rchan_buf *buf = &chan->bufs[cpu < chan->n_buffers ? cpu : 0];
		err = bytes <= buf->largest ? relay_refuse_full(buf, length) : relay_refuse_too_large(buf, length);
	}
}

/* Write the event with the head and context of this trace (trace_store.h). note_thread() has stored the thread's id. */
static int write_with_head(const struct relay_tracing *tracing, struct relay_trace_record *record, size_t length,
                           struct relay_record_time *time)
{
	const size_t head_bytes = time->is_short ? RELAY_TRACE_HEAD_BYTES : RELAY_TRACE_LONG_HEAD_BYTES;
	unsigned char *fields = (unsigned char *)(record + 1), *context = fields - context_bytes(tracing);
	if (tracing->pid)
		memcpy(context, &tracing->pid, RELAY_TRACE_PID_BYTES);
	time->rest = context - (head_bytes - RELAY_TRACE_HEAD_BYTES);
	return relay_chan_write_timed(tracing->chan, head_bytes + context_bytes(tracing) + length - sizeof(*record),
	                              time);
}

/* The event's id + 1; 0: it has no id, because its declaration has failed. */
static uint16_t id_of(const struct relay_tracing *tracing, uint64_t number)
{
	/* Relaxed: once stored, it does not change, and no other memory depends on it. */
	return __atomic_load_n(&tracing->ids[number], __ATOMIC_RELAXED);
}

uint64_t relay_tracing_write_slow(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                  size_t length)
{
	int saved = errno, err = -ENOMEM;
	uint16_t id = id_of(tracing, number);
	struct relay_record_time time = {.is_short = true, .id = (uint16_t)(id - 1)};
	if (!record || !id) {
		count_lost(tracing, length);
	} else {
		err = write_with_head(tracing, record, length, &time);
		time.is_short = false;
		if (err == RELAY_TIME_IS_LONG)
			err = write_with_head(tracing, record, length, &time);
	}
	errno = saved;
	return err ? 0 : time.clock;
}

uint64_t relay_tracing_write_quiet(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                   size_t length)
{
	bool is_mono = tracing->chan->bufs[0].timestamp == RELAY_MONO;
	uint64_t clock = 0;
	if (!relay_is_blind())
		clock = relay_tracing_write(tracing, number, record, length);
	else if (is_mono)
		clock = relay_tracing_write_slow(tracing, number, record, length);
	else
		count_lost(tracing, length);
	/* If the thread is blind at its next event, that event's time must not be earlier. */
	if (is_mono)
		relay_clock_saw(clock);
	return clock;
}
