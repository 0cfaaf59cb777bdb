/* SPDX-License-Identifier: MIT */
/* The control file of traces, and the directories in a trace. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <relayfs/trace_store.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534, FILE_BYTES = 17 * 4096, CHANGES = 200000 };

static const char *file_of_traces(void)
{
	static char path[4096];
	snprintf(path, sizeof(path), "%s/.traces", scratch);
	return path;
}

static const char *in_trace(const char *name)
{
	static char paths[4][4096];
	static unsigned n;
	char *path = paths[n++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/t/%s", scratch, name);
	return path;
}

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

static struct relay_trace a_trace(uint32_t buffers)
{
	struct relay_trace trace = {.id = 7,
	                            .is_started = 1,
	                            .clock = RELAY_MONO,
	                            .buffers = buffers,
	                            .subbuf_size = 4096,
	                            .n_subbufs = 4,
	                            .made = {.tsc = 1, .mono_ns = 2, .real_ns = 3},
	                            .boot = "boot",
	                            .name = "t",
	                            .filter = "pid:1,uid:2",
	                            .rules = "+a:*\n-b:*\n"};
	return trace;
}

/* 0: the child of fork() did what it should. */
static int result_of(pid_t child)
{
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

/* ------------------------------------------------------------------ the control file */

TEST(a_trace_is_read_as_it_was_set)
{
	struct relay_traces *server = serve(), *other = look();
	struct relay_trace trace = a_trace(RELAY_TRACE_SHARED), got;
	CHECK_EQ(relay_traces_get(other, 3, &got), -ENOENT);
	relay_traces_set(server, 3, &trace);
	CHECK_EQ(relay_traces_get(other, 3, &got), 0);
	CHECK(memcmp(&trace, &got, sizeof(got)) == 0);
	relay_traces_set(server, 3, &(struct relay_trace){.id = 0});
	CHECK_EQ(relay_traces_get(other, 3, &got), -ENOENT);
	relay_traces_close(server);
	relay_traces_close(other);
}

TEST(programs_see_what_is_started_and_each_change)
{
	struct relay_traces *server = serve();
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
	relay_traces_close(server);
}

TEST(what_is_taken_away_is_active_until_programs_have_let_go_of_it)
{
	struct relay_traces *server = serve();
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
	relay_traces_close(server);
}

TEST(there_are_sixteen)
{
	struct relay_traces *server = serve();
	const struct relay_trace_page *page = map_page();
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS), got;
	for (unsigned i = 0; i < RELAY_N_TRACES; i++)
		relay_traces_set(server, i, &trace);
	CHECK_EQ(page->active, 0xffff);
	relay_traces_set(server, RELAY_N_TRACES, &trace);
	CHECK_EQ(page->changes, RELAY_N_TRACES);
	CHECK_EQ(relay_traces_get(server, RELAY_N_TRACES, &got), -ENOENT);
	relay_traces_close(server);
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
	struct relay_traces *server = serve();
	struct stat st;
	CHECK_EQ(stat(file_of_traces(), &st), 0);
	CHECK_EQ(st.st_size, FILE_BYTES);
	CHECK(st.st_blocks * 512 >= st.st_size);
	CHECK_EQ(st.st_mode & 0777, 0644);
	relay_traces_close(server);
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
	struct relay_traces *other = look();
	CHECK_EQ(try_to_write(map_page()), 2);
	relay_traces_close(other);
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
	struct relay_traces *server = serve(), *other = look();
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
	relay_traces_close(server);
	relay_traces_close(other);
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
	struct relay_traces *server = serve();
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
	relay_traces_close(server);
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
	relay_clocks_read(&first);
	relay_clocks_read(&second);
	uint64_t after = ns_of(CLOCK_MONOTONIC);
	CHECK(before <= first.mono_ns && first.mono_ns <= second.mono_ns && second.mono_ns <= after);
	CHECK(first.real_ns <= ns_of(CLOCK_REALTIME));
	CHECK_EQ(first.tsc != 0, relay_has_tsc());
	CHECK(!relay_has_tsc() || second.tsc > first.tsc);
}

/* ------------------------------------------------------------------ directories */

static void make_trace_dir(void)
{
	CHECK_EQ(mkdir(in_trace(""), 0711), 0);
	CHECK_EQ(chmod(in_trace(""), 0711), 0);
}

