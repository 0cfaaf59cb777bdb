/* SPDX-License-Identifier: MIT */
/*
 * The source of a stream in files, which are mapped, or copied where that is not possible. A file is mapped when the merge
 * has come to its first event, so that a recording may have more streams than a process may have open files.
 *
 * A recorder may be writing to the last file, which then ends with an empty packet. The recorder makes this packet the
 * first of the new packets: it writes all else first, then content_size, then packet_size
 * (relayfs_fuse/record/stream.py). So these two are loaded in the opposite order, before the other fields. If the
 * loaded packet has events, it is complete, even if its packet_size still extends to the end of the file.
 *
 * Files that are followed (relay_merge_follow_files()) are unmapped when all that they have was read, because a
 * recorder that completes a file which others have open makes a copy of it. Such a copy has the same bytes up to there.
 * The next file is read when this one is complete, or has all packets before the first one of the next file, which
 * their numbers tell: a receiver may get them in another order. A file that does not exist is waited for until the
 * caller says that it was removed, or where its bytes are now (relay_merge_move_file()).
 */
#define _GNU_SOURCE
#include "base/futex.h"
#include "base/mapping.h"
#include "merge/merge.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long a recorder may take to complete a file that is not followed. */
enum { LEASE_MS = 10000 };

struct file_source {
	struct relay_source source;
	char **paths;                 /* NULL: the file was removed */
	size_t n_paths, n_read;       /* n_read: how many of the files have been mapped */
	struct relay_mapping mapping; /* of the current file; base NULL: no file is mapped */
	uint64_t bytes, at;           /* length of this file; offset of the next packet in it */
	bool is_complete;             /* the packet that ends a complete file was read */
	/* Of files that are followed. number: that of the last packet with events, plus 1. told: the offset up to which
	 * `latest`, ticks, is the end of the latest packet, if that is more than `at`. */
	uint64_t number, told, latest;
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

/* True if what cannot be read now is asked for again later. */
static bool may_grow(const struct file_source *file)
{
	return file->source.has_grown && !file->source.is_finished;
}

/* Return the path of the current file. NULL: all of it was read, so another file may have this path by now; or it was
 * removed; or no file was begun. */
static const char *current(const struct file_source *file)
{
	return file->n_read && !file->is_complete ? file->paths[file->n_read - 1] : NULL;
}

/* Open the current file. -EAGAIN: its recorder has a lease of it (fcntl(2)), because it completes the file. */
static int open_file(const struct file_source *file)
{
	const int64_t deadline = relay_now_ms() + LEASE_MS;
	int fd = relay_mapping_open(current(file), O_RDONLY, false);
	while (fd == -EAGAIN && !may_grow(file) && relay_now_ms() < deadline) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		fd = relay_mapping_open(current(file), O_RDONLY, false);
	}
	return fd;
}

/* Map the current file, to go on at file->at. 0; 1: the file is empty; or -errno. */
static int map_file(struct file_source *file)
{
	struct stat st;
	int fd = open_file(file);
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
	return 0;
}

static void unmap_file(struct file_source *file)
{
	if (file->mapping.base)
		relay_mapping_unmap(&file->mapping);
	file->mapping.base = NULL;
}

/* A packet has the events of one sub-buffer. Its padding may be longer: it is the room in a file that grows. */
static bool is_head(const struct relay_packet *head, uint64_t left)
{
	return head->magic == RELAY_PACKET_MAGIC && head->content_size / 8 >= sizeof(*head) &&
	       head->content_size / 8 <= sizeof(*head) + RELAY_SUBBUF_SIZE_MAX &&
	       head->content_size <= head->packet_size && head->packet_size / 8 <= left;
}

/* Load the head of the packet at an offset of the mapped file; *end receives the offset of the next one. false: there
 * is no packet, or only the room that the recorder has made for further packets, an empty packet that is longer than
 * its head and extends to the end of the file. */
