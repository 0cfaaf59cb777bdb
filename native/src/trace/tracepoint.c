/* SPDX-License-Identifier: MIT */
/*
 * Tracepoints of this process.
 *
 *     trace_x_y()         page.active, event.wanted?                   in the program (trace.h)
 *        |
 *     relay_trace_emit()  event.wanted is of page.generation?  ---no--> look at the control file, decide
 *        |                has it conditions?  -----------------yes----> evaluate them (trace/choice.h)
 *        |                for each trace that wants it:
 *     relay_tracings[slot]  there?  ----------------------------no----> join: make buffers, declare all events
 *        |
 *     relay_tracing_write()
 *
 * `page` is the control file's first page, which is mapped over a page of each program and shared library. So tracepoints
 * load what the file server stores there, without a call or a signal. trace/process.c knows which traces exist,
 * and trace/joined.c the buffers of this process in them.
 */
#define _GNU_SOURCE
#include "base/owner.h"
#include "base/quiet.h"
#include "base/scratch.h"
#include "trace/choice.h"
#include "trace/declared.h"
#include "trace/flat.h"
#include "trace/joined.h"
#include "trace/loaded.h"
#include "trace/process.h"
#include "trace/threads.h"
#include "trace/tracepoint.h"
#include "trace/tsdl.h"
#include "trace/wait.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- what is loaded --- */

static void put_objects_here(void *unused)
{
	(void)unused;
	relay_joined_put_objects();
}

/* Tell the joined traces what was loaded since the last call; again: see relay_loaded_look(). */
static void note_loaded(bool again)
{
	if (relay_joined_any() && relay_loaded_look(again))
		relay_trace_locked(put_objects_here, NULL);
}

/* --- writing --- */

struct decision {
	struct relay_trace_event *event;
	uint64_t wanted;
};

static void decide_here(void *arg)
{
	struct decision *decision = arg;
	decision->wanted = relay_traced_decide(decision->event);
}

/* Return the traces that wanted the event at the last decision, and are still started; for a thread that may make no system
 * calls. */
static uint64_t wanted_before(const struct relay_trace_event *event)
{
	uint32_t active = __atomic_load_n(&relay_traced_own.page.active, __ATOMIC_RELAXED);
	return __atomic_load_n(&event->wanted, __ATOMIC_ACQUIRE) & (active | RELAY_HAS_CONDITION);
}

__attribute__((noinline)) static uint64_t decide(struct relay_trace_event *event)
{
	struct decision decision = {event, 0};
	if (relay_is_quiet() && !relay_quiet_may_call())
		return wanted_before(event);
	note_loaded(false);
	relay_trace_locked(decide_here, &decision);
	return decision.wanted;
}

/* Return the traces that take this record, when the control file has changed, or an event has conditions. */
__attribute__((noinline)) static uint64_t choose(struct relay_trace_event *event,
                                                 const struct relay_trace_record *record, size_t length)
{
	/* Pairs with the release in relay_traced_decide(), trace/process.c: the choice of the event. */
	uint64_t wanted = __atomic_load_n(&event->wanted, __ATOMIC_ACQUIRE);
	if ((wanted ^ __atomic_load_n(&relay_traced_own.page.generation, __ATOMIC_ACQUIRE)) >> 32)
		wanted = decide(event);
	return wanted & RELAY_HAS_CONDITION ? relay_choose(event, wanted, record, length) : wanted;
}

struct place {
	unsigned slot;
	size_t length;
	struct relay_tracing *tracing;
};

static void find_place(void *arg)
{
	struct place *place = arg;
	place->tracing = relay_traced_at(place->slot, place->length);
}

__attribute__((noinline)) static struct relay_tracing *tracing_at(unsigned slot, size_t length)
{
	struct place place = {slot, length, NULL};
	if (relay_is_quiet() && !relay_quiet_may_call())
		return NULL;
	relay_loaded_look(false);
	relay_trace_locked(find_place, &place);
	return place.tracing;
}

/* Map memory for an event that is longer than a piece of scratch memory. NULL: no trace has sub-buffers of this length, or no
 * memory, or the thread may make no system calls. */
__attribute__((noinline)) static struct relay_trace_record *map_large(size_t length)
{
	if (length > RELAY_TRACE_EVENT_MAX || (relay_is_quiet() && !relay_quiet_may_call()))
		return NULL;
	if (!relay_traced_holds(length)) {
		/* The traces may have changed since the last event. This thread counts as inside, so that relay_traced_look()
		 * frees no trace to which an interrupted event of this thread is being written. */
		relay_trace_enter();
		relay_trace_locked(relay_traced_look, NULL);
		relay_trace_leave();
	}
	return relay_traced_holds(length) ? relay_scratch_map(length) : NULL;
}

