/* SPDX-License-Identifier: MIT */
/*
 * The control file of traces, STORE/.traces, tells programs which traces exist and which events they want.
 *
 *     0                       4096          12288                    135168
 *     +-----------------------+-------------+-------------+-- - - ---+
 *     | relay_trace_page, ids | slot 0      | slot 1      |          |
 *     +-----------------------+-------------+-------------+-- - - ---+
 *       what programs map       {seq, relay_trace}
 *       (RELAY_TRACE_PAGE_BYTES, so on arm64 slots, too)
 *
 * Only the server of the store writes to the control file; all other processes map it read-only. A change of a slot
 * consists of three steps: `seq` becomes odd, the trace is stored, `seq` becomes even again. Readers copy a slot again
 * if `seq` was odd or has changed meanwhile. After the slot, the page's `generation` is increased. So a reader that has
 * loaded the new generation copies the new slot; a reader that has copied the new slot under the old generation copies
 * it again at its next event.
 *
 * The counts of events that programs lose because they get no buffers are in files of their own (trace/lost.c).
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/directory.h"
#include "base/faults.h"
#include "base/mapping.h"
#include "trace/condition.h"
#include "trace/control_file.h"
#include "trace/lost.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TRACES_MAGIC 0x3130454341525452ull /* "RTRACE01", little-endian */

enum {
	SLOT_BYTES = 2 * RELAY_PAGE_BYTES,
	TRACES_BYTES = RELAY_PAGE_BYTES + RELAY_N_TRACES * SLOT_BYTES,
	CLOCK_READINGS = 16,
	MAX_READS = 1000, /* tries to copy a slot that changes meanwhile */
	READ_PAUSE_NS = 100000
};

/* Writer of both structs: the server. */
struct traces_page {
	struct relay_trace_page seen; /* what programs use */
	uint64_t last_id;             /* the largest id that a trace has had */
	uint64_t pid_ns;              /* inode number of the server's PID namespace; 0: unknown */
};

struct traces_slot {
	uint64_t seq; /* odd: the trace is being changed */
	struct relay_trace trace;
};

struct relay_traces {
	struct relay_mapping mapping;
	struct relay_lost_page *lost; /* NULL: this process cannot map it */
	/* In the server only, else NULL; users is NULL also if there was no memory. */
	struct relay_lost_users *users;
	char *store;
};

RELAY_STATIC_ASSERT(sizeof(struct traces_page) <= RELAY_PAGE_BYTES, "programs map one page");
RELAY_STATIC_ASSERT(sizeof(struct traces_slot) <= SLOT_BYTES, "a trace has two pages");
RELAY_STATIC_ASSERT(TRACES_BYTES >= RELAY_TRACE_PAGE_BYTES, "what programs map is in the file, whatever a page is");

static struct traces_page *traces_page_of(const struct relay_traces *traces)
{
	return (struct traces_page *)traces->mapping.base;
}

static struct traces_slot *slot_of(const struct relay_traces *traces, unsigned slot)
{
	return (struct traces_slot *)(traces->mapping.base + RELAY_PAGE_BYTES + slot * (size_t)SLOT_BYTES);
}

/* ------------------------------------------------------------------ clocks */

/* Read system_clock between two readings of `clock`, CLOCK_READINGS times; keep the values of the shortest interval. */
static void read_closest(uint32_t clock, uint64_t *ticks, clockid_t system_clock, uint64_t *ns)
{
	uint64_t least = UINT64_MAX;
	for (int i = 0; i < CLOCK_READINGS; i++) {
		uint64_t before = relay_clock_now(clock), between = relay_clock_ns(system_clock);
		uint64_t around = relay_clock_now(clock) - before;
		if (around >= least)
			continue;
		least = around;
		*ticks = before + around / 2;
		*ns = between;
	}
}

