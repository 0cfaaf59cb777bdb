/* SPDX-License-Identifier: MIT */
/* Counters of a store that nobody serves. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <relayfs/counters.h>
#include <signal.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, KILLS = 40, MAX_NAMES = 700, N_NAMES = 200, STEPS = 10 };

static const char *store(void)
{
	static char path[4096];
	snprintf(path, sizeof(path), "%s/store", scratch);
	return path;
}

static const char *in_store(const char *name)
{
	static char path[8192];
	snprintf(path, sizeof(path), "%s/.counters/%s", store(), name);
	return path;
}

static void make_store(uint32_t limit)
{
	CHECK_EQ(mkdir(store(), 0755), 0);
	CHECK_EQ(chmod(store(), 0755), 0);
	CHECK_EQ(relay_counters_create(store(), limit), 0);
}

/* Others may open the files, as with -o trusted. */
static void trust_everybody(void)
{
	CHECK_EQ(chmod(in_store(""), 0755), 0);
}

static struct relay_counters *open_counters(void)
{
	struct relay_counters *counters = relay_counters_open(store());
	if (!counters)
		perror("relay_counters_open");
	CHECK(counters != NULL);
	return counters;
}

static struct relay_counters *make_counters(uint32_t limit)
{
	make_store(limit);
	return open_counters();
}

static int64_t sum_of(struct relay_counters *counters, int instance)
{
	int64_t value = 0;
	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_sum(counters, instance, &value), 0);
	return value;
}

static struct relay_perf_spec a_spec_of(uint32_t uid, uint32_t mode)
{
	return (struct relay_perf_spec){.size = sizeof(struct relay_perf_spec), .uid = uid, .gid = uid, .mode = mode};
}

/* 0: the child of fork() did what it should. */
static int result_of(pid_t child)
{
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

/* ------------------------------------------------------------------ names and numbers */

TEST(a_name_has_one_number_for_ever)
{
	struct relay_counters *one = make_counters(100), *other = open_counters();
	int n = relay_perf_add(one, "disk/sda/write_io");
	CHECK(n > 0);
	CHECK_EQ(relay_perf_add(one, "disk/sda/write_io"), n);
	CHECK_EQ(relay_perf_add(other, "disk/sda/write_io"), n);
	CHECK(relay_perf_add(other, "disk/sda/read_io") != n);
	CHECK_EQ(relay_perf_del(one, n), 0);
	CHECK_EQ(relay_counters_find(other, "disk/sda/write_io"), -ENOENT);
	CHECK_EQ(relay_perf_add(other, "disk/sda/write_io"), n);
	CHECK_EQ(relay_counters_find(one, "disk/sda/write_io"), n);
	relay_counters_close(one);
	relay_counters_close(other);
}

TEST(a_deleted_counter_goes_on_where_it_was)
{
	struct relay_counters *counters = make_counters(100);
	int n = relay_perf_add(counters, "a/b");
	CHECK_EQ(relay_perf_adjust(counters, n, 5), 0);
	CHECK_EQ(relay_perf_del(counters, n), 0);
	CHECK_EQ(relay_perf_del(counters, n), -ENOENT);
	CHECK_EQ(relay_perf_add(counters, "a/b"), n);
	CHECK_EQ(relay_perf_adjust(counters, n, -2), 0);
	CHECK_EQ(sum_of(counters, n), 3);
	relay_counters_close(counters);
}

TEST(what_is_said_of_a_name_is_listed)
{
	struct relay_counters *counters = make_counters(100);
	struct relay_perf_spec spec = a_spec_of(-1u, 0220);
	struct relay_perf_info info;
	spec.kind = RELAY_PERF_GAUGE;
	spec.unit = "bytes";
	spec.help = "What is \"in use\" now.";
	int n = relay_perf_add_as(counters, "mem/used", &spec);
	CHECK(n > 0);
	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_next(counters, 0, &info), 1);
	CHECK_EQ(info.instance, n);
	CHECK_EQ(info.kind, RELAY_PERF_GAUGE);
	CHECK_EQ(info.uid, geteuid());
	CHECK_EQ(info.mode, 0220);
	CHECK(strcmp(info.name, "mem/used") == 0);
	CHECK(strcmp(info.unit, "bytes") == 0);
	CHECK(strcmp(info.help, spec.help) == 0);
	CHECK_EQ(relay_counters_next(counters, n, &info), 0);
	relay_counters_close(counters);
}

