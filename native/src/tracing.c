/* SPDX-License-Identifier: MIT */
/*
 * What this process has of a trace: a channel, and the list of its events' declarations.
 *
 *     STORE/NAME/PROCESS-PID/.events     appended to, one write(2) for each declaration, before such an event is written
 *                            cpu/memN    written to
 *
 * The directory is made here where the store is this user's. Otherwise, or if this process may not make files of that size, the
 * server makes it, and writes .events for us (session.h).
 *
 * A buffer's data get their memory when the first event is to be written there: from us, or from the server.
 */
#define _GNU_SOURCE
#include "tracing.h"

#include "begin.h"
#include "scratch.h"
#include "session.h"
#include "spot.h"
#include "tsdl.h"
#include "write.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	EVENTS_BYTES = 16 << 20,   /* as long as .events may become */
	DECLARATION_BYTES = 16384, /* the longest name and 64 fields of the longest names */
	CHANNEL_BYTES = 2 * RELAY_TRACE_NAME_BYTES + 8
};

/* --- joining --- */

/* Can this process make the files that are its own? */
static bool makes_files(const struct relay_trace_home *home, const struct relay_trace *trace)
{
	return home->store && relay_may_write(relay_buf_file_bytes(trace->subbuf_size, trace->n_subbufs)) &&
	       relay_may_write(EVENTS_BYTES);
}

/* Make or find our directory. 0 or -errno. */
static int join(struct relay_tracing *tracing, const struct relay_trace_home *home, const struct relay_trace *trace)
{
	const char *program = program_invocation_short_name;
	if (makes_files(home, trace)) {
		int err = relay_trace_make(home->store, trace, program, (uint32_t)getpid(), geteuid(), getegid(),
		                           &tracing->events, tracing->name);
		return err < 0 ? err : 0;
	}
	if (!home->mount)
		return -EFBIG;
	tracing->session = relay_session_open(home->mount, trace->name, program, tracing->name);
	return tracing->session < 0 ? tracing->session : 0;
}

static int attach(struct relay_tracing *tracing, const struct relay_trace_home *home, const char *trace)
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
	/* Through relay files no events go: each would take a system call. */
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
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++)
		tracing->chan->bufs[i].never_waits = true;
	if (tracing->pid == 0 && tracing->chan->scheme == RELAY_RSEQ) {
		tracing->bufs = tracing->chan->bufs;
		tracing->n_bufs = tracing->chan->n_buffers;
	}
	return tracing;
}

static struct relay_tracing *new_tracing(void)
{
	struct relay_tracing *tracing = calloc(1, sizeof(*tracing));
	if (tracing)
		tracing->events = tracing->session = -1;
	return tracing;
}

struct relay_tracing *relay_tracing_open(const struct relay_trace_home *home, const struct relay_trace *trace)
{
	struct relay_tracing *tracing = new_tracing();
	if (!tracing)
		return NULL;
	int err = join(tracing, home, trace);
	if (!err)
		err = attach(tracing, home, trace->name);
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
		return true; /* the trace is stopped, or there is no server yet: its next one lets us look again */
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

/* --- memory --- */

/* The directory of the trace, of which the channel is TRACE/PROCESS/cpu. */
static int allocate_in_store(const struct relay_tracing *tracing, const struct rchan_buf *buf, uint64_t bytes)
{
	const struct relay_place *place = &tracing->chan->place;
	char *dir;
	if (asprintf(&dir, "%s/%.*s", place->root, (int)strcspn(place->channel, "/"), place->channel) < 0)
		return -ENOMEM;
	int err = relay_trace_allocate(dir, tracing->memory, buf->shm.fd, bytes);
	free(dir);
	return err;
}

static int ask_to_allocate(const struct relay_tracing *tracing, const struct rchan_buf *buf)
{
	char request[32];
	int length = snprintf(request, sizeof(request), "allocate %u\n", buf->cpu);
	return tracing->session < 0 ? -EBADF : relay_session_ask(tracing->session, request, (size_t)length);
}

/* Without a server: as if it were stored there, but that an error takes the place of SIGBUS. */
static int populate(const struct rchan_buf *buf, uint64_t bytes)
{
	if (!madvise(buf->data, bytes, MADV_POPULATE_WRITE))
		return 0;
	int err = -errno;
	/* Part of it may be there, and of no use. */
	madvise(buf->data, bytes, MADV_REMOVE);
	return err;
}

int relay_tracing_allocate(struct relay_tracing *tracing, struct rchan_buf *buf)
{
	uint64_t bytes = (uint64_t)((unsigned char *)buf->subbufs - buf->data);
	if (!relay_is_unallocated(buf))
		return 0;
	/* A descriptor of the mount maps memory, and takes none. */
	bool is_ours = tracing->chan->place.in_store;
	int err = is_ours ? allocate_in_store(tracing, buf, bytes) : ask_to_allocate(tracing, buf);
	if (!is_ours && (err == -ENOTCONN || err == -ECONNABORTED))
		err = populate(buf, bytes);
	if (!err)
		relay_note_allocated(buf);
	return err;
}

void relay_tracing_silence(struct relay_tracing *tracing)
{
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++)
		relay_silence(&tracing->chan->bufs[i]);
}

