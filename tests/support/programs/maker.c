/* SPDX-License-Identifier: MIT */
/*
 * A program that makes a channel, as it is told on the standard input, one command a line:
 *
 *     files DIR BASE MODE GLOBAL   create_buf_file and remove_buf_file from now on; "=" is what is proposed
 *     refuse N                     ... create_buf_file returns NULL for buffer N, with errno ENOTTY
 *     stray N                      ... create_buf_file gives buffer N a name of its own
 *     watch                        buf_mapped and buf_unmapped
 *     start RESERVED               subbuf_start, which never refuses and keeps so many bytes of each sub-buffer
 *     options WORDS                further keys
 *     open BASE PARENT SIZE N      "-" is NULL
 *     late BASE PARENT
 *     write TEXT   flush   consumed CPU N   close   attach PATH   read MEM
 *     reserve N                    a record that is never committed
 *     threads N RECORDS            writers that write numbered lines; "joined" when they are done
 *     fork TEXT                    a child writes this
 *     closefrom N                  closefrom(3); files of its own then take N numbers
 *     own N                        are these files still open?
 *     childclose                   a child closes the channel
 *     inherit                      from now on a child obeys; its parent ends
 *
 * Each is answered with one line: 0 or an errno's name. What callbacks are told comes as lines that begin with "*".
 */
#define _GNU_SOURCE
#include "tell.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_THREADS = 16, MAX_WORD = 2048 };

static char dir[MAX_WORD], base[MAX_WORD], options[MAX_WORD];
static int mode, global, refused = -1, stray = -1;
static struct rchan *chan;
static char private_data[] = "private";

static int answer(int err)
{
	TELL("%s\n", err ? strerrorname_np(err < 0 ? -err : err) : "0");
	return err;
}

static const char *create_buf_file(const char *filename, const char *parent, int proposed, struct rchan_buf *buf,
                                   int *is_global)
{
	static char name[3 * MAX_WORD];
	unsigned cpu = relay_buf_cpu(buf);
	TELL("* create %s %s %o %u %s\n", filename ? filename : "-", parent ? parent : "-", (unsigned)proposed, cpu,
	     (char *)relay_private(relay_buf_chan(buf)));
	*is_global = global;
	if ((int)cpu == refused) {
		errno = ENOTTY;
		return NULL;
	}
	if (!filename)
		return NULL;
	if (strcmp(base, "=") == 0)
		snprintf(name, sizeof(name), "%s", filename);
	else if (global)
		snprintf(name, sizeof(name), "%s", base);
	else
		snprintf(name, sizeof(name), "%s%u", base, (int)cpu == stray ? cpu + 7 : cpu);
	return relay_create_file(name, strcmp(dir, "=") == 0 ? parent : dir, mode, buf);
}

static int remove_buf_file(const char *file)
{
	TELL("* remove %s\n", file);
	return relay_remove_file(file);
}

static void buf_mapped(struct rchan_buf *buf, const char *file)
{
	TELL("* mapped %s %u\n", file, relay_buf_cpu(buf));
}

static void buf_unmapped(struct rchan_buf *buf, const char *file)
{
	TELL("* unmapped %s %u\n", file, relay_buf_cpu(buf));
}

static size_t reserved;

static int subbuf_start(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	TELL("* start %u %s %u %s\n", relay_buf_cpu(buf), prev_subbuf ? "next" : "first", prev_padding,
	     (char *)relay_private(relay_buf_chan(buf)));
	memset(subbuf, 'H', reserved);
	subbuf_start_reserve(buf, reserved);
	return 1;
}

static struct rchan_callbacks callbacks;

static const char *or_null(const char *word)
{
	return strcmp(word, "-") == 0 ? NULL : word;
}

struct writer {
	pthread_t thread;
	int number, n_records;
};

static void *write_records(void *arg)
{
	struct writer *writer = arg;
	for (int i = 0; i < writer->n_records; i++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "%d %08d\n", writer->number, i);
		if (relay_write(chan, line, (size_t)length))
			TELL("* lost %s", line);
		if (i % 1000 == 999)
			usleep(1000); /* so that what else happens falls between */
	}
	return NULL;
}

static struct writer writers[MAX_THREADS];
static int n_writers;

static int start_threads(int n, int n_records)
{
	for (n_writers = 0; n_writers < n; n_writers++) {
		writers[n_writers].number = n_writers;
		writers[n_writers].n_records = n_records;
		if (pthread_create(&writers[n_writers].thread, NULL, write_records, &writers[n_writers]))
			return EAGAIN;
	}
	return 0;
}

static int join_threads(void)
{
	while (n_writers)
		pthread_join(writers[--n_writers].thread, NULL);
	return 0;
}

