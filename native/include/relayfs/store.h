/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/store.h>: functions for file servers and tools, which work on the files of a store. Their symbols have the
 * version RELAYFS_PRIVATE: a tool that calls them must be built with the same version of the library. Programs that write
 * and read channels need <relayfs/relay.h> and <relayfs/reader.h> alone.
 *
 * A store is a directory on tmpfs. A channel is a directory in it that holds the regular files
 * mem0 .. memN-1 and nothing else; it appears and disappears as a whole, by rename(2). All state of a buffer
 * is in its memN (layout.h); owner, group and mode are the file's own.
 *
 * All functions return 0 (or as described) or a negative errno, and never trust the memory: a damaged buffer
 * gives -EBADMSG or no data, every number returned is in range, and each call does a limited amount of work, whatever the
 * memory holds: some have to be called again to continue. A struct rchan_buf may be used by one thread at a time, except for
 * relay_buf_wait_any().
 */
#ifndef RELAYFS_STORE_H
#define RELAYFS_STORE_H

#include <relayfs/layout.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rchan_buf;       /* one buffer, mapped by this process */
struct rchan_callbacks; /* relay.h */

/*
 * The permissions of a store's files and directories, which relayfs_fuse/fs/store.py lists. The umask restricts only
 * RELAY_PERM_OWN and those that are not complete yet. Directories belong to the store's user, and nobody else may write
 * to them, because a user who may write to a directory can replace its files. Files belong to the store's user, too,
 * unless the comment names another owner.
 */
enum relay_perm {
	RELAY_PERM_STORE = 0700,         /* the store itself, .counters */
	RELAY_PERM_STORE_TRUSTED = 0755, /* the same with the mount option `trusted` */
	RELAY_PERM_INNER = 0711,         /* channels, traces, processes, .early: others may pass to files */
	RELAY_PERM_PLAIN = 0755,         /* other directories: at most; implicit ones, and .root at first */
	RELAY_PERM_PLAIN_LEAST = 0700,   /* other directories: at least */
	RELAY_PERM_NEW_DIR = 0700,       /* a directory until it is complete */
	RELAY_PERM_NEW = 0600,           /* a file until it is complete */
	RELAY_PERM_OWN = 0600, /* locks, .supervisor, .processes, .given-up, .decided, .traces-lost; -UID: the user's */
	RELAY_PERM_CARDS = 0700,       /* .snapshots, .crashed, and the cards in it, each of the dead process's user */
	RELAY_PERM_CARD = 0400,        /* the files of a card or a snapshot */
	RELAY_PERM_TRACES = 0644,      /* .traces */
	RELAY_PERM_COUNTERS = 0644,    /* counters, names; UID-GID-MODE is as its name says */
	RELAY_PERM_BUFFER = 0640,      /* memN, of uid= and gid=; perm= and chmod(2) change it */
	RELAY_PERM_CALLBACK = 0600,    /* memN if the program has create_buf_file, as in the kernel */
	RELAY_PERM_BUFFER_MOST = 0666, /* memN: at most */
	RELAY_PERM_PERPROCESS = 0640,  /* memN and .events of a process in a trace, of its user and group */
	RELAY_PERM_PERUSER = 0600,     /* those of all processes of a user, likewise */
	RELAY_PERM_SHARED = 0666,      /* those of all processes */
	RELAY_PERM_STRANGERS = 0022    /* the write permissions of users other than the owner */
};

/* The parameters of a new channel. The enums are in layout.h. */
struct relay_spec {
	size_t size;          /* sizeof(struct relay_spec): later versions add fields at the end */
	uint64_t subbuf_size; /* bytes */
	uint64_t n_subbufs;
	uint32_t n_buffers; /* 1 for global and single; else relay_n_possible_cpus() */
	uint32_t file_mode; /* permission bits of the mem files */
	uint32_t uid, gid;  /* of the mem files; the directory is the caller's */
	RELAY_OPTION_FIELDS;
};

/* What an option belongs to: channels of a type (`type=` of the control file), or traces. */
enum relay_type { RELAY_TYPE_RELAY = 0, RELAY_TYPE_RING = 1, RELAY_TYPE_TRACE = 2 };

