/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/counters.h>: 64-bit counters, one for each name and CPU, counted at memory speed by any program and read by
 * any program through mmap(2), without a system call, a lock or a conversion.
 *
 *     struct relay_counters *c = relay_counters_open("MNT");
 *     int n = relay_perf_add(c, "disk/sda/write_io");    the same name has the same number in all processes
 *     relay_perf_adjust(c, n, 1);                        a restartable sequence: no lock, no atomic instruction
 *
 * Follows "Proposed ABI: performance counters by mmap" of the linux-kernel list: perf_add, perf_del, perf_adjust, the
 * header, gen1 and gen2, and the reader's loop. The file to map is MNT/counters, read-only:
 *
 *     0         data_at
 *     +---------+------------------------------------------+------------------------------------------+----
 *     | header  |                 chunk 0                  |                 chunk 1                  | ...
 *     |         | block of CPU 0 | CPU 1 | ... | of no CPU | block of CPU 0 | CPU 1 | ... | of no CPU |
 *     +---------+------------------------------------------+------------------------------------------+----
 *       1 page    block: | flag | counter 1 | counter 2 | ... | counter 511 |      a page, 8 bytes each
 *
 * Instance n is in chunk n / slots, at slot n % slots of each block; slot 0 is the update flag, so no instance has a
 * number that is a multiple of `slots`. Its value is the sum over the nr_blocks blocks. The last block belongs to no CPU:
 * threads without restartable sequences count there, with locked additions; a word is never changed in both ways.
 * Growth appends chunks, so existing mappings stay valid.
 *
 * Each counter is one aligned 64-bit word, changed by a single store, so a load is never torn. The flag is for readers
 * that follow the proposal, and always 0. (The proposal prints `while (!*p_flag && counter == *p_counter)`; its text
 * describes `while (*p_flag || counter != *p_counter)`.)
 *
 * A process that adds or deletes an instance increments gen1 before and gen2 after the change. If neither has changed
 * since a reader read the list of names (MNT/counters.names) and mapped the file, both agree. If the process dies in
 * between, the next change, or the next server, completes it.
 *
 * Permissions. The first component of a name is its group. A group belongs to the user who adds its first name; the
 * group's owner and mode decide who may adjust its counters. Counters that only the store's owner may adjust lie in the
 * file itself. Linux can neither let a process write to only a part of a file, nor show pages of several files in one
 * mapping. So the counters of other owners lie in separate files, one for each owner, group and mode, which programs adjust
 * at the same speed. The file server copies them into the file to map, at most a tenth of a second later (and whenever the
 * file is opened, or counters.txt is read). No process can change another user's counters. The store's owner opens the
 * files in the store; all others open them in MNT/.counters, where they cannot be truncated. So a process can safely adjust
 * counters of a hostile owner: at worst it reads wrong numbers.
 *
 * A name keeps its number as long as it is listed, and a deleted name as long as any name of the same owner, group and
 * mode is listed. After that its number may be given to another name when there is no room for a new one. The numbers of a
 * channel's statistics (relayfs/channels/...) are free again when the channel is removed. Both are changes in the above
 * sense: a program that uses numbers of names which it has not added itself must look them up again when gen1 has changed.
 * Adjusting a number that now belongs to another name changes nothing.
 *
 * Thread-safety: relay_perf_adjust() may be called from any thread, also in signal handlers; all other functions from any
 * thread, but not in signal handlers. A child of fork() can use the handle. Functions return 0, a count or a negative errno.
 */
#ifndef RELAYFS_COUNTERS_H
#define RELAYFS_COUNTERS_H

#include <relayfs/layout.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELAY_PERF_MAGIC 0x3130465245504c52ull /* "RLPERF01", little-endian */
#define RELAY_PERF_VERSION 1u

enum {
	RELAY_PERF_SLOTS = 512,            /* of a block, including the flag */
	RELAY_PERF_NAME_BYTES = 256,       /* of a name, including its final null byte */
	RELAY_PERF_UNIT_BYTES = 32,        /* the same */
	RELAY_PERF_HELP_BYTES = 192,       /* the same */
	RELAY_PERF_DEFAULT_LIMIT = 16384,  /* names */
	RELAY_PERF_HIGHEST_LIMIT = 1048576 /* names */
};

