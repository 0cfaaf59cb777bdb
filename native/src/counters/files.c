/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "counters/files.h"

#include "base/faults.h"
#include "base/immutable.h"
#include "base/mapping.h"
#include "counters/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <relayfs/store.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_PAUSE_NS = 1000000, LOCK_TRIES = 1000 };

/* ------------------------------------------------------------------ lock */

int relay_perf_lock(int dir_fd)
{
	/* Open the file each time, because a lock belongs to an open file, which a child of fork() would share. */
	int fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_OWN);
	if (fd < 0)
		return -errno;
	for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB); tries++) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || tries == LOCK_TRIES) {
			int err = errno == EWOULDBLOCK ? -EBUSY : -errno;
			close(fd);
			return err;
		}
		nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
	}
	return fd;
}

/* ------------------------------------------------------------------ making */

int relay_perf_allocate(const struct relay_mapping *mapping, uint64_t offset, uint64_t bytes)
{
	if (!relay_descriptor_is_ours(&mapping->file))
		return -EBADF;
	int err = posix_fallocate(mapping->file.fd, (off_t)offset, (off_t)bytes);
	/* fallocate(2) fails on an immutable file, but stores allocate memory. */
	if (err == EPERM && mapping->base)
		return relay_mapping_populate(mapping->base + offset, bytes);
	return err == EFBIG ? -ENOSPC : -err;
}

/* Make "NAME.new", a file of `bytes`, of which the first `allocated` have memory. Returns its descriptor. */
static int make_file(int dir_fd, const char *name, uint64_t bytes, uint64_t allocated)
{
	int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_NEW);
	if (fd < 0)
		return -errno;
	int err = ftruncate(fd, (off_t)bytes) ? -errno : 0;
	if (!err)
		err = relay_perf_allocate(&(struct relay_mapping){.file = relay_descriptor_keep(fd)}, 0, allocated);
	if (!err)
		return fd;
	unlinkat(dir_fd, name, 0);
	close(fd);
	return err;
}

/* Write the contents of the new file, and set its mode and its name. */
static int finish_file(int dir_fd, int fd, const char *new_name, const char *name, const void *data, size_t length)
{
	int err = pwrite(fd, data, length, 0) == (ssize_t)length ? 0 : -errno;
	if (!err && (fchmod(fd, RELAY_PERM_COUNTERS) || renameat(dir_fd, new_name, dir_fd, name)))
		err = -errno;
	close(fd);
	return err;
}

static int make_names(int dir_fd, uint32_t limit)
{
	uint32_t n_index = relay_perf_n_index(limit), chunks_max = relay_perf_chunks_max(limit);
	struct relay_perf_table table = {
	    .magic = RELAY_PERF_NAMES_MAGIC,
	    .version = RELAY_FORMAT_NAMES,
	    .limit = limit,
	    .n_index = n_index,
	    .chunks_max = chunks_max,
	    .n_domains = 1,
	    .domains[0] = {.uid = geteuid(), .gid = getegid(), .mode = RELAY_PERM_COUNTERS, .use = 1},
	};
	int fd =
	    make_file(dir_fd, "names.new", relay_perf_names_bytes(n_index, chunks_max), relay_perf_records_at(n_index));
	return fd < 0 ? fd : finish_file(dir_fd, fd, "names.new", "names", &table, sizeof(table));
}

static int make_main(int dir_fd, uint32_t limit)
{
	uint32_t nr_cpus = relay_n_possible_cpus();
	struct relay_perf_header header = {
	    .version = RELAY_PERF_VERSION,
	    .size = sizeof(header),
	    .nr_cpus = nr_cpus,
	    .nr_blocks = nr_cpus + 1,
	    .data_at = RELAY_PAGE_BYTES,
	    .chunk_bytes = (nr_cpus + 1) * (uint64_t)RELAY_PAGE_BYTES,
	    .block_bytes = RELAY_PAGE_BYTES,
	    .slots = RELAY_PERF_SLOTS,
	    .magic = RELAY_PERF_MAGIC,
	};
	uint64_t bytes = relay_perf_main_bytes(&header, relay_perf_chunks_max(limit));
	int fd = make_file(dir_fd, "counters.new", bytes, RELAY_PAGE_BYTES);
	return fd < 0 ? fd : finish_file(dir_fd, fd, "counters.new", "counters", &header, sizeof(header));
}