/* How the value of an option is written. */
enum relay_option_form {
	RELAY_OPTION_WORD = 0,       /* one of `words` */
	RELAY_OPTION_NUMBER = 1,     /* decimal digits */
	RELAY_OPTION_BYTES = 2,      /* the same, with an optional K, M or G */
	RELAY_OPTION_POWER_OF_2 = 3, /* BYTES, a power of two */
	RELAY_OPTION_PERM = 4        /* octal digits, only bits of `most` */
};

/* An option of the control file's `create` or `trace create`: a row of the table of all options. */
struct relay_option {
	const char *key; /* KEY=VALUE */
	/* Its field in struct relay_spec, relay_ring_spec or relay_trace, and, if `file` is not NULL, in the statistics. NULL: none. */
	const char *field;
	const char *file;         /* the file in .channels/PATH/ that shows its value; NULL: none */
	const char *const *words; /* numbered from 0, then NULL */
	const char *allowed;      /* the allowed values, as text for users; NULL: the words */
	uint32_t form;            /* enum relay_option_form */
	uint64_t least, most;     /* the allowed range */
	uint64_t initial;         /* the default; for uid and gid the caller's are used instead */
};

/* Return row i of the options of a type; NULL: there are no more. */
const struct relay_option *relay_option_at(uint32_t type, unsigned i);

/* Parse a value: 0, or -EINVAL if it is not allowed. */
int relay_option_parse(const struct relay_option *option, const char *value, uint64_t *number);

/* Format a value for relay_option_parse(), in the shortest exact form. Returns as snprintf(3). */
int relay_option_format(const struct relay_option *option, uint64_t number, char *text, size_t size);

/* Return n, where CPUs 0 .. n-1 may exist on this machine (hot-plug included). */
unsigned relay_n_possible_cpus(void);

/* Return the scheme that scheme=any selects for these buffers: RELAY_RSEQ if the machine supports it and buffers are
 * per CPU, else RELAY_LOCKLESS. */
uint32_t relay_scheme_default(uint32_t buffers);

/* A clock of timestamps and traces. */
struct relay_clock {
	const char *word;        /* in timestamp= and clock= */
	const char *description; /* in CTF's metadata */
	const char *missing;     /* why a machine may not have it */
	uint64_t freq;           /* ticks a second; 0: to be measured */
	uint32_t is_ordered;     /* its times are in order on all CPUs */
};

/* The clock of a number of enum relay_timestamp; NULL: there is none. */
const struct relay_clock *relay_clock_at(uint32_t number);

/* 1: this machine has the clock, and programs may read it; 0: otherwise. */
int relay_clock_is_available(uint32_t number);

/* 1: readers can have the kernel fence the CPUs of writers (membarrier(2)) before they sleep; 0: they look again after
 * 10 ms at most. */
int relay_fence_is_available(void);

/*
 * The default mount and store: a path, stored to memory of PATH_MAX bytes. 0, or -ENAMETOOLONG, or:
 *
 *     relay_find_mount      $RELAYFS, else the first mount that is root's or this user's; -ENOENT there is none
 *     relay_find_store      the store of a mount; -ENODATA: the mount does not show its path; else as getxattr(2)
 *     relay_default_store   $RELAYFS_STORE, else where a server of this user has its store
 */
int relay_find_mount(char *mount);
int relay_find_store(const char *mount, char *store);
int relay_default_store(char *store);

/* The size in bytes of one buffer's file in the store; 0: the geometry is not allowed. */
uint64_t relay_buf_file_bytes(uint64_t subbuf_size, uint64_t n_subbufs);

/*
 * Make a channel: directory `dir`, whose parent exists, with all its memory allocated.
 *
 * -EEXIST `dir` exists; -EINVAL the spec is out of range, or asks for scheme rseq with buffers that are not per
 * CPU or on a machine without it, or for a TSC that is not available; -ENOSPC no memory. On failure nothing is left behind.
 */
int relay_store_create(const char *dir, const struct relay_spec *spec);

/* Make a channel's buffers as unnamed files, for this user alone, in the file system of directory `dir`; fds[0 ..
 * spec->n_buffers-1] receive their descriptors. Errors as relay_store_create(), and as open(2). */
int relay_store_create_unnamed(const char *dir, const struct relay_spec *spec, int *fds);