TEST(names_that_are_not_allowed_are_refused)
{
	struct relay_counters *counters = make_counters(100);
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
	relay_counters_close(counters);
}

TEST(attributes_that_are_not_allowed_are_refused)
{
	struct relay_counters *counters = make_counters(100);
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
	relay_counters_close(counters);
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
	struct relay_counters *counters = make_counters(100);
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
	relay_counters_close(counters);
}

TEST(all_are_copied_as_they_are_read)
{
	struct relay_counters *counters = make_counters(2000);
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
	CHECK_EQ(relay_counters_copy(counters, values, 600), 1024);
	CHECK_EQ(values[header->nr_blocks * 600], 0x0101010101010101);
	CHECK_EQ(relay_counters_copy(counters, values, 3), -EINVAL);
	CHECK_EQ(relay_counters_copy(counters, values + 1, 2), -EINVAL);
	relay_counters_close(counters);
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
	struct relay_counters *counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	CHECK_EQ(relay_counters_refresh(counters), 1);
	CHECK_EQ(count_without_system_calls(counters, n), 0);
	relay_counters_close(counters);
}

TEST(numbers_that_nobody_added_do_no_harm)
{
	struct relay_counters *counters = make_counters(100), *other = open_counters();
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
	relay_counters_close(counters);
	relay_counters_close(other);
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
	struct relay_counters *counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	pid_t child = fork();
	if (!child)
		_exit(relay_perf_adjust(counters, n, 3) || relay_perf_add(counters, "b") < 0);
	CHECK_EQ(relay_perf_adjust(counters, n, 4), 0);
	CHECK_EQ(result_of(child), 0);
	CHECK_EQ(sum_of(counters, n), 7);
	CHECK(relay_counters_find(counters, "b") > 0);
	relay_counters_close(counters);
}

/* ------------------------------------------------------------------ who may */

static void become_nobody(void)
{
	CHECK_EQ(setgid(NOBODY), 0);
	CHECK_EQ(setuid(NOBODY), 0);
}

/* Nobody's processes: 0 if adding and adjusting end as expected. */
static int try_as_nobody(const char *name, int expected)
{
	pid_t child = fork();
	if (!child) {
		become_nobody();
		struct relay_counters *counters = open_counters();
		int n = relay_perf_add(counters, name);
		CHECK(expected ? n == expected : n > 0);
		CHECK_EQ(relay_perf_adjust(counters, n, 1), expected ? -ENOENT : 0);
		relay_counters_close(counters);
		_exit(0);
	}
	return result_of(child);
}