static int make(uint32_t buffers, const char *process, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	struct relay_trace trace = a_trace(buffers);
	return relay_trace_make(scratch, &trace, process, 42, 42, geteuid(), getegid(), lock, name);
}

static unsigned n_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;
	CHECK(dir != NULL);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static const char *first_line(const char *name)
{
	static char line[1024];
	char path[512];
	snprintf(path, sizeof(path), "%s/.events", name);
	FILE *file = fopen(in_trace(path), "r");
	CHECK(file && fgets(line, sizeof(line), file));
	CHECK_EQ(fgetc(file), EOF);
	fclose(file);
	return line;
}

TEST(a_directory_has_all_that_a_process_needs)
{
	char name[RELAY_TRACE_NAME_BYTES], expected[256];
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a program/\xff", NULL, name), 0);
	CHECK_TEXT(name, "a_program__-42");
	snprintf(expected, sizeof(expected),
	         "/* relayfs trace=t id=7 process=a_program__ pid=42 vpid=42 uid=%u buffers=perprocess clock=mono "
	         "tsc=1 mono=2 "
	         "real=3 boot=boot made_mono=",
	         geteuid());
	CHECK(strncmp(first_line(name), expected, strlen(expected)) == 0);
	CHECK(strstr(first_line(name), " */\n") != NULL);
	struct rchan_buf *buf = relay_buf_open(in_trace("a_program__-42/cpu/mem0"));
	CHECK(buf != NULL);
	struct relay_stats stats = stats_of(buf);
	CHECK_EQ(stats.subbuf_size, 4096);
	CHECK_EQ(stats.n_subbufs, 4);
	CHECK_EQ(stats.timestamp, RELAY_MONO);
	CHECK_EQ(stats.start_reserve, 72);
	CHECK_EQ(stats.format, RELAY_PACKETS);
	CHECK_EQ(stats.pid, 42);
	relay_buf_release(buf);
	CHECK_EQ(n_entries(in_trace("a_program__-42/cpu")), relay_n_possible_cpus());
	CHECK_EQ(n_entries(in_trace("")), 1);
}

TEST(names_that_are_taken_get_a_number)
{
	char name[RELAY_TRACE_NAME_BYTES], long_name[300] = "";
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "", NULL, name), 0);
	CHECK_TEXT(name, "_-42");
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, ".", NULL, name), 0);
	CHECK_TEXT(name, "_-42-2");
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "/", NULL, name), 0);
	CHECK_TEXT(name, "_-42-3");
	memset(long_name, 'x', sizeof(long_name) - 1);
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, long_name, NULL, name), 0);
	CHECK_EQ(strlen(name), 63 + 3);
	CHECK_EQ(n_entries(in_trace("")), 4);
}

TEST(users_and_everybody_share_one)
{
	char name[RELAY_TRACE_NAME_BYTES], expected[64];
	make_trace_dir();
	snprintf(expected, sizeof(expected), "user-%u", geteuid());
	CHECK_EQ(make(RELAY_TRACE_PERUSER, "a", NULL, name), 0);
	CHECK_TEXT(name, expected);
	CHECK(strstr(first_line(name), " process=- ") != NULL);
	CHECK_EQ(make(RELAY_TRACE_PERUSER, "b", NULL, name), 1);
	CHECK_TEXT(name, expected);
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 0);
	CHECK_TEXT(name, "shared");
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 1);
	struct rchan_buf *buf = relay_buf_open(in_trace("shared/cpu/mem0"));
	CHECK_EQ(stats_of(buf).pid, 0);
	relay_buf_release(buf);
	CHECK_EQ(n_entries(in_trace("")), 2);
}

TEST(what_cannot_be_made_leaves_nothing)
{
	char name[RELAY_TRACE_NAME_BYTES];
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), -ENOENT);
	make_trace_dir();
	trace.subbuf_size = 1ull << 31;
	trace.n_subbufs = 500;
	CHECK_EQ(relay_trace_make(scratch, &trace, "a", 1, 1, geteuid(), getegid(), NULL, name), -ENOSPC);
	trace.subbuf_size = 10;
	CHECK_EQ(relay_trace_make(scratch, &trace, "a", 1, 1, geteuid(), getegid(), NULL, name), -EINVAL);
	CHECK_EQ(make(3, "a", NULL, name), -EINVAL);
	trace = a_trace(RELAY_TRACE_PERPROCESS);
	strcpy(trace.name, "../t");
	CHECK_EQ(relay_trace_make(scratch, &trace, "a", 1, 1, geteuid(), getegid(), NULL, name), -EINVAL);
	CHECK_EQ(n_entries(in_trace("")), 0);
}

