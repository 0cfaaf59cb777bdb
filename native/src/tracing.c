/* SPDX-License-Identifier: MIT */
/*
 * What this process has of a trace: a channel, and the list of its events' declarations.
 *
 *     STORE/NAME/PROCESS-PID/.events     appended to, one write(2) for each declaration, before such an event is written
 *                            cpu/memN    written to
 *
 * The directory is made here where the store is this user's; else the server makes it: it is told in MNT/.traces/join, and says
 * in the same file what it is called.
 */
#define _GNU_SOURCE
#include "tracing.h"

#include "home.h"
#include "options.h"
#include "scratch.h"
#include "spot.h"
#include "trace_find.h"
#include "tsdl.h"
#include "write.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	EARLY_SUBBUF_SIZE = 64 * 1024,
	EARLY_N_SUBBUFS = 8,
	DECLARATION_BYTES = 16384, /* the longest name and 64 fields of the longest names */
	CHANNEL_BYTES = 2 * RELAY_TRACE_NAME_BYTES + 8
};

/* --- joining --- */

static bool owns(const char *store)
{
	struct stat st;
	return stat(store, &st) == 0 && st.st_uid == geteuid();
}

static int ask_server(const char *store, const struct relay_trace *trace, char name[RELAY_TRACE_NAME_BYTES])
{
	char *mountpoint = relay_trace_find_mount(store), *join = NULL, *line = NULL;
	int err = !mountpoint ? -ENOENT
	          : asprintf(&join, "%s/.traces/join", mountpoint) < 0 ||
	                  asprintf(&line, "%s %s\n", trace->name, program_invocation_short_name) < 0
	              ? -ENOMEM
	              : 0;
	int fd = err ? -1 : open(join, O_RDWR | O_CLOEXEC);
	if (!err && (fd < 0 || write(fd, line, strlen(line)) < 0))
		err = -errno;
	ssize_t got = err ? 0 : pread(fd, name, RELAY_TRACE_NAME_BYTES - 1, 0);
	if (got < 0)
		err = -errno;
	name[got > 0 ? got : 0] = 0;
	name[strcspn(name, "\n")] = 0;
	if (!err && (!*name || strchr(name, '/')))
		err = -EPROTO;
	if (fd >= 0)
		close(fd);
	free(mountpoint);
	free(join);
	free(line);
	return err;
}

/* "STORE/NAME/PROCESS-PID/.events", locked as long as this process lives. Its descriptor, or -errno. */
static int open_events(const char *store, const char *trace, const char *name)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	char *path;
	if (asprintf(&path, "%s/%s/%s/.events", store, trace, name) < 0)
		return -ENOMEM;
	int fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
	int err = fd < 0 || fcntl(fd, F_SETLK, &lock) ? -errno : 0;
	free(path);
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

/* Make or find our directory; *fd is its .events. */
static int join(const char *store, const struct relay_trace *trace, char name[RELAY_TRACE_NAME_BYTES], int *fd)
{
	*fd = -1;
	int err = owns(store) ? relay_trace_make(store, trace, program_invocation_short_name, (uint32_t)getpid(),
	                                         geteuid(), getegid(), fd, name)
	                      : ask_server(store, trace, name);
	if (err < 0)
		return err;
	if (*fd < 0)
		*fd = open_events(store, trace->name, name);
	return *fd < 0 ? *fd : 0;
}

static int attach(struct relay_tracing *tracing, const char *store, const char *trace, const char *name)
{
	char channel[CHANNEL_BYTES];
	snprintf(channel, sizeof(channel), "%s/%s/cpu", trace, name);
	tracing->chan = relay_chan_new(0, NULL, NULL);
	if (!tracing->chan)
		return -errno;
	tracing->chan->place =
	    (struct relay_place){.root = strdup(store), .in_store = true, .channel = strdup(channel)};
	if (!tracing->chan->place.root || !tracing->chan->place.channel)
		return -ENOMEM;
	return relay_chan_attach(tracing->chan);
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
		tracing->events = -1;
	return tracing;
}

