/* SPDX-License-Identifier: MIT */
#include "replies.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <sys/stat.h>

/* Let the entries of a listing, `bytes` of struct fuse_direntplus, give the attributes of directories only. Of other names
 * the kernel would drop them at once, since their timeout is 0, so the server does not look for them. */
static void name_files_only(void *entries, size_t bytes)
{
	while (bytes >= FUSE_NAME_OFFSET_DIRENTPLUS) {
		struct fuse_direntplus *entry = entries;
		size_t length = FUSE_DIRENTPLUS_SIZE(entry);
		if (length > bytes)
			return;
		/* In a listing, nodeid 0 does not say that there is no such name, but that its attributes are not
		 * given, and the kernel does not count a lookup. */
		if (!S_ISDIR(entry->entry_out.attr.mode))
			entry->entry_out.nodeid = 0;
		entries = (char *)entries + length;
		bytes -= length;
	}
}

void relay_tap_change_reply(uint32_t opcode, const struct iovec *iov, int count)
{
	struct fuse_out_header *out = iov[0].iov_base;
	/* pyfuse3 has no handler for FALLOCATE, so libfuse replies ENOSYS, which the kernel turns into EOPNOTSUPP. Then
	 * posix_fallocate(3) of the GNU C library writes a zero byte to each block, and each of these writes would be a
	 * record. */
	if (opcode == FUSE_FALLOCATE && out->error == -ENOSYS)
		out->error = -EPERM;
	if (opcode == FUSE_READDIRPLUS && !out->error && count == 2)
		name_files_only(iov[1].iov_base, iov[1].iov_len);
}
