/* SPDX-License-Identifier: MIT */
/* Opening, adding and adjusting counters (<relayfs/counters.h>); reading them is in counters/reader.c. */
#define _GNU_SOURCE
#include <relayfs/counters.h>

#include "base/affinity.h"
#include "base/mapping.h"
#include "base/rseq.h"
#include "counters/add_delete.h"
#include "counters/copy.h"
#include "counters/files.h"
#include "counters/names.h"
#include "store/find.h"

#include <errno.h>
#include <fcntl.h>
#include <relayfs/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ABORTS = 100, ADD_TRIES = 10 };

/* ------------------------------------------------------------------ opening */

static char *join(const char *dir, const char *name)
{
	char *path;
	return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static bool has_file(const char *dir, const char *name)
{
	char *path = join(dir, name);
	bool found = path && access(path, F_OK) == 0;
	free(path);
	return found;
}

/* Return the directory of a store's counters, which are made if the store is this user's. NULL and errno. */
static char *dir_of_store(const char *store)
{
	char usual[PATH_MAX];
	bool is_usual = relay_default_store(usual) == 0 && strcmp(usual, store) == 0;
	if (is_usual)
		relay_store_make(store);
	if (!has_file(store, ".counters/counters")) {
		/* The directory may be no store. */
		bool ours = (is_usual || has_file(store, ".lock")) && relay_store_is_trusted(store);
		int err = ours ? relay_counters_create(store, RELAY_PERF_DEFAULT_LIMIT) : -ENOENT;
		if (err) {
			errno = -err;
			return NULL;
		}
	}
	return join(store, ".counters");
}

static bool is_ours(const char *dir)
{
	struct stat st;
	return stat(dir, &st) == 0 && st.st_uid == geteuid();
}

/* Open the counters of a mount. The store's own user opens the store's files; other users open the mount's, which they
 * cannot truncate. If the mount cannot map files, they open the store's if they may, and otherwise make copies. */
static int map_mount(struct relay_counters *counters, const char *mnt, const char *store)
{
	char *in_mount = join(mnt, ".counters"), *in_store = join(store, ".counters");
	char *main_file = join(store, ".counters/counters");
	counters->file = join(mnt, "counters.names");
	int err = counters->file && in_mount && in_store && main_file ? -ENODEV : -ENOMEM;
	if (err == -ENODEV && !is_ours(in_store))
		err = relay_perf_map(counters, in_mount, main_file, false);
	if (err == -ENODEV)
		err = relay_perf_map(counters, in_store, NULL, false);
	if (err == -EACCES)
		err = relay_perf_map(counters, in_mount, main_file, true);
	free(in_mount);
	free(in_store);
	free(main_file);
	return err;
}

static int map_store(struct relay_counters *counters, const char *store)
{
	char *dir = dir_of_store(store);
	int err = dir ? relay_perf_map(counters, dir, NULL, false) : -errno;
	free(dir);
	return err;
}

static int map(struct relay_counters *counters, const char *path)
{
	char store[PATH_MAX], *root = path ? strdup(path) : relay_default_root();
	int err = root ? 0 : -ENOMEM;
	if (!err && relay_find_store(root, store) == 0)
		err = map_mount(counters, root, store);
	else if (!err && !path)
		err = relay_default_store(store) ? -ENAMETOOLONG : map_store(counters, store);
	else if (!err)
		err = map_store(counters, path);
	free(root);
	return err;
}

/* Load what there is; complete first a change during which its writer has died, if this process may. */
static int load(struct relay_counters *counters)
{
	const struct relay_perf_header *header = counters->header;
	/* Relaxed: relay_counters_repair() looks again under the lock, which it waits for if a change is under way. */
	bool is_changed =
	    __atomic_load_n(&header->gen1, __ATOMIC_RELAXED) != __atomic_load_n(&header->gen2, __ATOMIC_RELAXED);
	int err = is_changed && counters->direct ? relay_counters_repair(counters) : 0;
	return err ? err : relay_counters_refresh(counters);
}

struct relay_counters *relay_counters_open(const char *path)
{
	struct relay_counters *counters = calloc(1, sizeof(*counters));
	if (!counters)
		return NULL;
	counters->dir_fd = -1;
	pthread_mutex_init(&counters->mutex, NULL);
	int err = map(counters, path);
	if (!err) {
		counters->fast.n_chunks[RELAY_INLINE_VERSION] = counters->chunks_max;
		counters->fast.at = calloc(counters->chunks_max, sizeof(*counters->fast.at));
		counters->all = calloc(counters->chunks_max, sizeof(*counters->all));
		err = counters->fast.at && counters->all ? load(counters) : -ENOMEM;
	}
	if (err >= 0)
		return counters;
	relay_counters_close(counters);
	errno = -err;
	return NULL;
}

void relay_counters_close(struct relay_counters *counters)
{
	if (!counters)
		return;
	relay_perf_unmap(counters);
	pthread_mutex_destroy(&counters->mutex);
	free(counters->fast.at);
	free(counters->all);
	free(counters->file);
	free(counters);
}

/* ------------------------------------------------------------------ adding */

/* Complete a spec with defaults. for_others: the owner of a new group may be any user to whom this one may give files. */
static int complete_spec(struct relay_perf_spec *full, const struct relay_perf_spec *spec, bool for_others)
{
	static const struct relay_perf_spec defaults = {.size = sizeof(defaults), .uid = -1u, .gid = -1u};
	*full = defaults;
	if (spec && (spec->size < offsetof(struct relay_perf_spec, mode) || spec->size > sizeof(*full)))
		return -EINVAL;
	if (spec)
		memcpy(full, spec, spec->size);
	if (full->kind > RELAY_PERF_GAUGE || full->mode & ~0777u ||
	    !relay_perf_is_text(full->unit, RELAY_PERF_UNIT_BYTES, false) ||
	    !relay_perf_is_text(full->help, RELAY_PERF_HELP_BYTES, true))
		return -EINVAL;
	full->mode = full->mode ? full->mode : 0200;
	bool other = !for_others &&
	             ((full->uid != -1u && full->uid != geteuid()) || (full->gid != -1u && full->gid != getegid()));
	full->uid = full->uid == -1u ? geteuid() : full->uid;
	full->gid = full->gid == -1u ? getegid() : full->gid;
	return other && geteuid() ? -EPERM : 0;
}

/* Let this handle adjust an instance. */
static int take(struct relay_counters *counters, uint32_t n)
{
	uint32_t chunk = n / RELAY_PERF_SLOTS, domain = relay_perf_chunk_record(counters, chunk)->domain;
	int err = counters->copies ? 0 : relay_perf_map_domain(counters, domain);
	if (err)
		return err;
	/* With copies, only the fact that the instance was added is needed. */
	const struct relay_mapping *mapping =
	    domain && !counters->copies ? &counters->domains[domain] : &counters->main;
	int64_t *at = (int64_t *)(mapping->base + relay_perf_chunk_offset(&counters->seen, chunk));
	/* Pair with the acquire in relay_inline_word(): the mapping. */
	__atomic_store_n(&counters->all[chunk], at, __ATOMIC_RELEASE);
	/* relay_inline_add() does not compare this thread's CPU with nr_cpus. */
	if (!counters->copies && relay_n_cpus_most() <= counters->seen.nr_cpus)
		__atomic_store_n(&counters->fast.at[chunk], at, __ATOMIC_RELEASE);
	return (int)n;
}

static int write_line(const char *file, const char *line)
{
	size_t length = strlen(line);
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int err = write(fd, line, length) == (ssize_t)length ? 0 : -errno;
	close(fd);
	return err;
}

/* Ask the file server to add a name. */
static int add_by_server(const struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	static const char *const kinds[] = {"counter", "gauge"};
	char *line;
	if (!counters->file)
		return -EACCES;
	if (asprintf(&line, "add %s kind=%s mode=%04o%s%s%s%s\n", name, kinds[spec->kind], spec->mode,
	             spec->unit ? " unit=" : "", spec->unit ? spec->unit : "", spec->help ? " help=" : "",
	             spec->help ? spec->help : "") < 0)
		return -ENOMEM;
	int err = write_line(counters->file, line);
	free(line);
	return err;
}

static int add_missing(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	if (counters->direct)
		return relay_perf_change_add(counters, name, spec);
	int err = add_by_server(counters, name, spec);
	if (!err && counters->copies)
		err = relay_perf_copy_refresh(counters);
	return err ? err : relay_perf_look_up(counters, name);
}

static int add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	/* With copies, the server checks who may adjust. */
	int n = counters->copies ? -ENOENT : relay_perf_look_up(counters, name);
	if (n == -ENOENT || n == -EAGAIN)
		n = add_missing(counters, name, spec);
	return n;
}