/* `counters` is made last: if it exists, all files do. */
static int make_files(int dir_fd, uint32_t limit)
{
	if (faccessat(dir_fd, "counters", F_OK, 0) == 0)
		return 0;
	int err = make_names(dir_fd, limit);
	return err ? err : make_main(dir_fd, limit);
}

int relay_counters_create(const char *store, uint32_t limit)
{
	char *dir;
	if (limit == 0 || limit > RELAY_PERF_HIGHEST_LIMIT)
		return -EINVAL;
	if (asprintf(&dir, "%s/.counters", store) < 0)
		return -ENOMEM;
	int err = mkdir(dir, RELAY_PERM_STORE) && errno != EEXIST ? -errno : 0;
	int dir_fd = err ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	/* Set the mode whatever the umask is, also of a directory made by an older version. */
	if (!err && (dir_fd < 0 || fchmod(dir_fd, RELAY_PERM_STORE)))
		err = -errno;
	int lock = err ? err : relay_perf_lock(dir_fd);
	err = lock < 0 ? lock : make_files(dir_fd, limit);
	if (lock >= 0)
		close(lock);
	if (dir_fd >= 0)
		close(dir_fd);
	free(dir);
	return err;
}

/* ------------------------------------------------------------------ mapping */

static int map_file(struct relay_mapping *mapping, int dir_fd, const char *name, bool writable, bool copies,
                    uint64_t least)
{
	struct stat st;
	int fd = relay_file_openat(dir_fd, name, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return fd;
	int err = fstat(fd, &st) ? -errno : 0;
	if (!err && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < least))
		err = -EBADMSG;
	if (!err)
		err = copies ? relay_perf_copy_new(mapping, fd, (uint64_t)st.st_size)
		             : relay_mapping_map_ahead(mapping, fd, (uint64_t)st.st_size, writable);
	if (err)
		close(fd);
	return err;
}

bool relay_perf_is_whole(const struct relay_mapping *mapping)
{
	struct stat st;
	/* If the server of the mount has ended, or the program has closed the descriptor, the size is unknown; the
	 * mapping stays valid. */
	return !relay_descriptor_is_ours(&mapping->file) || fstat(mapping->file.fd, &st) != 0 ||
	       (uint64_t)st.st_size >= mapping->bytes;
}

/* The arguments of relay_fault_value() for a field of the struct at the beginning of a file. */
#define FIELD(type, from, name) offsetof(struct type, name), (from)->name, #type "." #name

static int check_table(struct relay_counters *counters)
{
	const struct relay_perf_table *table = counters->table;
	uint32_t limit = table->limit;
	if (table->magic != RELAY_PERF_NAMES_MAGIC)
		return relay_fault_value(counters->faults, FIELD(relay_perf_table, table, magic), "%llu",
		                         RELAY_PERF_NAMES_MAGIC);
	if (table->version != RELAY_FORMAT_NAMES)
		return relay_fault_version(counters->faults, FIELD(relay_perf_table, table, version),
		                           RELAY_FORMAT_NAMES);
	if (limit == 0 || limit > RELAY_PERF_HIGHEST_LIMIT)
		return relay_fault_value(counters->faults, FIELD(relay_perf_table, table, limit), "1 to %d",
		                         RELAY_PERF_HIGHEST_LIMIT);
	counters->n_index = relay_perf_n_index(limit);
	counters->chunks_max = relay_perf_chunks_max(limit);
	uint64_t bytes = relay_perf_names_bytes(counters->n_index, counters->chunks_max);
	if (counters->names.bytes != bytes)
		return relay_fault_value(counters->faults, 0, counters->names.bytes, "the size of names",
		                         "%" PRIu64 ", by its limit", bytes);
	counters->index = (uint32_t *)(counters->names.base + RELAY_PAGE_BYTES);
	counters->records =
	    (struct relay_perf_record *)(counters->names.base + relay_perf_records_at(counters->n_index));
	return 0;
}

#define HEADER(name) counters->faults, FIELD(relay_perf_header, header, name)

