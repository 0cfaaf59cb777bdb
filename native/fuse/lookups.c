/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "lookups.h"

#include "protocol.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* TAP_PLACES: of the table of known files, a power of two. */
enum { TAP_PLACES = 1 << 16, TAP_LOOKERS = 128, TAP_S_NS = 1000000000 };

/* next: at the same place of the table */
struct relay_tap_file {
	struct relay_tap_file *next;
	struct relay_tap_known known;
	struct relay_empty empty;
	uint64_t lookups;
	char *name, *mem_file;
};

static struct relay_tap_file *places[TAP_PLACES];
static relay_tap_lookup *answer;
static const struct fuse_entry_out *answered;

/* Of threads whose last request was a lookup: the inode whose attributes they were given. Such a thread may not have run since,
 * so the kernel may still have to take the attributes over. A thread's place is its number modulo TAP_LOOKERS. */
static struct {
	uint64_t inode; /* 0: none */
	uint32_t thread;
} lookers[TAP_LOOKERS];

void relay_tap_answer_lookups(relay_tap_lookup *lookup, const struct fuse_entry_out *entry)
{
	answer = lookup;
	answered = entry;
}

/* ------------------------------------------------------------------ known files */

static struct relay_tap_file **place_of(uint64_t parent, const char *name)
{
	uint64_t hash = parent;
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3ull; /* FNV-1a */
	return &places[(hash ^ hash >> 32) & (TAP_PLACES - 1)];
}

struct relay_tap_file *relay_tap_learn(const char *name, const char *mem_file, const struct relay_tap_known *known)
{
	struct relay_tap_file *file = malloc(sizeof(*file));
	if (!file)
		return NULL;
	struct relay_tap_file **place = place_of(known->parent, name);
	*file = (struct relay_tap_file){
	    .next = *place, .known = *known, .name = strdup(name), .mem_file = strdup(mem_file)};
	if (!file->name || !file->mem_file) {
		free(file->name);
		free(file->mem_file);
		free(file);
		return NULL;
	}
	*place = file;
	return file;
}

void relay_tap_forget(struct relay_tap_file *file)
{
	struct relay_tap_file **link = place_of(file->known.parent, file->name);
	while (*link != file)
		link = &(*link)->next;
	*link = file->next;
	free(file->name);
	free(file->mem_file);
	free(file);
}

uint64_t relay_tap_lookups(const struct relay_tap_file *file)
{
	return file->lookups;
}

void relay_tap_lookups_taken(struct relay_tap_file *file)
{
	file->lookups = 0;
}

/* Make the answer to a lookup of a known file. 0: it is none, or what is known of it is not true any more. */
static int find_known(uint64_t parent, const char *name, struct fuse_entry_out *entry)
{
	struct relay_tap_file *file = *place_of(parent, name);
	struct relay_shown shown;
	while (file && (file->known.parent != parent || strcmp(file->name, name) != 0))
		file = file->next;
	if (!file || file->known.show(NULL, file->mem_file, &shown, &file->empty))
		return 0;
	const struct relay_tap_known *known = &file->known;
	if (shown.inode != known->mem_inode || shown.written != known->written)
		return 0;
	uint64_t size = shown.unread - (known->counts_holes ? 0 : shown.holes);
	*entry = (struct fuse_entry_out){
	    .nodeid = known->inode,
	    .attr_valid_nsec = 1, /* which the kernel rounds up to its next tick */
	    .attr = {.ino = known->inode,
	             .size = size,
	             .blocks = (size + 511) / 512,
	             .atime = (uint64_t)(known->mtime_ns / TAP_S_NS),
	             .mtime = (uint64_t)(known->mtime_ns / TAP_S_NS),
	             .ctime = (uint64_t)(shown.ctime_ns / TAP_S_NS),
	             .atimensec = (uint32_t)(known->mtime_ns % TAP_S_NS),
	             .mtimensec = (uint32_t)(known->mtime_ns % TAP_S_NS),
	             .ctimensec = (uint32_t)(shown.ctime_ns % TAP_S_NS),
	             .mode = S_IFREG | (shown.mode & 07777),
	             .nlink = 1,
	             .uid = shown.uid,
	             .gid = shown.gid,
	             .blksize = known->block_size},
	};
	file->lookups++;
	return 1;
}

/* ------------------------------------------------------------------ several threads that look at a file */

/* Whether another thread was given attributes of this file, and may not have run since. */
static int others_look_at(uint64_t inode, uint32_t thread)
{
	int found = 0;
	for (size_t i = 0; i < TAP_LOOKERS; i++) {
		if (lookers[i].inode != inode || lookers[i].thread == thread)
			continue;
		lookers[i].inode = 0;
		found = 1;
	}
	return found;
}

/* Have the kernel ask for the attributes of a file, and not take over any that it was given before. It takes those of a lookup
 * over when the thread runs that has asked, and drops them if others, of a lookup that ended after this one had begun, are there:
 * these may be older. */
static void invalidate_attributes(int fd, uint64_t inode)
{
	const struct fuse_notify_inval_inode_out told = {.ino = inode, .off = -1};
	const struct fuse_out_header out = {.len = sizeof(out) + sizeof(told), .error = FUSE_NOTIFY_INVAL_INODE};
	struct iovec notice[] = {{(void *)&out, sizeof(out)}, {(void *)&told, sizeof(told)}};
	ssize_t sent = writev(fd, notice, 2);
	(void)sent; /* ENOENT: the kernel knows no such inode */
}

/* ------------------------------------------------------------------ messages */

int relay_lookups_answer(int fd, const struct fuse_in_header *in, size_t length)
{
	const char *name = (const char *)(in + 1);
	struct fuse_entry_out known;
	const struct fuse_entry_out *entry = &known;
	const size_t place = in->pid % TAP_LOOKERS;
	if (lookers[place].thread == in->pid)
		lookers[place].inode = 0;
	/* A request that is sent again may be one of which a server before has answered a part. */
	if (!answer || length <= sizeof(*in) || in->opcode != FUSE_LOOKUP || in->unique & TAP_RESENT ||
	    !memchr(name, 0, length - sizeof(*in)))
		return 0;
	if (!find_known(in->nodeid, name, &known)) {
		int result = answer(in->nodeid, name, in->pid);
		if (result == RELAY_TAP_LEARNT && !find_known(in->nodeid, name, &known))
			result = answer(in->nodeid, name, in->pid);
		if (result == RELAY_TAP_HANDLER)
			return 0;
		if (result == RELAY_TAP_ANSWERED)
			entry = answered;
	}
	if (others_look_at(entry->nodeid, in->pid))
		invalidate_attributes(fd, entry->nodeid);
	lookers[place].inode = entry->nodeid;
	lookers[place].thread = in->pid;
	struct fuse_out_header out = {.len = sizeof(out) + sizeof(*entry), .unique = in->unique};
	struct iovec reply[] = {{&out, sizeof(out)}, {(void *)entry, sizeof(*entry)}};
	ssize_t sent = writev(fd, reply, 2);
	/* ENOENT: the program was killed meanwhile. After another error, too, the kernel has the request no more. */
	(void)sent;
	return 1;
}
