/* SPDX-License-Identifier: MIT */
/*
 * A program that wants to do harm with the shared memory that it may map.
 *
 *     hostile SEED KIND MEM [FILE]
 *
 * KIND  relay: MEM is the memory of a buffer; ring: of a ring; words: any other shared file
 * FILE  its relay file, which is read, written and polled meanwhile
 *
 * The environment has PAGES_STAY where the server can make files immutable: then pages must not be freed either.
 *
 * In each of its lives (lives.h) it stores chosen and random values where others read, and tries what a mapping must not
 * allow.
 */
#define _GNU_SOURCE
#include "hostile.h"
#include "lives.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <relayfs/layout.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FLIP_US = 3000, NAP_US = 4000 };

static struct target target;
static const char *relay_file;
static uint64_t live_owner[2]; /* owner words of threads that live */
static bool pages_stay;        /* the mount lets nobody free pages of its files */

/* --- values --- */

/* As owner.c makes it, of a thread that will not die meanwhile. */
static uint64_t owner_word(pid_t pid)
{
	char path[64], text[1024], *at;
	struct stat ns;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
	if (file)
		fclose(file);
	text[got] = 0;
	at = strrchr(text, ')');
	if (!at || stat("/proc/self/ns/pid", &ns))
		return 0;
	uint64_t start = 0;
	for (int number = 2; *at && number < 22; at++)
		number += *at == ' ';
	start = strtoull(at, NULL, 10);
	uint64_t folded =
	    ((uint64_t)ns.st_ino ^ (uint64_t)ns.st_ino >> RELAY_OWNER_NS_BITS) & ((1ull << RELAY_OWNER_NS_BITS) - 1);
	return (uint64_t)pid | folded << RELAY_OWNER_TID_BITS | start << (RELAY_OWNER_TID_BITS + RELAY_OWNER_NS_BITS);
}

static uint64_t chosen_value(const struct field *field, uint64_t old)
{
	static const uint64_t values[] = {0,
	                                  1,
	                                  2,
	                                  3,
	                                  0x7f,
	                                  0xff,
	                                  255,
	                                  256,
	                                  257,
	                                  4095,
	                                  4096,
	                                  4097,
	                                  65535,
	                                  65536,
	                                  1ull << 30,
	                                  1ull << 31,
	                                  (1ull << 31) - 1,
	                                  0xffffffffull,
	                                  1ull << 32,
	                                  1ull << 47,
	                                  1ull << 48,
	                                  1ull << 61,
	                                  1ull << 62,
	                                  (1ull << 62) - 1,
	                                  1ull << 63,
	                                  (1ull << 63) - 1,
	                                  (1ull << 63) + 1,
	                                  3ull << 62,
	                                  ~0ull,
	                                  ~1ull,
	                                  0xff00ff00ff00ff00ull};
	if (field->is_owner && random_below(2))
		return random_below(4) ? live_owner[random_below(2)] : random_word() & 0xfffff;
	switch (random_below(6)) {
	case 0:
		return old + random_below(17) - 8;
	case 1:
		return old ^ 1ull << random_below(64);
	case 2: {
		uint64_t neighbour = 0;
		uint64_t at = target.field[random_below(target.n_fields)].at;
		if (at + sizeof(neighbour) <= target.bytes)
			memcpy(&neighbour, target.memory + at, sizeof(neighbour));
		return neighbour;
	}
	case 3:
		return random_word() >> random_below(64);
	default:
		return values[random_below(sizeof(values) / sizeof(*values))];
	}
}

static void store(const struct field *field, uint64_t value)
{
	if (field->bytes == sizeof(uint32_t)) {
		uint32_t half = (uint32_t)value;
		__atomic_store((uint32_t *)(target.memory + field->at), &half, __ATOMIC_RELAXED);
	} else {
		__atomic_store((uint64_t *)(target.memory + field->at), &value, __ATOMIC_RELAXED);
	}
}

static uint64_t load(const struct field *field)
{
	uint64_t value = 0;
	memcpy(&value, target.memory + field->at, field->bytes);
	return value;
}

static const struct field *any_field(void)
{
	return &target.field[random_below(target.n_fields)];
}

/* --- stores --- */

static void nap(void)
{
	usleep((useconds_t)random_below(NAP_US)); /* so that an attack meets others at any moment */
}

/* One wrong word, or a few, among others that are right. */
static void store_a_few(void)
{
	stored(target_restore(&target));
	uint64_t n = random_below(3) ? 1 : 1 + random_below(8);
	for (uint64_t i = 0; i < n; i++) {
		const struct field *field = any_field();
		store(field, chosen_value(field, load(field)));
	}
	stored(n);
	nap();
}

