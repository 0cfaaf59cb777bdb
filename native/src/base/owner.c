/* SPDX-License-Identifier: MIT */
/*
 * Owner words: thread id, PID namespace and start time in 64 bits, so that a compare-and-swap can change an owner. The
 * start time distinguishes a thread from a later one with the same id. All functions that make or check the word of a
 * thread are async-signal-safe.
 */
#define _GNU_SOURCE
#include "base/owner.h"

#include "base/libc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/inline/claims.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIELD_MASK(bits) ((1ull << (bits)) - 1)

/* The calling thread's owner word, if relay_thread_claims.fork_epoch is still `epoch`. */
static __thread struct {
	uint64_t word;
	uint32_t epoch;
} self RELAY_TLS;

static void count_fork(void)
{
	relay_thread_claims.fork_epoch++;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

/* Read state (field 3) and start time (field 22) of /proc/TID/stat, "tid (any name) S ppid ... starttime", without
 * stdio, which is not async-signal-safe. Returns 0 or -errno; -ENOENT: there is no such thread, or no /proc. */
static int read_stat(const char *path, char *state, uint64_t *start)
{
	char text[1024];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	int err = got < 0 ? -errno : 0;
	close(fd);
	if (err)
		return err == -ESRCH ? -ENOENT : err;
	text[got] = 0;
	char *at = strrchr(text, ')');
	if (!at || !at[1])
		return -EBADMSG;
	*state = at[2];
	for (int field = 2; *at && field < 22; at++)
		field += *at == ' ';
	for (*start = 0; *at >= '0' && *at <= '9'; at++)
		*start = *start * 10 + (uint64_t)(*at - '0');
	return 0;
}

/* The inode number of this process's PID namespace, folded to RELAY_OWNER_NS_BITS; 0 without /proc. */
static uint64_t namespace_bits(void)
{
	struct stat st;
	if (stat("/proc/self/ns/pid", &st))
		return 0;
	uint64_t inode = (uint64_t)st.st_ino;
	return (inode ^ inode >> RELAY_OWNER_NS_BITS) & FIELD_MASK(RELAY_OWNER_NS_BITS);
}

static uint64_t make_word(uint64_t tid, uint64_t namespace, uint64_t start)
{
	return tid | namespace << RELAY_OWNER_TID_BITS |
	       (start & FIELD_MASK(RELAY_OWNER_START_BITS)) << (RELAY_OWNER_TID_BITS + RELAY_OWNER_NS_BITS);
}

uint64_t relay_owner_self(void)
{
	uint32_t epoch = relay_thread_claims.fork_epoch;
	if (self.epoch == epoch)
		return self.word;
	int saved = errno;
	char state;
	uint64_t start = 0;
	read_stat("/proc/thread-self/stat", &state, &start);
	self.word = make_word((uint64_t)syscall(SYS_gettid), namespace_bits(), start);
	self.epoch = epoch;
	errno = saved;
	return self.word;
}

uint64_t relay_owner_process(void)
{
	int saved = errno;
	char state;
	uint64_t start = 0;
	read_stat("/proc/self/stat", &state, &start);
	errno = saved;
	return make_word((uint64_t)getpid(), namespace_bits(), start);
}

/* Store "/proc/TID/stat" in `path`, without snprintf(), which is not async-signal-safe. */
static void stat_path(char path[32], uint64_t tid)
{
	char digits[20];
	int n = 0;
	do
		digits[n++] = (char)('0' + tid % 10);
	while (tid /= 10);
	memcpy(path, "/proc/", 6);
	for (int i = 0; i < n; i++)
		path[6 + i] = digits[n - 1 - i];
	memcpy(path + 6 + n, "/stat", 6);
}

bool relay_owner_alive(uint64_t owner)
{
	uint64_t tid = owner & FIELD_MASK(RELAY_OWNER_TID_BITS);
	if (owner == relay_owner_self())
		return true;
	if (tid == 0)
		return false;
	int saved = errno;
	uint64_t namespace = namespace_bits();
	if ((owner >> RELAY_OWNER_TID_BITS & FIELD_MASK(RELAY_OWNER_NS_BITS)) != namespace)
		return true;
	char path[32], state = 0;
	uint64_t start = 0;
	stat_path(path, tid);
	int err = read_stat(path, &state, &start);
	bool alive;
	if (!err)
		alive = state != 'Z' && state != 'X' && make_word(tid, namespace, start) == owner;
	else if (access("/proc/thread-self", F_OK) == 0)
		alive = err != -ENOENT;
	else /* /proc is not mounted */
		alive = kill((pid_t)tid, 0) == 0 || errno != ESRCH;
	errno = saved;
	return alive;
}
