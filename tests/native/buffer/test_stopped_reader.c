/* SPDX-License-Identifier: MIT */
/*
 * A reader that is stopped holds up no producer, wherever it is stopped.
 *
 *     child:   stop    consumes and looks whether it was intact    stop
 *     tracer:  |  step, write, step, write, ...
 */
#define _GNU_SOURCE
#include "check.h"
#include "stepping.h"

#include <relayfs/relay.h>
#include <relayfs/trace_store.h>
#include <sys/mman.h>
#include <sys/stat.h>

SCHEMES(rseq, lockless, locking);

enum { SUBBUF_SIZE = 256, MIN_STEPS = 50, MAX_STEPS = 1000000 };

static char path[4096];

/* As the document's no-overwrite example: the next sub-buffer is asked for again and again. */
static int keep(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)subbuf;
	(void)prev_subbuf;
	(void)prev_padding;
	return !relay_buf_full(buf);
}

static const struct rchan_callbacks keeping = {.subbuf_start = keep};

static void consume(struct rchan_buf *buf)
{
	struct relay_span spans[4];
	size_t total;

	CHECK(relay_consume_begin(buf, SUBBUF_SIZE, spans, 4, &total) > 0);
	CHECK_EQ(relay_consume_valid(buf), 0);
	relay_consume_abort(buf);
}

static void stop_around_consumption(void)
{
	struct rchan_buf *buf = relay_buf_open(path);

	CHECK(buf != NULL);
	consume(buf); /* what the linker and the kernel do once is not stepped through */
	raise(SIGSTOP);
	consume(buf);
	raise(SIGSTOP);
}

static const struct relay_control *control_of(struct rchan_buf *buf)
{
	struct stat st;

	CHECK_EQ(fstat(relay_buf_fd(buf), &st), 0);
	char *memory = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, relay_buf_fd(buf), 0);
	CHECK(memory != MAP_FAILED);
	return (const struct relay_control *)(const void *)(memory + st.st_size - RELAY_PAGE_BYTES);
}

/* A write that needs the next sub-buffer, and is refused at once, as the buffer is full. */
static void step_through_consumption(struct rchan_buf *buf)
{
	const struct relay_control *control = control_of(buf);
	unsigned n = 0;
	pid_t pid = start_stepped(stop_around_consumption);

	CHECK_EQ(write_letters(buf, 'z', SUBBUF_SIZE - 100), -ENOSPC);
	while (resume(pid, PTRACE_SINGLESTEP)) {
		CHECK(n++ < MAX_STEPS);
		CHECK_EQ(__atomic_load_n(&control->switch_lock, __ATOMIC_RELAXED), 0);
		CHECK_EQ(__atomic_load_n(&control->write_lock, __ATOMIC_RELAXED), 0);
		/* The tracer's own calls take much longer than those steps in which nothing is changed. */
		if (n % 64 == 0)
			CHECK_EQ(write_letters(buf, 'z', SUBBUF_SIZE - 100), -ENOSPC);
	}
	CHECK(n > MIN_STEPS);
	kill_child(pid);
}

static struct rchan_buf *full_buffer(const struct relay_spec *spec, const struct rchan_callbacks *cb)
{
	snprintf(path, sizeof(path), "%s", make_channel(spec));
	struct rchan_buf *buf = relay_buf_open(path);

	CHECK(buf != NULL);
	if (cb)
		relay_buf_set_callbacks(buf, cb);
	while (write_letters(buf, 'a', SUBBUF_SIZE - 100) == 0)
		;
	return buf;
}

TEST(a_reader_that_asks_what_a_callback_decided_can_be_stopped_anywhere)
{
	struct relay_spec spec = a_spec(SUBBUF_SIZE, 4, RELAY_CALLBACK);
	AUTOPTR(rchan_buf) buf = full_buffer(&spec, &keeping);

	step_through_consumption(buf);
}

TEST(a_reader_of_packets_that_tells_when_the_last_one_ended_can_be_stopped_anywhere)
{
	struct relay_spec spec = a_packet_spec(SUBBUF_SIZE, 2, RELAY_NO_OVERWRITE);
	AUTOPTR(rchan_buf) buf = full_buffer(&spec, NULL);

	step_through_consumption(buf);
}
