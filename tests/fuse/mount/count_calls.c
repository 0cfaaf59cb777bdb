/* SPDX-License-Identifier: MIT */
/* Preloaded into a server: counts the calls of its main thread that open, look for or map files, in the file
 * $COUNT_CALLS: opened, looked for, mapped. It also looks on which CPU the program runs that asks (native/fuse/beside.c);
 * that is not counted, because it depends on how long the requests take. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPENED, LOOKED_FOR, MAPPED, KINDS };

static uint64_t nowhere[KINDS], *counts = nowhere;

static void count(int kind)
{
	if (syscall(SYS_gettid) == getpid())
		__atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void begin(void)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("COUNT_CALLS"), O_RDWR, 0);
	void *at = (void *)syscall(SYS_mmap, NULL, sizeof(nowhere), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		counts = at;
	syscall(SYS_close, fd);
}

static int tells_cpus(const char *path)
{
	return (strncmp(path, "/proc/", 6) == 0 && strstr(path, "/task/")) ||
	       strcmp(path, "/sys/devices/system/cpu/online") == 0;
}

static int open_it(int directory, const char *path, int flags, va_list rest)
{
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
	if (!tells_cpus(path))
		count(OPENED);
	return (int)syscall(SYS_openat, directory, path, flags, mode);
}

#define OPEN(name)                                             \
	int name(const char *path, int flags, ...)             \
	{                                                      \
		va_list rest;                                  \
		va_start(rest, flags);                         \
		int fd = open_it(AT_FDCWD, path, flags, rest); \
		va_end(rest);                                  \
		return fd;                                     \
	}
#define OPENAT(name)                                              \
	int name(int directory, const char *path, int flags, ...) \
	{                                                         \
		va_list rest;                                     \
		va_start(rest, flags);                            \
		int fd = open_it(directory, path, flags, rest);   \
		va_end(rest);                                     \
		return fd;                                        \
	}
/* On the 64-bit machines that relayfs runs on, the kernel's struct stat is the C library's. */
#define STAT(name, type, directory, flags)                                           \
	int name(const char *path, struct type *status)                              \
	{                                                                            \
		count(LOOKED_FOR);                                                   \
		return (int)syscall(SYS_newfstatat, directory, path, status, flags); \
	}
#define FSTAT(name, type)                                                           \
	int name(int fd, struct type *status)                                       \
	{                                                                           \
		count(LOOKED_FOR);                                                  \
		return (int)syscall(SYS_newfstatat, fd, "", status, AT_EMPTY_PATH); \
	}
#define FSTATAT(name, type)                                                          \
	int name(int directory, const char *path, struct type *status, int flags)    \
	{                                                                            \
		count(LOOKED_FOR);                                                   \
		return (int)syscall(SYS_newfstatat, directory, path, status, flags); \
	}
#define MMAP(name)                                                                     \
	void *name(void *at, size_t length, int prot, int flags, int fd, off_t offset) \
	{                                                                              \
		if (fd >= 0)                                                           \
			count(MAPPED);                                                 \
		return (void *)syscall(SYS_mmap, at, length, prot, flags, fd, offset); \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
STAT(stat, stat, AT_FDCWD, 0)
STAT(stat64, stat64, AT_FDCWD, 0)
STAT(lstat, stat, AT_FDCWD, AT_SYMLINK_NOFOLLOW)
STAT(lstat64, stat64, AT_FDCWD, AT_SYMLINK_NOFOLLOW)
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)
MMAP(mmap)
MMAP(mmap64)

DIR *opendir(const char *path)
{
	DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
	count(OPENED);
	return next(path);
}
