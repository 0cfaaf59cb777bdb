/* SPDX-License-Identifier: MIT */
/* Names of counters, and their values. */
#define _GNU_SOURCE
#include "counters_check.h"

#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAX_NAMES = 700 };

/* ------------------------------------------------------------------ names and numbers */

TEST(a_name_has_one_number_for_ever)
{
	AUTOPTR(relay_counters) one = make_counters(100), *other = open_counters();
	int n = relay_perf_add(one, "disk/sda/write_io");
	CHECK(n > 0);
	CHECK_EQ(relay_perf_add(one, "disk/sda/write_io"), n);
	CHECK_EQ(relay_perf_add(other, "disk/sda/write_io"), n);
	CHECK(relay_perf_add(other, "disk/sda/read_io") != n);
	CHECK_EQ(relay_perf_del(one, n), 0);
	CHECK_EQ(relay_counters_find(other, "disk/sda/write_io"), -ENOENT);
	CHECK_EQ(relay_perf_add(other, "disk/sda/write_io"), n);
	CHECK_EQ(relay_counters_find(one, "disk/sda/write_io"), n);
}

TEST(a_deleted_counter_goes_on_where_it_was)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	int n = relay_perf_add(counters, "a/b");
	CHECK_EQ(relay_perf_adjust(counters, n, 5), 0);
	CHECK_EQ(relay_perf_del(counters, n), 0);
	CHECK_EQ(relay_perf_del(counters, n), -ENOENT);
	CHECK_EQ(relay_perf_add(counters, "a/b"), n);
	CHECK_EQ(relay_perf_adjust(counters, n, -2), 0);
	CHECK_EQ(sum_of(counters, n), 3);
}

TEST(what_is_said_of_a_name_is_listed)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	struct relay_perf_spec spec = a_spec_of(-1u, 0220);
	struct relay_perf_info info;
	spec.kind = RELAY_PERF_GAUGE;
	spec.unit = "bytes";
	spec.help = "What is \"in use\" now.";
	int n = relay_perf_add_as(counters, "mem/used", &spec);
	CHECK(n > 0);
	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_next(counters, 0, &info), 1);
	CHECK_FIELDS(info, (instance, n), (kind, RELAY_PERF_GAUGE), (uid, geteuid()), (mode, 0220));
	CHECK(strcmp(info.name, "mem/used") == 0);
	CHECK(strcmp(info.unit, "bytes") == 0);
	CHECK(strcmp(info.help, spec.help) == 0);
	CHECK_EQ(relay_counters_next(counters, n, &info), 0);
}

TEST(names_that_are_not_allowed_are_refused)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	static const char *const wrong[] = {"",      "/a",   "a/",   "a//b", "a b",  "a\nb", "a\tb",
	                                    "a\x7f", "a\"b", "a\\b", ".",    "a/..", ".a/b"};
	char longest[RELAY_PERF_NAME_BYTES + 1] = "";
	struct relay_perf_info info;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK_EQ(relay_perf_add(counters, wrong[i]), -EINVAL);
	CHECK_EQ(relay_perf_add(counters, NULL), -EINVAL);
	memset(longest, 'x', RELAY_PERF_NAME_BYTES);
	CHECK_EQ(relay_perf_add(counters, longest), -ENAMETOOLONG);
	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_next(counters, 0, &info), 0);
	longest[RELAY_PERF_NAME_BYTES - 1] = 0;
	CHECK(relay_perf_add(counters, longest) > 0);
}

TEST(attributes_that_are_not_allowed_are_refused)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	struct relay_perf_spec spec = a_spec_of(-1u, 0);
	spec.kind = 2;
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	spec = a_spec_of(-1u, 01000);
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	spec = a_spec_of(-1u, 0);
	spec.unit = "two words";
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	spec.unit = "0123456789012345678901234567890123456789";
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	spec.unit = NULL;
	spec.help = "two\nlines";
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	spec.help = NULL;
	spec.size = 1;
	CHECK_EQ(relay_perf_add_as(counters, "a", &spec), -EINVAL);
	CHECK_EQ(relay_counters_find(counters, "a"), -ENOENT);
}

TEST(the_limit_of_names_is_the_limit)
{
	struct relay_counters *counters = make_counters(MAX_NAMES);
	char name[32];
	for (int i = 0; i < MAX_NAMES; i++) {
		snprintf(name, sizeof(name), "group%d/name", i); /* a group each */
		CHECK(relay_perf_add(counters, name) > 0);
	}
	CHECK_EQ(relay_perf_add(counters, "one/more"), -ENOSPC);
	CHECK(relay_perf_add(counters, "group7/name") > 0);
	relay_counters_close(counters);
	CHECK_EQ(relay_counters_create("/nonexistent", 0), -EINVAL);
	CHECK_EQ(relay_counters_create("/nonexistent", RELAY_PERF_HIGHEST_LIMIT + 1), -EINVAL);
	CHECK_EQ(relay_counters_create("/nonexistent", 1), -ENOENT);
}

/* ------------------------------------------------------------------ values */

TEST(values_are_read_by_cpu_and_as_a_sum)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	uint32_t nr_cpus = relay_counters_header(counters)->nr_cpus;
	int n = relay_perf_add(counters, "a");
	int64_t value = 1, sum = 0;
	CHECK_EQ(relay_perf_adjust(counters, n, INT64_MAX), 0);
	CHECK_EQ(relay_perf_adjust(counters, n, 1), 0);
	CHECK(relay_counters_refresh(counters) == 1);
	CHECK(relay_counters_refresh(counters) == 0);
	for (uint32_t block = 0; block <= nr_cpus; block++) {
		CHECK_EQ(relay_counters_read(counters, block, n, &value), 0);
		CHECK(value == 0 || value == INT64_MIN);
		sum += value;
	}
	CHECK_EQ(sum, INT64_MIN);
	CHECK_EQ(sum_of(counters, n), INT64_MIN);
	CHECK_EQ(relay_counters_read(counters, nr_cpus + 1, n, &value), -ENOENT);
}

