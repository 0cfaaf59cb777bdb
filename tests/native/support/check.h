/* SPDX-License-Identifier: MIT */
/*
 * The frame of the C tests: each file native/ROOM/test_*.c is a program, and each TEST in it is run in a process of its own.
 *
 *     #include "check.h"
 *
 *     SCHEMES(rseq, lockless);       run each test once with each of these; without this line, once
 *     BUILDS(plain, threads);        in these builds: plain, memory (AddressSanitizer, UBSan), threads (ThreadSanitizer);
 *                                    without this line, plain and memory. Where lockless is tested, locking is so in the
 *                                    plain build only, but with RELAYFS_STRESS=long
 *     LIBRARY(static);               linked with librelayfs.a, because it calls functions that the shared library hides
 *     STORE(traces);                 the scratch directory has a file of traces, which programs look for when they start
 *
 *     TEST(a_full_buffer_refuses) { ... CHECK_EQ(write_bytes(buf, 1), -ENOSPC); ... }
 *
 *     PROGRAM TEST SCRATCH_DIRECTORY [rseq|lockless|locking]
 *
 * tests/support/c_tests.py finds the tests by these lines; those whose names begin with as_root are run by root only. The
 * thread is pinned to one CPU, whose buffer the test uses. No mount is found, and the default store is the scratch directory.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <relayfs/trace_store.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: %s: not %s\n", __FILE__, __LINE__, __func__, #condition); \
			exit(1);                                                                          \
		}                                                                                         \
	} while (0)

#define CHECK_EQ(left, right)                                                                                          \
	do {                                                                                                           \
		long long left_ = (long long)(left), right_ = (long long)(right);                                      \
		if (left_ != right_) {                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s is %lld, not %s = %lld\n", __FILE__, __LINE__, __func__, #left, \
			        left_, #right, right_);                                                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

struct check_test {
	const char *name;
	void (*run)(void);
};

/* The linker gathers the section of all TESTs, and names its ends. */
extern const struct check_test __start_check_tests[], __stop_check_tests[];

static uint32_t scheme = RELAY_LOCKLESS;
static const char *scratch = ".";
static unsigned home_cpu; /* where this thread runs, and whose buffer is tested */

#define TEST(name_)                                                                                                   \
	static void name_(void);                                                                                      \
	static const struct check_test check_##name_ __attribute__((used, section("check_tests"))) = {#name_, name_}; \
	static void name_(void)

/* For c_tests.py. */
#define SCHEMES(...) _Static_assert(1, #__VA_ARGS__)
#define BUILDS(...) _Static_assert(1, #__VA_ARGS__)
#define LIBRARY(...) _Static_assert(1, #__VA_ARGS__)
#define STORE(...) _Static_assert(1, #__VA_ARGS__)

/* AUTOPTR(rchan_buf) buf = make_buf(64, 2, mode); a pointer that is released where its block ends. */
#define AUTOPTR(type) __attribute__((cleanup(release_##type))) struct type *
#define DEFINE_AUTOPTR(type, release)                       \
	static inline void release_##type(struct type **at) \
	{                                                   \
		release(*at);                               \
	}

DEFINE_AUTOPTR(rchan_buf, relay_buf_release)

static inline struct relay_spec a_spec(uint64_t subbuf_size, uint64_t n_subbufs, uint32_t mode)
{
	return (struct relay_spec){.size = sizeof(struct relay_spec),
	                           .subbuf_size = subbuf_size,
	                           .n_subbufs = n_subbufs,
	                           .n_buffers = relay_n_possible_cpus(),
	                           .mode = mode,
	                           .scheme = scheme,
	                           .buffers = RELAY_PERCPU,
	                           .file_mode = 0600,
	                           .uid = (uint32_t)-1,
	                           .gid = (uint32_t)-1};
}

/* The path of this CPU's memory of a new channel; valid until the next call. */
static inline const char *make_channel(const struct relay_spec *spec)
{
	static unsigned n;
	static char path[4096];

	snprintf(path, sizeof(path), "%s/channel%u", scratch, n++);
	CHECK_EQ(relay_store_create(path, spec), 0);
	snprintf(path + strlen(path), 32, "/mem%u", home_cpu);
	return path;
}

static inline struct rchan_buf *make_buf_of(struct relay_spec spec)
{
	struct rchan_buf *buf = relay_buf_open(make_channel(&spec));

	CHECK(buf != NULL);
	return buf;
}

static inline struct rchan_buf *make_buf(uint64_t subbuf_size, uint64_t n_subbufs, uint32_t mode)
{
	return make_buf_of(a_spec(subbuf_size, n_subbufs, mode));
}

/* Of a buffer of packets, as traces have them. */
static inline struct relay_spec a_packet_spec(uint64_t subbuf_size, uint64_t n_subbufs, uint32_t mode)
{
	struct relay_spec spec = a_spec(subbuf_size, n_subbufs, mode);

	spec.timestamp = RELAY_MONO;
	spec.start_reserve = sizeof(struct relay_packet);
	spec.format = RELAY_PACKETS;
	return spec;
}

static inline struct rchan_buf *make_packet_buf(uint64_t subbuf_size, uint64_t n_subbufs, uint32_t mode)
{
	return make_buf_of(a_packet_spec(subbuf_size, n_subbufs, mode));
}

/* The same buffer, opened a second time: in this process or in a child. */
static inline struct rchan_buf *open_again(const struct rchan_buf *buf)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", relay_buf_fd(buf));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	struct rchan_buf *again = relay_buf_fdopen(fd);
	CHECK(again != NULL);
	close(fd);
	return again;
}

