/* SPDX-License-Identifier: MIT */
/*
 * SIGKILL at every instruction of a traced program that writes an event.
 *
 *     trace_kill TEST STORE/TRACE
 *
 * A child writes some events, and one more, in which it is killed after k instructions; another child, after k + 1. The
 * short form kills after those that change the buffer, and here and there, and in a restartable section where objdump(1)
 * finds instructions; RELAYFS_STRESS=long after each, and on every byte of such a section. For each child a line says
 * "PID WRITTEN INSIDE": events that are surely there, and whether one more was begun.
 */
#define _GNU_SOURCE
#include "stepping.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <relayfs/trace.h>
#include <relayfs/trace_store.h>
#include <sys/mman.h>
#include <sys/stat.h>

RELAY_TRACE_EVENT(judge, step, (u64, seq), (string, text))
RELAY_TRACE_EVENT(judge, next, (u64, pid))

enum {
	SUBBUF_SIZE = 4096,
	N_SUBBUFS = 4,
	EVENT_SIZE = 8 + sizeof(uint64_t) + 50,                          /* head, fields */
	ROOM = (SUBBUF_SIZE - sizeof(struct relay_packet)) / EVENT_SIZE, /* events in a sub-buffer */
	MAX_STEPS = 400000,
	BETWEEN = 32,
	MAX_SECTION = 1024,
	WATCHDOG_S = 600
};

static uint64_t n_before; /* events that the child writes before it is stepped */
static bool writes_next;  /* another program of the same user goes on in the same buffer */

static void write_events(void)
{
	static const char text[] = ".................................................";
	uint64_t seq;

	for (seq = 0; seq < n_before; seq++)
		trace_judge_step(seq, text);
	raise(SIGSTOP);
	trace_judge_step(seq, text);
	raise(SIGSTOP);
}

static void finish(pid_t pid, bool inside)
{
	kill_child(pid);
	printf("%d %llu %d\n", pid, (unsigned long long)n_before + !inside, inside);
	if (writes_next)
		trace_judge_next((uint64_t)pid);
}

static bool step_to_system_call(pid_t pid)
{
	return resume(pid, PTRACE_SYSCALL);
}

/* Kill behind k steps. false: the event was written before. */
static bool kill_after(long k, bool (*next)(pid_t pid))
{
	bool inside = true;
	pid_t pid = start_stepped(write_events);

	while (k-- > 0 && inside)
		inside = next(pid);
	finish(pid, inside);
	return inside;
}

/* Kill before the instruction at this address, if it comes there. */
static bool kill_at(uint64_t address)
{
	pid_t pid = start_stepped(write_events);
	bool inside = run_to(pid, address);

	finish(pid, inside);
	return inside;
}

/* --- where --- */

struct seen {
	const void *memory;
	void *copy;
	size_t bytes;
};

/* The child's buffer of this CPU, or its user's, or everybody's. */
static struct seen see_buffer(pid_t pid)
{
	char pattern[3][4096];
	struct seen seen = {0};
	struct stat status;
	glob_t found = {0};
	int fd, i = 0;

	snprintf(pattern[0], sizeof(pattern[0]), "%s/*-%d/cpu/mem%u", scratch, pid, home_cpu);
	snprintf(pattern[1], sizeof(pattern[1]), "%s/user-*/cpu/mem%u", scratch, home_cpu);
	snprintf(pattern[2], sizeof(pattern[2]), "%s/shared/cpu/mem%u", scratch, home_cpu);
	while (i < 3 && glob(pattern[i], 0, NULL, &found) != 0)
		i++;
	CHECK(i < 3);
	CHECK_EQ(found.gl_pathc, 1);
	fd = open(found.gl_pathv[0], O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &status) == 0);
	seen.bytes = (size_t)status.st_size;
	seen.memory = mmap(NULL, seen.bytes, PROT_READ, MAP_SHARED, fd, 0);
	seen.copy = malloc(seen.bytes);
	CHECK(seen.memory != MAP_FAILED && seen.copy != NULL);
	close(fd);
	globfree(&found);
	return seen;
}

static bool has_changed(struct seen *seen)
{
	if (memcmp(seen->copy, seen->memory, seen->bytes) == 0)
		return false;
	memcpy(seen->copy, seen->memory, seen->bytes);
	return true;
}

/* The steps after which to kill. Returns how many there are. */
static long find_steps(bool *at)
{
	pid_t pid = start_stepped(write_events);
	struct seen seen = see_buffer(pid);
	bool inside = true;
	long k;

	has_changed(&seen);
	for (k = 0; inside; k++) {
		CHECK(k < MAX_STEPS);
		inside = step(pid);
		at[k + 1] = has_changed(&seen) || is_long() || k % BETWEEN == 0;
	}
	finish(pid, false);
	return k;
}

/* Where instructions begin, by byte: no breakpoint on another byte is ever reached. */
static void find_instructions(struct section section, bool *begins)
{
	char command[8192], line[1024], end;
	unsigned long address, first;
	FILE *listing;
	Dl_info image;

	CHECK(section.length <= MAX_SECTION && dladdr((void *)section.start, &image));
	first = section.start - (uint64_t)image.dli_fbase;
	snprintf(command, sizeof(command), "objdump -d --start-address=%#lx --stop-address=%#lx '%s'", first,
	         first + section.length, image.dli_fname);
	listing = popen(command, "r");
	CHECK(listing != NULL);
	while (fgets(line, sizeof(line), listing))
		if (sscanf(line, " %lx%c", &address, &end) == 2 && end == ':')
			begins[address - first] = true;
	CHECK_EQ(pclose(listing), 0);
	CHECK(begins[0]);
}

static void kill_in_section(struct section section)
{
	bool begins[MAX_SECTION] = {false};
	uint64_t byte;

	find_instructions(section, begins);
	for (byte = 0; byte < section.length; byte++)
		if (begins[byte] || is_long())
			CHECK(!kill_at(section.start + byte) || begins[byte]);
}

static void kill_everywhere(void)
{
	static bool at[MAX_STEPS + 2];
	long k, n;
	unsigned i;

	alarm(WATCHDOG_S);
	n = find_steps(at);
	for (k = 0; k <= n + 1; k++)
		if (k == 0 || at[k])
			kill_after(k, step);
	for (i = 0; i < n_sections; i++)
		kill_in_section(sections[i]);
}

TEST(in_a_sub_buffer)
{
	n_before = 1;
	kill_everywhere();
}

TEST(at_the_end_of_a_sub_buffer)
{
	n_before = ROOM;
	kill_everywhere();
}

TEST(over_the_oldest_sub_buffer)
{
	n_before = N_SUBBUFS * ROOM;
	kill_everywhere();
}

TEST(among_others_of_the_user)
{
	n_before = 1;
	writes_next = true;
	kill_everywhere();
}

/* The first event of a process: what others see of the buffers that are made for it are system calls. */
TEST(while_buffers_are_made)
{
	long k;

	alarm(WATCHDOG_S);
	for (k = 0; kill_after(k, step_to_system_call); k++)
		;
}
