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
 * With `times` the stream position counts heads that the file does not have, so the difference is stored before each piece.
 *
 * Large pieces are written past the page cache (O_DIRECT), but for the parts of blocks that they begin and end with: that takes
 * a tenth of the CPU time. While the buffer is filling up, a piece goes the way, past the page cache or through it, that was the
 * faster one last time: the page cache also takes what a slow disk cannot take at once. relayfs_fuse/record/writing.py does the
 * same for traces.
 */
#define _GNU_SOURCE
#include "apps/app_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* DIRECT_LEAST: for fewer bytes it is not worth to wait for the disk. AGING: each piece that goes through the page cache lets the
 * rate of the disk count so many hundredths, so that it is tried again. */
enum { OUTPUT_MODE = 0666, DIRECT_LEAST = 512 << 10, AGING = 110 };

static const char shift_name[] = "user.relayfs.shift";

/* True if the last `length` bytes of the file are also the next ones that are taken from the buffer. */
static bool comes_again(const struct app_output *output, struct rchan_buf *buf, struct app_room *room, size_t length)
{
	unsigned char *end = malloc(length);
	ssize_t next = end ? relay_app_room_take(room, buf, 0, false) : 0;
	bool same = end && next > 0 && (size_t)next >= length &&
	            pread(output->fd, end, length, output->bytes - (off_t)length) == (ssize_t)length &&
	            memcmp(end, relay_app_room_at(room, 0), length) == 0;
	if (next > 0)
		relay_consume_abort(buf);
	free(end);
	return same;
}

/* Truncate the part of the file that was not consumed, because the reader will get it again. */
static int cut_unconsumed(struct app_output *output, struct rchan_buf *buf, struct app_room *room)
{
	struct relay_stats stats;
	uint64_t shift;
	if (fgetxattr(output->fd, shift_name, &shift, sizeof(shift)) != sizeof(shift))
		return 0; /* the last reader ended normally */
	int err = relay_buf_stats(buf, &stats);
	if (err)
		return err;
	uint64_t unconsumed = (uint64_t)output->bytes - (stats.read_bytes - shift);
	if (unconsumed - 1 >= room->size || unconsumed > (uint64_t)output->bytes ||
	    !comes_again(output, buf, room, unconsumed))
		return 0;
	output->bytes -= (off_t)unconsumed;
	return ftruncate(output->fd, output->bytes) ? -errno : 0;
}

int relay_app_output_open(struct app_output *output, struct rchan_buf *buf, struct app_room *room, const char *base,
                          bool append)
{
	struct stat stat;
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
	/* Of a pipe, O_DIRECT means something else. */
	output->is_cached = fstat(output->fd, &stat) || !S_ISREG(stat.st_mode);
	output->cached_rate = output->direct_rate = UINT64_MAX;
	return append ? cut_unconsumed(output, buf, room) : 0;
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

/* As write_all(), of whole blocks, which begin with blocks in memory and in the file. */
static int write_blocks(struct app_output *output, const unsigned char *data, size_t length)
{
	int flags = fcntl(output->fd, F_GETFL);
	output->is_cached = flags < 0 || fcntl(output->fd, F_SETFL, flags | O_DIRECT);
	int err = 0;
	while (length && !output->is_cached && !err) {
		ssize_t n = write(output->fd, data, length);
		if (n >= 0) {
			data += n;
			length -= (size_t)n;
		} else if (errno == EINVAL) {
			/* The blocks of the disk are larger, or somebody else has written to the file. */
			output->is_cached = true;
		} else if (errno != EINTR) {
			err = -errno;
		}
	}
	if (flags >= 0 && fcntl(output->fd, F_SETFL, flags) && !err)
		err = -errno;
	return err ? err : write_all(output->fd, data, length);
}

/* As write_all(), past the page cache but for the parts of blocks at both ends. */
static int write_directly(struct app_output *output, const unsigned char *data, size_t length)
{
	size_t first = (size_t)-output->bytes % APP_BLOCK_BYTES;
	size_t last = (length - first) % APP_BLOCK_BYTES;
	int err = write_all(output->fd, data, first);
	if (!err)
		err = write_blocks(output, data + first, length - first - last);
	return err ? err : write_all(output->fd, data + length - last, last);
}

static uint64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static int write_large(struct app_output *output, const unsigned char *data, size_t length, bool is_urgent)
{
	uint64_t begin = now_us();
	if (!is_urgent)
		output->cached_rate = UINT64_MAX; /* what the page cache has had to wait for may be on the disk now */
	bool is_cached = is_urgent && output->cached_rate > output->direct_rate;
	int err = is_cached ? write_all(output->fd, data, length) : write_directly(output, data, length);
	uint64_t rate = (uint64_t)length * 1000 / (now_us() - begin + 1);
	if (is_cached) {
		output->cached_rate = rate;
		output->direct_rate = output->direct_rate / 100 * AGING + 1;
	} else {
		output->direct_rate = rate;
	}
	return err;
}

int relay_app_output_write(struct app_output *output, const void *data, size_t length, bool is_urgent)
{
	/* relay_app_room_at() has chosen such an address. */
	bool is_aligned = ((uintptr_t)data - (uintptr_t)output->bytes) % APP_BLOCK_BYTES == 0;
	bool is_large = length >= DIRECT_LEAST && is_aligned && !output->is_cached;
	int err = is_large ? write_large(output, data, length, is_urgent) : write_all(output->fd, data, length);
	if (!err)
		output->bytes += (off_t)length;
	else if (ftruncate(output->fd, output->bytes))
		return err; /* a pipe, for example, from which nothing can be taken back */
	return err;
}
