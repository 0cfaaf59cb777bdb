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
 * number that divides by `slots`. Its value is the sum over the nr_blocks blocks. The last block belongs to no CPU:
 * threads without restartable sequences count there, with locked additions; the two ways never meet in one word.
 * Growth appends chunks, and what is mapped stays where it is.
 *
 * Each counter is one aligned 64-bit word, changed by a single store: so the flag, there for the proposal's readers, is
 * always 0, and a load is never torn. (The proposal prints `while (!*p_flag && counter == *p_counter)`; what it
 * explains is `while (*p_flag || counter != *p_counter)`.)
 *
 * A change of the instances raises gen1, is made, and raises gen2: a reader for whom both are what they were has a list
 * of names (MNT/counters.names) and a mapping that agree. Whoever dies between the two is made up for by the next
 * change, or by the next server.
 *
 * Who may adjust. A name belongs to a group, its first component, and a group to whoever adds its first name: owner and
 * mode say who may adjust. What only the store's owner may adjust lies in the file itself. Linux can neither let a
 * process write to a part of a file alone, nor show pages of several files in one mapping; so the counters of other
 * owners lie in files of their own, one for each owner, group and mode, which they adjust at the same speed, and the
 * file server copies them into the file to map, at most a tenth of a second later (and whenever the file is opened, or
 * counters.txt is read). No process can change another user's counters. The store's owner opens the files in the store,
 * all others open them in MNT/.counters, where nobody can truncate them; so a process can adjust a group whose owner is
 * hostile, and reads a wrong number at worst.
 *
 * A name keeps its number as long as it is listed, and a deleted name keeps its own as long as any name of the same owner,
 * group and mode is listed. Then its number may become another's, when there is no room for a new name. Numbers of the
 * figures of channels (relayfs/channels/...) become others' when the channel has gone. Either is a change as any other:
 * whoever keeps numbers of names that it has not added itself looks them up again when gen1 has changed. Whoever adjusts
 * a number that became another's changes nothing.
 *
 * Who may call what: relay_perf_adjust() from any thread, also in signal handlers; all else from any thread, not in
 * signal handlers. A child of fork() goes on with the handle. Functions return 0, a count or a negative errno.
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
	RELAY_PERF_SLOTS = 512,            /* of a block, the flag's included */
	RELAY_PERF_NAME_BYTES = 256,       /* of a name, its final null byte included */
	RELAY_PERF_UNIT_BYTES = 32,        /* the same */
	RELAY_PERF_HELP_BYTES = 192,       /* the same */
	RELAY_PERF_DEFAULT_LIMIT = 16384,  /* names */
	RELAY_PERF_HIGHEST_LIMIT = 1048576 /* names */
};

/* The header page. Constant but for gen1, gen2 and nr_chunks; written by whoever adds and deletes, under a lock. A reader
 * that finds another version refuses; `size` larger than it knows means fields that it can skip. */
struct relay_perf_header {
	uint32_t version;     /* RELAY_PERF_VERSION */
	uint32_t size;        /* bytes of this struct */
	uint32_t nr_cpus;     /* possible CPUs */
	uint32_t nr_blocks;   /* of a chunk: one a CPU, and one of no CPU */
	uint64_t gen1;        /* raised before an instance is added or deleted ... */
	uint64_t gen2;        /* ... and after */
	uint64_t data_at;     /* bytes before chunk 0 */
	uint64_t chunk_bytes; /* nr_blocks * block_bytes */
	uint64_t block_bytes; /* slots * 8: whole pages */
	uint32_t slots;       /* of a block; slot 0 is the update flag */
	uint32_t nr_chunks;   /* there are so far */
	uint64_t magic;       /* RELAY_PERF_MAGIC */
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_header) == 72, "struct relay_perf_header is part of the format");

struct relay_counters; /* the counters of a mount or a store, opened by this process */

/*
 * Open the counters of a mount.
 *
 * path   "MNT"; or a store that nobody serves, where counters come to be if it is this user's; NULL: the default
 *        mount, or, without one, the default store
 *
 * errno: ENOENT there are none; EPROTO they have another version than this library knows; EBADMSG they are damaged or
 * truncated; ENOSPC no memory for them in the store; EACCES, EMFILE, ENOMEM. May block.
 *
 * Where the mount maps no files (before Linux 6.9, or a server without CAP_SYS_ADMIN), others than its store's owner have
 * copies of names and values, which a refresh brings up to date, and relay_perf_adjust() writes to MNT/counters.names: it
 * takes tens of microseconds, may block and fail as open(2) and write(2) do, and counts on no CPU.
 */