/* A word that is never what it was a moment ago. */
static void flip(const struct field *const *fields, unsigned n, bool whatever)
{
	uint64_t values[8][2];
	for (unsigned i = 0; i < n; i++) {
		values[i][0] = load(fields[i]);
		values[i][1] = whatever ? chosen_value(fields[i], values[i][0]) : values[i][0] + 1;
	}
	uint64_t end = now_us() + FLIP_US, count = 0;
	while (now_us() < end)
		for (unsigned turn = 0; turn < 1000; turn++, count++)
			for (unsigned i = 0; i < n; i++)
				store(fields[i], values[i][whatever ? turn & 1 : 0] + (whatever ? 0 : turn));
	stored(count * n);
}

static void flip_some(void)
{
	const struct field *fields[8];
	unsigned n = 1 + (unsigned)random_below(3);
	if (random_below(2))
		stored(target_restore(&target));
	for (unsigned i = 0; i < n; i++)
		fields[i] = any_field();
	flip(fields, n, random_below(2));
}

static void store_noise(void)
{
	uint64_t n = 1 + random_below(target.n_fields);
	for (uint64_t i = 0; i < n; i++)
		store(any_field(), random_below(4) ? random_word() : random_word() >> random_below(64));
	stored(n);
	nap();
}

/* As much work as a reader can be given, while the word that makes it begin anew changes all the time. */
static void make_work(void)
{
	stored(target_restore(&target));
	uint64_t n = target.kind == KIND_RING ? target_fill_with_discards(&target) : target_list_holes(&target);
	stored(n);
	if (!n)
		return;
	struct field field = {0, sizeof(uint32_t), false};
	field.at = target.kind == KIND_RING ? 64 : target.control_at + offsetof(struct relay_control, resets);
	const struct field *fields[] = {&field};
	for (unsigned i = 0; i < 10; i++)
		flip(fields, 1, target.kind == KIND_RING);
}

static void copy_pages(void)
{
	uint64_t pages = target.bytes / RELAY_PAGE_BYTES;
	memcpy(target.memory + random_below(pages) * RELAY_PAGE_BYTES,
	       target.memory + random_below(pages) * RELAY_PAGE_BYTES, RELAY_PAGE_BYTES);
	stored(RELAY_PAGE_BYTES / sizeof(uint64_t));
	nap();
}

/* --- what a descriptor or a mapping might allow --- */

static void change_size(void)
{
	static const int modes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
	                            FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE};
	struct stat before, after;
	int fd = target.fd, mode = modes[random_below(sizeof(modes) / sizeof(*modes))];
	fstat(fd, &before);
	must_fail(ftruncate(fd, (off_t)random_below(target.bytes)) == 0, "ftruncate");
	must_fail(ftruncate(fd, (off_t)(target.bytes * 2)) == 0, "ftruncate to grow");
	must_fail(fallocate(fd, mode, 0, (off_t)target.bytes * 2) == 0, "fallocate");
	if (fstat(fd, &after) == 0)
		must_fail(before.st_size != after.st_size, "another size");
}

static void open_again(int flags, const char *what)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", target.fd);
	int fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return;
	must_fail(ftruncate(fd, 0) == 0, what);
	close(fd);
}

static void link_it(void)
{
	char from[64], to[64];
	snprintf(from, sizeof(from), "/proc/self/fd/%d", target.fd);
	snprintf(to, sizeof(to), "/dev/shm/kept-%d", getpid());
	bool done = linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
	done |= linkat(target.fd, "", AT_FDCWD, to, AT_EMPTY_PATH) == 0;
	must_fail(done, "link");
	snprintf(from, sizeof(from), "/proc/self/map_files/%lx-%lx", (unsigned long)target.memory,
	         (unsigned long)(target.memory + target.bytes));
	int fd = open(from, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	must_fail(ftruncate(fd, 0) == 0, "map_files");
	close(fd);
}

/* Freed pages are zeros, which could have been stored as well, but cost whoever stores there next a page that there may not
 * be. */
static void advise(void)
{
	static const int advice[] = {MADV_DONTNEED, MADV_FREE,     MADV_PAGEOUT,   MADV_COLD,
	                             MADV_HUGEPAGE, MADV_WILLNEED, MADV_MERGEABLE, MADV_POPULATE_WRITE};
	uint64_t pages = target.bytes / RELAY_PAGE_BYTES, first = random_below(pages);
	unsigned char *at = target.memory + first * RELAY_PAGE_BYTES;
	uint64_t bytes = (1 + random_below(pages - first)) * RELAY_PAGE_BYTES;
	bool is_freed = madvise(at, bytes, MADV_REMOVE) == 0;
	must_fail(is_freed && pages_stay, "MADV_REMOVE");
	madvise(at, bytes, advice[random_below(sizeof(advice) / sizeof(*advice))]);
}

static void map_otherwise(void)
{
	size_t bytes = target.bytes;
	char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, target.fd, 0);
	if (shared != MAP_FAILED) {
		char *longer = mremap(shared, bytes, bytes * 2, MREMAP_MAYMOVE);
		mprotect(longer == MAP_FAILED ? shared : longer, RELAY_PAGE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC);
		munmap(longer == MAP_FAILED ? shared : longer, longer == MAP_FAILED ? bytes : bytes * 2);
	}
	char *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, target.fd, 0);
	if (copy != MAP_FAILED) {
		memset(copy, 0xff, RELAY_PAGE_BYTES);
		munmap(copy, bytes);
	}
	char *beyond = mmap(NULL, bytes * 2, PROT_READ, MAP_SHARED, target.fd, (off_t)(bytes / 4096 * 4096));
	if (beyond != MAP_FAILED)
		munmap(beyond, bytes * 2);
}

