/* SPDX-License-Identifier: MIT */
/*
 *     STORE/.early/NAME/PROCESS-PID/     the directory of a process, with the same files as STORE/NAME/PROCESS-PID/
 *
 * When the trace NAME is made, the server of STORE moves the directory into it (relayfs_fuse/fs/early.py), also if the
 * process has ended. If the process finds a mount with another store of this user, it copies the directory into that
 * store.
 */
#define _GNU_SOURCE
#include "trace/early.h"

#include "base/directory.h"
#include "store/find.h"
#include "store/options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SUBBUF_SIZE = 64 * 1024,
	N_SUBBUFS = 8,
	PROCESSES = 16, /* `memory` is enough for so many; for another one, directories of dead processes are removed */
	EVENTS_BYTES = 16 << 20 /* longest .events that is copied */
};

static const char early_name[] = "/.early";

static bool read_boot(char boot[RELAY_TRACE_BOOT_BYTES])
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, boot, RELAY_TRACE_BOOT_BYTES - 1);
	if (fd >= 0)
		close(fd);
	boot[got > 0 ? got : 0] = 0;
	boot[strcspn(boot, "\n")] = 0;
	return *boot;
}

/* Parse ",key=value,key=value", options of the control file's `create`. `words` is changed. */
static int parse_options(char *words, struct relay_trace *trace)
{
	struct relay_spec spec = {.size = sizeof(spec), .subbuf_size = SUBBUF_SIZE, .n_subbufs = N_SUBBUFS};
	for (char *at = words; *at; at++)
		*at = *at == ',' ? ' ' : *at;
	int err = relay_options_parse(words, &spec);
	trace->subbuf_size = spec.subbuf_size;
	trace->n_subbufs = spec.n_subbufs;
	trace->mode = spec.mode;
	return err;
}

bool relay_early_parse(const char *value, struct relay_trace *trace)
{
	size_t length = strcspn(value, ",");
	*trace = (struct relay_trace){.id = RELAY_TRACE_NOT_YET, .is_started = 1, .clock = RELAY_MONO};
	if (length == 0 || length >= sizeof(trace->name))
		return false;
	memcpy(trace->name, value, length);
	char *words = strdup(value + length);
	int err = words ? parse_options(words, trace) : -ENOMEM;
	free(words);
	trace->memory =
	    PROCESSES * relay_buf_file_bytes(trace->subbuf_size, trace->n_subbufs) * relay_n_possible_cpus();
	relay_clocks_read(trace->clock, &trace->made);
	return !err && read_boot(trace->boot);
}

static int make_dir(const char *path)
{
	if (mkdir(path, RELAY_PERM_INNER))
		return errno == EEXIST ? 0 : -errno;
	return chmod(path, RELAY_PERM_INNER) ? -errno : 0; /* mkdir(2) applies the umask */
}

static int make_home(const char *store, const char *name, char **early)
{
	char dir[PATH_MAX];
	if (snprintf(dir, sizeof(dir), "%s%s/%s", store, early_name, name) >= (int)sizeof(dir))
		return -ENAMETOOLONG;
	*early = strndup(dir, strlen(store) + strlen(early_name));
	int err = *early ? relay_store_make(store) : -ENOMEM;
	if (!err)
		err = make_dir(*early);
	if (!err)
		err = make_dir(dir);
	return err;
}

int relay_early_home(const struct relay_trace_home *home, const struct relay_trace *trace,
                     struct relay_trace_home *early)
{
	char default_store[PATH_MAX];
	*early = (struct relay_trace_home){0};
	int err = home->store ? 0 : relay_default_store(default_store);
	if (!err)
		err = make_home(home->store ? home->store : default_store, trace->name, &early->store);
	if (err)
		relay_trace_home_free(early);
	return err;
}

/* --- to another store --- */

/* Copy the parts of a sparse file that have memory. */
static int copy_file(int from, int to)
{
	struct stat st;
	if (fstat(from, &st) || ftruncate(to, st.st_size))
		return -errno;
	int err = 0;
	for (off_t at = 0, end; !err && (at = lseek(from, at, SEEK_DATA)) >= 0; at = end) {
		end = lseek(from, at, SEEK_HOLE);
		err = end < 0 ? -errno : relay_file_copy(to, from, at, end);
	}
	return err;
}

/* Copy buffer `cpu` of the directory `from` to an unnamed file in the file system of the directory `early`. Returns its
 * descriptor or -errno. */
static int copy_buffer(const char *from, uint32_t cpu, const char *early)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/cpu/mem%u", from, cpu) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	int source = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (source < 0)
		return -errno;
	int copy = open(early, O_RDWR | O_TMPFILE | O_CLOEXEC, RELAY_PERM_NEW);
	int err = copy < 0 ? -errno : copy_file(source, copy);
	close(source);
	if (err && copy >= 0)
		close(copy);
	return err ? err : copy;
}

/* Return the text after the first line of .events, to be freed. NULL: it cannot be read or is too long, or no
 * memory. */
static char *read_declarations(const char *from)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/.events", from) >= (int)sizeof(path))
		return NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;
	char *text = NULL;
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size <= EVENTS_BYTES)
		text = calloc(1, (size_t)st.st_size + 1);
	if (text && read(fd, text, (size_t)st.st_size) != st.st_size) {
		free(text);
		text = NULL;
	}
	if (fd >= 0)
		close(fd);
	char *end = text ? strchr(text, '\n') : NULL;
	if (end)
		memmove(text, end + 1, strlen(end + 1) + 1);
	return text;
}

static int adopt(const char *from, const struct relay_trace_home *early, const struct relay_trace *trace,
                 const int *fds, uint32_t n)
{
	char name[RELAY_TRACE_NAME_BYTES];
	char *declarations = read_declarations(from);
	int lock, err = declarations ? relay_trace_adopt(early->store, trace, program_invocation_short_name, fds, n,
	                                                 declarations, &lock, name)
	                             : -EIO;
	/* No process writes to the copy, so it needs no lock. */
	if (!err)
		close(lock);
	free(declarations);
	return err;
}

int relay_early_carry(const char *from, const struct relay_trace_home *early, const struct relay_trace *trace)
{
	uint32_t n_cpus = relay_n_possible_cpus(), n = 0;
	int *fds = calloc(n_cpus, sizeof(*fds)), err = fds ? 0 : -ENOMEM;
	while (!err && n < n_cpus) {
		fds[n] = copy_buffer(from, n, early->store);
		err = fds[n] < 0 ? fds[n] : 0;
		n += !err;
	}
	if (!err)
		err = adopt(from, early, trace, fds, n);
	while (n)
		close(fds[--n]);
	free(fds);
	/* Otherwise a later trace of that name in the store of `from` would get the same events again. */
	return err ? err : relay_trace_remove(from);
}
