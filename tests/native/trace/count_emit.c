/* SPDX-License-Identifier: MIT */
/* To be linked with --wrap=relay_trace_emit: prints, when the program ends, how many of its events called the library. */
#include <relayfs/trace_event.h>
#include <stdio.h>

void __real_relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record, size_t length);
void __wrap_relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record, size_t length);

static unsigned long called;

void __wrap_relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record, size_t length)
{
	__atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
	__real_relay_trace_emit(event, record, length);
}

static __attribute__((destructor)) void say(void)
{
	printf("called %lu\n", called);
}
