/* SPDX-License-Identifier: MIT */
/*
 * bench_scale_listing MOUNTPOINT DIRECTORIES FILES: the least that a FUSE server does whose files may change without it: directories
 * 000, 001 .. of so many empty files each. As relayfs it gives names without attributes, which may change, and has each file looked
 * up again whenever a program gives its path; the attributes in the answer may be used for one of the kernel's ticks.
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 16, DIRECTORY_S = 60 };
static const double one_tick = 1e-9;

static unsigned long n_directories, n_files;

/* Inode numbers: 1, the root; 2 .. n_directories + 1; then the files of the first directory, and so on. */
static unsigned long first_in(fuse_ino_t directory)
{
	return directory == 1 ? 2 : 2 + n_directories + (directory - 2) * n_files;
}

static struct stat status_of(fuse_ino_t inode)
{
	bool is_directory = inode < 2 + n_directories;
	return (struct stat){.st_ino = inode,
	                     .st_mode = is_directory ? S_IFDIR | 0755 : S_IFREG | 0644,
	                     .st_nlink = is_directory ? 2 : 1};
}

static void lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	char *end;
	unsigned long number = strtoul(name, &end, 10);
	if (*end || number >= (parent == 1 ? n_directories : n_files)) {
		fuse_reply_err(request, ENOENT);
		return;
	}
	struct fuse_entry_param entry = {.ino = first_in(parent) + number, .attr_timeout = one_tick};
	entry.attr = status_of(entry.ino);
	if (parent == 1)
		entry.attr_timeout = entry.entry_timeout = DIRECTORY_S;
	fuse_reply_entry(request, &entry);
}

static void getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
{
	struct stat status = status_of(inode);
	(void)file;
	fuse_reply_attr(request, &status, inode > 1 && inode < 2 + n_directories ? DIRECTORY_S : one_tick);
}

static void readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *file)
{
	char *names = malloc(size), name[NAME_BYTES];
	size_t used = 0;
	(void)file;
	for (unsigned long n = (unsigned long)at; n < (inode == 1 ? n_directories : n_files); n++) {
		struct stat status = status_of(first_in(inode) + n);
		snprintf(name, sizeof(name), "%03lu", n);
		size_t taken = fuse_add_direntry(request, names + used, size - used, name, &status, (off_t)n + 1);
		if (taken > size - used)
			break;
		used += taken;
	}
	fuse_reply_buf(request, names, used);
	free(names);
}

static void getxattr(fuse_req_t request, fuse_ino_t inode, const char *name, size_t size)
{
	(void)inode, (void)name, (void)size;
	fuse_reply_err(request, EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	static const struct fuse_lowlevel_ops handlers = {
	    .lookup = lookup, .getattr = getattr, .readdir = readdir, .getxattr = getxattr};
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	if (argc != 4 || fuse_opt_add_arg(&args, argv[0]))
		return 2;
	n_directories = strtoul(argv[2], NULL, 10);
	n_files = strtoul(argv[3], NULL, 10);
	struct fuse_session *session = fuse_session_new(&args, &handlers, sizeof(handlers), NULL);
	if (!session || fuse_session_mount(session, argv[1]))
		return 1;
	puts("mounted");
	fflush(stdout);
	return fuse_session_loop(session) < 0;
}
