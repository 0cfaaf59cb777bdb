/* SPDX-License-Identifier: MIT */
#include "direntries.h"

#include <linux/fuse.h>
#include <sys/stat.h>

void relay_tap_name_files_only(void *entries, size_t bytes)
{
	while (bytes >= FUSE_NAME_OFFSET_DIRENTPLUS) {
		struct fuse_direntplus *entry = entries;
		size_t length = FUSE_DIRENTPLUS_SIZE(entry);
		if (length > bytes)
			return;
		/* In a directory's listing, nodeid 0 does not say that there is no such name, but that its attributes are not
		 * given, and the kernel does not count a lookup. */
		if (!S_ISDIR(entry->entry_out.attr.mode))
			entry->entry_out.nodeid = 0;
		entries = (char *)entries + length;
		bytes -= length;
	}
}