static bool load_head(const struct file_source *file, uint64_t offset, struct relay_packet *head, uint64_t *end)
{
	const unsigned char *at = file->mapping.base + offset;
	uint64_t packet_size, content_size;
	if (offset > file->bytes || file->bytes - offset < sizeof(*head))
		return false;
	memcpy(&packet_size, at + offsetof(struct relay_packet, packet_size), sizeof(packet_size));
	/* Pairs with the order in which the recorder writes; see the first comment in this file. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	memcpy(&content_size, at + offsetof(struct relay_packet, content_size), sizeof(content_size));
	/* As above. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	memcpy(head, at, sizeof(*head));
	/* Prevents a second load, which may differ, because others may write to the file. */
	__asm__ volatile("" : : : "memory");
	head->packet_size = packet_size;
	head->content_size = content_size;
	if (!is_head(head, file->bytes - offset))
		return false;
	*end = offset + packet_size / 8;
	const bool is_header = packet_size / 8 == sizeof(*head), is_empty = content_size / 8 == sizeof(*head);
	/* The recorder of a file that is followed has not finished a packet before its padding is the room behind it. */
	const bool is_unfinished = may_grow(file) && content_size < packet_size;
	return *end < file->bytes || is_header || !(is_empty || is_unfinished);
}

static void note_end(struct file_source *file, const struct relay_packet *head)
{
	file->latest = head->timestamp_end > file->latest ? head->timestamp_end : file->latest;
}

/* Get the next packet of the current file. false: there are no more. */
static bool next_in_file(struct file_source *file, struct relay_source_packet *packet)
{
	const unsigned char *at = file->mapping.base + file->at;
	uint64_t end;
	if (!load_head(file, file->at, &packet->head, &end))
		return false;
	packet->events = at + sizeof(packet->head);
	packet->length = packet->head.content_size / 8 - sizeof(packet->head);
	file->is_complete = end == file->bytes && packet->head.packet_size / 8 == sizeof(packet->head);
	if (packet->length)
		file->number = packet->head.packet_seq_num + 1;
	note_end(file, &packet->head);
	file->at = end;
	return true;
}

static bool read_head(const char *path, uint64_t at, struct relay_packet *head)
{
	int fd = relay_mapping_open(path, O_RDONLY, false);
	if (fd < 0)
		return false;
	bool is_whole = pread(fd, head, sizeof(*head), (off_t)at) == (ssize_t)sizeof(*head);
	close(fd);
	return is_whole && is_head(head, UINT64_MAX);
}

/* Get the head of the first packet of the next file. false: there is none. */
static bool read_next_head(const struct file_source *file, struct relay_packet *first)
{
	const char *const next = file->n_read < file->n_paths ? file->paths[file->n_read] : NULL;
	return next && read_head(next, 0, first);
}

/* True if the next file can be read, because nothing of the current one is missing, or it was removed. */
static bool may_go_on(const struct file_source *file)
{
	struct relay_packet first;
	if (file->n_read == file->n_paths)
		return false;
	if (!current(file) || !file->source.has_grown || file->source.is_finished)
		return true;
	return read_next_head(file, &first) && first.packet_seq_num == file->number;
}

static void go_on(struct file_source *file)
{
	file->n_read++;
	file->at = file->told = 0;
	file->is_complete = false;
}

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct file_source *file = (struct file_source *)source;
	packet->watermark = 0;
	for (bool is_new = false;; is_new = true) {
		if (!file->mapping.base && current(file) && (is_new || source->has_grown)) {
			int err = map_file(file);
			/* A file that is followed may have been removed, or moved; or it is being completed. */
			if (err < 0 && !(source->has_grown && err == -ENOENT) && !(may_grow(file) && err == -EAGAIN))
				return err;
		}
		if (file->mapping.base && next_in_file(file, packet))
			return RELAY_SOURCE_PACKET;
		unmap_file(file);
		if (!may_go_on(file))
			return may_grow(file) ? RELAY_SOURCE_EMPTY : RELAY_SOURCE_ENDED;
		go_on(file);
	}
}

/* Note the end of the latest packet of the mapped file. */
static void note_latest(struct file_source *file)
{
	struct relay_packet head;
	uint64_t at = file->told > file->at ? file->told : file->at, end;
	for (; load_head(file, at, &head, &end); at = end)
		note_end(file, &head);
	file->told = at;
}

