/* SPDX-License-Identifier: MIT */
/* Adding and deleting instances, in processes that may write to all files. */
#define _GNU_SOURCE
#include "counters/add_delete.h"

#include "counters/files.h"
#include "counters/names.h"
#include "counters/read.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ generations */

/* Begin a change. */
static void begin(struct relay_counters *counters)
{
	struct relay_perf_header *header = counters->header;
	__atomic_store_n(&header->gen1, header->gen1 + 1, __ATOMIC_RELAXED);
	/* Pairs with the acquire fence in relay_counters_refresh(): gen1 before all other stores of the change. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* End a change. */
static void end(struct relay_counters *counters)
{
	struct relay_perf_header *header = counters->header;
	/* Pairs with the acquire in relay_counters_refresh(): all stores of the change before gen2. */
	__atomic_store_n(&header->gen2, header->gen1, __ATOMIC_RELEASE);
}

/* Take the lock, and complete a change during which the last holder died. */
static int lock(struct relay_counters *counters)
{
	/* If a file was truncated, the mapping does not show it all. */
	if (!relay_perf_is_whole(&counters->main) || !relay_perf_is_whole(&counters->names) ||
	    counters->header->magic != RELAY_PERF_MAGIC)
		return -EBADMSG;
	int fd = relay_perf_lock(counters->dir_fd);
	if (fd >= 0 && counters->header->gen1 != counters->header->gen2) {
		relay_perf_mend(counters);
		end(counters);
	}
	return fd;
}

int relay_counters_hold(struct relay_counters *counters)
{
	if (!counters->direct)
		return -EACCES;
	pthread_mutex_lock(&counters->mutex);
	int fd = lock(counters);
	pthread_mutex_unlock(&counters->mutex);
	return fd;
}

int relay_counters_repair(struct relay_counters *counters)
{
	int fd = relay_counters_hold(counters);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

/* ------------------------------------------------------------------ changes */

static int add_new(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec,
                   uint32_t domain)
{
	int n = relay_perf_take_number(counters, domain);
	if (n < 0)
		return n;
	struct relay_perf_record *record = &counters->records[n];
	record->kind = spec->kind;
	strcpy(record->name, name);
	strcpy(record->unit, spec->unit ? spec->unit : "");
	strcpy(record->help, spec->help ? spec->help : "");
	int err = relay_perf_find_group(counters, name) ? 0 : relay_perf_enter(counters, (uint32_t)n, true);
	if (!err)
		err = relay_perf_enter(counters, (uint32_t)n, false);
	if (!err)
		relay_perf_set_state(counters, (uint32_t)n, RELAY_PERF_LIVE);
	return err ? err : n;
}

/* Return the domain for a new name, or -errno if there is no room for the name. Called before begin(), because a
 * refusal is not a change. */
static int domain_with_room(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	int domain = relay_perf_domain_for(counters, name, spec);
	int err = domain < 0 ? domain : relay_perf_check_quota(counters, (uint32_t)domain, spec->uid);
	return err ? err : domain;
}

static bool free_domains(struct relay_counters *counters)
{
	if (!relay_perf_has_empty_domain(counters))
		return false;
	begin(counters);
	relay_perf_free_domains(counters);
	end(counters);
	return true;
}

static int add_locked(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	uint32_t n = relay_perf_find(counters, name);
	int domain = n ? relay_perf_domain_for(counters, name, spec) : domain_with_room(counters, name, spec);
	if ((domain == -ENOSPC || domain == -EDQUOT) && free_domains(counters))
		domain = domain_with_room(counters, name, spec);
	if (domain < 0 || (n && counters->records[n].state == RELAY_PERF_LIVE))
		return domain < 0 ? domain : (int)n;
	begin(counters);
	if (n)
		relay_perf_set_state(counters, n, RELAY_PERF_LIVE);
	int result = n ? (int)n : add_new(counters, name, spec, (uint32_t)domain);
	end(counters);
	return result;
}

int relay_perf_change_add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	int fd = lock(counters);
	if (fd < 0)
		return fd;
	int n = add_locked(counters, name, spec);
	close(fd);
	return n;
}

int relay_perf_change_del(struct relay_counters *counters, uint32_t n, bool free_it)
{
	int fd = lock(counters);
	if (fd < 0)
		return fd;
	bool is_live = relay_perf_has_number(counters, n) && counters->records[n].state == RELAY_PERF_LIVE;
	if (is_live) {
		begin(counters);
		if (free_it && relay_perf_chunk_record(counters, n / RELAY_PERF_SLOTS)->domain == 0)
			relay_perf_free_number(counters, n);
		else
			relay_perf_set_state(counters, n, RELAY_PERF_DELETED);
		end(counters);
	}
	close(fd);
	return is_live ? 0 : -ENOENT;
}
