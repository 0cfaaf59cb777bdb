/* SPDX-License-Identifier: MIT */
/* The directories in a trace, one for each process that writes. */
#define _GNU_SOURCE
#include "a_trace.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static const char *in_trace(const char *name)
{
	static char paths[4][4096];
	static unsigned n;
	char *path = paths[n++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/t/%s", scratch, name);
	return path;
}

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
	CHECK_FIELDS(stats, (subbuf_size, 4096), (n_subbufs, 4), (timestamp, RELAY_MONO), (start_reserve, 72),
	             (format, RELAY_PACKETS), (pid, 42));
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

/* close(2) of any descriptor of .events would release it. */
TEST(a_process_that_asks_whether_its_own_directory_is_alive_keeps_its_lock)
{
	char name[RELAY_TRACE_NAME_BYTES];
	int lock, status;
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", &lock, name), 0);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 1);
	pid_t other = fork();
	if (!other)
		_exit(relay_trace_is_alive(in_trace(name)));
	CHECK_EQ(waitpid(other, &status, 0), other);
	CHECK_EQ(WEXITSTATUS(status), 1);
	close(lock);
	CHECK_EQ(relay_trace_is_alive(in_trace(name)), 0);
}

TEST(what_is_removed_is_closed_and_gone)
{
	char name[RELAY_TRACE_NAME_BYTES];
	make_trace_dir();
	CHECK_EQ(make(RELAY_TRACE_PERPROCESS, "a", NULL, name), 0);
	AUTOPTR(rchan_buf) buf = relay_buf_open(in_trace("a-42/cpu/mem0"));
	CHECK(buf != NULL);
	CHECK(!(relay_buf_state(buf) & RELAY_IS_CLOSED));
	CHECK_EQ(relay_trace_remove(in_trace(name)), 0);
	CHECK(relay_buf_state(buf) & RELAY_IS_CLOSED);
	CHECK_EQ(n_entries(in_trace("")), 0);
	CHECK_EQ(relay_trace_remove(in_trace(name)), -ENOENT);
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
	CHECK_EQ(st.st_mode & 0777, RELAY_PERM_INNER);
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