TEST(links_are_not_followed)
{
	char name[RELAY_TRACE_NAME_BYTES], elsewhere[4096];
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", scratch);
	CHECK_EQ(mkdir(elsewhere, 0755), 0);
	int fd = open(scratch, O_RDONLY | O_DIRECTORY);
	CHECK_EQ(symlinkat("elsewhere", fd, "t"), 0);
	close(fd);
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), -ENOENT);
	CHECK_EQ(n_entries(elsewhere), 0);
}

/* A process that has the directory, and, with `then`, does something else before it waits to be killed. */
static pid_t start_process(uint32_t buffers, void (*then)(void))
{
	int ready[2];
	char byte;
	CHECK_EQ(pipe2(ready, O_CLOEXEC), 0);
	pid_t child = fork();
	if (!child) {
		char name[RELAY_TRACE_NAME_BYTES];
		int lock;
		if (make(buffers, "a", &lock, name) < 0)
			_exit(1);
		if (then)
			then();
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return child;
}

static void end_process(pid_t child)
{
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(WTERMSIG(result_of(child)), SIGKILL);
}

TEST(a_directory_is_alive_until_its_process_is_killed)
{
	make_trace_dir();
	pid_t child = start_process(RELAY_TRACE_PERPROCESS, NULL);
	CHECK_EQ(relay_trace_is_alive(in_trace("a-42")), 1);
	end_process(child);
	CHECK_EQ(relay_trace_is_alive(in_trace("a-42")), 0);
	CHECK_EQ(relay_trace_is_alive(in_trace("b-42")), 0);
}

static void leave_a_child(void)
{
	if (!fork())
		for (;;)
			pause();
}

TEST(a_child_that_goes_on_does_not_keep_it_alive)
{
	make_trace_dir();
	/* The grandchild is in a group of its own, by which it is ended. */
	CHECK_EQ(setpgid(0, 0), 0);
	pid_t child = start_process(RELAY_TRACE_PERPROCESS, leave_a_child);
	CHECK_EQ(relay_trace_is_alive(in_trace("a-42")), 1);
	end_process(child);
	CHECK_EQ(relay_trace_is_alive(in_trace("a-42")), 0);
	signal(SIGTERM, SIG_IGN);
	CHECK_EQ(kill(0, SIGTERM), 0);
}

TEST(a_program_that_execs_another_has_left_it)
{
	char name[RELAY_TRACE_NAME_BYTES];
	int ready[2], lock;
	make_trace_dir();
	CHECK_EQ(pipe2(ready, O_CLOEXEC), 0);
	pid_t child = fork();
	if (!child) {
		if (make(RELAY_TRACE_PERPROCESS, "a", &lock, name))
			_exit(1);
		execlp("sleep", "sleep", "1000", NULL);
		_exit(1);
	}
	close(ready[1]);
	/* The end of the pipe: it has begun to be another. */
	CHECK_EQ(read(ready[0], name, 1), 0);
	CHECK_EQ(relay_trace_is_alive(in_trace("a-42")), 0);
	end_process(child);
}

TEST(one_of_several_keeps_it_alive)
{
	char path[64];
	make_trace_dir();
	pid_t first = start_process(RELAY_TRACE_PERUSER, NULL), second = start_process(RELAY_TRACE_PERUSER, NULL);
	snprintf(path, sizeof(path), "user-%u", geteuid());
	CHECK_EQ(n_entries(in_trace("")), 1);
	end_process(first);
	CHECK_EQ(relay_trace_is_alive(in_trace(path)), 1);
	end_process(second);
	CHECK_EQ(relay_trace_is_alive(in_trace(path)), 0);
}

static void make_old(const char *path, time_t age)
{
	struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
	CHECK_EQ(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

TEST(who_was_told_is_believed_for_a_while)
{
	char name[RELAY_TRACE_NAME_BYTES];
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), 0);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 1);
	make_old(in_trace("a-42/.events"), 60);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 0);
	/* It has declared an event, so it had it locked. */
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), 0);
	int fd = open(in_trace("a-42-2/.events"), O_WRONLY | O_APPEND);
	CHECK_EQ(write(fd, "event", 5), 5);
	close(fd);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 0);
	/* Of several, the next one may still be coming. */
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 0);
	make_old(in_trace("shared/.events"), 60);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 0);
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 1);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 1);
}

