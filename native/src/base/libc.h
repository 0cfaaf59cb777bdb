/* SPDX-License-Identifier: MIT */
/* What not every C library has: glibc has all of it, musl 1.2 has not. */
#ifndef RELAYFS_BASE_LIBC_H
#define RELAYFS_BASE_LIBC_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The model of thread-local variables. initial-exec reaches them without a call, and glibc keeps room for libraries that
 * come by dlopen(3); musl refuses to load such a library. */
#ifdef __GLIBC__
#define RELAY_TLS __attribute__((tls_model("initial-exec")))
#else
#define RELAY_TLS
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* renameat(2) that replaces nothing. -1 and errno: EEXIST if the new name is taken. */
static inline int relay_rename_new(int from_fd, const char *from, int to_fd, const char *to)
{
	enum { NOREPLACE = 1 }; /* RENAME_NOREPLACE of <linux/fs.h>, whose other names are <sys/mount.h>'s, too */
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, NOREPLACE);
}

#endif
