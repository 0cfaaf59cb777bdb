/* SPDX-License-Identifier: MIT */
/* The control file of traces. */
#define _GNU_SOURCE
#include "a_trace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 33 * 4096, CHANGES = 200000 };

static const char *file_of_traces(void)
{
	static char path[4096];
	snprintf(path, sizeof(path), "%s/.traces", scratch);
	return path;
}

DEFINE_AUTOPTR(relay_traces, relay_traces_close)

static struct relay_traces *serve(void)
{
	struct relay_traces *traces = relay_traces_serve(scratch);
	if (!traces)
		perror("relay_traces_serve");
	CHECK(traces != NULL);
	return traces;
}

static struct relay_traces *look(void)
{
	struct relay_traces *traces = relay_traces_open(file_of_traces());
	CHECK(traces != NULL);
	return traces;
}

/* What a program maps. */
static const struct relay_trace_page *map_page(void)
{
	int fd = open(file_of_traces(), O_RDONLY);
	void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	close(fd);
	return page;
}

TEST(a_trace_is_read_as_it_was_set)
{
	AUTOPTR(relay_traces) server = serve(), *other = look();
	struct relay_trace trace = a_trace(RELAY_TRACE_SHARED), got;
	CHECK_EQ(relay_traces_get(other, 3, &got), -ENOENT);
	relay_traces_set(server, 3, &trace);
	CHECK_EQ(relay_traces_get(other, 3, &got), 0);
	CHECK(memcmp(&trace, &got, sizeof(got)) == 0);
	relay_traces_set(server, 3, &(struct relay_trace){.id = 0});
	CHECK_EQ(relay_traces_get(other, 3, &got), -ENOENT);
}

TEST(programs_see_what_is_started_and_each_change)
{
	AUTOPTR(relay_traces) server = serve();
	const struct relay_trace_page *page = map_page();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	CHECK(page->magic != 0 && page->active == 0 && page->generation == 0);
	relay_traces_set(server, 0, &trace);
	relay_traces_set(server, 15, &trace);
	CHECK_EQ(page->active, 0x8001);
	CHECK_EQ(page->changes, 2);
	CHECK_EQ(page->generation, 2ull << 32);
	trace.is_started = 0;
	relay_traces_set(server, 0, &trace);
	CHECK_EQ(page->active, 0x8000);
	CHECK_EQ(page->changes, 3);
	/* Nothing new to them. */
	trace.latest.mono_ns = 5;
	relay_traces_set(server, 0, &trace);
	CHECK_EQ(page->changes, 3);
	relay_traces_set_log(server, 9);
	CHECK_EQ(page->log, 9);
}

TEST(what_is_taken_away_is_active_until_programs_have_let_go_of_it)
{
	AUTOPTR(relay_traces) server = serve();
	const struct relay_trace_page *page = map_page();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	relay_traces_set(server, 1, &trace);
	trace.is_started = 0;
	relay_traces_set(server, 3, &trace);
	trace.id = 0;
	relay_traces_set(server, 3, &trace);
	relay_traces_set(server, 5, &trace);
	CHECK_EQ(page->active, 0xa);
	relay_traces_settle(server);
	CHECK_EQ(page->active, 0x2);
}

TEST(there_are_sixteen)
{
	AUTOPTR(relay_traces) server = serve();
	const struct relay_trace_page *page = map_page();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS), got;
	for (unsigned i = 0; i < RELAY_N_TRACES; i++)
		relay_traces_set(server, i, &trace);
	CHECK_EQ(page->active, 0xffff);
	relay_traces_set(server, RELAY_N_TRACES, &trace);
	CHECK_EQ(page->changes, RELAY_N_TRACES);
	CHECK_EQ(relay_traces_get(server, RELAY_N_TRACES, &got), -ENOENT);
}

TEST(an_id_is_never_given_again)
{
	struct relay_traces *server = serve();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	trace.id = relay_traces_new_id(server);
	relay_traces_set(server, 0, &trace);
	relay_traces_set(server, 0, &(struct relay_trace){.id = 0});
	relay_traces_close(server);
	server = serve();
	CHECK(relay_traces_new_id(server) > trace.id);
	relay_traces_close(server);
}

TEST(its_memory_is_allocated)
{
	AUTOPTR(relay_traces) server = serve();
	struct stat st;
	CHECK_EQ(stat(file_of_traces(), &st), 0);
	CHECK_EQ(st.st_size, FILE_BYTES);
	CHECK(st.st_blocks * 512 >= st.st_size);
	CHECK_EQ(st.st_mode & 0777, RELAY_PERM_TRACES);
}

/* Every mapping of the control file, but for the server's. The counts beside it are the programs' own to write. */
static unsigned try_to_write(const struct relay_trace_page *page)
{
	char line[8192];
	unsigned n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		bool is_control = strstr(line, "/.traces") && !strstr(line, "/.traces-lost");
		if (!is_control || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		CHECK(strstr(line, " r--s ") != NULL);
		errno = 0;
		CHECK_EQ(mprotect((void *)from, to - from, PROT_READ | PROT_WRITE), -1);
		CHECK_EQ(errno, EACCES);
		n++;
	}
	fclose(maps);
	CHECK_EQ(mprotect((void *)(uintptr_t)page, 4096, PROT_READ | PROT_WRITE), -1);
	return n;
}

TEST(programs_cannot_write_what_they_map)
{
	relay_traces_close(serve());
	AUTOPTR(relay_traces) other = look();
	CHECK_EQ(try_to_write(map_page()), 2);
}

