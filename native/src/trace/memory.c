/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/memory.h"

#include "base/directory.h"
#include "base/mapping.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* 1/LEFT of the machine's memory is left for other programs, because the kernel kills programs when memory runs out. */
enum { LEFT = 16 };

static const char given_up_name[] = ".given-up";

/* The directory of a dead process. */
struct dead {
	char name[RELAY_TRACE_NAME_BYTES];
	int64_t since;   /* when the directory was last changed, CLOCK_REALTIME, ns */
	uint64_t unread; /* records */
};

/* The size of all buffers of a process. */
static uint64_t bytes_of_process(const struct relay_trace *trace)
{
	return relay_buf_file_bytes(trace->subbuf_size, trace->n_subbufs) * relay_n_possible_cpus();
}

/* The memory of new buffers after the first write. With buffers=perprocess, only one CPU's data has memory then. */
static uint64_t bytes_at_first(const struct relay_trace *trace)
{
	uint64_t each = relay_buf_file_bytes(trace->subbuf_size, trace->n_subbufs);
	uint64_t data = trace->subbuf_size * trace->n_subbufs;
	return trace->buffers == RELAY_TRACE_PERPROCESS ? (each - data) * relay_n_possible_cpus() + data
	                                                : bytes_of_process(trace);
}

/* A user who can map a file can allocate all its memory by storing to it. So a file whose owner is not the store's
 * owner counts with its length, if that is more than is allocated. */
static uint64_t bytes_of_file(const struct stat *st, uid_t owner)
{
	uint64_t taken = (uint64_t)st->st_blocks * 512, length = (uint64_t)st->st_size;
	return st->st_uid != owner && length > taken ? length : taken;
}

/* The memory of the buffers in a process's directory. */
static uint64_t bytes_of(int dir_fd, const char *name, uid_t owner)
{
	char path[NAME_MAX + 32];
	uint64_t sum = 0;
	struct stat st;
	for (unsigned cpu = 0;; cpu++) {
		snprintf(path, sizeof(path), "%s/cpu/mem%u", name, cpu);
		if (fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW))
			return sum;
		sum += bytes_of_file(&st, owner);
	}
}

static DIR *open_listing(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *listing = fd < 0 ? NULL : fdopendir(fd);
	if (!listing && fd >= 0)
		close(fd);
	return listing;
}

/* The memory of all buffers in a trace. making: the bytes to count for each directory that is being made. */
static uint64_t used(int dir_fd, uint64_t making)
{
	uint64_t sum = 0;
	struct stat trace;
	uid_t owner = fstat(dir_fd, &trace) == 0 ? trace.st_uid : geteuid();
	DIR *listing = open_listing(dir_fd);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		bool is_new = strncmp(entry->d_name, RELAY_HIDDEN_NEW, sizeof(RELAY_HIDDEN_NEW) - 1) == 0;
		if (entry->d_type == DT_DIR && (is_new || entry->d_name[0] != '.'))
			sum += is_new ? making : bytes_of(dir_fd, entry->d_name, owner);
	}
	if (listing)
		closedir(listing);
	return sum;
}

static uint64_t available(void)
{
	char text[512];
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = 0;
	const char *at = strstr(text, "MemAvailable:");
	return at ? strtoull(at + strlen("MemAvailable:"), NULL, 10) * 1024 : UINT64_MAX;
}

/* True if the machine would have less than 1/LEFT of its memory left after an allocation of `need` bytes. */
static bool is_scarce(uint64_t need)
{
	struct sysinfo info;
	uint64_t total = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0, left = available();
	return left < need || left - need < total / LEFT;
}

/* --- directories of dead processes --- */

/* The number of records in a directory that were not consumed. Damaged buffers, which cannot be read, have none. */
static uint64_t unread_in(const char *dir)
{
	char path[PATH_MAX + 32];
	uint64_t sum = 0;
	for (unsigned cpu = 0; cpu < relay_n_possible_cpus(); cpu++) {
		struct relay_stats stats;
		snprintf(path, sizeof(path), "%s/cpu/mem%u", dir, cpu);
		struct rchan_buf *buf = relay_buf_open(path);
		if (buf && relay_buf_stats(buf, &stats) == 0) {
			uint64_t passed = stats.read_records + stats.discarded_records +
			                  stats.lost_overwritten_records + stats.lost_torn_records;
			sum += stats.records > passed ? stats.records - passed : 0;
		}
		relay_buf_release(buf);
	}
	return sum;
}

