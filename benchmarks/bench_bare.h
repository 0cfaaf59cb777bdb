/* SPDX-License-Identifier: MIT */
/*
 * A FUSE server of one file, /file, in the foreground until it is unmounted: the limit of any that is written with
 * libfuse. What the file does is the including program's.
 */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdbool.h>
#include <string.h>

enum { BARE_INODE = 2 };

/* Of the file: its size, and whether reads go past the page cache. */
struct bare_file {
	off_t bytes;
	bool is_direct;
};

static struct stat bare_attributes(fuse_req_t request, fuse_ino_t inode)
{
	const struct bare_file *file = (const struct bare_file *)fuse_req_userdata(request);
	struct stat found = {.st_ino = inode, .st_nlink = 1};

	found.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
	found.st_size = inode == FUSE_ROOT_ID ? 0 : file->bytes;
	return found;
}

static void bare_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.ino = BARE_INODE, .attr_timeout = 1, .entry_timeout = 1};

	(void)parent;
	if (strcmp(name, "file") != 0) {
		fuse_reply_err(request, ENOENT);
		return;
	}
	entry.attr = bare_attributes(request, BARE_INODE);
	fuse_reply_entry(request, &entry);
}

static void bare_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *opened)
{
	struct stat found = bare_attributes(request, inode);

	(void)opened;
	fuse_reply_attr(request, &found, 1);
}

static void bare_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *opened)
{
	(void)inode;
	opened->direct_io = ((const struct bare_file *)fuse_req_userdata(request))->is_direct;
	fuse_reply_open(request, opened);
}

/* Serve the file until it is unmounted. false: it cannot be mounted. `operations` has what is done to the open file. */
static inline bool bare_serve(const char *program, const char *mountpoint, struct bare_file *file,
                              struct fuse_lowlevel_ops operations)
{
	char *arguments[] = {(char *)program, NULL};
	struct fuse_args given = {1, arguments, 0};

	operations.lookup = bare_lookup;
	operations.getattr = bare_getattr;
	operations.open = bare_open;
	struct fuse_session *session = fuse_session_new(&given, &operations, sizeof(operations), file);
	if (!session || fuse_session_mount(session, mountpoint))
		return false;
	fuse_session_loop(session);
	fuse_session_unmount(session);
	return true;
}

#endif
