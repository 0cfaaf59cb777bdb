/* SPDX-License-Identifier: MIT */
/*
 * A program that wants to do harm with what every traced program may open: the page that says which traces are started,
 * and the file through which a process takes part in one.
 *
 *     hostile_page SEED MNT TRACE...
 *
 * In each of its lives (lives.h) it tries to change MNT/.traces/control, which it may only read, and takes part in traces
 * with requests and declarations that are wrong, or right and as many as are allowed.
 */
#define _GNU_SOURCE
#include "lives.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <relayfs/trace_event.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PAGE = 4096, REQUEST_MAX = 32768, TOKEN_AT = 1 << 20, MAX_JOINS = 24, DECLARATIONS = 40 };

/* No field of the page has this value. */
static const uint64_t mark = 0xa5a5a5a5a5a5a5a5ull;

static const char *mount, *const *traces;
static unsigned n_traces;
static char control[4096], joins[4096];

static sigjmp_buf back;

static void fault(int signum)
{
	siglongjmp(back, signum);
}

/* --- the page --- */

static int page_fd = -1;
static unsigned char *page;
static size_t page_bytes;

static bool map_page(void)
{
	struct stat st;
	page_fd = open(control, O_RDONLY | O_CLOEXEC);
	if (page_fd < 0 || fstat(page_fd, &st))
		return false;
	page_bytes = (size_t)st.st_size;
	page = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED, page_fd, 0);
	return page != MAP_FAILED;
}

/* To be called after a try that wrote `mark` to what should not have been the file. */
static void must_be_unchanged(const char *what)
{
	uint64_t seen = 0;
	for (size_t at = 0; at < PAGE; at += sizeof(seen)) {
		memcpy(&seen, page + at, sizeof(seen));
		must_fail(seen == mark, what);
	}
	stored(1);
}

static void store_at(unsigned char *at, const char *what)
{
	if (sigsetjmp(back, 1) == 0) {
		__atomic_store_n((uint64_t *)at, mark, __ATOMIC_RELAXED);
		must_fail(true, what);
	}
	must_be_unchanged(what);
}

static unsigned char *somewhere(void)
{
	return page + random_below(page_bytes / sizeof(uint64_t)) * sizeof(uint64_t);
}

static void protect_otherwise(void)
{
	static const int protections[] = {PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE | PROT_EXEC};
	int protection = protections[random_below(3)];
	must_fail(mprotect(page, PAGE, protection) == 0, "mprotect");
	store_at(somewhere(), "store");
}

static void map_otherwise(void)
{
	void *shared = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	must_fail(shared != MAP_FAILED, "mapped to be written");
	/* Its own copy is nobody else's. */
	unsigned char *copy = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, page_fd, 0);
	if (copy != MAP_FAILED) {
		memset(copy, (int)(mark & 0xff), PAGE);
		must_be_unchanged("a private mapping");
		if (random_below(2))
			madvise(copy, PAGE, MADV_DONTNEED);
		munmap(copy, PAGE);
	}
}

static void move_mapping(void)
{
	unsigned char *other = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED, page_fd, 0);
	if (other == MAP_FAILED)
		return;
	size_t bytes = page_bytes * (1 + random_below(3));
	unsigned char *moved = mremap(other, page_bytes, bytes, MREMAP_MAYMOVE);
	if (moved == MAP_FAILED)
		moved = other, bytes = page_bytes;
	must_fail(mprotect(moved, bytes, PROT_READ | PROT_WRITE) == 0, "mprotect after mremap");
	store_at(moved, "store after mremap");
	munmap(moved, bytes);
	unsigned char *second = mremap(page, 0, page_bytes, MREMAP_MAYMOVE);
	if (second == MAP_FAILED)
		return;
	must_fail(mprotect(second, page_bytes, PROT_READ | PROT_WRITE) == 0, "mprotect of a second mapping");
	munmap(second, page_bytes);
}

static void write_by_proc(void)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	unsigned char *at = somewhere();
	must_fail(pwrite(fd, &mark, sizeof(mark), (off_t)(uintptr_t)at) > 0, "/proc/self/mem");
	close(fd);
	struct iovec local = {(void *)&mark, sizeof(mark)}, remote = {at, sizeof(mark)};
	must_fail(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) > 0, "process_vm_writev");
	must_fail(read(page_fd, at, sizeof(mark)) > 0, "read(2) into it");
	must_be_unchanged("/proc/self/mem");
}

static void open_path(const char *path, int flags, const char *what)
{
	int fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return;
	if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)
		must_fail(true, what);
	must_fail(ftruncate(fd, 0) == 0, what);
	close(fd);
}

