/* SPDX-License-Identifier: MIT */
/*
 * The frame of the C tests of one buffer.
 *
 *     TEST(a_full_buffer_refuses) { ... CHECK_EQ(write_bytes(buf, 1), -ENOSPC); ... }
 *
 *     PROGRAM TEST rseq|lockless|locking SCRATCH_DIRECTORY
 *
 * One process runs one test. The thread is pinned to one CPU, whose buffer the test uses.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { CHECK_MAX_TESTS = 100 };

struct check_test {
	const char *name;
	void (*run)(void);
};

static struct check_test check_tests[CHECK_MAX_TESTS];
static unsigned check_n_tests;
static uint32_t scheme = RELAY_LOCKLESS;
static const char *scratch = ".";
static unsigned home_cpu; /* where this thread runs, and whose buffer is tested */

#define TEST(name_)                                                                \
	static void name_(void);                                                   \
	__attribute__((constructor)) static void register_##name_(void)            \
	{                                                                          \
		check_tests[check_n_tests++] = (struct check_test){#name_, name_}; \
	}                                                                          \
	static void name_(void)

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

static inline struct rchan_buf *make_buf(uint64_t subbuf_size, uint64_t n_subbufs, uint32_t mode)
{
	struct relay_spec spec = a_spec(subbuf_size, n_subbufs, mode);
	struct rchan_buf *buf = relay_buf_open(make_channel(&spec));

	CHECK(buf != NULL);
	return buf;
}

static inline struct relay_stats stats_of(struct rchan_buf *buf)
{
	struct relay_stats stats;

	CHECK_EQ(relay_buf_stats(buf, &stats), 0);
	return stats;
}

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

int main(int argc, char **argv)
{
	unsigned i;

	if (argc != 4)
		return 2;
	scheme = strcmp(argv[2], "rseq") == 0      ? RELAY_RSEQ
	         : strcmp(argv[2], "locking") == 0 ? RELAY_LOCKING
	                                           : RELAY_LOCKLESS;
	scratch = argv[3];
	pin_to_home();
	for (i = 0; i < check_n_tests; i++) {
		if (strcmp(check_tests[i].name, argv[1]) == 0) {
			check_tests[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no test %s\n", argv[1]);
	return 2;
}

#endif