/* True if `one` is to be removed before `other`. */
static bool goes_before(const struct dead *one, const struct dead *other)
{
	if (!one->unread != !other->unread)
		return !one->unread;
	return one->since < other->since;
}

/* Find the directory to be removed next; its name is "" if there is no dead process. */
static struct dead find_dead(int dir_fd, const char *dir)
{
	struct dead found = {.name = ""}, here;
	char path[PATH_MAX];
	struct stat st;
	DIR *listing = open_listing(dir_fd);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		size_t length = strlen(entry->d_name);
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || length >= sizeof(here.name) ||
		    snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) >= (int)sizeof(path) ||
		    relay_trace_is_alive(path) || stat(path, &st))
			continue;
		memcpy(here.name, entry->d_name, length + 1);
		here.since = st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
		here.unread = unread_in(path);
		if (!*found.name || goes_before(&here, &found))
			found = here;
		if (!here.unread)
			break;
	}
	if (listing)
		closedir(listing);
	return found;
}

static void log_given_up(int dir_fd, const struct dead *dead)
{
	char line[RELAY_TRACE_NAME_BYTES + 32];
	int length = snprintf(line, sizeof(line), "%s %" PRIu64 "\n", dead->name, dead->unread);
	int fd = openat(dir_fd, given_up_name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_OWN);
	/* A failure is ignored: there is no memory for the line either. */
	if (fd >= 0 && write(fd, line, (size_t)length) != length)
		errno = 0;
	if (fd >= 0)
		close(fd);
}

/* Remove the directory of a dead process. true: it was removed, here or by another process. */
static bool remove_one(int dir_fd, const char *dir)
{
	char path[PATH_MAX];
	struct dead dead = find_dead(dir_fd, dir);
	if (!*dead.name || snprintf(path, sizeof(path), "%s/%s", dir, dead.name) >= (int)sizeof(path))
		return false;
	int err = relay_trace_remove_dead(path);
	if (!err && dead.unread)
		log_given_up(dir_fd, &dead);
	return !err || err == -ENOENT;
}

int relay_trace_make_room(int dir_fd, const char *dir, const struct relay_trace *trace)
{
	while (trace->memory && used(dir_fd, bytes_of_process(trace)) > trace->memory)
		if (!remove_one(dir_fd, dir))
			return -ENOSPC;
	/* If other programs take the memory, no directories of this trace are removed for that. */
	return is_scarce(bytes_at_first(trace)) ? -ENOSPC : 0;
}

/* --- one CPU's data --- */

/* Make sure that `more` bytes do not exceed the limit. Directories that are being made are not counted here, because
 * relay_trace_make_room() has found room for them. */
static int find_room(int dir_fd, const char *dir, uint64_t memory, uint64_t more)
{
	while (memory && used(dir_fd, 0) + more > memory)
		if (!remove_one(dir_fd, dir))
			return -ENOSPC;
	return 0;
}

/* Two processes may find room for themselves at the same moment. So the sum is checked again after the allocation,
 * which is undone if the limit is exceeded. */
static int allocate_own(int dir_fd, const char *dir, uint64_t memory, int mem_fd, uint64_t bytes)
{
	int err = find_room(dir_fd, dir, memory, bytes);
	if (!err)
		err = relay_mapping_fill(mem_fd, bytes);
	if (!err && memory && used(dir_fd, 0) > memory) {
		relay_mapping_punch(mem_fd, bytes);
		err = -ENOSPC;
	}
	return err;
}

int relay_trace_allocate(const char *dir, uint64_t memory, int mem_fd, uint64_t bytes)
{
	struct stat mem, trace;
	if (fstat(mem_fd, &mem))
		return -errno;
	/* The memory is allocated already if a process was killed after it had allocated it. */
	if ((uint64_t)mem.st_blocks * 512 >= (uint64_t)mem.st_size)
		return 0;
	if (is_scarce(bytes))
		return -ENOSPC;
	int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	/* The limit is not checked if the directory cannot be opened, because the process has changed its user or root
	 * directory since it has joined the trace; or if the buffer's owner is not the trace's, because the whole
	 * buffer counts already. */
	bool is_granted = dir_fd < 0 || fstat(dir_fd, &trace) || trace.st_uid != mem.st_uid;
	int err = is_granted ? relay_mapping_fill(mem_fd, bytes) : allocate_own(dir_fd, dir, memory, mem_fd, bytes);
	if (dir_fd >= 0)
		close(dir_fd);
	return err;
}