void relay_clocks_read(uint32_t clock, struct relay_clocks *clocks)
{
	*clocks = (struct relay_clocks){0};
	read_closest(RELAY_MONO, &clocks->mono_ns, CLOCK_REALTIME, &clocks->real_ns);
	clocks->ticks = clocks->mono_ns;
	if (clock == RELAY_MONO || !relay_clock_is_available(clock))
		return;
	uint64_t to_real = clocks->real_ns - clocks->mono_ns;
	read_closest(clock, &clocks->ticks, CLOCK_MONOTONIC, &clocks->mono_ns);
	clocks->real_ns = clocks->mono_ns + to_real;
}

/* ------------------------------------------------------------------ making and mapping */

static int fill_file(int fd)
{
	struct traces_page page = {.seen.magic = TRACES_MAGIC, .seen.version = RELAY_FORMAT_TRACES};
	int err = -posix_fallocate(fd, 0, TRACES_BYTES);
	if (!err && pwrite(fd, &page, sizeof(page), 0) != (ssize_t)sizeof(page))
		err = -EIO;
	return err ? err : relay_mapping_own(fd, RELAY_PERM_TRACES, geteuid(), getegid());
}

static int make_file(const char *store, const char *path)
{
	int fd = open(store, O_RDWR | O_TMPFILE | O_CLOEXEC, RELAY_PERM_NEW);
	if (fd < 0)
		return -errno;
	int err = fill_file(fd);
	if (!err)
		err = relay_file_name(fd, AT_FDCWD, path);
	close(fd);
	return err;
}

static int check_page(const struct relay_traces *traces, struct relay_faults *faults)
{
	const struct relay_trace_page *page = &traces_page_of(traces)->seen;
	if (page->magic != TRACES_MAGIC)
		return relay_fault_value(faults, offsetof(struct relay_trace_page, magic), page->magic,
		                         "relay_trace_page.magic", "%llu", TRACES_MAGIC);
	if (page->version != RELAY_FORMAT_TRACES)
		return relay_fault_version(faults, offsetof(struct relay_trace_page, version), page->version,
		                           "relay_trace_page.version", RELAY_FORMAT_TRACES);
	return 0;
}

/* Map the control file fd, which then belongs to the result; it is closed on failure. NULL and errno. */
static struct relay_traces *map_file(int fd, bool writable)
{
	struct relay_traces *traces = calloc(1, sizeof(*traces));
	struct stat st;
	int err = !traces ? -ENOMEM : fstat(fd, &st) ? -errno : 0;
	if (!err && (!S_ISREG(st.st_mode) || st.st_size < TRACES_BYTES))
		err = -EBADMSG;
	if (!err)
		err = relay_mapping_map_ahead(&traces->mapping, fd, TRACES_BYTES, writable);
	if (!err) {
		err = check_page(traces, NULL);
		if (!err)
			return traces;
		relay_mapping_unmap(&traces->mapping);
	} else {
		close(fd);
	}
	free(traces);
	errno = -err;
	return NULL;
}

/* Complete changes of slots in which a server was killed. The slot then holds a mixture of the old and the new words of
 * one and the same trace. */
static void repair(struct relay_traces *traces)
{
	for (unsigned i = 0; i < RELAY_N_TRACES; i++) {
		struct traces_slot *slot = slot_of(traces, i);
		if (!(slot->seq & 1))
			continue;
		struct relay_trace trace = slot->trace;
		relay_traces_set(traces, i, &trace);
	}
}

uint64_t relay_pid_ns(void)
{
	struct stat st;
	return stat("/proc/self/ns/pid", &st) ? 0 : (uint64_t)st.st_ino;
}

uint64_t relay_traces_pid_ns(const struct relay_traces *traces)
{
	return traces_page_of(traces)->pid_ns;
}

/* Set the counts of lost events of a new trace to 0. */
static void begin_lost(struct relay_traces *traces, unsigned slot, uint64_t id)
{
	relay_lost_begin(traces->lost, slot, id);
	relay_lost_users_begin(traces->users, slot, id);
}

