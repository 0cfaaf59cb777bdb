/* SPDX-License-Identifier: MIT */
/* Files of counters that somebody has damaged, and changes in which their maker died. */
#define _GNU_SOURCE
#include "counters_check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sanitizer adds steps. */
#ifdef __SANITIZE_ADDRESS__
enum { KILLS = 10, N_NAMES = 200, STEPS = 40 };
#else
enum { KILLS = 40, N_NAMES = 200, STEPS = 10 };
#endif

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
	AUTOPTR(relay_counters) counters = make_counters(100);
	int n = relay_perf_add(counters, "a");
	CHECK_EQ(sum_of(counters, n), 0);
	CHECK_EQ(truncate(in_store("counters"), 100), 0);
	int64_t value = 1;
	CHECK_EQ(relay_counters_sum(counters, n, &value), 0);
	CHECK_EQ(value, 0);
	CHECK_EQ(relay_counters_refresh(counters), -EBADMSG);
	CHECK(relay_perf_add(counters, "b") < 0);
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
	AUTOPTR(relay_counters) counters = make_counters(1000);
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
}

TEST(a_change_that_nobody_ended_is_told)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	CHECK(relay_perf_add(counters, "a") > 0);
	spoil("counters", offsetof(struct relay_perf_header, gen1), 77);
	CHECK_EQ(relay_counters_refresh(counters), -EAGAIN);
	CHECK_EQ(relay_counters_repair(counters), 0);
	CHECK_EQ(relay_counters_refresh(counters), 1);
	CHECK_EQ(relay_counters_header(counters)->gen2, 77);
}

TEST(whoever_opens_the_files_after_a_death_ends_the_change)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
	die_in_a_change(counters, 0, STEPS);
	AUTOPTR(relay_counters) other = open_counters();
	CHECK(!is_changing(other));
	check_list(other);
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