/* Look up the name again after take(), because it may have been deleted meanwhile and its number given to another. */
static int add_and_take(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	for (int tries = 0; tries < ADD_TRIES; tries++) {
		int n = add(counters, name, spec);
		int err = n < 0 ? n : take(counters, (uint32_t)n);
		if (n < 0 || relay_perf_look_up(counters, name) == n)
			return err ? err : n;
	}
	return -EBUSY;
}

static int check_and_add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec,
                         int (*way)(struct relay_counters *, const char *, const struct relay_perf_spec *))
{
	struct relay_perf_spec full;
	int err = relay_perf_check_name(name);
	if (!err)
		err = complete_spec(&full, spec, way != add_and_take);
	/* Checked only here and not when names are looked up, because earlier versions allowed names that are not
	 * UTF-8. */
	if (!err && !(relay_perf_is_utf8(name) && relay_perf_is_utf8(full.unit) && relay_perf_is_utf8(full.help)))
		err = -EILSEQ;
	if (err)
		return err;
	pthread_mutex_lock(&counters->mutex);
	int n = way(counters, name, &full);
	pthread_mutex_unlock(&counters->mutex);
	return n;
}

int relay_perf_add_as(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	return counters ? check_and_add(counters, name, spec, add_and_take) : 0;
}