/* A trace all of whose words say the same. */
static struct relay_trace uniform(char letter)
{
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	trace.id = (uint64_t)letter;
	trace.made.mono_ns = (uint64_t)letter;
	memset(trace.name, letter, sizeof(trace.name) - 1);
	memset(trace.filter, letter, sizeof(trace.filter) - 1);
	memset(trace.rules, letter, sizeof(trace.rules) - 1);
	return trace;
}

static void check_uniform(const struct relay_trace *trace)
{
	struct relay_trace expected = uniform((char)trace->id);
	CHECK(memcmp(trace, &expected, sizeof(expected)) == 0);
}

TEST(readers_never_see_half_a_change)
{
	AUTOPTR(relay_traces) server = serve(), *other = look();
	struct relay_trace a = uniform('a'), b = uniform('b'), got;
	relay_traces_set(server, 1, &a);
	pid_t child = fork();
	if (!child) {
		/* Beside the reader, not in turns with it. */
		cpu_set_t all;
		memset(&all, 0xff, sizeof(all));
		CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
		for (int i = 0; i < CHANGES; i++)
			relay_traces_set(server, 1, i % 2 ? &a : &b);
		_exit(0);
	}
	int n = 0, status, err;
	while (waitpid(child, &status, WNOHANG) == 0) {
		err = relay_traces_get(other, 1, &got);
		CHECK(err == 0 || err == -EAGAIN);
		if (!err)
			check_uniform(&got);
		n += !err;
	}
	CHECK(n > 0);
}

TEST(a_server_that_was_killed_in_a_change_leaves_a_trace_that_can_be_read)
{
	struct relay_traces *server = serve(), *other = look();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS), got;
	uint64_t seq;
	relay_traces_set(server, 0, &trace);
	relay_traces_close(server);
	int fd = open(file_of_traces(), O_RDWR);
	CHECK_EQ(pread(fd, &seq, sizeof(seq), 4096), sizeof(seq));
	seq |= 1;
	CHECK_EQ(pwrite(fd, &seq, sizeof(seq), 4096), sizeof(seq));
	CHECK_EQ(relay_traces_get(other, 0, &got), -EAGAIN);
	server = serve();
	CHECK_EQ(relay_traces_get(other, 0, &got), 0);
	/* The repair, and that there is another server. */
	CHECK_EQ(map_page()->changes, 3);
	close(fd);
	relay_traces_close(server);
	relay_traces_close(other);
}

static void spoil(off_t at, uint64_t word)
{
	int fd = open(file_of_traces(), O_RDWR);
	CHECK_EQ(pwrite(fd, &word, sizeof(word), at), sizeof(word));
	close(fd);
}

static void check_refused(int err)
{
	CHECK(relay_traces_serve(scratch) == NULL);
	CHECK_EQ(errno, err);
	CHECK(relay_traces_open(file_of_traces()) == NULL);
	CHECK_EQ(errno, err);
}

TEST(what_is_no_control_file_is_refused)
{
	CHECK(relay_traces_open(file_of_traces()) == NULL);
	CHECK_EQ(errno, ENOENT);
	relay_traces_close(serve());
	spoil(8, 99);
	check_refused(EPROTO);
	spoil(0, 1);
	check_refused(EBADMSG);
	CHECK_EQ(truncate(file_of_traces(), 4096), 0);
	check_refused(EBADMSG);
	CHECK_EQ(unlink(file_of_traces()), 0);
	CHECK_EQ(symlink("/dev/zero", file_of_traces()), 0);
	check_refused(ELOOP);
	CHECK_EQ(unlink(file_of_traces()), 0);
	CHECK_EQ(mkdir(file_of_traces(), 0755), 0);
	CHECK(relay_traces_open(file_of_traces()) == NULL);
	CHECK_EQ(errno, EBADMSG);
}

TEST(a_trace_that_makes_no_sense_is_refused)
{
	AUTOPTR(relay_traces) server = serve();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS), got;
	static const char *const wrong[] = {"", ".t", "a/b"};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		snprintf(trace.name, sizeof(trace.name), "%s", wrong[i]);
		relay_traces_set(server, 0, &trace);
		CHECK_EQ(relay_traces_get(server, 0, &got), -EBADMSG);
	}
	trace = a_trace(3);
	relay_traces_set(server, 0, &trace);
	CHECK_EQ(relay_traces_get(server, 0, &got), -EBADMSG);
	trace = a_trace(RELAY_TRACE_PERPROCESS);
	memset(trace.rules, 'x', sizeof(trace.rules));
	relay_traces_set(server, 0, &trace);
	CHECK_EQ(relay_traces_get(server, 0, &got), -EBADMSG);
}

static uint64_t ns_of(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

TEST(clocks_are_read_at_one_moment)
{
	struct relay_clocks first, second;
	uint64_t before = ns_of(CLOCK_MONOTONIC);
	relay_clocks_read(RELAY_MONO, &first);
	relay_clocks_read(RELAY_TSC, &second);
	uint64_t after = ns_of(CLOCK_MONOTONIC);
	CHECK(before <= first.mono_ns && first.mono_ns <= second.mono_ns && second.mono_ns <= after);
	CHECK(first.real_ns <= ns_of(CLOCK_REALTIME));
	CHECK_EQ(first.ticks, first.mono_ns);
	CHECK_EQ(second.ticks != second.mono_ns, relay_clock_is_available(RELAY_TSC));
}