struct relay_tracing *relay_tracing_open(const char *store, const struct relay_trace *trace)
{
	char name[RELAY_TRACE_NAME_BYTES];
	struct relay_tracing *tracing = new_tracing();
	if (!tracing)
		return NULL;
	int err = join(store, trace, name, &tracing->events);
	if (!err)
		err = attach(tracing, store, trace->name, name);
	if (err)
		return fail(tracing, err);
	tracing->id = trace->id;
	tracing->pid = trace->buffers == RELAY_TRACE_PERPROCESS ? 0 : (uint32_t)getpid();
	return ready(tracing);
}

/* --- without a mount --- */

struct relay_tracing *relay_tracing_open_unnamed(const char *options)
{
	struct relay_spec spec = {.size = sizeof(spec), .subbuf_size = EARLY_SUBBUF_SIZE, .n_subbufs = EARLY_N_SUBBUFS};
	struct relay_tracing *tracing = new_tracing();
	int err = tracing ? relay_options_parse(options, &spec) : -ENOMEM;
	spec.n_buffers = relay_n_possible_cpus();
	spec.buffers = RELAY_PERCPU;
	spec.timestamp = RELAY_MONO;
	spec.format = RELAY_PACKETS;
	spec.start_reserve = sizeof(struct relay_packet);
	spec.pid = (uint32_t)getpid();
	int *fds = calloc(spec.n_buffers, sizeof(*fds));
	if (!err)
		err = fds ? relay_home_create_unnamed(&spec, fds) : -ENOMEM;
	if (!err) {
		tracing->chan = relay_chan_new(spec.n_buffers, NULL, NULL);
		err = tracing->chan ? relay_chan_map(tracing->chan, fds, spec.n_buffers) : -errno;
	}
	free(fds);
	if (err)
		return tracing ? fail(tracing, err) : NULL;
	return ready(tracing);
}

int relay_tracing_name(struct relay_tracing *tracing, const char *store, const struct relay_trace *trace)
{
	char name[RELAY_TRACE_NAME_BYTES];
	struct rchan *chan = tracing->chan;
	int *fds = calloc(chan->n_buffers, sizeof(*fds)), err = fds ? 0 : -ENOMEM;
	for (uint32_t i = 0; !err && i < chan->n_buffers; i++)
		fds[i] = relay_buf_fd(&chan->bufs[i]);
	if (!err)
		err = relay_trace_adopt(store, trace, program_invocation_short_name, fds, chan->n_buffers,
		                        tracing->text, &tracing->events, name);
	if (!err)
		tracing->id = trace->id;
	free(fds);
	return err;
}

void relay_tracing_close(struct relay_tracing *tracing)
{
	if (tracing->chan)
		relay_chan_free(tracing->chan);
	if (tracing->events >= 0)
		close(tracing->events);
	free(tracing->text);
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

static int keep_declaration(struct relay_tracing *tracing, const char *text)
{
	char *more;
	if (asprintf(&more, "%s%s", tracing->text ? tracing->text : "", text) < 0)
		return -ENOMEM;
	free(tracing->text);
	tracing->text = more;
	return 0;
}

static int write_declaration(struct relay_tracing *tracing, const struct relay_trace_event *event)
{
	char text[DECLARATION_BYTES];
	size_t length = relay_tsdl_event(event, text, sizeof(text), 0);
	if (length >= sizeof(text))
		return -EINVAL;
	if (tracing->events < 0)
		return keep_declaration(tracing, text);
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

static int write_copy(const struct relay_tracing *tracing, struct with_pid *copy,
                      const struct relay_trace_record *record, size_t length)
{
	copy->head = *record;
	memcpy(copy->rest, &tracing->pid, sizeof(tracing->pid));
	memcpy(copy->rest + sizeof(tracing->pid), record + 1, length - sizeof(*record));
	return relay_chan_write_stamped(tracing->chan, copy, length + sizeof(tracing->pid), &copy->head.timestamp);
}

/* Where several processes write, the pid stands before the fields. */
static void write_with_pid(const struct relay_tracing *tracing, const struct relay_trace_record *record, size_t length)
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