/* Have all programs copy the slots again. */
static void announce(struct relay_traces *traces)
{
	struct relay_trace_page *page = &traces_page_of(traces)->seen;
	uint32_t changes = page->changes + 1;
	/* Pairs with the acquire loads in emit(), trace/tracepoint.c, and update_traces(), trace/process.c: the slots before. */
	__atomic_store_n(&page->generation, (uint64_t)changes << 32, __ATOMIC_RELEASE);
	/* Pairs with the futex wait in wait_for_change(), trace/wait.c: a thread that wakes loads this generation. */
	__atomic_store_n(&page->changes, changes, __ATOMIC_RELEASE);
	relay_wake_word(&page->changes);
}

struct relay_traces *relay_traces_serve(const char *store)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/.traces", store) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	bool was_there = fd >= 0;
	if (fd < 0 && errno == ENOENT) {
		int err = make_file(store, path);
		if (err) {
			errno = -err;
			return NULL;
		}
		fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	}
	struct relay_traces *traces = fd < 0 ? NULL : map_file(fd, true);
	if (!traces)
		return NULL;
	traces->lost = relay_lost_map(path, true);
	traces->users = relay_lost_users_open(store);
	traces->store = strdup(store);
	for (unsigned i = 0; i < RELAY_N_TRACES; i++)
		begin_lost(traces, i, slot_of(traces, i)->trace.id);
	repair(traces);
	traces_page_of(traces)->pid_ns = relay_pid_ns();
	/* Programs with a session (trace/join.h) of the previous server then open a new session. */
	if (was_there)
		announce(traces);
	return traces;
}

static struct relay_traces *open_to_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct relay_traces *traces = fd < 0 ? NULL : map_file(fd, false);
	int saved = errno;
	if (traces) {
		/* The mapping stays without it; relay_lost_map() may need the only descriptor that this process has
		 * left. */
		relay_descriptor_close(&traces->mapping.file);
		traces->lost = relay_lost_map(path, false);
	}
	errno = saved;
	return traces;
}

struct relay_traces *relay_traces_open(const char *file)
{
	char backing[PATH_MAX];
	struct relay_traces *traces = open_to_read(file);
	if (traces || errno != ENODEV)
		return traces;
	/* Files of this mount cannot be mapped. The store's owner can open the file in the store instead. */
	return relay_backing_file(file, backing) ? NULL : open_to_read(backing);
}

struct relay_trace_page *relay_traces_page(const struct relay_traces *traces)
{
	return &traces_page_of(traces)->seen;
}

void relay_traces_close(struct relay_traces *traces)
{
	if (!traces)
		return;
	relay_mapping_unmap(&traces->mapping);
	relay_lost_unmap(traces->lost);
	relay_lost_users_close(traces->users);
	free(traces->store);
	free(traces);
}

/* ------------------------------------------------------------------ events lost without buffers */

bool relay_traces_note_lost(struct relay_traces *traces, unsigned slot, uint64_t id, uint64_t records)
{
	return traces && relay_lost_add(traces->lost, slot, id, records);
}

uint64_t relay_traces_lost(const struct relay_traces *traces, unsigned slot, uint64_t id)
{
	return relay_lost_get(traces->lost, slot, id);
}

int relay_traces_lost_file(struct relay_traces *traces, uint32_t uid)
{
	uint64_t ids[RELAY_N_TRACES];
	if (!traces->users || !traces->store)
		return -ENOMEM;
	for (unsigned i = 0; i < RELAY_N_TRACES; i++)
		ids[i] = slot_of(traces, i)->trace.id;
	return relay_lost_users_get(traces->users, traces->store, uid, ids);
}

/* ------------------------------------------------------------------ reading */