static void open_again(void)
{
	static const int flags[] = {O_RDWR,  O_WRONLY, O_RDWR | O_TRUNC, O_RDONLY | O_TRUNC, O_RDWR | O_APPEND,
	                            O_RDONLY};
	char path[128];
	int with = flags[random_below(6)];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", page_fd);
	open_path(control, with, "opened to be written");
	open_path(path, with, "opened again through /proc/self/fd");
	snprintf(path, sizeof(path), "/proc/%d/map_files/%lx-%lx", getpid(), (unsigned long)page,
	         (unsigned long)(page + page_bytes));
	open_path(path, with, "opened through map_files");
	must_fail(truncate(control, 0) == 0, "truncate");
}

static void advise(void)
{
	static const int advice[] = {MADV_DONTNEED, MADV_FREE,     MADV_PAGEOUT,   MADV_COLD,
	                             MADV_HUGEPAGE, MADV_WILLNEED, MADV_MERGEABLE, MADV_DONTFORK};
	must_fail(madvise(page, PAGE, MADV_REMOVE) == 0, "MADV_REMOVE");
	must_fail(madvise(page, PAGE, MADV_POPULATE_WRITE) == 0, "MADV_POPULATE_WRITE");
	madvise(page, page_bytes, advice[random_below(sizeof(advice) / sizeof(*advice))]);
}

static void change_file(void)
{
	static const int modes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
	                            FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE};
	char to[64];
	must_fail(ftruncate(page_fd, (off_t)random_below(page_bytes * 2)) == 0, "ftruncate");
	must_fail(fallocate(page_fd, modes[random_below(5)], 0, (off_t)page_bytes * 2) == 0, "fallocate");
	must_fail(pwrite(page_fd, &mark, sizeof(mark), 0) > 0, "pwrite");
	must_fail(sendfile(page_fd, page_fd, NULL, PAGE) > 0, "sendfile");
	must_fail(copy_file_range(page_fd, NULL, page_fd, NULL, PAGE, 0) > 0, "copy_file_range");
	must_fail(fchmod(page_fd, 0666) == 0, "fchmod");
	must_fail(fchown(page_fd, getuid(), getgid()) == 0, "fchown");
	must_fail(fsetxattr(page_fd, "user.relayfs.backing", "x", 1, 0) == 0, "setxattr");
	must_fail(unlink(control) == 0, "unlink");
	snprintf(to, sizeof(to), "/dev/shm/kept-%d", getpid());
	must_fail(linkat(page_fd, "", AT_FDCWD, to, AT_EMPTY_PATH) == 0, "link");
	must_fail(link(control, to) == 0, "link");
	must_fail(rename(control, joins) == 0, "rename");
}

static void lock_it(void)
{
	struct flock whole = {.l_type = F_RDLCK};
	fcntl(page_fd, F_SETLK, &whole);
	fcntl(page_fd, F_OFD_SETLK, &whole);
	must_fail(fcntl(page_fd, F_SETLEASE, F_WRLCK) == 0, "a lease");
	struct pollfd both = {.fd = page_fd, .events = POLLIN | POLLPRI};
	poll(&both, 1, 0);
	lseek(page_fd, (off_t)random_word(), (int)random_below(5));
}

static void try_page(void)
{
	static void (*const tries[])(void) = {protect_otherwise, map_otherwise, move_mapping, write_by_proc,
	                                      open_again,        advise,        change_file,  lock_it};
	tries[random_below(sizeof(tries) / sizeof(*tries))]();
}

/* --- taking part --- */

static const char *any_trace(void)
{
	return traces[random_below(n_traces)];
}

/* As trace_event.h and tsdl.c have it written. */
static size_t declare(char *at, size_t room, uint64_t id)
{
	static const char *const fields[] = {"\t\tuint64_t _seq;\n", "\t\tstring { encoding = UTF8; } _text;\n",
	                                     "\t\tuint32_t __data_length;\n\t\txint8_t _data[__data_length];\n", ""};
	int length =
	    snprintf(at, room,
	             "event {\n\tname = \"hostile:e%llx\";\n\tid = %llu;\n\tstream_id = 0;\n\tfields := struct {\n%s"
	             "\t};\n};\n",
	             (unsigned long long)id, (unsigned long long)id, fields[random_below(4)]);
	return length > 0 && (size_t)length < room ? (size_t)length : 0;
}

static size_t declare_many(char *text, uint64_t first, bool is_right)
{
	size_t length = 0, added = 1;
	for (uint64_t id = first; added && length < REQUEST_MAX - 512; id++)
		length += added = declare(text + length, REQUEST_MAX - length, id);
	for (uint64_t n = is_right ? 0 : 1 + random_below(8); n; n--)
		text[random_below(length)] = (char)random_word();
	return length;
}