TEST(as_root_a_group_is_adjusted_by_whom_its_mode_lets)
{
	struct relay_counters *counters = make_counters(100);
	struct relay_perf_spec own = a_spec_of(NOBODY, 0200), all = a_spec_of(0, 0222), other = a_spec_of(1234, 0200);
	int n_own = relay_perf_add_as(counters, "nobody/a", &own);
	int n_all = relay_perf_add_as(counters, "all/a", &all);
	int n_other = relay_perf_add_as(counters, "other/a", &other), n_root = relay_perf_add(counters, "root/a");
	CHECK(n_own > 0 && n_all > 0 && n_other > 0 && n_root > 0);
	CHECK_EQ(relay_perf_add_as(counters, "other/b", &own), -EACCES);
	CHECK_EQ(relay_perf_add_as(counters, "root/b", &own), -EACCES);
	CHECK(relay_perf_add_as(counters, "all/b", &own) > 0);
	trust_everybody();
	CHECK_EQ(try_as_nobody("nobody/a", 0), 0);
	CHECK_EQ(try_as_nobody("all/a", 0), 0);
	CHECK_EQ(try_as_nobody("other/a", -EACCES), 0);
	CHECK_EQ(try_as_nobody("root/a", -EACCES), 0);
	CHECK_EQ(try_as_nobody("new/a", -EACCES), 0);
	CHECK_EQ(relay_perf_adjust(counters, n_own, 1), 0);
	CHECK_EQ(sum_of(counters, n_own), 0);
	CHECK_EQ(relay_counters_mirror(counters), 1);
	CHECK_EQ(relay_counters_mirror(counters), 0);
	CHECK_EQ(sum_of(counters, n_own), 2);
	CHECK_EQ(sum_of(counters, n_all), 1);
	CHECK_EQ(sum_of(counters, n_other) + sum_of(counters, n_root), 0);
	relay_counters_close(counters);
}

/* Nobody spoils his own group's memory: all of it, then its length. */
static int spoil_as_nobody(const char *name)
{
	const char *path = in_store(name);
	pid_t child = fork();
	if (!child) {
		become_nobody();
		int fd = open(path, O_RDWR);
		struct stat st;
		CHECK(fd >= 0 && fstat(fd, &st) == 0);
		unsigned char *all = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(all != MAP_FAILED);
		memset(all, 0xee, (size_t)st.st_size);
		_exit(0);
	}
	return result_of(child);
}

TEST(as_root_a_hostile_writer_spoils_its_own_group_only)
{
	CHECK_EQ(relay_guard_install(), 0);
	struct relay_counters *counters = make_counters(100);
	struct relay_perf_spec own = a_spec_of(NOBODY, 0200);
	int n_own = relay_perf_add_as(counters, "nobody/a", &own), n_root = relay_perf_add(counters, "root/a");
	int64_t flag = 0;
	CHECK_EQ(relay_perf_adjust(counters, n_root, 42), 0);
	trust_everybody();
	CHECK_EQ(spoil_as_nobody("65534-65534-0600"), 0);
	CHECK_EQ(relay_counters_mirror(counters), 1);
	CHECK(sum_of(counters, n_own) != 0);
	CHECK_EQ(sum_of(counters, n_root), 42);
	const struct relay_perf_header *header = relay_counters_header(counters);
	memcpy(&flag, (const char *)header + relay_perf_flag_offset(header, 0, (uint32_t)n_own), sizeof(flag));
	CHECK_EQ(flag, 0);
	int64_t before = sum_of(counters, n_own);
	CHECK_EQ(truncate(in_store("65534-65534-0600"), 0), 0);
	CHECK_EQ(relay_counters_mirror(counters), 0);
	CHECK_EQ(sum_of(counters, n_own), before);
	CHECK_EQ(relay_perf_adjust(counters, n_own, 1), 0); /* into nowhere */
	CHECK_EQ(relay_perf_adjust(counters, n_root, 1), 0);
	CHECK_EQ(sum_of(counters, n_root), 43);
	relay_counters_close(counters);
}

TEST(as_root_the_store_is_its_owners)
{
	struct relay_counters *counters = make_counters(100);
	struct relay_perf_spec all = a_spec_of(NOBODY, 0222);
	CHECK(relay_perf_add_as(counters, "all/a", &all) > 0);
	pid_t child = fork();
	if (!child) {
		become_nobody();
		CHECK(!relay_counters_open(store()) && errno == ENOENT);
		CHECK(open(in_store("65534-65534-0666"), O_RDWR) < 0 && errno == EACCES);
		CHECK(truncate(in_store("65534-65534-0666"), 0) < 0 && errno == EACCES);
		_exit(0);
	}
	CHECK_EQ(result_of(child), 0);
	relay_counters_close(counters);
}