struct relay_trace_record *relay_trace_borrow(size_t length)
{
	return __builtin_expect(length <= RELAY_SCRATCH_BYTES, 1) ? relay_scratch_take() : map_large(length);
}

void relay_trace_give_back(struct relay_trace_record *record)
{
	relay_scratch_give_back(record);
}

typedef uint64_t write_function(struct relay_tracing *tracing, uint64_t number, struct relay_trace_record *record,
                                size_t length);

/* Store the thread's id in front of the fields, where each trace has it. */
static inline void note_thread(struct relay_trace_record *record)
{
	if (__builtin_expect(record != NULL, 1))
		memcpy((unsigned char *)(record + 1) - RELAY_TRACE_TID_BYTES, &relay_trace_self.tid,
		       RELAY_TRACE_TID_BYTES);
}

static inline __attribute__((always_inline)) void
emit(struct relay_trace_event *event, struct relay_trace_record *record, size_t length, write_function *write_event)
{
	relay_trace_enter_known();
	note_thread(record);
	uint64_t wanted = __atomic_load_n(&event->wanted, __ATOMIC_RELAXED);
	/* Pairs with the releases in announce(), trace/control_file.c, and copy_page(), trace/objects.c: what was stored
	 * before the generation is seen. RELAY_HAS_CONDITION is the bit below the generation, so one branch finds both. */
	if (__builtin_expect((wanted ^ __atomic_load_n(&relay_traced_own.page.generation, __ATOMIC_ACQUIRE)) >> 31, 0))
		wanted = choose(event, record, length);
	for (uint32_t bits = (uint32_t)wanted; bits; bits &= bits - 1) {
		unsigned slot = (unsigned)__builtin_ctz(bits);
		struct relay_tracing *tracing = __atomic_load_n(&relay_tracings[slot], __ATOMIC_ACQUIRE);
		if (__builtin_expect(!tracing, 0))
			tracing = tracing_at(slot, length);
		if (tracing)
			write_event(tracing, event->id, record, length);
	}
	relay_trace_leave();
}

/* relay_trace_emit() in a thread that writes its first event, or is quiet. */
__attribute__((noinline)) static void emit_slow(struct relay_trace_event *event, struct relay_trace_record *record,
                                                size_t length)
{
	relay_trace_know_thread();
	if (!relay_is_quiet()) {
		emit(event, record, length, relay_tracing_write);
		return;
	}
	relay_quiet_look();
	emit(event, record, length, relay_tracing_write_quiet);
}

void relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record, size_t length)
{
	if (__builtin_expect(!relay_trace_self.is_plain[RELAY_INLINE_VERSION], 0))
		emit_slow(event, record, length);
	else
		emit(event, record, length, relay_tracing_write);
}

void relay_trace_emit_packed(struct relay_trace_event *event, void *record, size_t length)
{
	relay_trace_emit(event, length <= RELAY_TRACE_EVENT_MAX ? record : NULL, length);
}

/* --- states --- */

struct keeping {
	const struct relay_trace_event *event;
	const void *fields;
	size_t length;
};

static struct keeping keeping_of(const struct relay_trace_event *event, const struct relay_trace_record *record,
                                 size_t length)
{
	return (struct keeping){event, record ? record + 1 : NULL, length - sizeof(*record)};
}

static void set_here(void *arg)
{
	const struct keeping *keeping = arg;
	if (keeping->fields)
		relay_traced_set_state(keeping->event, keeping->fields, keeping->length);
	else
		relay_traced_clear_state(keeping->event, NULL, 0);
}

static void clear_here(void *arg)
{
	const struct keeping *keeping = arg;
	relay_traced_clear_state(keeping->event, keeping->fields, keeping->length);
}

/* Call run() with the lock, unless the event has no declaration, or the thread may make no system calls. */
static void keep(void (*run)(void *arg), struct keeping keeping)
{
	if (keeping.event->id && !(relay_is_quiet() && !relay_quiet_may_call()))
		relay_trace_locked(run, &keeping);
}

void relay_trace_set_state(struct relay_trace_event *event, struct relay_trace_record *record, size_t length)
{
	if (relay_trace_wants(event))
		relay_trace_emit(event, record, length);
	keep(set_here, keeping_of(event, record, length));
}

void relay_trace_clear_state(struct relay_trace_event *event, const struct relay_trace_record *record, size_t length)
{
	keep(clear_here, keeping_of(event, record, length));
}

static void prepare(void *unused)
{
	(void)unused;
	relay_traced_prepare();
	relay_scratch_prepare();
}

void relay_trace_prepare(void)
{
	relay_loaded_look(false);
	relay_trace_locked(prepare, NULL);
	relay_trace_know_thread();
	relay_owner_self();
	relay_quiet_begin();
	relay_trace_self.is_plain[RELAY_INLINE_VERSION] = false;
}