static int write_in_child(const char *text)
{
	int status;
	pid_t pid = fork();
	if (pid == 0)
		_exit(-relay_write(chan, text, strlen(text)));
	return waitpid(pid, &status, 0) < 0 ? errno : WEXITSTATUS(status);
}

static int close_in_child(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		relay_close(chan);
		_exit(0);
	}
	return waitpid(pid, &status, 0) < 0 ? errno : WEXITSTATUS(status);
}

enum { FIRST_NUMBER = 3 };

static int close_all_and_open(int n)
{
	if (close_range(FIRST_NUMBER, ~0u, 0))
		return errno;
	for (int fd = FIRST_NUMBER; fd < FIRST_NUMBER + n; fd++)
		if (open("/dev/null", O_RDWR) != fd)
			return errno ? errno : EINVAL;
	return 0;
}

/* EBADF: one is closed; ENOTTY: one is something else. */
static int has_own(int n)
{
	struct stat null, st;
	if (stat("/dev/null", &null))
		return errno;
	for (int fd = FIRST_NUMBER; fd < FIRST_NUMBER + n; fd++)
		if (fstat(fd, &st))
			return errno;
		else if (st.st_rdev != null.st_rdev)
			return ENOTTY;
	return 0;
}

static int go_on_in_child(void)
{
	pid_t pid = fork();
	if (pid > 0)
		_exit(0);
	return pid < 0 ? errno : 0;
}

static int open_once(const char *file)
{
	int fd = open(file, O_RDWR | O_CLOEXEC);
	return fd < 0 || close(fd) ? errno : 0;
}

static int set_files(void)
{
	callbacks.create_buf_file = create_buf_file;
	callbacks.remove_buf_file = remove_buf_file;
	return 0;
}

static int set_watch(void)
{
	callbacks.buf_mapped = buf_mapped;
	callbacks.buf_unmapped = buf_unmapped;
	return 0;
}

static int take(struct rchan *made)
{
	if (made)
		chan = made;
	return made ? 0 : errno;
}

static int obey(const char *line)
{
	char a[MAX_WORD] = "", b[MAX_WORD] = "";
	unsigned long long size, n;
	unsigned cpu;
	if (sscanf(line, "files %2047s %2047s %o %d", dir, base, (unsigned *)&mode, &global) == 4)
		return set_files();
	if (sscanf(line, "refuse %d", &refused) == 1 || sscanf(line, "stray %d", &stray) == 1)
		return 0;
	if (strcmp(line, "watch") == 0)
		return set_watch();
	if (sscanf(line, "start %zu", &reserved) == 1) {
		callbacks.subbuf_start = subbuf_start;
		return 0;
	}
	if (sscanf(line, "options %2047[^\n]", options) == 1) {
		callbacks.options = options;
		return 0;
	}
	if (sscanf(line, "open %2047s %2047s %llu %llu", a, b, &size, &n) == 4)
		return take(relay_open(or_null(a), or_null(b), size, n, &callbacks, private_data));
	if (sscanf(line, "attach %2047s", a) == 1)
		return take(relay_attach_callbacks(a, &callbacks, private_data));
	if (sscanf(line, "late %2047s %2047s", a, b) == 2)
		return relay_late_setup_files(chan, or_null(a), or_null(b));
	if (sscanf(line, "write %2047[^\n]", a) == 1)
		return relay_write(chan, strcat(a, "\n"), strlen(a) + 1);
	if (sscanf(line, "fork %2047[^\n]", a) == 1)
		return write_in_child(strcat(a, "\n"));
	if (sscanf(line, "threads %llu %llu", &size, &n) == 2)
		return start_threads((int)size, (int)n);
	if (strcmp(line, "join") == 0)
		return join_threads();
	if (sscanf(line, "consumed %u %llu", &cpu, &n) == 2)
		return relay_subbufs_consumed(chan, cpu, n);
	if (sscanf(line, "read %2047s", a) == 1)
		return open_once(a);
	if (sscanf(line, "reserve %llu", &n) == 1)
		return relay_reserve(chan, n) ? 0 : errno;
	if (sscanf(line, "closefrom %llu", &n) == 1)
		return close_all_and_open((int)n);
	if (sscanf(line, "own %llu", &n) == 1)
		return has_own((int)n);
	if (strcmp(line, "childclose") == 0)
		return close_in_child();
	if (strcmp(line, "inherit") == 0)
		return go_on_in_child();
	if (strcmp(line, "flush") == 0)
		return relay_flush(chan);
	if (strcmp(line, "close") == 0) {
		relay_close(chan);
		chan = NULL;
		return 0;
	}
	return ENOSYS;
}

int main(void)
{
	char line[4 * MAX_WORD];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		answer(obey(line));
	}
	return 0;
}