void relay_tracing_close(struct relay_tracing *tracing)
{
	if (tracing->chan)
		relay_chan_free(tracing->chan);
	if (tracing->events >= 0)
		close(tracing->events);
	if (tracing->session >= 0)
		close(tracing->session);
	free(tracing->declared);
	free(tracing);
}

/* --- declarations --- */

static bool is_declared(const struct relay_tracing *tracing, uint64_t id)
{
	for (size_t i = 0; i < tracing->n_declared; i++)
		if (tracing->declared[i] == id)
			return true;
	return false;
}

static int write_declaration(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	char text[DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, text, sizeof(text), 0);
	if (length >= sizeof(text))
		return -EINVAL;
	if (tracing->session >= 0)
		return relay_session_ask(tracing->session, text, length);
	if (!relay_may_write(EVENTS_BYTES))
		return -EFBIG;
	ssize_t written = write(tracing->events, text, length);
	return written == (ssize_t)length ? 0 : written < 0 ? -errno : -ENOSPC;
}

int relay_tracing_declare(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	if (is_declared(tracing, event->id))
		return 0;
	uint64_t *more = realloc(tracing->declared, (tracing->n_declared + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	tracing->declared = more;
	int err = write_declaration(tracing, event);
	if (!err)
		more[tracing->n_declared++] = event->id;
	return err;
}

/* --- events --- */

/* An event of which there is no record, either because it is longer than any may be, or for want of memory to make it in. */
static void count_lost(const struct relay_tracing *tracing, size_t length)
{
	const struct rchan *chan = tracing->chan;
	for (int err = RELAY_WRONG_CPU; err == RELAY_WRONG_CPU;) {
		uint32_t cpu = chan->scheme == RELAY_RSEQ ? relay_rseq_cpu() : (uint32_t)sched_getcpu();
		struct rchan_buf *buf = &chan->bufs[cpu < chan->n_buffers ? cpu : 0];
		err = length > RELAY_TRACE_EVENT_MAX ? relay_refuse_too_large(buf, length)
		                                     : relay_refuse_full(buf, length);
	}
}

struct with_pid {
	struct relay_trace_record head;
	unsigned char rest[];
};

static void write_copy(const struct relay_tracing *tracing, struct with_pid *copy, struct relay_trace_record *record,
                       size_t length)
{
	copy->head = *record;
	memcpy(copy->rest, &tracing->pid, sizeof(tracing->pid));
	memcpy(copy->rest + sizeof(tracing->pid), record + 1, length - sizeof(*record));
	relay_chan_write_stamped(tracing->chan, copy, length + sizeof(tracing->pid), &copy->head.timestamp);
	record->timestamp = copy->head.timestamp;
}

/* Where several processes write, the pid stands before the fields. */
static void write_with_pid(const struct relay_tracing *tracing, struct relay_trace_record *record, size_t length)
{
	uint64_t room[RELAY_TRACE_STACK_MAX / sizeof(uint64_t) + 1];
	bool is_short = length <= RELAY_TRACE_STACK_MAX;
	void *copy = is_short ? room : length <= RELAY_TRACE_EVENT_MAX ? relay_scratch_take() : NULL;
	if (!copy) {
		count_lost(tracing, length);
		return;
	}
	write_copy(tracing, copy, record, length);
	if (!is_short)
		relay_scratch_give_back(copy);
}

void relay_tracing_write_slow(struct relay_tracing *tracing, struct relay_trace_record *record, size_t length)
{
	int saved = errno;
	if (!record)
		count_lost(tracing, length);
	else if (tracing->pid != 0)
		write_with_pid(tracing, record, length);
	else
		relay_chan_write_stamped(tracing->chan, record, length, &record->timestamp);
	errno = saved;
}

void relay_tracing_write_quiet(struct relay_tracing *tracing, struct relay_trace_record *record, size_t length)
{
	bool is_mono = tracing->chan->bufs[0].timestamp == RELAY_MONO;
	if (record)
		record->timestamp = 0;
	if (!relay_is_blind())
		relay_tracing_write(tracing, record, length);
	else if (is_mono)
		relay_tracing_write_slow(tracing, record, length);
	else
		count_lost(tracing, length);
	/* Should the thread be blind at its next event, times must not go back. */
	if (record && is_mono)
		relay_clock_saw(record->timestamp);
}