/* --- objects --- */

static sigset_t before_fork;

static void prepare_fork(void)
{
	relay_trace_lock(&before_fork);
}

static void continue_parent(void)
{
	relay_trace_unlock(&before_fork);
}

/* In the child of fork(): leave the parent's traces. Signals stay blocked until that is done. */
static void begin_child(void)
{
	sigset_t before = before_fork;
	relay_trace_forget_threads();
	relay_quiet_end();
	relay_scratch_forget();
	relay_loaded_begin_child();
	if (relay_traced_begin_child())
		relay_trace_wait();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Begin tracing, at the first call. The caller holds relay_trace_lock(). */
static void begin_tracing(void)
{
	static bool is_begun;
	const char *wish = getenv("RELAYFS_TRACE");
	if (is_begun)
		return;
	is_begun = true;
	relay_traced_own.page.log = 0;
	relay_traced_own.program = program_invocation_short_name;
	bool is_off = (wish && strcmp(wish, "off") == 0) || !relay_trace_begin_threads() ||
	              pthread_atfork(prepare_fork, continue_parent, begin_child);
	if (!is_off && relay_traced_begin(getenv("RELAYFS_TRACE_EARLY")))
		relay_trace_wait();
}

static const struct relay_declared *declared_of(const struct relay_trace_event *event)
{
	return event && relay_tsdl_allows(event) ? relay_declared_get(event) : NULL;
}

/* Declare an event with structs, and replace its lists by those of the declaration, which have the fields of the structs.
 * NULL: it is not allowed, or no memory. */
static const struct relay_declared *flatten(struct relay_trace_event *event)
{
	struct relay_trace_event *flat = relay_event_flat(event);
	const struct relay_declared *declared = declared_of(flat);
	free(flat);
	if (!declared)
		return NULL;
	event->fields = declared->event.fields;
	event->n_fields = declared->event.n_fields;
	event->enums = declared->event.enums;
	event->n_enums = declared->event.n_enums;
	event->structs = NULL;
	event->has_place = 2;
	return declared;
}

static void register_event(struct relay_trace_event *event)
{
	const bool has_structs = event && event->has_place > 2;
	const struct relay_declared *declared = has_structs ? flatten(event) : declared_of(event);
	if (!declared)
		return;
	event->id = declared->number;
	relay_joined_declare(event);
}

static void register_object(void *arg)
{
	struct relay_trace_object *object = arg;
	begin_tracing();
	for (struct relay_trace_event *const *event = object->events; event < object->events_end; event++)
		register_event(*event);
	relay_traced_add(object);
}

void relay_trace_register(struct relay_trace_object *object)
{
	relay_trace_locked(register_object, object);
	note_loaded(true);
}

void relay_trace_unregister(struct relay_trace_object *object)
{
	sigset_t before;
	relay_trace_lock(&before);
	relay_objects_remove(object);
	relay_trace_unlock(&before);
}

/* A destructor for exit(3) and dlclose(3): a process that is killed, or calls _exit(2), does not come here. */
__attribute__((destructor)) void relay_trace_end(void)
{
	relay_joined_note_left();
}

/* --- events that are declared at run time --- */

struct relay_trace_event *relay_trace_declare(const char *provider, const char *name,
                                              const struct relay_trace_field *fields, uint32_t n_fields)
{
	return relay_trace_declare_event(
	    &(struct relay_trace_event){.provider = provider, .name = name, .fields = fields, .n_fields = n_fields});
}

struct relay_trace_event *relay_trace_declare_event(const struct relay_trace_event *event)
{
	sigset_t before;
	if (!relay_tsdl_allows(event)) {
		errno = EINVAL;
		return NULL;
	}
	relay_trace_lock(&before);
	begin_tracing();
	struct relay_declared *declared = relay_declared_get(event);
	int err = declared ? 0 : errno;
	if (declared && !declared->event.id) {
		declared->event.id = declared->number;
		relay_traced_add_declared(declared);
	}
	relay_trace_unlock(&before);
	if (err)
		errno = err;
	return declared ? &declared->event : NULL;
}

int relay_trace_wants(const struct relay_trace_event *event)
{
	return RELAY_TRACE_IS_WANTED(&relay_traced_own.page, event);
}

static void begin_here(void *unused)
{
	(void)unused;
	begin_tracing();
}

uint32_t relay_tracepoint_log(void)
{
	/* Relaxed: no other memory depends on the number. */
	uint32_t log = __atomic_load_n(&relay_traced_own.page.log, __ATOMIC_RELAXED);
	if (__builtin_expect(log != RELAY_TRACED_NOT_BEGUN, 1))
		return log;
	relay_trace_locked(begin_here, NULL);
	return __atomic_load_n(&relay_traced_own.page.log, __ATOMIC_RELAXED);
}
