/* SPDX-License-Identifier: MIT */
/*
 * A FUSE server that does nothing but return parts of its memory: the limit of any that is written with libfuse.
 *
 *     bench_read_bare MOUNTPOINT      serves the file MOUNTPOINT/file, in the foreground, until it is unmounted
 */
#include "bench_bare.h"

#include <stdlib.h>

enum { FILE_BYTES = 256 << 20 };

static char *memory;

static void bare_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info *file)
{
	size_t left = offset < FILE_BYTES ? (size_t)(FILE_BYTES - offset) : 0;

	(void)inode;
	(void)file;
	fuse_reply_buf(request, memory + offset, size < left ? size : left);
}

int main(int argc, char **argv)
{
	struct bare_file file = {.bytes = FILE_BYTES, .is_direct = true};

	memory = malloc(FILE_BYTES);
	if (argc != 2 || !memory)
		return 2;
	memset(memory, 'r', FILE_BYTES);
	return bare_serve(argv[0], argv[1], &file, (struct fuse_lowlevel_ops){.read = bare_read}) ? 0 : 2;
}
