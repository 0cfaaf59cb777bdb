/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "counters/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COPY_TRIES = 8, LINE_BYTES = 64 };

/* ------------------------------------------------------------------ copies */

int relay_perf_copy_new(struct relay_mapping *mapping, int fd, uint64_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	*mapping = (struct relay_mapping){.base = base, .bytes = bytes, .file = relay_descriptor_keep(fd)};
	return 0;
}

int relay_perf_copy_part(const struct relay_mapping *mapping, uint64_t at, uint64_t bytes)
{
	if (!relay_descriptor_is_ours(&mapping->file))
		return -EBADF;
	while (bytes > 0) {
		ssize_t got = pread(mapping->file.fd, mapping->base + at, bytes, (off_t)at);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EBADMSG;
		at += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return 0;
}

int relay_perf_copy_heads(struct relay_counters *counters)
{
	int err = relay_perf_copy_part(&counters->main, 0, RELAY_PAGE_BYTES);
	return err ? err : relay_perf_copy_part(&counters->names, 0, RELAY_PAGE_BYTES);
}

static int copy_chunk(struct relay_counters *counters, uint32_t chunk)
{
	const struct relay_perf_record *record = relay_perf_chunk_record(counters, chunk);
	uint64_t at = (uint64_t)((const unsigned char *)record - counters->names.base);
	int err = relay_perf_copy_part(&counters->names, at, sizeof(*record));
	uint32_t used = record->used < RELAY_PERF_SLOTS ? record->used : RELAY_PERF_SLOTS - 1;
	if (!err)
		err = relay_perf_copy_part(&counters->names, at + sizeof(*record), used * sizeof(*record));
	if (!err)
		err = relay_perf_copy_part(&counters->main, relay_perf_chunk_offset(&counters->seen, chunk),
		                           counters->seen.chunk_bytes);
	return err;
}

static int copy_all(struct relay_counters *counters)
{
	int err = relay_perf_copy_heads(counters);
	if (!err)
		err = relay_perf_copy_part(&counters->names, RELAY_PAGE_BYTES, counters->n_index * sizeof(uint32_t));
	uint32_t n_chunks = counters->header->nr_chunks;
	for (uint32_t chunk = 0; !err && chunk < n_chunks && chunk < counters->chunks_max; chunk++)
		err = copy_chunk(counters, chunk);
	return err;
}

int relay_perf_copy_refresh(struct relay_counters *counters)
{
	const struct relay_perf_header *header = counters->header;
	for (int tries = 0; tries < COPY_TRIES; tries++) {
		int err = copy_all(counters);
		uint64_t before = header->gen2;
		if (!err)
			err = relay_perf_copy_part(&counters->main, 0, RELAY_PAGE_BYTES);
		if (err || (header->gen1 == before && header->gen2 == before))
			return err;
	}
	return -EAGAIN;
}

/* ------------------------------------------------------------------ adjusting */

/* Format a number at the end of a buffer; return where it begins. Signal handlers must not call snprintf(). */
static char *put_digits(char *end, uint64_t value)
{
	do
		*--end = (char)('0' + value % 10);
	while (value /= 10);
	return end;
}

int relay_perf_copy_adjust(const struct relay_counters *counters, int instance, int64_t delta)
{
	static const char verb[] = "adjust ";
	char line[LINE_BYTES], *at = line + sizeof(line);
	*--at = '\n';
	at = put_digits(at, delta < 0 ? -(uint64_t)delta : (uint64_t)delta);
	if (delta < 0)
		*--at = '-';
	*--at = ' ';
	at = put_digits(at, (uint64_t)instance);
	at -= sizeof(verb) - 1;
	memcpy(at, verb, sizeof(verb) - 1);
	size_t length = (size_t)(line + sizeof(line) - at);
	/* Open the file each time, because the server of an earlier descriptor may have ended. */
	int saved = errno, fd = open(counters->file, O_WRONLY | O_CLOEXEC);
	int err = fd < 0 ? -errno : 0;
	if (!err && write(fd, at, length) != (ssize_t)length)
		err = -errno;
	if (fd >= 0)
		close(fd);
	errno = saved;
	return err;
}