static size_t write_request(char *text)
{
	static const char *const words[] = {
	    "allocate 0\n", "allocate 1\n", "allocate -1\n", "allocate 99999999999\n", "event {\n",
	    "event",        "\n",           "allocate ",     "event { };\n",           "a b c\n",
	    "../x y\n",     ". ..\n"};
	switch (random_below(6)) {
	case 0:
		return (size_t)sprintf(text, "%s %s", any_trace(), words[random_below(12)]);
	case 1:
		for (size_t i = 0; i < REQUEST_MAX; i++)
			text[i] = (char)random_word();
		return random_below(REQUEST_MAX) + 1;
	case 2:
		return declare_many(text, random_word() >> random_below(64), false);
	case 3:
		return declare_many(text, random_below(4) * 100, true);
	default:
		return (size_t)sprintf(text, "%s", words[random_below(12)]);
	}
}

/* The request of who may not write to files. */
static void ask_by_attribute(int join, char *text, size_t length)
{
	uint64_t token = random_word();
	if (random_below(2) && pread(join, &token, sizeof(token), TOKEN_AT) != sizeof(token))
		return;
	memmove(text + sizeof(token), text, length);
	memcpy(text, &token, sizeof(token));
	fsetxattr(join, "user.relayfs.join", text, random_below(8) ? length + sizeof(token) : random_below(16), 0);
}

/* Noise in the memory that it was given, whether or not it asked for it to be there. */
static void spoil_buffer(const char *trace, const char *name)
{
	char path[8192];
	snprintf(path, sizeof(path), "%s/.channels/%s/%s/cpu/mem%u", mount, trace, name, (unsigned)random_below(2));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) || st.st_size < PAGE) {
		close(fd);
		return;
	}
	size_t bytes = (size_t)st.st_size;
	unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		return;
	for (unsigned i = 0; i < 64 && sigsetjmp(back, 1) == 0; i++) {
		uint64_t word = random_word() >> random_below(64);
		size_t at = (random_below(2) ? bytes - PAGE + random_below(PAGE) : random_below(bytes)) & ~7ull;
		memcpy(memory + at, &word, sizeof(word));
	}
	munmap(memory, bytes);
}

static int take_part(void)
{
	char line[256], name[256] = "";
	const char *trace = any_trace();
	int join = open(joins, O_RDWR | O_CLOEXEC);
	if (join < 0)
		return -1;
	int length = snprintf(line, sizeof(line), "%s %s\n", trace, random_below(4) ? "honest" : "../\xff{}\"\n*/ x");
	if (pwrite(join, line, (size_t)length, 0) < 0)
		return join;
	ssize_t got = pread(join, name, sizeof(name) - 1, 0);
	name[got > 0 ? got : 0] = 0;
	name[strcspn(name, "\n")] = 0;
	if (random_below(3) == 0)
		spoil_buffer(trace, name);
	stored(1);
	return join;
}

/* It is open, and as many more are, while requests go to any of them. */
static void join_traces(void)
{
	static char text[REQUEST_MAX + 64];
	int open_joins[MAX_JOINS];
	unsigned n = 1 + (unsigned)random_below(MAX_JOINS);
	for (unsigned i = 0; i < n; i++) {
		open_joins[i] = take_part();
		int join = open_joins[random_below(i + 1)];
		size_t length = write_request(text);
		if (random_below(4))
			stored(pwrite(join, text, length, (off_t)random_below(2)) > 0);
		else
			ask_by_attribute(join, text, length < REQUEST_MAX ? length : REQUEST_MAX);
		pread(join, text, 4096, (off_t)random_below(2) * TOKEN_AT);
	}
	for (unsigned i = 0; i < n; i++)
		if (open_joins[i] >= 0)
			close(open_joins[i]);
}

/* A directory with nothing but declarations, as many as there is room for. */
static void fill_with_declarations(void)
{
	static char text[REQUEST_MAX + 64];
	int join = take_part();
	uint64_t id = random_below(1u << 20);
	for (unsigned i = 0; i < DECLARATIONS && lives_goes_on(); i++, id += REQUEST_MAX)
		if (pwrite(join, text, declare_many(text, id, true), 0) < 0)
			break;
	if (join >= 0)
		close(join);
}

static void live(void)
{
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
	if (!map_page())
		return;
	/* Requests take so much longer that both together would be nothing but requests. */
	bool takes_part = random_below(2);
	while (lives_goes_on())
		if (!takes_part)
			try_page();
		else if (random_below(2))
			join_traces();
		else
			fill_with_declarations();
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	mount = argv[2];
	traces = (const char *const *)argv + 3;
	n_traces = (unsigned)argc - 3;
	snprintf(control, sizeof(control), "%s/.traces/control", mount);
	snprintf(joins, sizeof(joins), "%s/.traces/join", mount);
	if (!map_page()) {
		fprintf(stderr, "%s cannot be mapped: %s\n", control, strerror(errno));
		return 1;
	}
	return lives_run(strtoull(argv[1], NULL, 0), live);
}
