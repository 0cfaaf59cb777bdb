/* SPDX-License-Identifier: MIT */
/* Definitions for C libraries that lack them: glibc has all of them, musl 1.2 has none. */
#ifndef RELAYFS_BASE_LIBC_H
#define RELAYFS_BASE_LIBC_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The model of thread-local variables. With initial-exec, code accesses them without a function call. glibc reserves
 * space for such variables of libraries that dlopen(3) loads; musl refuses to load such libraries. */
#ifdef __GLIBC__
#define RELAY_TLS __attribute__((tls_model("initial-exec")))
#else
#define RELAY_TLS
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* As renameat(2), but replaces nothing: if the new name is taken, it returns -1 and errno is EEXIST. */
static inline int relay_rename_new(int from_fd, const char *from, int to_fd, const char *to)
{
	enum { NOREPLACE = 1 }; /* RENAME_NOREPLACE of <linux/fs.h>, which conflicts with <sys/mount.h> */
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, NOREPLACE);
}

#endif