static inline struct relay_stats stats_of(struct rchan_buf *buf)
{
	struct relay_stats stats;

	CHECK_EQ(relay_buf_stats(buf, &stats), 0);
	return stats;
}

/* Up to six fields of a struct: CHECK_FIELDS(stats_of(buf), (records, 3), (bytes, 30)); */
#define CHECK_FIELDS(struct_, ...)                                                                             \
	do {                                                                                                   \
		__typeof__(struct_) fields_ = struct_;                                                         \
		FIELDS_PICK_(__VA_ARGS__, FIELDS_6_, FIELDS_5_, FIELDS_4_, FIELDS_3_, FIELDS_2_, FIELDS_1_, 0) \
		(__VA_ARGS__)                                                                                  \
	} while (0)
#define FIELDS_PICK_(a, b, c, d, e, f, picked, ...) picked
#define FIELDS_ONE_(field, expected) CHECK_EQ(fields_.field, expected);
#define FIELDS_1_(pair) FIELDS_ONE_ pair
#define FIELDS_2_(pair, ...) FIELDS_ONE_ pair FIELDS_1_(__VA_ARGS__)
#define FIELDS_3_(pair, ...) FIELDS_ONE_ pair FIELDS_2_(__VA_ARGS__)
#define FIELDS_4_(pair, ...) FIELDS_ONE_ pair FIELDS_3_(__VA_ARGS__)
#define FIELDS_5_(pair, ...) FIELDS_ONE_ pair FIELDS_4_(__VA_ARGS__)
#define FIELDS_6_(pair, ...) FIELDS_ONE_ pair FIELDS_5_(__VA_ARGS__)

#define CHECK_STATS(buf, ...) CHECK_FIELDS(stats_of(buf), __VA_ARGS__)

/* Write n times `letter`. */
static inline int write_letters(struct rchan_buf *buf, char letter, size_t n)
{
	char *data = malloc(n + 1);
	int err;

	CHECK(data != NULL);
	memset(data, letter, n);
	err = relay_buf_write(buf, data, n);
	free(data);
	return err;
}

/* Write a record of n bytes for each of the letters. Returns the first error. */
static inline int write_each(struct rchan_buf *buf, const char *letters, size_t n)
{
	int err = 0;

	while (*letters && !err)
		err = write_letters(buf, *letters++, n);
	return err;
}

/* Consume up to max bytes into out. Returns how many; 0: nothing there. */
static inline size_t consume_into(struct rchan_buf *buf, char *out, size_t max)
{
	struct relay_span spans[16];
	size_t total = 0, used = 0;
	int n = relay_consume_begin(buf, max, spans, 16, &total), i;

	CHECK(n >= 0 && n <= 16 && total <= max);
	for (i = 0; i < n; i++) {
		CHECK(spans[i].length > 0 && spans[i].length <= total - used);
		memcpy(out + used, spans[i].data, spans[i].length);
		used += spans[i].length;
	}
	CHECK_EQ(used, total);
	if (total == 0)
		return 0;
	CHECK_EQ(relay_consume_valid(buf), 0);
	relay_consume_end(buf);
	return total;
}

/* Everything that is there, as a string. Valid until the next call. */
static inline const char *drain(struct rchan_buf *buf)
{
	static char text[1 << 20];
	size_t used = 0, n;

	while ((n = consume_into(buf, text + used, sizeof(text) - 1 - used)) > 0)
		used += n;
	text[used] = 0;
	return text;
}

#define CHECK_TEXT(text, expected)                                                                                  \
	do {                                                                                                        \
		const char *got_ = text;                                                                            \
		if (strcmp(got_, expected) != 0) {                                                                  \
			fprintf(stderr, "%s:%d: %s: read \"%s\", not \"%s\"\n", __FILE__, __LINE__, __func__, got_, \
			        expected);                                                                          \
			exit(1);                                                                                    \
		}                                                                                                   \
	} while (0)

#define CHECK_DRAINS(buf, expected) CHECK_TEXT(drain(buf), expected)

static inline void pin_to_home(void)
{
	cpu_set_t set;

	home_cpu = (unsigned)sched_getcpu();
	CPU_ZERO(&set);
	CPU_SET(home_cpu, &set);
	CHECK_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

/* Whether tests are to run at full length. */
static inline bool is_long(void)
{
	const char *form = getenv("RELAYFS_STRESS");

	return form && strcmp(form, "long") == 0;
}

/* fork(); the child does not outlive its parent. */
static inline pid_t fork_child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* 0: the child did what it should. */
static inline int result_of(pid_t child)
{
	int status;

	CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

static uint32_t scheme_of(const char *word)
{
	if (strcmp(word, "rseq") == 0)
		return RELAY_RSEQ;
	return strcmp(word, "locking") == 0 ? RELAY_LOCKING : RELAY_LOCKLESS;
}

int main(int argc, char **argv)
{
	const struct check_test *test;

	if (argc < 3)
		return 2;
	scratch = argv[2];
	if (argc > 3)
		scheme = scheme_of(argv[3]);
	pin_to_home();
	for (test = __start_check_tests; test < __stop_check_tests; test++) {
		if (strcmp(test->name, argv[1]) == 0) {
			test->run();
			return 0;
		}
	}
	fprintf(stderr, "no test %s\n", argv[1]);
	return 2;
}

#endif