static int check_fields(const struct relay_counters *counters, const struct relay_perf_header *header)
{
	if (header->magic != RELAY_PERF_MAGIC)
		return relay_fault_value(HEADER(magic), "%llu", RELAY_PERF_MAGIC);
	if (header->version != RELAY_PERF_VERSION)
		return relay_fault_version(HEADER(version), RELAY_PERF_VERSION);
	if (header->size != sizeof(*header))
		return relay_fault_value(HEADER(size), "%zu", sizeof(*header));
	if (header->nr_cpus == 0 || header->nr_cpus > RELAY_PERF_MAX_CPUS)
		return relay_fault_value(HEADER(nr_cpus), "1 to %d", RELAY_PERF_MAX_CPUS);
	if (header->nr_blocks != header->nr_cpus + 1)
		return relay_fault_value(HEADER(nr_blocks), "%u, one more than nr_cpus", header->nr_cpus + 1);
	if (header->slots != RELAY_PERF_SLOTS)
		return relay_fault_value(HEADER(slots), "%d", RELAY_PERF_SLOTS);
	if (header->data_at != RELAY_PAGE_BYTES)
		return relay_fault_value(HEADER(data_at), "%d", RELAY_PAGE_BYTES);
	if (header->block_bytes != RELAY_PAGE_BYTES)
		return relay_fault_value(HEADER(block_bytes), "%d", RELAY_PAGE_BYTES);
	if (header->chunk_bytes != header->nr_blocks * header->block_bytes)
		return relay_fault_value(HEADER(chunk_bytes), "%" PRIu64 ", by nr_blocks and block_bytes",
		                         header->nr_blocks * header->block_bytes);
	uint64_t bytes = relay_perf_main_bytes(header, counters->chunks_max);
	if (counters->main.bytes != bytes)
		return relay_fault_value(counters->faults, 0, counters->main.bytes, "the size of counters",
		                         "%" PRIu64 ", by the limit of names", bytes);
	return 0;
}

static int check_header(struct relay_counters *counters)
{
	struct relay_perf_header header = *counters->header;
	int err = check_fields(counters, &header);
	if (err)
		return err;
	counters->seen = header;
	counters->seen.nr_chunks = 0;
	counters->seen.gen1 = counters->seen.gen2 = UINT64_MAX; /* nothing seen yet */
	return 0;
}

/* Map `counters` and `names`. */
static int map_both(struct relay_counters *counters, bool writable)
{
	int err = map_file(&counters->main, counters->dir_fd, "counters", writable, counters->copies, RELAY_PAGE_BYTES);
	if (!err)
		err =
		    map_file(&counters->names, counters->dir_fd, "names", writable, counters->copies, RELAY_PAGE_BYTES);
	if (err && counters->main.base) {
		relay_mapping_unmap(&counters->main);
		counters->main.base = NULL;
	}
	counters->direct = !err && writable;
	return err;
}