/* The header page. Constant except for gen1, gen2 and nr_chunks, which the process that adds or deletes writes, under a
 * lock. A reader must refuse another version; if `size` is larger than expected, there are further fields to skip. */
struct relay_perf_header {
	uint32_t version;     /* RELAY_PERF_VERSION */
	uint32_t size;        /* bytes of this struct */
	uint32_t nr_cpus;     /* possible CPUs */
	uint32_t nr_blocks;   /* of a chunk: one for each CPU, and one for no CPU */
	uint64_t gen1;        /* incremented before an instance is added or deleted ... */
	uint64_t gen2;        /* ... and after */
	uint64_t data_at;     /* bytes before chunk 0 */
	uint64_t chunk_bytes; /* nr_blocks * block_bytes */
	uint64_t block_bytes; /* slots * 8: whole pages */
	uint32_t slots;       /* of a block; slot 0 is the update flag */
	uint32_t nr_chunks;   /* chunks so far */
	uint64_t magic;       /* RELAY_PERF_MAGIC */
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_header) == 72, "struct relay_perf_header is part of the format");

struct relay_counters; /* the counters of a mount or a store, opened by this process */

/*
 * Open the counters of a mount.
 *
 * path   "MNT"; or a store that has no server, where counters are made if the store is this user's; NULL: the default
 *        mount, or, without one, the default store
 *
 * errno: ENOENT there are none; EPROTO they have a version that this library does not know; EBADMSG they are damaged or
 * truncated; ENOSPC no memory for them in the store; EACCES, EMFILE, ENOMEM. May block.
 *
 * If the mount cannot map files (before Linux 6.9, or a server without CAP_SYS_ADMIN), users other than its store's owner
 * have copies of names and values, which relay_counters_refresh() updates, and relay_perf_adjust() writes to
 * MNT/counters.names: this takes tens of microseconds, may block and fail as open(2) and write(2) do, and adds to no CPU's
 * block.
 */
struct relay_counters *relay_counters_open(const char *path);
void relay_counters_close(struct relay_counters *counters);

enum relay_perf_kind {
	RELAY_PERF_COUNTER = 0, /* only grows */
	RELAY_PERF_GAUGE = 1    /* goes up and down */
};

/* The properties of a name, set when it is first added. Fields that `size` leaves out have their defaults. */
struct relay_perf_spec {
	size_t size;       /* bytes of this struct */
	uint32_t kind;     /* enum relay_perf_kind */
	uint32_t mode;     /* of a new group: who may adjust, 0200 owner, 0020 group, 0002 others; 0 means 0200 */
	uint32_t uid, gid; /* of a new group: its owner; -1: the caller; only root may give another */
	const char *unit;  /* "bytes"; NULL: none. Printable, no space, less than RELAY_PERF_UNIT_BYTES */
	const char *help;  /* one line; NULL: none. Printable, less than RELAY_PERF_HELP_BYTES */
};

/*
 * Add an instance, or find it: the same name has the same number in all processes. A new instance counts from zero; one
 * that was deleted keeps its value, unless its number has been given to another name (above). The spec is used only when a
 * name is first added.
 *
 * Names are charged to the owner of their group. A user other than root and the store's owner may have a sixteenth of the
 * limit of names, but at least 16, in groups with at most 4 different combinations of owner, group and mode; an eighth of
 * the limit is reserved for root and the store's owner.
 *
 * name  a path: components without `/`, space, control characters, `"` or `\`, that do not begin with a dot;
 *       UTF-8, at most RELAY_PERF_NAME_BYTES - 1 bytes
 *
 * Returns the number, 1 or more; or -EINVAL the name, kind, mode, unit or help is not allowed; -EILSEQ name, unit or
 * help is not UTF-8; -ENAMETOOLONG;
 * -EACCES the group belongs to another user, whose mode does not let the caller adjust it; -EPERM only the store's owner
 * could make a group of this owner; -EDQUOT the group's owner has as many names, or as many different groups and modes, as
 * one user may; -ENOSPC the limit of names or of 249 different owners, groups and modes is reached, or there is no memory;
 * -EBUSY another process has been adding a name for a second. May block. Follows perf_add().
 *
 * If `counters` is NULL, as relay_counters_open() returns it when it fails, relay_perf_add(), relay_perf_add_as(),
 * relay_perf_del() and relay_perf_adjust() do nothing and return 0: as in the proposal, a program need not check whether
 * its system has counters.
 */