/* ------------------------------------------------------------------ quotas, and what is freed */

static int add_for(struct relay_counters *counters, uint32_t uid, uint32_t mode, unsigned group, unsigned i)
{
	struct relay_perf_spec spec = a_spec_of(uid, mode);
	char name[64];
	snprintf(name, sizeof(name), "u%u-%o-%u/n%u", uid, mode, group, i);
	return relay_counters_enter(counters, name, &spec);
}

TEST(as_root_each_user_has_a_quota_of_names)
{
	enum { LIMIT = 1600, QUOTA = LIMIT / 16 };
	struct relay_counters *counters = make_counters(LIMIT);
	CHECK_EQ(relay_counters_limit(counters), LIMIT);
	for (unsigned i = 0; i < QUOTA; i++)
		CHECK(add_for(counters, 1000, 0222, i % 2, i) > 0);
	CHECK_EQ(add_for(counters, 1000, 0222, 0, QUOTA), -EDQUOT);
	CHECK_EQ(add_for(counters, 1000, 0200, 0, QUOTA), -EDQUOT);
	/* Another user cannot add to it in his group, root can. */
	struct relay_perf_spec other = a_spec_of(1001, 0200), root = a_spec_of(0, 0200);
	CHECK_EQ(relay_counters_enter(counters, "u1000-222-0/more", &other), -EDQUOT);
	CHECK(relay_counters_enter(counters, "u1000-222-0/more", &root) > 0);
	CHECK(add_for(counters, 1001, 0200, 0, 0) > 0);
	relay_counters_close(counters);
}

TEST(as_root_others_leave_some_names_to_the_owner)
{
	enum { LIMIT = 80, LEFT = LIMIT / 8 };
	struct relay_counters *counters = make_counters(LIMIT);
	char name[32];
	unsigned n = 0;
	while (add_for(counters, 1000 + n / 10, 0200, 0, n) > 0)
		n++;
	CHECK_EQ(add_for(counters, 1000 + n / 10, 0200, 0, n), -ENOSPC);
	CHECK_EQ(n, LIMIT - LEFT);
	for (unsigned i = 0; i < LEFT; i++) {
		snprintf(name, sizeof(name), "mine/%u", i);
		CHECK(relay_perf_add(counters, name) > 0);
	}
	CHECK_EQ(relay_perf_add(counters, "mine/more"), -ENOSPC);
	relay_counters_close(counters);
}

TEST(as_root_only_so_many_owners_have_room)
{
	enum { OTHERS = 239 };
	struct relay_counters *counters = make_counters(1000);
	for (unsigned i = 0; i < OTHERS; i++)
		CHECK(add_for(counters, 1000 + i, 0200, 0, 0) > 0);
	CHECK_EQ(add_for(counters, 5000, 0200, 0, 0), -ENOSPC);
	/* The store's owner has room for each of his modes. */
	CHECK(add_for(counters, 0, 0222, 0, 0) > 0);
	CHECK(add_for(counters, 0, 0220, 0, 0) > 0);
	relay_counters_close(counters);
}

TEST(as_root_no_user_has_more_than_some_owners_places)
{
	static const uint32_t modes[] = {0200, 0220, 0222, 0202, 0002};
	struct relay_counters *counters = make_counters(1000);
	int n = 0;
	for (unsigned i = 0; i < 4; i++) {
		n = add_for(counters, 1000, modes[i], 0, 0);
		CHECK(n > 0);
		CHECK(add_for(counters, 1000, modes[i], 1, 0) > 0); /* the same owner, group and mode */
	}
	CHECK_EQ(add_for(counters, 1000, modes[4], 0, 0), -EDQUOT);
	/* Those whose names are all deleted are freed when one is needed. */
	CHECK_EQ(relay_perf_del(counters, n), 0);
	CHECK_EQ(add_for(counters, 1000, modes[4], 0, 0), -EDQUOT);
	CHECK_EQ(relay_perf_del(counters, relay_counters_find(counters, "u1000-202-1/n0")), 0);
	CHECK(add_for(counters, 1000, modes[4], 0, 0) > 0);
	CHECK(access(in_store("1000-1000-0606"), F_OK) < 0);
	relay_counters_close(counters);
}