static int map_dir(struct relay_counters *counters)
{
	counters->dir_fd = open(counters->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (counters->dir_fd < 0)
		return -errno;
	int err = counters->copies ? -EACCES : map_both(counters, true);
	if (err == -EACCES || err == -EPERM || err == -EROFS)
		err = map_both(counters, false);
	if (err)
		return err;
	counters->header = (struct relay_perf_header *)counters->main.base;
	counters->table = (struct relay_perf_table *)counters->names.base;
	err = counters->copies ? relay_perf_copy_heads(counters) : 0;
	if (!err)
		err = check_table(counters);
	return err ? err : check_header(counters);
}

int relay_perf_map(struct relay_counters *counters, const char *dir, const char *main_file, bool copies)
{
	counters->copies = copies;
	counters->dir = strdup(dir);
	counters->main_file = main_file ? strdup(main_file) : NULL;
	int err = counters->dir && (counters->main_file || !main_file) ? map_dir(counters) : -ENOMEM;
	if (err)
		relay_perf_unmap(counters);
	return err;
}

static void unmap(struct relay_mapping *mapping)
{
	if (mapping->base)
		relay_mapping_unmap(mapping);
	mapping->base = NULL;
}

void relay_perf_unmap(struct relay_counters *counters)
{
	for (uint32_t i = 0; i < RELAY_PERF_DOMAINS; i++)
		unmap(&counters->domains[i]);
	unmap(&counters->main);
	unmap(&counters->names);
	if (counters->dir_fd >= 0)
		close(counters->dir_fd);
	counters->dir_fd = -1;
	free(counters->dir);
	free(counters->main_file);
	counters->dir = counters->main_file = NULL;
}

/* ------------------------------------------------------------------ domains */

static void domain_name(char name[64], const struct relay_perf_domain *domain)
{
	snprintf(name, 64, "%u-%u-%04o", domain->uid, domain->gid, domain->mode);
}

/* True if this handle adjusts counters in the domain. */
static bool is_used(const struct relay_counters *counters, const struct relay_mapping *mapping)
{
	for (uint32_t chunk = 0; counters->all && chunk < counters->chunks_max; chunk++) {
		const unsigned char *at = (const unsigned char *)counters->all[chunk];
		if (at && at >= mapping->base && at < mapping->base + mapping->bytes)
			return true;
	}
	return false;
}

/* Unmap a domain that was freed. If another thread may be adjusting there, the mapping stays, unused. */
static void drop_domain(struct relay_counters *counters, uint32_t domain)
{
	struct relay_mapping *mapping = &counters->domains[domain];
	if (!mapping->base)
		return;
	if (!is_used(counters, mapping)) {
		unmap(mapping);
		return;
	}
	relay_descriptor_close(&mapping->file);
	mapping->base = NULL;
}

/* Open the directory again, because the mount may have ended and another one of the same store may exist. */
static int reopen_dir(struct relay_counters *counters)
{
	char path[PATH_MAX], backing[PATH_MAX];
	if (!counters->main_file || snprintf(path, sizeof(path), "%s/counters", counters->dir) >= PATH_MAX)
		return -ENOTCONN;
	int err = relay_backing_file(path, backing);
	if (err)
		return err;
	if (strcmp(backing, counters->main_file) != 0)
		return -ENOTCONN;
	int fd = open(counters->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	close(counters->dir_fd);
	counters->dir_fd = fd;
	return 0;
}

int relay_perf_map_domain(struct relay_counters *counters, uint32_t domain)
{
	char name[64];
	if (domain >= RELAY_PERF_DOMAINS || domain >= __atomic_load_n(&counters->table->n_domains, __ATOMIC_ACQUIRE))
		return -EBADMSG;
	if (domain == 0)
		return counters->direct ? 0 : -EACCES;
	struct relay_mapping *mapping = &counters->domains[domain];
	/* Relaxed: a reader without the lock looks up the name again. */
	uint32_t use = __atomic_load_n(&counters->table->domains[domain].use, __ATOMIC_RELAXED);
	if (mapping->base && counters->uses[domain] == use)
		return 0;
	drop_domain(counters, domain);
	if (use % 2 == 0)
		return -ENOENT;
	domain_name(name, &counters->table->domains[domain]);
	int err = map_file(mapping, counters->dir_fd, name, true, false, counters->main.bytes);
	if (err == -ENOTCONN && reopen_dir(counters) == 0)
		err = map_file(mapping, counters->dir_fd, name, true, false, counters->main.bytes);
	counters->uses[domain] = use;
	return err;
}

void relay_perf_remove_domain(struct relay_counters *counters, uint32_t domain)
{
	char name[64];
	domain_name(name, &counters->table->domains[domain]);
	relay_file_unlinkat(counters->dir_fd, name);
}

int relay_perf_make_domain(struct relay_counters *counters, const struct relay_perf_domain *domain)
{
	char name[64];
	domain_name(name, domain);
	/* Remove a file left by a process that died. */
	relay_file_unlinkat(counters->dir_fd, name);
	int fd = openat(counters->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_NEW);
	if (fd < 0)
		return -errno;
	int err = ftruncate(fd, (off_t)counters->main.bytes) ? -errno : 0;
	if (!err)
		err = relay_mapping_own(fd, domain->mode, domain->uid, domain->gid);
	if (err)
		unlinkat(counters->dir_fd, name, 0);
	close(fd);
	return err;
}
