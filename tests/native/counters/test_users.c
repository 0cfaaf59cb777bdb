/* SPDX-License-Identifier: MIT */
/* Counters of several users: who may count, and how many names each may take. */
#define _GNU_SOURCE
#include "counters_check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

/* Others may open the files, as with -o trusted. */
static void trust_everybody(void)
{
	CHECK_EQ(chmod(in_store(""), 0755), 0);
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
	AUTOPTR(relay_counters) counters = make_counters(100);
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
	AUTOPTR(relay_counters) counters = make_counters(100);
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
}

TEST(as_root_the_store_is_its_owners)
{
	AUTOPTR(relay_counters) counters = make_counters(100);
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
	AUTOPTR(relay_counters) counters = make_counters(LIMIT);
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
}

TEST(as_root_others_leave_some_names_to_the_owner)
{
	enum { LIMIT = 80, LEFT = LIMIT / 8 };
	AUTOPTR(relay_counters) counters = make_counters(LIMIT);
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
}

TEST(as_root_only_so_many_owners_have_room)
{
	enum { OTHERS = 239 };
	AUTOPTR(relay_counters) counters = make_counters(1000);
	for (unsigned i = 0; i < OTHERS; i++)
		CHECK(add_for(counters, 1000 + i, 0200, 0, 0) > 0);
	CHECK_EQ(add_for(counters, 5000, 0200, 0, 0), -ENOSPC);
	/* The store's owner has room for each of his modes. */
	CHECK(add_for(counters, 0, 0222, 0, 0) > 0);
	CHECK(add_for(counters, 0, 0220, 0, 0) > 0);
}

TEST(as_root_no_user_has_more_than_some_owners_places)
{
	static const uint32_t modes[] = {0200, 0220, 0222, 0202, 0002};
	AUTOPTR(relay_counters) counters = make_counters(1000);
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
	AUTOPTR(relay_counters) counters = make_counters(LIMIT), *other = open_counters();
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
}

TEST(what_is_freed_is_used_again_and_counts_from_zero)
{
	enum { LIMIT = 600, ROUNDS = 5000 };
	AUTOPTR(relay_counters) counters = make_counters(LIMIT), *reader = open_counters();
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
}

TEST(names_are_found_whatever_was_freed_between_them)
{
	enum { N = 500, ROUNDS = 20 };
	AUTOPTR(relay_counters) counters = make_counters(N + 1);
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
}