/*
 * Make the channel `dir` of such files, even if they are mapped: all of them get names, or none. Their owner and
 * mode do not change. The caller has to check that they are a channel's buffers.
 *
 * -EEXIST `dir` exists; -EXDEV the files lie in another file system than `dir`, or were opened in another mount
 * namespace and this process is not root; -ENOENT they have had a name before.
 */
int relay_store_adopt(const char *dir, const int *fds, size_t n);

/*
 * Make the channel `dir` of copies of such files, for a user who must not hold descriptors of the store's files. The
 * caller has to check the copies, because the owner may change the files until they are copied.
 *
 * -EEXIST `dir` exists; -ENOSPC no memory; -EBADMSG one was truncated meanwhile.
 */
int relay_store_copy(const char *dir, const int *fds, size_t n, uint32_t file_mode, uint32_t uid, uint32_t gid);

/* Remove a channel from the store at once; its memory is freed when no process has it mapped any more. */
int relay_store_remove(const char *dir, uint32_t n_buffers);

/* Close and remove the channel, of either type, at a path as for relay_attach(): in a mount, or in the default store while no
 * server serves it, with the directories that become empty and that nobody made for themselves. 0 or -errno: -ENOENT there
 * is none; -EBUSY another process has the store's lock: a server whose mount this process does not see; else as write(2) of
 * `remove` to the control file. */
int relay_store_remove_channel(const char *path);

/*
 * A directory that was made because the path of a channel leads through it is implicit: it is removed with the last channel
 * in it. Its mode, owner and group mark it; a change of one of them makes it an ordinary directory, which stays.
 */
enum { RELAY_IMPLICIT_MARK = 0x800 };     /* S_ISUID, which Linux ignores on a directory */
int relay_implicit_make(const char *dir); /* 0, or -errno as mkdir(2), and no directory is made */
int relay_implicit_is(const char *dir);   /* 1 or 0 */

/* Map one buffer for reading, writing and consuming. NULL and errno: EPROTO another layout version; EMEDIUMTYPE a
 * record ring (ring.h); EBADMSG not a relay buffer, truncated or damaged; else as open(2), mmap(2). */
struct rchan_buf *relay_buf_open(const char *mem_file);
struct rchan_buf *relay_buf_fdopen(int fd);    /* the same for a file that is open O_RDWR; fd stays the caller's */
void relay_buf_release(struct rchan_buf *buf); /* NULL is ignored */
int relay_buf_fd(const struct rchan_buf *buf); /* of the mem file, O_RDWR */
/* Close the descriptor of the mem file, which stays mapped: for programs that map more buffers than they can have open. */
void relay_buf_close_fd(struct rchan_buf *buf);

/*
 * Prevent other users from freeing pages of a store file: if a user other than this process's may write to it, its inode
 * becomes immutable (src/base/immutable.c). Open descriptors are not affected. 1; 0: there is no such user, and the flag is
 * not changed; -ENOTTY, -EOPNOTSUPP: the file system does not support it; -EPERM: this process has no CAP_LINUX_IMMUTABLE.
 */
int relay_file_protect(int fd);
int relay_file_unprotect(int fd);    /* 1: it was immutable; 0: it was not; -errno */
int relay_file_is_protected(int fd); /* 1 or 0 */

/* chown and chmod a store file that is open O_RDWR. An immutable file stays immutable, even if no other user may
 * write to it any more, because programs may have it mapped. 0 or -errno. */
int relay_file_change_owner(int fd, uint32_t mode, uint32_t uid, uint32_t gid);

/* Open (O_RDWR) and unlink a store file, which may be immutable. A descriptor or 0, or -errno. */
int relay_file_open(const char *path);
int relay_file_unlink(const char *path);

/* Open a file of a mount. Returns its descriptor, which has O_NONBLOCK, or -errno; -EBADMSG: it is not regular, or in no
 * FUSE file system. Such a file is not even opened. */
int relay_mount_file_open(const char *path, int flags);

