/* SPDX-License-Identifier: MIT */
/*
 * An output file of a relay_app.
 *
 *     file      |aaaaaaaa|bbbbbbbb|cccc        written, then consumed, piece by piece
 *     buffer    |aaaaaaaa|bbbbbbbb|cccccccc|dd
 *                                 ^ consumed: shift + file position
 *
 * If the program is killed between writing a piece and consuming it, the file holds the piece, or a part of it, which
 * is also still in the buffer. So that it is not written twice, an extended attribute of the file stores the difference
 * between stream position and file position while a reader runs. A program that appends to the file truncates the part
 * that is not consumed, but only if the next bytes of the buffer are the same: others may have read them, or reset the
 * channel.
 *
 * With `times` the stream position counts heads that the file does not have, so nothing is truncated then.
 */
#define _GNU_SOURCE
#include "apps/app_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { OUTPUT_MODE = 0666 };

static const char shift_name[] = "user.relayfs.shift";

/* True if the last `length` bytes of the file are also the next ones of the buffer. */
static bool comes_again(const struct app_output *output, struct rchan_buf *buf, size_t length)
{
	struct relay_span span;
	size_t total;
	unsigned char *end = malloc(length);
	bool same = end && relay_consume_begin(buf, SIZE_MAX, &span, 1, &total) == 1;
	if (same) {
		same = span.length >= length &&
		       pread(output->fd, end, length, output->bytes - (off_t)length) == (ssize_t)length &&
		       memcmp(end, span.data, length) == 0 && !relay_consume_valid(buf);
		relay_consume_abort(buf);
	}
	free(end);
	return same;
}

/* Truncate the part of the file that was not consumed, because the reader will get it again. */
static int cut_unconsumed(struct app_output *output, struct rchan_buf *buf)
{
	struct relay_stats stats;
	uint64_t shift;
	if (buf->is_timed)
		return 0;
	if (fgetxattr(output->fd, shift_name, &shift, sizeof(shift)) != sizeof(shift))
		return 0; /* the last reader ended normally */
	int err = relay_buf_stats(buf, &stats);
	if (err)
		return err;
	uint64_t unconsumed = (uint64_t)output->bytes - (stats.read_bytes - shift);
	if (unconsumed - 1 >= buf->subbuf_size || unconsumed > (uint64_t)output->bytes ||
	    !comes_again(output, buf, unconsumed))
		return 0;
	output->bytes -= (off_t)unconsumed;
	return ftruncate(output->fd, output->bytes) ? -errno : 0;
}

int relay_app_output_open(struct app_output *output, struct rchan_buf *buf, const char *base, bool append)
{
	char *path;
	if (asprintf(&path, "%s%u", base, buf->cpu) < 0)
		return -ENOMEM;
	int how = append ? O_RDWR : O_WRONLY | O_TRUNC;
	output->fd = open(path, how | O_CREAT | O_APPEND | O_CLOEXEC, OUTPUT_MODE);
	int err = output->fd < 0 ? -errno : 0;
	free(path);
	if (err)
		return err;
	off_t end = lseek(output->fd, 0, SEEK_END);
	output->bytes = end < 0 ? 0 : end;
	return append ? cut_unconsumed(output, buf) : 0;
}

void relay_app_output_close(struct app_output *output)
{
	if (output->fd >= 0)
		close(output->fd);
}

void relay_app_output_begin(const struct app_output *output, const struct relay_stats *stats)
{
	uint64_t shift = stats->read_bytes - (uint64_t)output->bytes;
	/* The file cannot have attributes, for example a pipe. Then a piece is written twice if this program is killed
	 * before it has consumed the piece. */
	if (output->fd >= 0 && fsetxattr(output->fd, shift_name, &shift, sizeof(shift), 0))
		return;
}

void relay_app_output_end(const struct app_output *output)
{
	/* The attribute may not exist, because it could not be set. */
	if (output->fd >= 0 && fremovexattr(output->fd, shift_name))
		return;
}

static int write_all(int fd, const unsigned char *data, size_t length)
{
	while (length) {
		ssize_t n = write(fd, data, length);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			data += n;
			length -= (size_t)n;
		}
	}
	return 0;
}

int relay_app_output_write(struct app_output *output, const void *data, size_t length)
{
	int err = write_all(output->fd, data, length);
	if (!err)
		output->bytes += (off_t)length;
	else if (ftruncate(output->fd, output->bytes))
		return err; /* a pipe, for example, from which nothing can be taken back */
	return err;
}
