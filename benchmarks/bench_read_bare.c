/* SPDX-License-Identifier: MIT */
/*
 * A FUSE server that does nothing but return parts of its memory: the limit of any that is written with libfuse.
 *
 *     bench_read_bare MOUNTPOINT      serves the file MOUNTPOINT/file, in the foreground, until it is unmounted
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_INODE = 2, FILE_BYTES = 256 << 20 };

static char *memory;

static struct stat attributes(fuse_ino_t inode)
{
	struct stat found = {.st_ino = inode, .st_nlink = 1};

	found.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
	found.st_size = inode == FUSE_ROOT_ID ? 0 : FILE_BYTES;
	return found;
}

static void bare_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.ino = FILE_INODE, .attr_timeout = 1, .entry_timeout = 1};

	(void)parent;
	if (strcmp(name, "file") != 0) {
		fuse_reply_err(request, ENOENT);
		return;
	}
	entry.attr = attributes(FILE_INODE);
	fuse_reply_entry(request, &entry);
}

static void bare_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
{
	struct stat found = attributes(inode);

	(void)file;
	fuse_reply_attr(request, &found, 1);
}

static void bare_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
{
	(void)inode;
	file->direct_io = 1;
	fuse_reply_open(request, file);
}

static void bare_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info *file)
{
	size_t left = offset < FILE_BYTES ? (size_t)(FILE_BYTES - offset) : 0;

	(void)inode;
	(void)file;
	fuse_reply_buf(request, memory + offset, size < left ? size : left);
}

int main(int argc, char **argv)
{
	static const struct fuse_lowlevel_ops operations = {
	    .lookup = bare_lookup, .getattr = bare_getattr, .open = bare_open, .read = bare_read};
	char *arguments[] = {argv[0], NULL};
	struct fuse_args given = {1, arguments, 0};
	struct fuse_session *session = fuse_session_new(&given, &operations, sizeof(operations), NULL);

	memory = malloc(FILE_BYTES);
	if (argc != 2 || !session || !memory || fuse_session_mount(session, argv[1]))
		return 2;
	memset(memory, 'r', FILE_BYTES);
	fuse_session_loop(session);
	fuse_session_unmount(session);
	return 0;
}