struct relay_counters *relay_counters_open(const char *path);
void relay_counters_close(struct relay_counters *counters);

enum relay_perf_kind {
	RELAY_PERF_COUNTER = 0, /* only grows */
	RELAY_PERF_GAUGE = 1    /* goes up and down */
};

/* What is said of a name at its first add. Zero bytes behind what the caller knows of it are defaults. */
struct relay_perf_spec {
	size_t size;       /* bytes of this struct */
	uint32_t kind;     /* enum relay_perf_kind */
	uint32_t mode;     /* of a new group: who may adjust, 0200 owner, 0020 group, 0002 others; 0 means 0200 */
	uint32_t uid, gid; /* of a new group: its owner; -1: the caller, and nobody but root may say another */
	const char *unit;  /* "bytes"; NULL: none. Printable, no space, less than RELAY_PERF_UNIT_BYTES */
	const char *help;  /* one line; NULL: none. Printable, less than RELAY_PERF_HELP_BYTES */
};

/*
 * Add an instance, or find it again: the same name has the same number in all processes. A new one counts from zero; one
 * that was deleted goes on where it was, unless its number has become another's (above). What a name is said to be (spec)
 * holds from its first add on.
 *
 * Names count for the owner of their group. A user other than root and the store's owner may have a sixteenth of the
 * limit of names, but at least 16, in groups of 4 different owners' groups and modes; an eighth of the limit is for root
 * and the store's owner.
 *
 * name  a path: components without `/`, space, control characters, `"` or `\`, that do not begin with a dot;
 *       UTF-8, at most RELAY_PERF_NAME_BYTES - 1 bytes
 *
 * Returns the number, 1 or more; or -EINVAL the name, kind, mode, unit or help is not allowed; -EILSEQ name, unit or
 * help is not UTF-8; -ENAMETOOLONG;
 * -EACCES the group is another user's who does not let this one adjust; -EPERM only the store's owner could make a group
 * of this owner; -EDQUOT the group's owner has as many names, or as many different groups and modes, as one user
 * may; -ENOSPC the limit of names or of 249 different owners, groups and modes is reached, or there is no memory; -EBUSY
 * somebody has been adding for a second. May block. Follows perf_add().
 *
 * With NULL for `counters`, as relay_counters_open() returns it when it fails, relay_perf_add(), relay_perf_add_as(),
 * relay_perf_del() and relay_perf_adjust() do nothing and return 0: as in the proposal, a program need not ask whether
 * its system has counters.
 */
int relay_perf_add(struct relay_counters *counters, const char *name);
int relay_perf_add_as(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* It is not listed any more. Adjusting it is harmless. 0, or -ENOENT: there is none; else as relay_perf_add(). */
int relay_perf_del(struct relay_counters *counters, int instance);

/*
 * Add `delta` to an instance on the current CPU. Wraps around as unsigned numbers do.
 *
 * instance  from relay_perf_add() of this handle
 *
 * Returns 0, or -ENOENT: this handle has not added it. Thread-safe, async-signal-safe; makes no system call. A process
 * killed in the middle has added all or nothing. Follows perf_adjust().
 */
int relay_perf_adjust(struct relay_counters *counters, int instance, int64_t delta);

/*
 * Notice what was added and deleted. Makes no system call if nothing was.
 *
 * Returns 1: there was a change since the last time; 0; -EAGAIN: a change has been under way for a second; -EBADMSG:
 * damaged or truncated.
 */
int relay_counters_refresh(struct relay_counters *counters);

/* The mapped header, where the mapping begins: relay_perf_offset() leads on. As of the last refresh there are so many
 * bytes of it to look at. */
const struct relay_perf_header *relay_counters_header(const struct relay_counters *counters);
uint64_t relay_counters_mapped_bytes(const struct relay_counters *counters);

/* The descriptor of the file, for a mapping of one's own. It stays the handle's. */
int relay_counters_fd(const struct relay_counters *counters);

/* The counter of an instance on a block (a CPU, or nr_cpus: no CPU), and the sum over all. 0, or -ENOENT: there are no
 * such instance or block as of the last refresh. No system call. */
int relay_counters_read(const struct relay_counters *counters, uint32_t block, int instance, int64_t *value);
int relay_counters_sum(const struct relay_counters *counters, int instance, int64_t *value);

/*
 * Copy all counters of all blocks: instance n on block b goes to values[b * n_instances + n].
 *
 * n_instances  how many there is room for on each block; 512 for each chunk is all
 *
 * Returns how many there were to copy on each block (512 for each chunk), or -EINVAL: `values` is not aligned to 16
 * bytes, or n_instances is no multiple of 2. No value is torn. No system call.
 */
long relay_counters_copy(const struct relay_counters *counters, int64_t *values, size_t n_instances);

/* What is known of an instance. */
struct relay_perf_info {
	int instance;
	uint32_t kind, uid, gid, mode;
	char name[256], unit[32], help[192];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_perf_info) ==
                        20 + RELAY_PERF_NAME_BYTES + RELAY_PERF_UNIT_BYTES + RELAY_PERF_HELP_BYTES,
                    "names fit");