/* All statistics of a buffer, at one moment. Counts are since creation or reset; each is below 2^63. */
struct relay_stats {
	uint64_t subbuf_size, n_subbufs, file_bytes;
	uint32_t cpu, n_buffers;
	uint32_t closed, disabled;   /* 0 or 1 */
	uint64_t produced, consumed; /* sub-buffers, free-running */
	uint64_t offset;             /* bytes used in the current sub-buffer */
	uint64_t records, bytes;     /* written so far, reserved ones included */
	uint64_t padding;            /* unused bytes at the ends of finished sub-buffers */
	/* Returned to readers. The data does not show where records end, so those of a piece count when its last byte
	 * is consumed. If a reader consumed a part of a piece and the rest was then overwritten, all of its records
	 * count as overwritten. */
	uint64_t read_records, read_bytes;
	uint64_t unread_bytes;
	uint64_t unread_holes; /* unread bytes of discarded or torn records; if there are many, of those
	                        * counted so far: the next call continues */
	uint64_t reads, wakeups;
	uint64_t lost_records, lost_bytes; /* records that will never be read, the sum of: */
	uint64_t lost_full_records, lost_full_bytes;
	uint64_t lost_too_large_records, lost_too_large_bytes;
	uint64_t lost_disabled_records, lost_disabled_bytes;
	uint64_t lost_overwritten_records, lost_overwritten_bytes;
	uint64_t lost_torn_records, lost_torn_bytes;
	uint64_t discarded_records, discarded_bytes; /* discarded reservations that readers have skipped */
	uint64_t switch_time_ns;                     /* CLOCK_REALTIME of the last switch, or of the creation */
	uint32_t suspended;                          /* 0 or 1: writes are lost until relay_buf_resume() */
	RELAY_OPTION_FIELDS;
};
int relay_buf_stats(struct rchan_buf *buf, struct relay_stats *stats);

/* What a listing of relay files shows of one. */
struct relay_shown {
	uint64_t inode; /* of the mem file */
	uint32_t mode, uid, gid;
	int64_t ctime_ns; /* CLOCK_REALTIME */
	uint64_t unread;  /* bytes, of a ring with their headers */
	uint64_t holes;   /* of these, those of discarded or torn records; of a ring not counted */
	uint64_t written; /* what relay_buf_mtime() and relay_ring_mtime() count */
};
/* A moment at which nothing was unread in a mem file, by relay_control.head.first and .resets; is_known: 0 or 1. */
struct relay_empty {
	uint64_t head, written;
	uint32_t resets, is_known;
};
/* Tell it of a mem file, which is mapped as `buf`; NULL: it is not mapped, and is for as long as this takes, unless nothing
 * was written since *empty, which the last call for the file has stored, first zeros; NULL: none. 0, or -errno as
 * relay_buf_open() and stat(2); -EAGAIN: it has to stay mapped, because one call cannot count its discarded records. */
int relay_buf_show(struct rchan_buf *buf, const char *mem_file, struct relay_shown *shown, struct relay_empty *empty);

/* What a statistic is, and how a channel's value is made from those of its buffers: the sum of counts of events; the
 * sum of present amounts; the maximum of present states; or none, because the value has a meaning only for one
 * buffer. */
enum relay_statistic_form {
	RELAY_STATISTIC_COUNT = 0,
	RELAY_STATISTIC_LEVEL = 1,
	RELAY_STATISTIC_LATEST = 2,
	RELAY_STATISTIC_OF_BUFFER = 3
};

/* Who counts it. If a ring was consumed by a program that knows only the kernel's format, the statistics of consumers are
 * unknown, and, in overwrite mode, those of overwritten records. */
enum relay_statistic_source {
	RELAY_STATISTIC_OF_ALL = 0,
	RELAY_STATISTIC_OF_CONSUMERS = 1,
	RELAY_STATISTIC_OF_OVERWRITTEN = 2
};

/* A statistic that the file server shows: a row of the table of all statistics. */
struct relay_statistic {
	const char *name;  /* of its files, in .channels/PATH/ and .channels/PATH/bufferN/ */
	const char *field; /* of struct relay_stats or relay_ring_stats */
	const char *unit;  /* of the counter of this name; NULL: there is no such counter */
	const char *help;  /* of this counter: what it counts */
	uint32_t form;     /* enum relay_statistic_form */
	uint32_t source;   /* enum relay_statistic_source */
};

/* Return row i of the statistics of a type of channel; NULL: there are no more. */
const struct relay_statistic *relay_statistic_at(uint32_t type, unsigned i);