/* All names of a user: added, checked to count from zero, deleted. `stale` is a number that another handle has. */
static void use_quota(struct relay_counters *counters, unsigned round, unsigned quota, struct relay_counters *other,
                      int *stale)
{
	int numbers[quota];
	for (unsigned i = 0; i < quota; i++) {
		numbers[i] = add_for(counters, 1000, 0200, round, i);
		CHECK(numbers[i] > 0);
	}
	if (!*stale)
		*stale = relay_perf_add(other, "u1000-200-0/n0");
	CHECK_EQ(relay_perf_adjust(other, *stale, 1), 0);
	CHECK(relay_counters_mirror(counters) >= 0);
	for (unsigned i = 0; i < quota; i++) {
		CHECK_EQ(sum_of(counters, numbers[i]), round == 0 && numbers[i] == *stale);
		CHECK_EQ(relay_perf_del(counters, numbers[i]), 0);
	}
}

TEST(as_root_names_of_groups_that_were_deleted_are_used_again)
{
	enum { LIMIT = 1600, QUOTA = LIMIT / 16, ROUNDS = 40 };
	struct relay_counters *counters = make_counters(LIMIT), *other = open_counters();
	int stale = 0;
	/* Who counts in a group that has gone counts into nothing, and not for whoever has its number. */
	for (unsigned round = 0; round < ROUNDS; round++)
		use_quota(counters, round, QUOTA, other, &stale);
	/* Its own names from then on count again. */
	CHECK(add_for(counters, 1000, 0200, 0, 0) > 0);
	int n = relay_perf_add(other, "u1000-200-0/n0");
	CHECK_EQ(relay_perf_adjust(other, n, 3), 0);
	CHECK_EQ(relay_counters_mirror(counters), 1);
	CHECK_EQ(sum_of(counters, n), 3);
	relay_counters_close(other);
	relay_counters_close(counters);
}

TEST(what_is_freed_is_used_again_and_counts_from_zero)
{
	enum { LIMIT = 600, ROUNDS = 5000 };
	struct relay_counters *counters = make_counters(LIMIT), *reader = open_counters();
	char name[64];
	CHECK(relay_perf_add(counters, "relayfs/server/requests") > 0);
	CHECK(relay_counters_refresh(reader) >= 0);
	uint64_t before = relay_counters_header(reader)->gen2;
	for (int i = 0; i < ROUNDS; i++) {
		snprintf(name, sizeof(name), "relayfs/channels/c%d/records", i);
		int n = relay_counters_enter(counters, name, NULL);
		CHECK(n > 0 && n < LIMIT);
		CHECK_EQ(sum_of(counters, n), 0);
		CHECK_EQ(relay_counters_set(counters, 0, n, 7), 0);
		CHECK_EQ(relay_counters_find(reader, name), n);
		CHECK_EQ(relay_counters_free(counters, n), 0);
		CHECK_EQ(relay_counters_free(counters, n), -ENOENT);
		CHECK_EQ(relay_counters_find(reader, name), -ENOENT);
	}
	/* Who has read the list is told that it is another one. */
	CHECK_EQ(relay_counters_refresh(reader), 1);
	CHECK(relay_counters_header(reader)->gen2 >= before + 2 * ROUNDS);
	relay_counters_close(reader);
	relay_counters_close(counters);
}

