/* SPDX-License-Identifier: MIT */
/* Definitions for C libraries that lack them: glibc has all of them, musl 1.2 has none. */
#ifndef RELAYFS_BASE_LIBC_H
#define RELAYFS_BASE_LIBC_H

#include <relayfs/inline/version.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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