static bool is_text(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

static bool is_trace_name(const char *name, size_t size)
{
	return is_text(name, size) && name[0] && name[0] != '.' && !strchr(name, '/');
}

/* The arguments of relay_fault_value() for a field of the trace at offset `at`. */
#define FIELD(name) faults, at + offsetof(struct relay_trace, name), (uint64_t)trace->name, "relay_trace." #name
#define TEXT(name) faults, at + offsetof(struct relay_trace, name), (unsigned char)trace->name[0], "relay_trace." #name

/* Returns 0; -ENOENT: there is no trace; -EBADMSG: the first value that is wrong is added to `faults`, or NULL. */
static int check_trace(const struct relay_trace *trace, uint64_t at, struct relay_faults *faults)
{
	if (trace->id == 0)
		return -ENOENT;
	if (!is_trace_name(trace->name, sizeof(trace->name)))
		return relay_fault_value(TEXT(name), "the first byte of a name of a directory");
	if (!is_text(trace->boot, sizeof(trace->boot)))
		return relay_fault_value(TEXT(boot), "the first byte of a text with an end");
	if (!is_text(trace->filter, sizeof(trace->filter)))
		return relay_fault_value(TEXT(filter), "the first byte of a text with an end");
	if (!is_text(trace->rules, sizeof(trace->rules)))
		return relay_fault_value(TEXT(rules), "the first byte of a text with an end");
	if (!relay_clock_at(trace->clock))
		return relay_fault_value(FIELD(clock), "the number of a clock, from %d on", RELAY_MONO);
	if (trace->buffers > RELAY_TRACE_SHARED)
		return relay_fault_value(FIELD(buffers), "at most %d", RELAY_TRACE_SHARED);
	if (trace->mode > RELAY_OVERWRITE)
		return relay_fault_value(FIELD(mode), "%d or %d", RELAY_NO_OVERWRITE, RELAY_OVERWRITE);
	if (!relay_conditions_are_sound(&trace->conditions))
		return relay_fault_value(FIELD(conditions.n_steps), "that of steps that lead forward only");
	return 0;
}

int relay_traces_get(const struct relay_traces *traces, unsigned slot, struct relay_trace *trace)
{
	if (slot >= RELAY_N_TRACES)
		return -ENOENT;
	const struct traces_slot *from = slot_of(traces, slot);
	for (int tries = 0; tries < MAX_READS; tries++) {
		/* Pairs with the release in end_change(): the stores to the trace before it. */
		uint64_t seq = __atomic_load_n(&from->seq, __ATOMIC_ACQUIRE);
		if (!(seq & 1)) {
			/* If the slot has no trace, copy only its id: a process that copies all slots then touches less memory. */
			memcpy(trace, &from->trace, from->trace.id ? sizeof(*trace) : sizeof(trace->id));
			/* Pairs with the fence in begin_change(): if memcpy() has loaded a word of a later change, the
			 * next load of `seq` returns another value. */
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			if (__atomic_load_n(&from->seq, __ATOMIC_RELAXED) == seq)
				return check_trace(trace, 0, NULL);
		}
		if (tries % 10 == 9) /* the server was preempted during a change */
			nanosleep(&(struct timespec){.tv_nsec = READ_PAUSE_NS}, NULL);
	}
	return -EAGAIN;
}

/* ------------------------------------------------------------------ checking */

static void check_slot(const struct relay_traces *traces, unsigned slot, struct relay_faults *faults)
{
	struct relay_trace trace;
	const struct traces_page *page = traces_page_of(traces);
	const uint64_t at = RELAY_PAGE_BYTES + slot * (uint64_t)SLOT_BYTES;
	char name[RELAY_FAULT_NAME_BYTES];
	int err = relay_traces_get(traces, slot, &trace);
	snprintf(name, sizeof(name), "the trace in slot %u", slot);
	if (err == -EAGAIN)
		relay_fault_left(
		    faults, at, __atomic_load_n(&slot_of(traces, slot)->seq, __ATOMIC_RELAXED), name,
		    "its seq is odd: a server has died while it changed the trace; the next server completes it");
	if (err == -EBADMSG)
		check_trace(&trace, at + offsetof(struct traces_slot, trace), faults);
	/* Relaxed: the server stores it before the trace. */
	uint64_t last = __atomic_load_n(&page->last_id, __ATOMIC_RELAXED);
	if (!err && trace.id > last)
		relay_fault_value(faults, at + offsetof(struct traces_slot, trace.id), trace.id, name,
		                  "an id of at most %llu", (unsigned long long)last);
}

int relay_traces_check(int fd, struct relay_faults *faults)
{
	struct stat st;
	struct relay_traces traces = {0};
	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size < TRACES_BYTES) {
		relay_fault_value(faults, 0, (uint64_t)st.st_size, "the size of the file", "at least %d", TRACES_BYTES);
		return 0;
	}
	int copy = relay_descriptor_copy(fd);
	int err = copy < 0 ? copy : relay_mapping_map_ahead(&traces.mapping, copy, TRACES_BYTES, false);
	if (err) {
		if (copy >= 0)
			close(copy);
		return err;
	}
	for (unsigned slot = 0; !check_page(&traces, faults) && slot < RELAY_N_TRACES; slot++)
		check_slot(&traces, slot, faults);
	relay_mapping_unmap(&traces.mapping);
	return 0;
}