int relay_counters_enter(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec)
{
	return counters->direct ? check_and_add(counters, name, spec, relay_perf_change_add) : -EACCES;
}

int relay_perf_add(struct relay_counters *counters, const char *name)
{
	return relay_perf_add_as(counters, name, NULL);
}

int relay_perf_del(struct relay_counters *counters, int instance)
{
	char line[32];
	if (!counters)
		return 0;
	if (instance <= 0 || !relay_perf_has_number(counters, (uint32_t)instance))
		return -ENOENT;
	if (!counters->direct) {
		snprintf(line, sizeof(line), "del %d\n", instance);
		return counters->file ? write_line(counters->file, line) : -EACCES;
	}
	pthread_mutex_lock(&counters->mutex);
	int err = relay_perf_change_del(counters, (uint32_t)instance, false);
	pthread_mutex_unlock(&counters->mutex);
	return err;
}

int relay_counters_free(struct relay_counters *counters, int instance)
{
	if (!counters->direct)
		return -EACCES;
	pthread_mutex_lock(&counters->mutex);
	int err = instance > 0 ? relay_perf_change_del(counters, (uint32_t)instance, true) : -ENOENT;
	pthread_mutex_unlock(&counters->mutex);
	return err;
}

/* Return an instance's word in block 0, in a mapping that stays as long as the caller has the mutex. NULL: the domain
 * cannot be mapped. */
static int64_t *words_of(struct relay_counters *counters, uint32_t n)
{
	uint32_t chunk = n / RELAY_PERF_SLOTS, domain = relay_perf_chunk_record(counters, chunk)->domain;
	if (relay_perf_map_domain(counters, domain))
		return NULL;
	const struct relay_mapping *mapping = domain ? &counters->domains[domain] : &counters->main;
	return (int64_t *)(mapping->base + relay_perf_chunk_offset(&counters->seen, chunk)) + n % RELAY_PERF_SLOTS;
}

int relay_counters_adjust(struct relay_counters *counters, int instance, int64_t delta)
{
	uint32_t n = (uint32_t)instance;
	if (!counters->direct)
		return -EACCES;
	pthread_mutex_lock(&counters->mutex);
	bool is_there = instance > 0 && relay_perf_has_number(counters, n);
	int64_t *words = is_there ? words_of(counters, n) : NULL;
	/* Relaxed: no other data depends on the value. */
	if (words)
		__atomic_fetch_add(words + (size_t)counters->seen.nr_cpus * RELAY_PERF_SLOTS, delta, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&counters->mutex);
	return words ? 0 : -ENOENT;
}

uint32_t relay_counters_limit(const struct relay_counters *counters)
{
	return counters->table->limit;
}

int relay_counters_has_others(const struct relay_counters *counters)
{
	/* Relaxed: whoever asks asks again. */
	return __atomic_load_n(&counters->table->n_domains, __ATOMIC_RELAXED) > 1;
}

/* ------------------------------------------------------------------ adjusting */

/* Add in the block of no CPU, because this thread has no restartable sequences, all of its sequences are interrupted,
 * for example by a debugger, or the CPU has no block. Also called if this handle has not added the instance:
 * -ENOENT. */
static int adjust_without_cpu(const struct relay_counters *counters, int instance, int64_t delta)
{
	int64_t *word = relay_inline_word(&counters->fast, counters->all, instance);
	if (!word)
		return -ENOENT;
	if (counters->copies)
		return relay_perf_copy_adjust(counters, instance, delta);
	/* Relaxed: no other data depends on the value. */
	__atomic_fetch_add(word + (size_t)counters->seen.nr_cpus * RELAY_PERF_SLOTS, delta, __ATOMIC_RELAXED);
	return 0;
}

/* Not inlined, so that relay_perf_adjust() saves no registers. */
__attribute__((noinline)) int relay_perf_adjust_anyhow(struct relay_counters *counters, int instance, int64_t delta)
{
	if (!counters)
		return 0;
	int64_t *word = relay_inline_word(&counters->fast, counters->fast.at, instance);
	for (int aborts = 0; word && aborts < MAX_ABORTS && relay_rseq_registered(); aborts++)
		if (relay_inline_add(word, delta))
			return 0;
	return adjust_without_cpu(counters, instance, delta);
}

int relay_perf_adjust(struct relay_counters *counters, int instance, int64_t delta)
{
	return relay_inline_adjust(counters, instance, delta);
}