TEST(all_are_copied_as_they_are_read)
{
	AUTOPTR(relay_counters) counters = make_counters(2000);
	static int64_t values[64 * 2048] __attribute__((aligned(16)));
	const struct relay_perf_header *header = relay_counters_header(counters);
	char name[32];
	for (int i = 0; i < MAX_NAMES; i++) {
		snprintf(name, sizeof(name), "a/%d", i);
		int n = relay_perf_add(counters, name);
		CHECK(n > 0);
		CHECK_EQ(relay_perf_adjust(counters, n, n), 0);
	}
	CHECK(relay_counters_refresh(counters) == 1);
	CHECK_EQ(relay_counters_copy(counters, values, 1024), 1024);
	for (int n = 0; n < 1024; n++) {
		int64_t value, sum = 0, expected = 0;
		for (uint32_t block = 0; block < header->nr_blocks; block++) {
			sum += values[block * 1024 + (uint32_t)n];
			if (relay_counters_read(counters, block, n, &value) == 0)
				CHECK_EQ(value, values[block * 1024 + (uint32_t)n]);
		}
		if (relay_counters_sum(counters, n, &expected))
			CHECK_EQ(n % RELAY_PERF_SLOTS, 0);
		CHECK_EQ(sum, expected);
	}
	memset(values, 1, sizeof(values));
	/* Of the second chunk an odd number of pairs. */
	int64_t sum = 0, last = 0;
	CHECK_EQ(relay_counters_copy(counters, values, 602), 1024);
	CHECK_EQ(values[header->nr_blocks * 602], 0x0101010101010101);
	for (uint32_t block = 0; block < header->nr_blocks; block++)
		sum += values[block * 602 + 601];
	CHECK_EQ(relay_counters_sum(counters, 601, &last), 0);
	CHECK(last != 0);
	CHECK_EQ(sum, last);
	CHECK_EQ(relay_counters_copy(counters, values, 3), -EINVAL);
	CHECK_EQ(relay_counters_copy(counters, values + 1, 2), -EINVAL);
}

/* In which any system call but exit(2) kills. */
static int count_without_system_calls(struct relay_counters *counters, int n)
{
	static int64_t values[64 * RELAY_PERF_SLOTS] __attribute__((aligned(16)));
	int64_t value = 0;
	pid_t child = fork();
	if (!child) {
		bool ok = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0;
		ok = ok && relay_perf_adjust(counters, n, 7) == 0 && relay_counters_refresh(counters) == 0;
		ok = ok && relay_counters_sum(counters, n, &value) == 0 && value == 7;
		ok = ok && relay_counters_copy(counters, values, RELAY_PERF_SLOTS) == RELAY_PERF_SLOTS;
		syscall(SYS_exit, !ok);
	}
	return result_of(child);
}

TEST(counting_and_reading_make_no_system_call)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	CHECK_EQ(relay_counters_refresh(counters), 1);
	CHECK_EQ(count_without_system_calls(counters, n), 0);
}

TEST(numbers_that_nobody_added_do_no_harm)
{
	AUTOPTR(relay_counters) counters = make_counters(100), *other = open_counters();
	int n = relay_perf_add(counters, "a");
	static const int wrong[] = {0, -1, 512, 513 + 512, 1 << 20, INT32_MAX, INT32_MIN};
	int64_t value;
	CHECK_EQ(relay_perf_adjust(other, n, 1), -ENOENT);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		CHECK_EQ(relay_perf_adjust(counters, wrong[i], 1), -ENOENT);
		CHECK_EQ(relay_counters_sum(counters, wrong[i], &value), -ENOENT);
		CHECK_EQ(relay_counters_read(counters, 0, wrong[i], &value), -ENOENT);
		CHECK_EQ(relay_perf_del(counters, wrong[i]), -ENOENT);
	}
}

static struct relay_counters *in_handler;
static int handled_instance;
static volatile sig_atomic_t n_handled;

static void handler(int number)
{
	(void)number;
	relay_perf_adjust(in_handler, handled_instance, 1);
	n_handled++;
}

TEST(a_signal_handler_may_adjust)
{
	in_handler = make_counters(100);
	handled_instance = relay_perf_add(in_handler, "a");
	struct itimerval often = {.it_interval.tv_usec = 100, .it_value.tv_usec = 100};
	int64_t n = 0;
	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &often, NULL);
	for (; n_handled < 500; n++)
		CHECK_EQ(relay_perf_adjust(in_handler, handled_instance, 1), 0);
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	CHECK_EQ(sum_of(in_handler, handled_instance), n + n_handled);
	relay_counters_close(in_handler);
}

TEST(a_child_goes_on_counting)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	pid_t child = fork();
	if (!child)
		_exit(relay_perf_adjust(counters, n, 3) || relay_perf_add(counters, "b") < 0);
	CHECK_EQ(relay_perf_adjust(counters, n, 4), 0);
	CHECK_EQ(result_of(child), 0);
	CHECK_EQ(sum_of(counters, n), 7);
	CHECK(relay_counters_find(counters, "b") > 0);
}