static void lock_and_write(void)
{
	struct flock whole = {.l_type = F_WRLCK};
	char noise[600];
	memset(noise, 0xff, sizeof(noise));
	fcntl(target.fd, F_SETLK, &whole);
	fcntl(target.fd, F_OFD_SETLK, &whole);
	fcntl(target.fd, F_SETLEASE, F_WRLCK);
	pwrite(target.fd, noise, sizeof(noise), (off_t)random_below(target.bytes * 2));
	lseek(target.fd, (off_t)random_word(), (int)random_below(5));
	copy_file_range(target.fd, NULL, target.fd, NULL, 4096, 0);
	sendfile(target.fd, target.fd, NULL, 4096);
}

static void try_files(void)
{
	switch (random_below(6)) {
	case 0:
		change_size();
		break;
	case 1:
		open_again(O_RDWR | O_TRUNC, "opened again, truncated");
		open_again(O_RDWR, "opened again");
		break;
	case 2:
		link_it();
		break;
	case 3:
		map_otherwise();
		break;
	case 4:
		lock_and_write();
		break;
	default:
		advise();
	}
}

/* --- what it does with the relay file, as anybody would --- */

static void use_file(void)
{
	char record[5000];
	int fd = relay_file ? open(relay_file, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	memset(record, 'h', sizeof(record));
	record[sizeof(record) - 1] = '\n';
	struct pollfd both = {.fd = fd, .events = POLLIN | POLLOUT};
	for (unsigned i = 0; i < 8; i++) {
		if (write(fd, record, random_below(sizeof(record))) < 0)
			break;
		poll(&both, 1, (int)random_below(2));
	}
	if (random_below(2) && read(fd, record, sizeof(record)) < 0)
		lseek(fd, 0, SEEK_END);
	close(fd);
}

/* --- lives --- */

static enum kind kind;
static const char *memory_path;

static bool map_target(struct target *into)
{
	struct stat st;
	memset(into, 0, sizeof(*into));
	into->kind = kind;
	into->fd = open(memory_path, O_RDWR | O_CLOEXEC);
	if (into->fd < 0 || fstat(into->fd, &st))
		return false;
	into->bytes = (uint64_t)st.st_size;
	into->memory = mmap(NULL, into->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, into->fd, 0);
	return into->memory != MAP_FAILED && target_learn(into);
}

/* There may be another channel of this name by now; what is known of the first one serves where this one is spoilt. */
static void map_anew(void)
{
	static struct target anew;
	if (map_target(&anew))
		target = anew;
}

static void live(void)
{
	live_owner[0] = owner_word(getpid());
	live_owner[1] = owner_word(getppid());
	map_anew();
	while (lives_goes_on()) {
		switch (random_below(10)) {
		case 0:
			try_files();
			break;
		case 1:
			store_noise();
			break;
		case 2:
		case 3:
			flip_some();
			break;
		case 4:
			make_work();
			break;
		case 5:
			copy_pages();
			break;
		case 6:
			stored(target_restore(&target));
			use_file();
			break;
		default:
			for (unsigned i = 0; i < 8; i++)
				store_a_few();
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	kind = argv[2][0] == 'w' ? KIND_WORDS : argv[2][1] == 'e' ? KIND_RELAY : KIND_RING;
	memory_path = argv[3];
	relay_file = argc > 4 ? argv[4] : NULL;
	pages_stay = getenv("PAGES_STAY") != NULL;
	if (!map_target(&target)) {
		fprintf(stderr, "%s: it cannot be mapped, or is no %s: %s\n", memory_path, argv[2], strerror(errno));
		return 1;
	}
	return lives_run(strtoull(argv[1], NULL, 0), live);
}