/* As relay_write(), into this buffer: moves to its CPU for the write if its scheme needs that.
 * -EPERM: this thread may not run there; -EBUSY: in scheme locking another writer has the lock, and the record is not
 * counted as lost. */
int relay_buf_write(struct rchan_buf *buf, const void *data, size_t length);

/* As relay_reserve(), _commit() and _discard(), in this buffer. Reserving returns 0 and the address in *to, or an error as
 * relay_buf_write(). */
int relay_buf_reserve(struct rchan_buf *buf, size_t length, void **to);
void relay_buf_commit(struct rchan_buf *buf, void *reserved);
void relay_buf_discard(struct rchan_buf *buf, void *reserved);

/* From now on cb->subbuf_start is called before this process begins a sub-buffer; if the first one has not begun yet, this
 * function begins it. `cb` stays the caller's. */
void relay_buf_set_callbacks(struct rchan_buf *buf, const struct rchan_callbacks *cb);

/* Count a record of `length` bytes as too large without trying to write it. -EMSGSIZE, or as relay_buf_write(). */
int relay_buf_refuse_too_large(struct rchan_buf *buf, size_t length);

/* As relay_flush() and relay_reset(), for this buffer only. Reset does not wait for readers: -EBUSY while a reader
 * is between next() and done(). */
int relay_buf_flush(struct rchan_buf *buf);
int relay_buf_reset(struct rchan_buf *buf);

/* As relay_resume() in classic.h: unread data counts as consumed from now on when a writer checks whether there is
 * room; readers still get what is not overwritten. 0, also if nothing is suspended; -EBUSY: a callback runs. */
int relay_buf_resume(struct rchan_buf *buf);

/* Set or clear RELAY_CLOSED or RELAY_DISABLED. After it returns, no write that began before is still under
 * way, except on a CPU where this thread may not run (-EPERM; the flag is set anyway). Wakes all sleeping readers. */
int relay_buf_stop(struct rchan_buf *buf, uint32_t flag, int on);

/* Return what there is to read, as a combination of these bits. Completes steps that dead or slow writers left undone. */
enum {
	RELAY_HAS_DATA = 1,     /* at least one byte, the current sub-buffer included */
	RELAY_HAS_FINISHED = 2, /* produced > consumed: poll's condition for delivery=bulk */
	RELAY_IS_CLOSED = 4,
	RELAY_IS_DAMAGED = 8,  /* the memory is inconsistent */
	RELAY_LOOK_AGAIN = 16, /* so much must be skipped before the next byte that nothing is known yet: call again */
	RELAY_IS_HELD = 32,    /* with RELAY_HAS_DATA: another thread or process is consuming, so a read would wait */
	RELAY_HAS_DISCARDED = 64 /* of a ring: consumers skip the next record, which makes room */
};
int relay_buf_state(struct rchan_buf *buf);

/* Return the events of poll(2) that hold for a file of the mount that shows `buf`, and in *progress a number that changes
 * whenever more becomes readable: the bytes written or, with delivery=bulk, the sub-buffers finished. -EBADMSG. */
int relay_buf_ready(struct rchan_buf *buf, uint64_t *progress);

/* Return 1 if the process that writes to a trace has ended its part in order, as by exit(3); 0: it has not. */
int relay_buf_has_left(const struct rchan_buf *buf);

/* After -EBADMSG or RELAY_IS_DAMAGED: the inconsistency, as "relay_subbuf[0].start_bytes is 9, more than 8"; "" if
 * there is none. Valid until the next call with this buffer. */
const char *relay_buf_damage(struct rchan_buf *buf);

/*
 * Consume in order. begin() takes the reader's lock and returns up to max_bytes of data in at most n_spans
 * pieces of the memory, each in one sub-buffer, without padding and torn records; then either end() consumes
 * them, or abort() does not. Returns the number of pieces, *total their sum in bytes; 0: nothing to read
 * (the lock is not held). -EBUSY: another thread or process is consuming, or so much must be skipped before the next
 * byte that the next call has to continue. -EBADMSG: damaged.
 * valid(): 0 while the pieces that begin() returned are intact; -EOVERFLOW: lapped by producers (overwrite mode only):
 * call abort(), and the next begin() counts what was lost. end() may follow abort() or another end() without harm.
 */
