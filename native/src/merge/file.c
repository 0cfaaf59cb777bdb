/* SPDX-License-Identifier: MIT */
/*
 * The source of a stream in files, which are mapped, or copied where that is not possible. A file is mapped when the merge
 * has come to its first event, so that a recording may have more streams than a process may have open files.
 *
 * A recorder may be writing to the last file, which then ends with an empty packet. The recorder makes this packet the
 * first of the new packets: it writes all else first, then content_size, then packet_size (relayfs_fuse/record/stream.py).
 * So content_size is loaded before the other fields. If the loaded packet has events, it is complete, even if its
 * packet_size still extends to the end of the file.
 */
#define _GNU_SOURCE
#include "base/mapping.h"
#include "merge/merge.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_source {
	struct relay_source source;
	char **paths;
	size_t n_paths, n_read;       /* n_read: how many of the files have been mapped */
	struct relay_mapping mapping; /* of the current file; base NULL: no file is mapped */
	uint64_t bytes, at;           /* length of this file; offset of the next packet in it */
};

/* Copy a file that cannot be mapped, as those of a mount that maps none. On success `mapping` owns fd. Returns 0 or
 * -errno. */
static int copy_file(struct relay_mapping *mapping, int fd, uint64_t bytes)
{
	int err = relay_mapping_map_private(mapping, fd, bytes);
	if (err)
		return err;
	for (uint64_t at = 0; at < bytes;) {
		ssize_t got = pread(fd, mapping->base + at, bytes - at, (off_t)at);
		if (got < 0 && errno != EINTR) {
			err = -errno;
			break;
		}
		if (got == 0)
			break;
		at += got > 0 ? (uint64_t)got : 0;
	}
	if (err) {
		mapping->file = RELAY_NO_DESCRIPTOR; /* it stays the caller's */
		relay_mapping_unmap(mapping);
		mapping->base = NULL;
	}
	return err;
}

/* Map a file. 0; 1: the file is empty; or -errno. */
static int map_file(struct file_source *file, const char *path)
{
	struct stat st;
	int fd = relay_mapping_open(path, O_RDONLY, false);
	if (fd < 0)
		return fd;
	int err = fstat(fd, &st) ? -errno : st.st_size == 0;
	if (!err)
		err = relay_mapping_map_ahead(&file->mapping, fd, (uint64_t)st.st_size, false);
	if (err == -ENODEV)
		err = copy_file(&file->mapping, fd, (uint64_t)st.st_size);
	if (err) {
		close(fd);
		return err;
	}
	/* The mapping needs no descriptor, and there may be more files than descriptors. */
	relay_descriptor_close(&file->mapping.file);
	file->bytes = (uint64_t)st.st_size;
	file->at = 0;
	return 0;
}

static void unmap_file(struct file_source *file)
{
	if (file->mapping.base)
		relay_mapping_unmap(&file->mapping);
	file->mapping.base = NULL;
}

static bool is_head(const struct relay_packet *head, uint64_t left)
{
	return head->magic == RELAY_PACKET_MAGIC && head->content_size / 8 >= sizeof(*head) &&
	       head->content_size <= head->packet_size && head->packet_size / 8 <= left;
}

/* Get the next packet of the current file. false: there are no more. */
static bool next_in_file(struct file_source *file, struct relay_source_packet *packet)
{
	const unsigned char *at = file->mapping.base + file->at;
	const uint64_t left = file->bytes - file->at;
	uint64_t content_size;
	if (left < sizeof(packet->head))
		return false;
	memcpy(&content_size, at + offsetof(struct relay_packet, content_size), sizeof(content_size));
	/* Pairs with the order in which the recorder writes; see the first comment in this file. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	memcpy(&packet->head, at, sizeof(packet->head));
	/* Prevents a second load, which may differ, because others may write to the file. */
	__asm__ volatile("" : : : "memory");
	packet->head.content_size = content_size;
	if (!is_head(&packet->head, left))
		return false;
	packet->events = at + sizeof(packet->head);
	packet->length = content_size / 8 - sizeof(packet->head);
	file->at += packet->head.packet_size / 8;
	/* An empty packet that is longer than its head and extends to the end of the file does not count: it is room that
	 * the recorder has made for further packets. */
	return packet->length > 0 || packet->head.packet_size / 8 == sizeof(packet->head) || file->at < file->bytes;
}

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct file_source *file = (struct file_source *)source;
	for (;;) {
		if (file->mapping.base && next_in_file(file, packet))
			return RELAY_SOURCE_PACKET;
		unmap_file(file);
		packet->watermark = 0;
		if (file->n_read == file->n_paths)
			return RELAY_SOURCE_ENDED;
		int err = map_file(file, file->paths[file->n_read++]);
		if (err < 0)
			return err;
	}
}

static void close_file(struct relay_source *source)
{
	struct file_source *file = (struct file_source *)source;
	unmap_file(file);
	for (size_t i = 0; i < file->n_paths; i++)
		free(file->paths[i]);
	free(file->paths);
	free(file);
}

/* Return the time of the first packet, in ticks; 0: it is not known, so the merge reads the stream at once. */
static uint64_t begin_of(const char *path)
{
	struct relay_packet head;
	int fd = relay_mapping_open(path, O_RDONLY, false);
	if (fd < 0)
		return 0;
	bool is_whole = pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head);
	close(fd);
	return is_whole && is_head(&head, UINT64_MAX) ? head.timestamp_begin : 0;
}

int relay_merge_add_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                          size_t n_paths)
{
	struct file_source *file = calloc(1, sizeof(*file));
	if (!file)
		return -ENOMEM;
	file->source = (struct relay_source){.next = next_packet, .close = close_file};
	file->paths = calloc(n_paths + 1, sizeof(*file->paths));
	for (; file->paths && file->n_paths < n_paths; file->n_paths++) {
		file->paths[file->n_paths] = strdup(paths[file->n_paths]);
		if (!file->paths[file->n_paths])
			break;
	}
	if (!file->paths || file->n_paths < n_paths) {
		close_file(&file->source);
		return -ENOMEM;
	}
	return relay_merge_add_source(merge, process, cpu, &file->source, n_paths ? begin_of(paths[0]) : 0);
}