int relay_perf_add(struct relay_counters *counters, const char *name);
int relay_perf_add_as(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* Delete an instance from the list. Adjusting it later is harmless. 0; -ENOENT: no such instance; else as
 * relay_perf_add(). */
int relay_perf_del(struct relay_counters *counters, int instance);

/*
 * Add `delta` to an instance on the current CPU. Wraps around as unsigned numbers do.
 *
 * instance  from relay_perf_add() of this handle
 *
 * Returns 0, or -ENOENT: this handle has not added the instance. Thread-safe, async-signal-safe; makes no system call. If
 * the process is killed in the middle, either all or nothing is added. Follows perf_adjust().
 */
int relay_perf_adjust(struct relay_counters *counters, int instance, int64_t delta);

/*
 * Update the handle after instances were added and deleted. Makes no system call if there was no change.
 *
 * Returns 1: there was a change since the last call; 0: none; -EAGAIN: a change has not been completed for a second; -EBADMSG:
 * damaged or truncated.
 */
int relay_counters_refresh(struct relay_counters *counters);

/* Return the address of the mapping, which begins with the header (relay_perf_offset() gives the place of a counter), and
 * the number of bytes mapped at the last refresh. */
const struct relay_perf_header *relay_counters_header(const struct relay_counters *counters);
uint64_t relay_counters_mapped_bytes(const struct relay_counters *counters);

/* Return the descriptor of the file, for a mapping that the caller makes. It stays the handle's. */
int relay_counters_fd(const struct relay_counters *counters);

/* Read the counter of an instance in a block (a CPU, or nr_cpus: no CPU), and the sum over all blocks. 0, or -ENOENT: there
 * was no such instance or block at the last refresh. No system call. */
int relay_counters_read(const struct relay_counters *counters, uint32_t block, int instance, int64_t *value);
int relay_counters_sum(const struct relay_counters *counters, int instance, int64_t *value);

/*
 * Copy all counters of all blocks: instance n in block b goes to values[b * n_instances + n].
 *
 * n_instances  for how many instances of each block there is room; 512 for each chunk is all
 *
 * Returns the number of instances in each block (512 for each chunk), or -EINVAL: `values` is not aligned to 16
 * bytes, or n_instances is not a multiple of 2. A value is never torn. No system call.
 */
long relay_counters_copy(const struct relay_counters *counters, int64_t *values, size_t n_instances);

/* The properties of an instance. */
struct relay_perf_info {
	int instance;
	uint32_t kind, uid, gid, mode;
	char name[256], unit[32], help[192];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_info) ==
                        20 + RELAY_PERF_NAME_BYTES + RELAY_PERF_UNIT_BYTES + RELAY_PERF_HELP_BYTES,
                    "names fit");

/* Find the next instance after number `after` (0: the first). 1: there is one, in *info; 0: there is none. If a refresh
 * before, and one after that returns 0, enclose the calls, the list is that of one generation. */
int relay_counters_next(const struct relay_counters *counters, int after, struct relay_perf_info *info);

/* Return the number of a name; -ENOENT: there is none. */
int relay_counters_find(const struct relay_counters *counters, const char *name);

/* ------------------------------------------------------------------ for readers without the library */

/* Return the number of bytes to map. */
static inline uint64_t relay_perf_file_bytes(const struct relay_perf_header *header)
{
	return header->data_at + header->nr_chunks * header->chunk_bytes;
}

/* Return the offset in the file of an instance's counter: block 0 .. nr_cpus-1 for a CPU, nr_cpus for no CPU. */
static inline uint64_t relay_perf_offset(const struct relay_perf_header *header, uint32_t block, uint32_t instance)
{
	return header->data_at + instance / header->slots * header->chunk_bytes + block * header->block_bytes +
	       instance % header->slots * 8;
}

/* Return the offset of the update flag of its block, an int. */
static inline uint64_t relay_perf_flag_offset(const struct relay_perf_header *header, uint32_t block, uint32_t instance)
{
	return relay_perf_offset(header, block, instance - instance % header->slots);
}

#ifdef __cplusplus
}
#endif
#endif