TEST(names_are_found_whatever_was_freed_between_them)
{
	enum { N = 500, ROUNDS = 20 };
	struct relay_counters *counters = make_counters(N + 1);
	int numbers[N] = {0};
	char name[64];
	CHECK(relay_perf_add(counters, "g/first") > 0);
	srandom(1);
	for (int i = 0; i < N * ROUNDS; i++) {
		int which = (int)(random() % N);
		snprintf(name, sizeof(name), "g/n%d", which);
		CHECK_EQ(relay_counters_find(counters, name), numbers[which] ? numbers[which] : -ENOENT);
		if (numbers[which]) {
			CHECK_EQ(relay_counters_free(counters, numbers[which]), 0);
			numbers[which] = 0;
		} else {
			numbers[which] = relay_counters_enter(counters, name, NULL);
			CHECK(numbers[which] > 0);
		}
	}
	relay_counters_close(counters);
}

/* ------------------------------------------------------------------ damage */

static void spoil(const char *name, off_t at, uint32_t value)
{
	int fd = open(in_store(name), O_RDWR);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, &value, sizeof(value), at), sizeof(value));
	close(fd);
}

static int error_of_open(void)
{
	struct relay_counters *counters = relay_counters_open(store());
	int err = counters ? 0 : errno;
	relay_counters_close(counters);
	return err;
}

TEST(damage_is_found_when_counters_are_opened)
{
	make_store(100);
	CHECK_EQ(error_of_open(), 0);
	spoil("counters", offsetof(struct relay_perf_header, version), 99);
	CHECK_EQ(error_of_open(), EPROTO);
	spoil("counters", offsetof(struct relay_perf_header, version), RELAY_PERF_VERSION);
	spoil("counters", offsetof(struct relay_perf_header, nr_cpus), 0);
	CHECK_EQ(error_of_open(), EBADMSG);
	spoil("counters", offsetof(struct relay_perf_header, nr_cpus), relay_n_possible_cpus());
	spoil("counters", offsetof(struct relay_perf_header, nr_chunks), 1u << 30);
	CHECK_EQ(error_of_open(), EBADMSG);
	spoil("counters", offsetof(struct relay_perf_header, nr_chunks), 0);
	CHECK_EQ(error_of_open(), 0);
	spoil("names", 12, 0);
	CHECK_EQ(error_of_open(), EBADMSG);
	spoil("names", 12, 100);
	CHECK_EQ(truncate(in_store("names"), 8192), 0);
	CHECK_EQ(error_of_open(), EBADMSG);
	CHECK_EQ(truncate(in_store("counters"), 0), 0);
	CHECK_EQ(error_of_open(), EBADMSG);
	CHECK_EQ(unlink(in_store("names")), 0);
	CHECK_EQ(unlink(in_store("counters")), 0);
	CHECK_EQ(error_of_open(), ENOENT);
}

TEST(a_reader_survives_truncation)
{
	CHECK_EQ(relay_guard_install(), 0);
	struct relay_counters *counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	CHECK_EQ(sum_of(counters, n), 0);
	CHECK_EQ(truncate(in_store("counters"), 100), 0);
	int64_t value = 1;
	CHECK_EQ(relay_counters_sum(counters, n, &value), 0);
	CHECK_EQ(value, 0);
	CHECK_EQ(relay_counters_refresh(counters), -EBADMSG);
	CHECK(relay_perf_add(counters, "b") < 0);
	relay_counters_close(counters);
}

TEST(a_directory_that_is_no_store_has_no_counters)
{
	CHECK_EQ(error_of_open(), ENOENT);
	CHECK_EQ(mkdir(store(), 0755), 0);
	CHECK_EQ(error_of_open(), ENOENT);
}

/* ------------------------------------------------------------------ death in the middle */

static void name_of(char name[32], unsigned i)
{
	snprintf(name, 32, "g%u/n%u", i % 5, i % N_NAMES);
}

/* Every third name is freed and not only deleted. */
static bool is_figure(unsigned i)
{
	return i % N_NAMES % 3 == 0;
}

