/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "store/remote_reader.h"

#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
	/* The most that one FUSE request carries. The kernel splits a longer read(2), and another reader may consume
	 * data between the parts. */
	PIECE_BYTES = (1 << 20) - 4096,
	/* With delivery=bulk poll(2) reports finished sub-buffers only, but an unfinished one can be read, too. */
	LOOK_AGAIN_MS = 50
};

struct relay_remote_reader {
	int file;
	size_t held; /* bytes of `piece` that the program is using; 0: none */
	unsigned char piece[PIECE_BYTES];
};

int relay_remote_reader_open(struct relay_remote_reader **to, const char *relay_file)
{
	struct relay_remote_reader *reader = calloc(1, sizeof(*reader));
	if (!reader)
		return -ENOMEM;
	/* relay_mapping_open() adds O_NONBLOCK. */
	reader->file = relay_mapping_open(relay_file, O_RDONLY, true);
	if (reader->file < 0) {
		int err = reader->file;
		free(reader);
		return err;
	}
	*to = reader;
	return 0;
}

void relay_remote_reader_close(struct relay_remote_reader *reader)
{
	close(reader->file);
	free(reader);
}

int relay_remote_reader_take(struct relay_remote_reader *reader, const void **data, size_t *length)
{
	ssize_t got = read(reader->file, reader->piece, sizeof(reader->piece));
	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	reader->held = (size_t)got;
	*data = reader->piece;
	*length = reader->held;
	return got > 0;
}

int relay_remote_reader_done(struct relay_remote_reader *reader)
{
	if (!reader->held)
		return -EINVAL;
	reader->held = 0;
	return 0;
}

bool relay_remote_reader_holds(const struct relay_remote_reader *reader)
{
	return reader->held;
}

int relay_remote_reader_wait(struct relay_remote_reader *reader, int ms)
{
	struct pollfd file = {.fd = reader->file, .events = POLLIN};
	int n = poll(&file, 1, ms < LOOK_AGAIN_MS ? ms : LOOK_AGAIN_MS);
	if (n < 0)
		return -errno;
	/* The file is readable, although relay_remote_reader_take() got nothing: another reader has read the bytes, or
	 * the first record is reserved and not committed. The pause prevents a busy loop. */
	if (n > 0 && nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL))
		return -EINTR;
	return 0;
}

bool relay_remote_reader_finished(const struct relay_remote_reader *reader)
{
	struct pollfd file = {.fd = reader->file, .events = POLLIN};
	return poll(&file, 1, 0) > 0 && file.revents & (POLLHUP | POLLERR) && !(file.revents & POLLIN);
}