TEST(what_is_removed_is_closed_and_gone)
{
	char name[RELAY_TRACE_NAME_BYTES];
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), 0);
	struct rchan_buf *buf = relay_buf_open(in_trace("a-42/cpu/mem0"));
	CHECK(buf != NULL);
	CHECK(!(relay_buf_state(buf) & RELAY_IS_CLOSED));
	CHECK_EQ(relay_trace_remove(in_trace(name)), 0);
	CHECK(relay_buf_state(buf) & RELAY_IS_CLOSED);
	CHECK_EQ(n_entries(in_trace("")), 0);
	CHECK_EQ(relay_trace_remove(in_trace(name)), -ENOENT);
	relay_buf_release(buf);
}

TEST(only_what_is_dead_is_removed_as_such)
{
	char name[RELAY_TRACE_NAME_BYTES];
	make_trace_dir();
	pid_t child = start_process(RELAY_TRACE_PERPROCESS, NULL);
	CHECK_EQ(relay_trace_remove_dead(in_trace("a-42")), -EBUSY);
	end_process(child);
	CHECK_EQ(relay_trace_remove_dead(in_trace("a-42")), 0);
	CHECK_EQ(relay_trace_remove_dead(in_trace("a-42")), -ENOENT);
	/* Told, but not there yet. */
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 0);
	CHECK_EQ(relay_trace_remove_dead(in_trace(name)), -EBUSY);
	make_old(in_trace("shared/.events"), 60);
	CHECK_EQ(make(RELAY_TRACE_SHARED, "a", NULL, name), 1);
	CHECK_EQ(relay_trace_remove_dead(in_trace(name)), -EBUSY);
	make_old(in_trace("shared/.events"), 60);
	CHECK_EQ(relay_trace_remove_dead(in_trace(name)), 0);
	CHECK_EQ(n_entries(in_trace("")), 0);
}

/* Whoever has the directory has it until he lets go of it, though somebody tries to remove it all the time. */
TEST(who_takes_part_has_a_directory_that_is_there)
{
	char name[RELAY_TRACE_NAME_BYTES];
	struct stat by_lock, by_name;
	int lock;
	make_trace_dir();
	pid_t remover = fork();
	if (!remover) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			relay_trace_remove_dead(in_trace("shared"));
	}
	for (int i = 0; i < 300; i++) {
		CHECK(make(RELAY_TRACE_SHARED, "a", &lock, name) >= 0);
		CHECK_EQ(fstat(lock, &by_lock), 0);
		CHECK_EQ(stat(in_trace("shared/.events"), &by_name), 0);
		CHECK_EQ(by_lock.st_ino, by_name.st_ino);
		make_old(in_trace("shared/.events"), 60);
		close(lock);
	}
	end_process(remover);
}

TEST(as_root_files_are_their_users)
{
	struct relay_trace trace = a_trace(RELAY_TRACE_PERPROCESS);
	char name[RELAY_TRACE_NAME_BYTES];
	struct stat st;
	CHECK_EQ(chmod(scratch, 0711), 0);
	make_trace_dir();
	CHECK_EQ(relay_trace_make(scratch, &trace, "a", 42, 42, NOBODY, NOBODY, NULL, name), 0);
	CHECK_EQ(relay_trace_make(scratch, &trace, "b", 42, 42, NOBODY + 1, NOBODY, NULL, name), 0);
	CHECK_EQ(stat(in_trace("a-42"), &st), 0);
	CHECK_EQ(st.st_uid, 0);
	CHECK_EQ(st.st_mode & 0777, 0711);
	pid_t child = fork();
	if (!child) {
		CHECK_EQ(setgid(NOBODY) || setuid(NOBODY), 0);
		struct rchan_buf *buf = relay_buf_open(in_trace("a-42/cpu/mem0"));
		CHECK(buf != NULL);
		CHECK(open(in_trace("a-42/.events"), O_WRONLY | O_APPEND) >= 0);
		CHECK(relay_buf_open(in_trace("b-42/cpu/mem0")) == NULL);
		CHECK_EQ(errno, EACCES);
		CHECK_EQ(open(in_trace("b-42/.events"), O_WRONLY), -1);
		CHECK_EQ(unlink(in_trace("a-42/.events")), -1);
		CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "c", NULL, name), -EACCES);
		_exit(0);
	}
	CHECK_EQ(result_of(child), 0);
}