struct relay_span {
	const void *data;
	size_t length;
};
int relay_consume_begin(struct rchan_buf *buf, size_t max_bytes, struct relay_span *spans, size_t n_spans,
                        size_t *total);

/*
 * Have relay_buf_read_records(), relay_ring_read_framed() and relay_ring_parts_consume() of this process store in *where
 * what they are about to consume, after they have copied it. So if the process is killed, another one that has the
 * memory can tell whether it was consumed: then the position of the consumer has reached `position`. NULL: nowhere.
 */
struct relay_taken {
	uint64_t position; /* of the consumer, behind it: the stream position of a buffer, or a ring's position */
	uint64_t length;   /* bytes copied; 0: nothing is being consumed */
};
void relay_taken_store(struct relay_taken *where);

/* Consume whole records of a buffer with `times`, and copy them without their heads to `to`: as many as fit into
 * `size` bytes, and at most `most` (0: any number). What has no head is copied as it is. Returns the number of
 * bytes; 0: there is none; -EMSGSIZE: the first record is longer; or as begin(). */
ssize_t relay_buf_read_records(struct rchan_buf *buf, void *to, size_t size, size_t most);

/* As begin(), behind the next `skip` bytes of data, which end() consumes with the rest; *end is the stream position
 * (bytes written before it) behind the pieces. With abort() it reads ahead without consuming. */
int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end);

/* Consume all unread data before stream position `at`, without returning it. 0, -EBUSY or -EBADMSG as above. */
int relay_consume_to(struct rchan_buf *buf, uint64_t at);
int relay_consume_valid(struct rchan_buf *buf);

/*
 * Copying what is unread, up to the end that it had at peek_open(), without consuming, beside readers and writers. Data that
 * is consumed meanwhile is copied, too, unless it is overwritten. Any number of peeks of a buffer may be open, until it is
 * released; each is used by one thread at a time.
 *
 * peek_open(): NULL and errno: ENOMEM; EINVAL: the format has packets; EBADMSG.
 * peek_copy(): the next data, with `times` whole records without their heads. Returns the number of bytes; 0: the end, or a
 * reservation that is not committed, or the buffer was reset; -EMSGSIZE: the first record with its time is longer; -EBUSY: so
 * much must be skipped that the next call has to continue; -EBADMSG.
 * peek_more(): copy also what was written since, or since a reset. 0 or -EBADMSG.
 * peek_rewind(): begin again, up to the same end.
 * peek_has_skipped(): 1 if data was skipped since it began, because it was overwritten or consumed before it was copied.
 * peek_save(): store in `to` how far it is, if that fits in `size` bytes. Returns the bytes that it takes.
 * peek_restore(): go on where another peek of the buffer was, perhaps one of another process, with the same library. 0; -EINVAL:
 * `from` is not as long as what peek_save() has stored.
 */
struct relay_peek;
struct relay_peek *relay_buf_peek_open(struct rchan_buf *buf);
ssize_t relay_buf_peek_copy(struct relay_peek *peek, void *to, size_t size);
int relay_buf_peek_more(struct relay_peek *peek);
void relay_buf_peek_rewind(struct relay_peek *peek);
int relay_buf_peek_has_skipped(const struct relay_peek *peek);
size_t relay_buf_peek_save(const struct relay_peek *peek, void *to, size_t size);
int relay_buf_peek_restore(struct relay_peek *peek, const void *from, size_t size);
void relay_buf_peek_close(struct relay_peek *peek);

/* Return the number of records in the pieces of begin(), without lost or discarded ones. Correct only if the memory is. */
uint64_t relay_consume_records(const struct rchan_buf *buf);
void relay_consume_end(struct rchan_buf *buf);
void relay_consume_abort(struct rchan_buf *buf);

/* As relay_subbufs_consumed() in kernel/relay.c: consume the next n sub-buffers. n above n_subbufs is ignored, n above the
 * number of finished ones consumes these; stops before a sub-buffer with an open reservation. -EBUSY as above. */
int relay_buf_subbufs_consumed(struct rchan_buf *buf, uint64_t n);