/* The next instance behind number `after` (0: the first). 1: there is one, in *info; 0: there is none. With a refresh
 * before and one that returns 0 behind it, the list is that of one generation. */
int relay_counters_next(const struct relay_counters *counters, int after, struct relay_perf_info *info);

/* The number of a name; -ENOENT: there is none. */
int relay_counters_find(const struct relay_counters *counters, const char *name);

/*
 * For the file server.
 *
 * enter()    adds an instance for somebody else, as relay_perf_add_as(); this handle does not adjust it
 * adjust()   adds `delta` to an instance on no CPU, for a process that cannot map it
 * free()     deletes an instance that this process alone sets; its number may become another's
 * limit()    how many names there can be
 * list()     writes the lines of counters.names, of one generation, to `text`; returns how long they are, which may be
 *            more than `bytes`, or -EAGAIN: others do not stop changing them
 * values()   does the same with those of counters.txt, as of the last refresh
 * create()   makes the counters of a store, if they are not there; limit: how many names there can be at most
 * mirror()   copies the counters of other owners into the file to map; 1: some had changed; 0 none had; -errno
 * set()      stores a value; of an instance that this process alone changes
 * repair()   makes up for one who died in the middle of a change
 * hold()     keeps others from changing anything: a descriptor, to be closed
 */
int relay_counters_enter(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);
int relay_counters_adjust(struct relay_counters *counters, int instance, int64_t delta);
int relay_counters_free(struct relay_counters *counters, int instance);
uint32_t relay_counters_limit(const struct relay_counters *counters);
long relay_counters_list(struct relay_counters *counters, char *text, size_t bytes);
long relay_counters_values(const struct relay_counters *counters, char *text, size_t bytes);
int relay_counters_create(const char *store, uint32_t limit);
int relay_counters_mirror(struct relay_counters *counters);
int relay_counters_set(struct relay_counters *counters, uint32_t block, int instance, int64_t value);
int relay_counters_repair(struct relay_counters *counters);
int relay_counters_hold(struct relay_counters *counters);

/* ------------------------------------------------------------------ for readers without the library */

/* How many bytes there are to map. */
static inline uint64_t relay_perf_file_bytes(const struct relay_perf_header *header)
{
	return header->data_at + header->nr_chunks * header->chunk_bytes;
}

/* Where in the file the counter of an instance is: block 0 .. nr_cpus-1 of the CPU, nr_cpus of no CPU. */
static inline uint64_t relay_perf_offset(const struct relay_perf_header *header, uint32_t block, uint32_t instance)
{
	return header->data_at + instance / header->slots * header->chunk_bytes + block * header->block_bytes +
	       instance % header->slots * 8;
}

/* Where the update flag of its block is, an int. */
static inline uint64_t relay_perf_flag_offset(const struct relay_perf_header *header, uint32_t block, uint32_t instance)
{
	return relay_perf_offset(header, block, instance - instance % header->slots);
}

#ifdef __cplusplus
}
#endif
#endif
