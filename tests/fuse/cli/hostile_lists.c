/* SPDX-License-Identifier: MIT */
/*
 * hostile_lists CONTROL KIND [SEED|FILE]
 *
 * A program whose lists of events are not what the library makes. Prints a line when they are there, and waits.
 */
#define _GNU_SOURCE
#include "trace/objects.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARENA_BYTES = 1 << 20 };

static struct relay_trace_field fields[] = {
    {"n", RELAY_TRACE_U32}, {"s.x", RELAY_TRACE_U8}, {"t", RELAY_TRACE_U8}, {"s.y", RELAY_TRACE_U8}};
static struct relay_declared declared = {
    .event = {.provider = "hostile", .name = "one", .fields = fields, .n_fields = 1}};
static struct relay_trace_event *one_event[] = {&declared.event};
static struct relay_declared two = {.event = {.provider = "hostile", .name = "two"}},
			     invalid = {.event = {.provider = "hostile", .name = "not a name"}, .next = &two};
static struct relay_trace_event *some_events[] = {&invalid.event, &declared.event};
static struct relay_trace_object object = {.events = one_event, .events_end = one_event + 1};

static void *map(size_t bytes, int flags)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return at;
}

/* A text without an end, before memory that cannot be read. */
static char *unterminated(void)
{
	char *at = map(2 * 4096, 0);
	munmap(at + 4096, 4096);
	return memset(at + 4096 - 16, 'x', 16);
}

/* Words that are numbers, or point to each other. */
static void fill(struct relay_traced_own *own)
{
	uint64_t *arena = map(ARENA_BYTES, 0);
	for (size_t i = 0; i < ARENA_BYTES / sizeof(*arena); i++)
		arena[i] = random() % 4 ? (uint64_t)(uintptr_t)(arena + random() % (ARENA_BYTES / sizeof(*arena)))
		                        : (uint64_t)random() << 32 | (uint64_t)random();
	own->program = (char *)arena;
	own->objects = (struct relay_trace_object *)(arena + random() % 1000);
	own->declared = (struct relay_declared *)(arena + random() % 1000);
}

static void make(struct relay_traced_own *own, const char *kind)
{
	own->objects = &object;
	if (strcmp(kind, "circle") == 0) {
		object.next = &object;
		object.events_end = object.events;
	} else if (strcmp(kind, "nulls") == 0) {
		object.events = map(1ul << 34, MAP_NORESERVE);
		object.events_end = object.events + (1ul << 31);
	} else if (strcmp(kind, "endless") == 0) {
		own->declared = declared.next = &declared;
	} else if (strcmp(kind, "unterminated") == 0) {
		declared.event.name = unterminated();
		own->program = declared.event.name;
	} else if (strcmp(kind, "fields") == 0) {
		declared.event.n_fields = UINT32_MAX;
	} else if (strcmp(kind, "backwards") == 0) {
		object.events_end = object.events - 1;
	} else if (strcmp(kind, "forms") == 0) {
		declared.event.has_place = 3;
	} else if (strcmp(kind, "dots") == 0) {
		fields[0].name = "....................................";
	} else if (strcmp(kind, "deep") == 0) {
		fields[0].name = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z";
	} else if (strcmp(kind, "split") == 0) {
		declared.event.n_fields = 4;
	} else if (strcmp(kind, "nowhere") == 0) {
		own->objects = (struct relay_trace_object *)UINTPTR_MAX;
		own->declared = (struct relay_declared *)8;
	} else if (strcmp(kind, "name") == 0) {
		own->program = "a\nevent {\n\tname = \"b:c\";\n\033[31m";
	} else if (strcmp(kind, "between") == 0) {
		own->declared = &invalid;
		object.events = some_events;
		object.events_end = some_events + 2;
	} else if (strcmp(kind, "magic") == 0) {
		own->magic++;
	} else {
		fill(own);
	}
}

/* The lists' heads are in a file, whose server need not give them. */
static void map_file(struct relay_traced_own *own, const char *path)
{
	const int file = open(path, O_RDONLY);
	if (file < 0 || mmap(own->bytes + RELAY_TRACE_PAGE_BYTES, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) ==
	                    MAP_FAILED) {
		perror(path);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	srandom(argc > 3 ? (unsigned)atoi(argv[3]) : 0);
	const int control = open(argv[1], O_RDONLY);
	struct relay_traced_own *own = map(sizeof(*own) + RELAY_TRACE_PAGE_BYTES, 0);
	own->magic = RELAY_EVENT_LISTS;
	own->program = "hostile";
	if (strcmp(argv[2], "file") == 0)
		map_file(own, argv[3]);
	else
		make(own, argv[2]);
	if (control < 0 ||
	    mmap(own, RELAY_TRACE_PAGE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, control, 0) == MAP_FAILED)
		return 1;
	puts("ready");
	fflush(stdout);
	pause();
}
