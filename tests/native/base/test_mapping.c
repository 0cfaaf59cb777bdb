/* SPDX-License-Identifier: MIT */
/* The memory of store files. */
#define _GNU_SOURCE
#include "check.h"

#include "base/libc.h"
#include "base/mapping.h"

#include <stdint.h>
#include <sys/stat.h>

LIBRARY(static);

enum { HUGE_BYTES = 2 << 20, MAX_FIELD = 128 };

/* Return a number that the kernel tells of a mapping in kilobytes, such as Rss (proc_pid_smaps(5)). */
static long told_kb(const void *base, const char *field)
{
	char line[4096], head[MAX_FIELD], format[MAX_FIELD];
	FILE *smaps = fopen("/proc/self/smaps", "re");
	bool is_it = false;
	long kb = -1;

	CHECK(smaps);
	snprintf(head, sizeof(head), "%lx-", (unsigned long)(uintptr_t)base);
	snprintf(format, sizeof(format), "%s: %%ld kB", field);
	while (kb < 0 && fgets(line, sizeof(line), smaps)) {
		is_it = is_it || strncmp(line, head, strlen(head)) == 0;
		if (is_it && sscanf(line, format, &kb) != 1)
			kb = -1;
	}
	fclose(smaps);
	return kb;
}

static int create(uint64_t hole_bytes, uint64_t bytes)
{
	int dir = open(scratch, O_RDONLY | O_DIRECTORY), fd;

	CHECK(dir >= 0);
	fd = relay_mapping_create_sparse(dir, "file", hole_bytes, bytes, 0600, geteuid(), getegid());
	CHECK(fd >= 0);
	close(dir);
	return fd;
}

static uint64_t allocated_bytes(int fd)
{
	struct stat st;

	CHECK_EQ(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* Whether Linux has a huge page for a file on tmpfs: MADV_COLLAPSE makes one of a file with one page. */
static bool has_huge_pages(void)
{
	int fd = open(scratch, O_RDWR | O_TMPFILE, 0600);
	char *room = mmap(NULL, 2 * HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = room + -(uintptr_t)room % HUGE_BYTES;

	CHECK(fd >= 0 && room != MAP_FAILED && ftruncate(fd, HUGE_BYTES) == 0);
	CHECK(mmap(at, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
	*at = 1;
	bool result = madvise(at, HUGE_BYTES, MADV_COLLAPSE) == 0;
	munmap(room, 2 * HUGE_BYTES);
	close(fd);
	return result;
}

TEST(a_large_file_has_huge_pages_and_is_mapped_by_them)
{
	struct relay_mapping mapping;
	long huge_kb = has_huge_pages() ? HUGE_BYTES >> 10 : 0;
	uint64_t bytes = HUGE_BYTES + RELAY_PAGE_BYTES;
	int fd = create(0, bytes);
	CHECK_EQ(allocated_bytes(fd), bytes);
	CHECK_EQ(relay_mapping_map(&mapping, fd), 0);
	CHECK_EQ(mapping.bytes, bytes);
	CHECK_EQ(told_kb(mapping.base, "Rss"), 0);
	for (uint64_t at = 0; at < bytes; at += RELAY_PAGE_BYTES)
		CHECK_EQ(mapping.base[at], 0);
	CHECK_EQ(told_kb(mapping.base, "Rss"), (long)(bytes >> 10));
	CHECK_EQ(told_kb(mapping.base, "ShmemPmdMapped"), huge_kb);
	relay_mapping_unmap(&mapping);
}

TEST(what_a_sparse_file_does_not_have_yet_gets_no_huge_page)
{
	uint64_t bytes = 3 * (uint64_t)HUGE_BYTES, hole_bytes = HUGE_BYTES + RELAY_PAGE_BYTES;
	int fd = create(hole_bytes, bytes);
	CHECK_EQ(allocated_bytes(fd), bytes - hole_bytes);
	CHECK_EQ(relay_mapping_fill(fd, bytes), 0);
	CHECK_EQ(allocated_bytes(fd), bytes);
	close(fd);
}

TEST(a_small_file_takes_no_more_than_it_is_long)
{
	struct relay_mapping mapping;
	uint64_t bytes = HUGE_BYTES - RELAY_PAGE_BYTES;
	int fd = create(0, bytes);
	CHECK_EQ(allocated_bytes(fd), bytes);
	CHECK_EQ(relay_mapping_map(&mapping, fd), 0);
	memset(mapping.base, 'r', bytes);
	CHECK_EQ(allocated_bytes(fd), bytes);
	CHECK_EQ(told_kb(mapping.base, "ShmemPmdMapped"), 0);
	relay_mapping_unmap(&mapping);
}
