/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/loaded.h"

#include "trace/threads.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <relayfs/trace_store.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUILD_ID_MAX = 32, LINE_BYTES = 3 * PATH_MAX + 256, PAGE = 4096 };

/* The lines. Under relay_trace_lock(). */
static char lines[RELAY_OBJECTS_BYTES];
static size_t n_lines_bytes;

/* Of the thread that looks. Not on its stack, which may be small. */
static struct {
	bool is_looking, is_child;
	unsigned long long adds, subs; /* how often the loader had loaded and unloaded something */
	size_t n_known;                /* n_lines_bytes, which no other thread changes */
	size_t n_found;
	char found[RELAY_OBJECTS_BYTES]; /* new lines */
	char line[LINE_BYTES], own[PATH_MAX];
} look;

/* --- one object --- */

/* Return the object's memory as far as a segment has it; NULL: these bytes are in no segment that is mapped readable. */
static const unsigned char *mapped(const struct dl_phdr_info *info, uint64_t address, uint64_t length)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		if (segment->p_type == PT_LOAD && segment->p_flags & PF_R && address >= segment->p_vaddr &&
		    length <= segment->p_filesz && address - segment->p_vaddr <= segment->p_filesz - length)
			return (const unsigned char *)(uintptr_t)(info->dlpi_addr + address);
	}
	return NULL;
}

static uint64_t padded(uint64_t length)
{
	return (length + 3) & ~3ull;
}

/* Find the build id in a segment of notes. Returns its length; 0: it is not there. */
static size_t build_id_in(const unsigned char *notes, uint64_t length, const unsigned char **id)
{
	ElfW(Nhdr) note;
	for (uint64_t at = 0; length - at >= sizeof(note);) {
		memcpy(&note, notes + at, sizeof(note));
		const uint64_t name = at + sizeof(note), value = name + padded(note.n_namesz);
		const uint64_t end = value + padded(note.n_descsz);
		if (end > length)
			break;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
		    memcmp(notes + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 && note.n_descsz <= BUILD_ID_MAX) {
			*id = notes + value;
			return note.n_descsz;
		}
		at = end;
	}
	return 0;
}

static void put_build_id(const struct dl_phdr_info *info, char text[2 * BUILD_ID_MAX + 1])
{
	const unsigned char *id = NULL;
	size_t length = 0;
	for (int i = 0; i < info->dlpi_phnum && !length; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		const unsigned char *notes =
		    segment->p_type == PT_NOTE ? mapped(info, segment->p_vaddr, segment->p_filesz) : NULL;
		if (notes)
			length = build_id_in(notes, segment->p_filesz, &id);
	}
	strcpy(text, "-");
	for (size_t i = 0; i < length; i++)
		sprintf(text + 2 * i, "%02x", id[i]);
}

/* Return the length of the line, with its end. */
static size_t put_path(size_t length, const char *path)
{
	for (; *path; path++) {
		const unsigned char c = (unsigned char)*path;
		if (c > ' ' && c < 0x7f && !strchr("\"\\%", c))
			look.line[length++] = (char)c;
		else
			length += (size_t)sprintf(look.line + length, "%%%02X", c);
	}
	look.line[length++] = '\n';
	return length;
}

/* True if the line is among `length` bytes of lines. */
static bool has_line(const char *text, size_t length, size_t n)
{
	const char *found;
	for (size_t at = 0; at < length; at += (size_t)(found - (text + at)) + 1) {
		found = memchr(text + at, '\n', length - at);
		if ((size_t)(found + 1 - (text + at)) == n && memcmp(text + at, look.line, n) == 0)
			return true;
	}
	return false;
}

/* Add the line of an object, unless it is known, or there is no room. Called by dl_iterate_phdr(3). */
static int add_object(struct dl_phdr_info *info, size_t size, void *unused)
{
	char id[2 * BUILD_ID_MAX + 1];
	const char *path = info->dlpi_name;
	uint64_t begin = UINT64_MAX, end = 0;
	(void)size;
	(void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		if (segment->p_type != PT_LOAD)
			continue;
		begin = segment->p_vaddr < begin ? segment->p_vaddr : begin;
		end = segment->p_vaddr + segment->p_memsz > end ? segment->p_vaddr + segment->p_memsz : end;
	}
	if (begin >= end)
		return 0;
	/* The program has no name here, except with musl. */
	if (!path || !*path) {
		ssize_t got = readlink("/proc/self/exe", look.own, sizeof(look.own) - 1);
		look.own[got > 0 ? got : 0] = 0;
		path = got > 0 ? look.own : "-";
	}
	begin &= ~(uint64_t)(PAGE - 1);
	put_build_id(info, id);
	int head = snprintf(look.line, sizeof(look.line), "0x%" PRIx64 " 0x%" PRIx64 " 0x%" PRIx64 " %s ",
	                    (uint64_t)info->dlpi_addr + begin, end - begin, (uint64_t)info->dlpi_addr, id);
	if (strlen(path) >= PATH_MAX)
		return 0;
	const size_t n = put_path((size_t)head, path);
	if (has_line(lines, look.n_known, n) || has_line(look.found, look.n_found, n) ||
	    n > RELAY_OBJECTS_BYTES - look.n_known - look.n_found)
		return 0;
	memcpy(look.found + look.n_found, look.line, n);
	look.n_found += n;
	return 0;
}

/* --- all objects --- */

/* Stops dl_iterate_phdr(3) at the first object. 1: nothing was loaded or unloaded since the last look; 2: it was. */
static int has_changed(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)unused;
	if (size < offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs))
		return 2;
	if (info->dlpi_adds == look.adds && info->dlpi_subs == look.subs)
		return 1;
	look.adds = info->dlpi_adds;
	look.subs = info->dlpi_subs;
	return 2;
}

bool relay_loaded_look(bool again)
{
	sigset_t before;
	/* Pairs with the release below: the other members of `look`, for one thread at a time. */
	const int saved = errno;
	if ((look.is_child && !again && look.n_known) || __atomic_exchange_n(&look.is_looking, true, __ATOMIC_ACQUIRE))
		return false;
	look.n_found = 0;
	if (dl_iterate_phdr(has_changed, NULL) == 2)
		dl_iterate_phdr(add_object, NULL);
	const size_t n = look.n_found;
	if (n) {
		relay_trace_lock(&before);
		memcpy(lines + n_lines_bytes, look.found, n);
		__atomic_store_n(&n_lines_bytes, n_lines_bytes + n, __ATOMIC_RELAXED);
		look.n_known = n_lines_bytes;
		relay_trace_unlock(&before);
	}
	__atomic_store_n(&look.is_looking, false, __ATOMIC_RELEASE);
	errno = saved;
	return n > 0;
}

const char *relay_loaded_lines(size_t *length)
{
	*length = n_lines_bytes;
	return lines;
}

bool relay_loaded_has_more(size_t length)
{
	/* Relaxed: the caller reads the lines under relay_trace_lock(). */
	return __atomic_load_n(&n_lines_bytes, __ATOMIC_RELAXED) > length;
}

void relay_loaded_begin_child(void)
{
	look.is_looking = false;
	look.is_child = true;
	look.n_known = n_lines_bytes;
}