/* ------------------------------------------------------------------ changing */

static void begin_change(struct traces_slot *slot)
{
	__atomic_store_n(&slot->seq, slot->seq | 1, __ATOMIC_RELAXED);
	/* Pairs with the fence in relay_traces_get(): `seq` before the stores to the trace. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static void end_change(struct traces_slot *slot)
{
	/* Pairs with the acquire load in relay_traces_get(): the stores to the trace before `seq`. */
	__atomic_store_n(&slot->seq, (slot->seq | 1) + 1, __ATOMIC_RELEASE);
}

/* True if programs have to copy the slot again: anything but `latest`, which they do not use, differs. */
static bool differs(const struct relay_trace *old, const struct relay_trace *new)
{
	struct relay_trace expected = *old;
	expected.latest = new->latest;
	return memcmp(&expected, new, sizeof(expected)) != 0;
}

void relay_traces_set(struct relay_traces *traces, unsigned slot, const struct relay_trace *trace)
{
	if (slot >= RELAY_N_TRACES)
		return;
	struct traces_page *page = traces_page_of(traces);
	struct traces_slot *to = slot_of(traces, slot);
	bool is_change = to->seq & 1 || differs(&to->trace, trace);
	bool is_removal = !trace->id && to->trace.id;
	uint32_t bit = (trace->id && trace->is_started) || is_removal ? 1u << slot : 0;
	if (trace->id > page->last_id)
		page->last_id = trace->id;
	begin_lost(traces, slot, trace->id);
	begin_change(to);
	memcpy(&to->trace, trace, sizeof(*trace));
	end_change(to);
	/* Relaxed: a tracepoint that loads the new value checks the generation in emit(), trace/tracepoint.c. */
	__atomic_store_n(&page->seen.active, (page->seen.active & ~(1u << slot)) | bit, __ATOMIC_RELAXED);
	if (is_change)
		announce(traces);
}

void relay_traces_settle(struct relay_traces *traces)
{
	uint32_t *active = &traces_page_of(traces)->seen.active;
	for (unsigned i = 0; i < RELAY_N_TRACES; i++)
		if (!slot_of(traces, i)->trace.id)
			/* Relaxed: as in relay_traces_set(). */
			__atomic_store_n(active, *active & ~(1u << i), __ATOMIC_RELAXED);
}

uint64_t relay_traces_new_id(struct relay_traces *traces)
{
	return ++traces_page_of(traces)->last_id;
}

void relay_traces_set_log(struct relay_traces *traces, uint32_t log)
{
	/* Relaxed: relay_tracepoint_log() loads only this number; the channel is found through the file system. */
	__atomic_store_n(&traces_page_of(traces)->seen.log, log, __ATOMIC_RELAXED);
}