/* Add what is not there, delete what is, until its parent, which traces it, kills it. */
static void change_for_ever(unsigned seed)
{
	struct relay_counters *counters = open_counters();
	char name[32];
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	for (unsigned i = seed;; i++) {
		name_of(name, i);
		int n = relay_counters_find(counters, name);
		if (n > 0) {
			CHECK_EQ(is_figure(i) ? relay_counters_free(counters, n) : relay_perf_del(counters, n), 0);
			continue;
		}
		n = relay_perf_add(counters, name);
		CHECK(n > 0);
		/* Not relay_perf_adjust(): a restartable sequence begins anew at each step. */
		CHECK_EQ(relay_counters_set(counters, 0, n, 1), 0);
	}
}

static bool is_changing(const struct relay_counters *counters)
{
	const struct relay_perf_header *header = relay_counters_header(counters);
	return __atomic_load_n(&header->gen1, __ATOMIC_RELAXED) != __atomic_load_n(&header->gen2, __ATOMIC_RELAXED);
}

static void step(pid_t child)
{
	int status;
	CHECK_EQ(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
}

/* After n instructions that a child has executed in changes, and before the end of one. */
static void die_in_a_change(const struct relay_counters *counters, unsigned seed, unsigned n)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		change_for_ever(seed);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	for (; n > 0 || !is_changing(counters); n -= n > 0 && is_changing(counters))
		step(child);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(result_of(child), SIGKILL);
	CHECK(is_changing(counters));
}

/* Each listed name is found under its number, and no number or name is there twice. */
static void check_list(struct relay_counters *counters)
{
	struct relay_perf_info info, other;
	CHECK_EQ(relay_counters_repair(counters), 0);
	CHECK(relay_counters_refresh(counters) >= 0);
	for (int n = 0; relay_counters_next(counters, n, &info) == 1; n = info.instance) {
		CHECK_EQ(relay_counters_find(counters, info.name), info.instance);
		for (int m = info.instance; relay_counters_next(counters, m, &other) == 1; m = other.instance)
			CHECK(strcmp(info.name, other.name) != 0);
	}
}

TEST(death_in_the_middle_of_a_change_leaves_no_trace)
{
	struct relay_counters *counters = make_counters(1000);
	int known[N_NAMES] = {0};
	char name[32];
	for (unsigned kill_number = 0; kill_number < KILLS; kill_number++) {
		die_in_a_change(counters, kill_number, kill_number * STEPS);
		check_list(counters);
		for (unsigned i = 0; i < N_NAMES; i++) {
			name_of(name, i);
			int n = relay_counters_find(counters, name);
			CHECK(n < 0 || !known[i] || known[i] == n || is_figure(i));
			known[i] = n > 0 ? n : known[i];
		}
	}
	CHECK(relay_perf_add(counters, "still/works") > 0);
	relay_counters_close(counters);
}

TEST(a_change_that_nobody_ended_is_told)
{
	struct relay_counters *counters = make_counters(100);
	CHECK(relay_perf_add(counters, "a") > 0);
	spoil("counters", offsetof(struct relay_perf_header, gen1), 77);
	CHECK_EQ(relay_counters_refresh(counters), -EAGAIN);
	CHECK_EQ(relay_counters_repair(counters), 0);
	CHECK_EQ(relay_counters_refresh(counters), 1);
	CHECK_EQ(relay_counters_header(counters)->gen2, 77);
	relay_counters_close(counters);
}

/* As relay_counters_open() returns it when it fails. */
TEST(calls_without_counters_do_nothing)
{
	struct relay_perf_spec spec = {.size = sizeof(spec), .unit = "bytes"};

	CHECK(!relay_counters_open("/nowhere/at/all"));
	CHECK_EQ(relay_perf_add(NULL, "disk/reads"), 0);
	CHECK_EQ(relay_perf_add_as(NULL, "disk/reads", &spec), 0);
	CHECK_EQ(relay_perf_adjust(NULL, 0, 1), 0);
	CHECK_EQ(relay_perf_adjust(NULL, 7, -1), 0);
	CHECK_EQ(relay_perf_del(NULL, 7), 0);
	relay_counters_close(NULL);
}