static bool has_grown(struct relay_source *source, uint64_t *latest)
{
	struct file_source *file = (struct file_source *)source;
	struct relay_packet head;
	const bool is_waiting = !file->mapping.base;
	/* The room behind the last packet is no reason to map the file. */
	if (is_waiting && current(file) && read_head(current(file), file->at, &head) && !map_file(file)) {
		uint64_t end;
		if (!load_head(file, file->at, &head, &end))
			unmap_file(file);
	}
	if (file->mapping.base)
		note_latest(file);
	*latest = file->latest > *latest ? file->latest : *latest;
	return is_waiting && (file->mapping.base || may_go_on(file));
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
	return read_head(path, 0, &head) ? head.timestamp_begin : 0;
}

/* Add paths to those of a source. false: no memory; some may have been added. */
static bool add_paths(struct file_source *file, const char *const *paths, size_t n_paths)
{
	char **more = reallocarray(file->paths, file->n_paths + n_paths + 1, sizeof(*more));
	if (!more)
		return false;
	file->paths = more;
	for (size_t i = 0; i < n_paths; i++) {
		file->paths[file->n_paths] = strdup(paths[i]);
		if (!file->paths[file->n_paths])
			return false;
		file->n_paths++;
	}
	return true;
}

static int add_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths, size_t n_paths,
                     bool follows)
{
	struct file_source *file = calloc(1, sizeof(*file));
	if (!file)
		return -ENOMEM;
	file->source =
	    (struct relay_source){.next = next_packet, .close = close_file, .has_grown = follows ? has_grown : NULL};
	if (!add_paths(file, paths, n_paths)) {
		close_file(&file->source);
		return -ENOMEM;
	}
	return relay_merge_add_source(merge, process, cpu, &file->source, n_paths ? begin_of(paths[0]) : 0);
}

int relay_merge_add_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                          size_t n_paths)
{
	return add_files(merge, process, cpu, paths, n_paths, false);
}

int relay_merge_follow_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                             size_t n_paths)
{
	struct relay_source *source = relay_merge_source(merge, process, cpu);
	if (!source)
		return add_files(merge, process, cpu, paths, n_paths, true);
	if (source->has_grown != has_grown)
		return -EINVAL;
	return add_paths((struct file_source *)source, paths, n_paths) ? 0 : -ENOMEM;
}

/* Return the source of a file that is followed and may have events that were not read yet; *i receives the index of its
 * path. NULL: there is no such file. */
static struct file_source *needed(const struct relay_merge *merge, int process, uint32_t cpu, const char *path,
                                  size_t *i)
{
	struct relay_source *source = relay_merge_source(merge, process, cpu);
	if (!source || source->has_grown != has_grown)
		return NULL;
	struct file_source *file = (struct file_source *)source;
	for (*i = current(file) ? file->n_read - 1 : file->n_read; *i < file->n_paths; ++*i)
		if (file->paths[*i] && strcmp(file->paths[*i], path) == 0)
			return file;
	return NULL;
}

bool relay_merge_needs_file(const struct relay_merge *merge, int process, uint32_t cpu, const char *path)
{
	size_t i;
	return needed(merge, process, cpu, path, &i) != NULL;
}

int relay_merge_move_file(struct relay_merge *merge, int process, uint32_t cpu, const char *path, const char *to)
{
	size_t i;
	struct file_source *file = needed(merge, process, cpu, path, &i);
	char *copy = file && to ? strdup(to) : NULL;
	if (!file)
		return -EINVAL;
	if (to && !copy)
		return -ENOMEM;
	free(file->paths[i]);
	file->paths[i] = copy;
	return 0;
}

const char *relay_merge_unfinished(const struct relay_merge *merge, int process, uint32_t cpu)
{
	struct relay_source *source = relay_merge_source(merge, process, cpu);
	struct relay_packet first;
	if (!source || source->has_grown != has_grown)
		return NULL;
	const struct file_source *file = (struct file_source *)source;
	const bool is_waiting = !file->mapping.base && current(file) && read_next_head(file, &first);
	return is_waiting && first.packet_seq_num != file->number ? current(file) : NULL;
}

uint64_t relay_merge_latest(const struct relay_merge *merge, int process)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	return traced ? traced->latest : 0;
}
