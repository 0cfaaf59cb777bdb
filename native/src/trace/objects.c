/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/objects.h"

#include "trace/control_file.h"
#include "trace/early.h"

#include <sys/mman.h>
#include <unistd.h>

struct relay_traced_own relay_traced_own __attribute__((aligned(RELAY_TRACE_PAGE_BYTES))) = {
    .page = {.log = RELAY_TRACED_NOT_BEGUN}, .magic = RELAY_EVENT_LISTS};

/* --- events --- */

void relay_objects_add(struct relay_trace_object *object)
{
	object->next = relay_traced_own.objects;
	relay_traced_own.objects = object;
}

void relay_objects_remove(const struct relay_trace_object *object)
{
	struct relay_trace_object **at = &relay_traced_own.objects;
	while (*at && *at != object)
		at = &(*at)->next;
	if (*at)
		*at = object->next;
}

void relay_objects_add_declared(struct relay_declared *new)
{
	new->next = relay_traced_own.declared;
	relay_traced_own.declared = new;
}

void relay_objects_each_event(void (*act)(struct relay_trace_event *event, void *arg), void *arg)
{
	for (struct relay_trace_object *object = relay_traced_own.objects; object; object = object->next)
		for (struct relay_trace_event *const *event = object->events; event < object->events_end; event++)
			if (*event)
				act(*event, arg);
	for (struct relay_declared *one = relay_traced_own.declared; one; one = one->next)
		act(&one->event, arg);
}

/* --- pages --- */

/* Map the control file's first page over an object's page. If that fails, the object's page stays zero, and its events
 * are not traced. */
static void map_page(struct relay_trace_page *page, const struct relay_traces *control)
{
	/* mremap(2) with an old size of 0 makes a second mapping of the same page. Unlike mmap(2) it needs no
	 * descriptor and sends no request to a server. */
	mremap(relay_traces_page(control), 0, (size_t)sysconf(_SC_PAGESIZE), MREMAP_MAYMOVE | MREMAP_FIXED, page);
}

/* Copy the control file's page, if there is one, with the bit of RELAY_EARLY. The thread of trace/wait.c makes a new
 * copy when the control file changes. Relaxed: the release store of `generation` orders the other stores before it. */
static void copy_page(struct relay_trace_page *page, const struct relay_traces *control, uint64_t generation)
{
	const struct relay_trace_page *from = control ? relay_traces_page(control) : NULL;
	uint32_t active = from ? __atomic_load_n(&from->active, __ATOMIC_RELAXED) : 0;
	__atomic_store_n(&page->log, from ? __atomic_load_n(&from->log, __ATOMIC_RELAXED) : 0, __ATOMIC_RELAXED);
	__atomic_store_n(&page->active, active | 1u << RELAY_EARLY, __ATOMIC_RELAXED);
	/* Pairs with the acquire load in emit(), trace/tracepoint.c: `log` and `active` before it. */
	__atomic_store_n(&page->generation, generation, __ATOMIC_RELEASE);
}

static void show_page(struct relay_trace_page *page, const struct relay_traces *control, uint64_t waiting)
{
	if (waiting)
		copy_page(page, control, waiting);
	else if (control)
		map_page(page, control);
}

void relay_object_show(struct relay_trace_object *object, const struct relay_traces *control, uint64_t waiting)
{
	show_page(object->page, control, waiting);
}

void relay_objects_show(const struct relay_traces *control, uint64_t waiting)
{
	show_page(&relay_traced_own.page, control, waiting);
	for (struct relay_trace_object *object = relay_traced_own.objects; object; object = object->next)
		relay_object_show(object, control, waiting);
}