/*
 * Sleeping. arm() requests a wake-up at the next switch (RELAY_ARM_SWITCH) or record (RELAY_ARM_RECORD) and
 * stores the buffer's wake-up counter from before in *seq. Then check relay_buf_state() again, and
 * sleep until the counter differs. wait_any() sleeps on up to 127 buffers at once and on `stop`, a word of
 * the caller that another thread changes and wakes with relay_wake_word(). It returns 0 when one of the counters or
 * the word (compared with stop_value) has changed or timeout_ms (-1: none) has passed; -EINTR: a signal was caught.
 */
int relay_buf_arm(struct rchan_buf *buf, uint32_t what, uint32_t *seq);
uint32_t relay_buf_wake_seq(const struct rchan_buf *buf);
int relay_buf_wait_any(struct rchan_buf *const *bufs, const uint32_t *seqs, size_t n, uint32_t *stop,
                       uint32_t stop_value, int timeout_ms);
void relay_wake_word(uint32_t *word);

/*
 * The same for a task that waits for many buffers and rings, of which few change at a time: a set of up to
 * RELAY_WAIT_SET_SLOTS, each in a slot. The slots may be changed while no thread sleeps.
 *
 * new(): NULL and errno: ENOMEM. put(): sleep on this one in this slot, while its wake-up counter is `seq`; to be called before
 * the caller checks its state. rest(): do not sleep on it for now. clear(): the slot is empty. Buffers and rings must not be
 * released before they are cleared.
 * sleep(): as wait_any(). woken() and changed() store the numbers of slots in `slots`, and return how many they are: those on
 * which it sleeps and whose counter differs, or whose writers wake nobody; and those of which anything differs that decides
 * what there is to read and what room, whoever has changed it. changed() may be called while a thread sleeps.
 */
enum { RELAY_WAIT_SET_SLOTS = 127 };
struct relay_wait_set;
struct relay_wait_set *relay_wait_set_new(void);
void relay_wait_set_free(struct relay_wait_set *set);
void relay_wait_set_put_buf(struct relay_wait_set *set, uint32_t slot, struct rchan_buf *buf, uint32_t seq);
void relay_wait_set_rest(struct relay_wait_set *set, uint32_t slot);
void relay_wait_set_clear(struct relay_wait_set *set, uint32_t slot);
int relay_wait_set_sleep(const struct relay_wait_set *set, uint32_t *stop, uint32_t stop_value, int timeout_ms);
uint32_t relay_wait_set_woken(const struct relay_wait_set *set, uint32_t *slots);
uint32_t relay_wait_set_changed(const struct relay_wait_set *set, uint32_t *slots);

/*
 * Resolve claims of dead threads: those whose owner this process can see to be dead, and all that were made through
 * the open file to which the server gave the number `token` (0: none). If a claim blocks a reader or writer, it checks
 * itself whether the owner is dead. Returns the number of claims resolved.
 */
int relay_buf_resolve(struct rchan_buf *buf, uint64_t token);

/* Store the server's number of its open file in all claims that this process makes in this buffer. */
void relay_buf_set_token(struct rchan_buf *buf, uint64_t token);

/*
 * Count an open of `buf` with which it can be mapped (`opened` 1), or its end (0), and wake the process that
 * made the channel, which sleeps on `first`, its buffer 0. relay_buf_forget_mapped(): all opens have ended.
 */
void relay_buf_count_mapped(struct rchan_buf *buf, struct rchan_buf *first, int opened);
void relay_buf_forget_mapped(struct rchan_buf *buf, struct rchan_buf *first);

/*
 * The time of the last change, which the file server shows and stores here for the next server. `count` is bytes written so
 * far, `time_ns` when the server first saw this count (CLOCK_REALTIME); both 0: no server has stored it yet. The mtime of the
 * store's file cannot be used: the kernel sets it when a mapped page is first stored to, not at each store.
 */
void relay_buf_mtime(const struct rchan_buf *buf, uint64_t *count, uint64_t *time_ns);
void relay_buf_keep_mtime(struct rchan_buf *buf, uint64_t count, uint64_t time_ns);

/*
 * Install a SIGBUS handler for mappings of store files that are made after this call, at most 65536 at a time. If a
 * file is truncated, the handler maps zero pages there, and the buffer is damaged (RELAY_IS_DAMAGED) instead of the
 * process killed. Other faults are passed to the previous handler. 0, also if it is installed already; or -errno.
 */
int relay_guard_install(void);

#ifdef __cplusplus
}
#endif
#endif
