/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/store.h>: the store's side of relayfs: what file servers and tools call. Their symbols have the version
 * RELAYFS_PRIVATE: a tool that calls them belongs to one version of the library.
 *
 * A store is a directory on tmpfs. A channel is a directory in it that holds the regular files
 * mem0 .. memN-1 and nothing else; it appears and disappears whole, by rename(2). Everything about a buffer
 * stands in its memN (layout.h); owner, group and mode are the file's own.
 *
 * All functions return 0 (or what they say) or a negative errno, and never trust the memory: a damaged buffer
 * gives -EBADMSG or no data, every number that they give is in range, and no call takes more than a limited amount of
 * work, however much there is in the memory to walk over: some go on with the next call. A struct rchan_buf is for one
 * thread at a time, except relay_buf_wait_any().
 */
#ifndef RELAYFS_STORE_H
#define RELAYFS_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rchan_buf;       /* one buffer, mapped by this process */
struct rchan_callbacks; /* relay.h */

/* What a channel is made from. The enums are in layout.h. */
struct relay_spec {
	size_t size;          /* sizeof(struct relay_spec): later versions add fields at the end */
	uint64_t subbuf_size; /* bytes */
	uint64_t n_subbufs;
	uint32_t n_buffers; /* 1 for global and single; else relay_n_possible_cpus() */
	uint32_t mode, scheme, buffers, delivery, read;
	uint32_t flush_interval_ms; /* 0: never; at most INT32_MAX */
	uint32_t file_mode;         /* permission bits of the mem files */
	uint32_t uid, gid;          /* of the mem files; the directory is the caller's, mode 0711 */
	uint32_t reserve, timestamp;
	uint32_t start_reserve, end_reserve, channel_start_reserve; /* bytes; together less than subbuf_size */
	uint32_t
	    format;   /* with RELAY_PACKETS there is a timestamp and a start_reserve of sizeof(struct relay_packet) */
	uint32_t pid; /* said in the head of each packet */
};

/* What options are for: channels of a type (`type=` of the control file), or traces. */
enum relay_type { RELAY_TYPE_RELAY = 0, RELAY_TYPE_RING = 1, RELAY_TYPE_TRACE = 2 };

/* How the value of an option is written. */
enum relay_option_form {
	RELAY_OPTION_WORD = 0,       /* one of `words` */
	RELAY_OPTION_NUMBER = 1,     /* decimal digits */
	RELAY_OPTION_BYTES = 2,      /* the same, with an optional K, M or G */
	RELAY_OPTION_POWER_OF_2 = 3, /* such bytes */
	RELAY_OPTION_PERM = 4        /* octal digits, whose bits are among those of `most` */
};

/* An option of the control file's `create` or `trace create`: a row of the one table of what they can be made with. */
struct relay_option {
	const char *key; /* KEY=VALUE */
	/* Its field in struct relay_spec, relay_ring_spec or relay_trace; of what has a file, also in the statistics. NULL: none. */
	const char *field;
	const char *file;         /* shows its value in .channels/PATH/; NULL: none does */
	const char *const *words; /* numbered from 0, then NULL */
	const char *allowed;      /* which values are, for people; NULL: the words */
	uint32_t form;            /* enum relay_option_form */
	uint64_t least, most;     /* numbers that are allowed */
	uint64_t initial;         /* what holds if it is not given; user and group are those of who makes the channel */
};

/* Row i of those of a type; NULL: there are no more. */
const struct relay_option *relay_option_at(uint32_t type, unsigned i);

/* Understand a value: 0, or -EINVAL, if it is not allowed. */
int relay_option_parse(const struct relay_option *option, const char *value, uint64_t *number);

/* Write a value as relay_option_parse() reads it, as short as is exact. Returns as snprintf(3). */
int relay_option_format(const struct relay_option *option, uint64_t number, char *text, size_t size);

/* CPUs 0 .. n-1 may exist on this machine (hot-plug included). */
unsigned relay_n_possible_cpus(void);

/* What scheme=any becomes for these buffers here: RELAY_RSEQ where the machine has it and buffers are
 * per CPU, else RELAY_LOCKLESS. */
uint32_t relay_scheme_default(uint32_t buffers);

/* Can timestamp=tsc be had here? 1: there is a counter of constant rate that programs may read. */
int relay_has_tsc(void);

/* The bytes that one buffer of this geometry takes in the store; 0: the geometry is not allowed. */
uint64_t relay_buf_file_bytes(uint64_t subbuf_size, uint64_t n_subbufs);

/*
 * Make a channel: directory `dir`, whose parent exists, with all its memory allocated.
 *
 * -EEXIST `dir` exists; -EINVAL the spec is out of range, or scheme rseq is asked for buffers that are not per
 * CPU or on a machine without it, a TSC on one without; -ENOSPC no memory. On failure nothing is left behind.
 */
int relay_store_create(const char *dir, const struct relay_spec *spec);

/*
 * Make a channel's buffers as files without a name, for this user alone, in the file system of directory `dir`;
 * fds[0 .. spec->n_buffers-1] receive their descriptors. Errors as relay_store_create(), and as open(2).
 */
int relay_store_create_unnamed(const char *dir, const struct relay_spec *spec, int *fds);

/*
 * Make the channel `dir` of such files, whoever has them mapped: they get names, all of them or none. Owner and
 * mode stay theirs; whether they are a channel's buffers, the caller has to know.
 *
 * -EEXIST `dir` exists; -EXDEV the files lie in another file system than `dir`, or were opened in another mount
 * namespace and this process is not root; -ENOENT they had a name before.
 */
int relay_store_adopt(const char *dir, const int *fds, size_t n);

/*
 * Make the channel `dir` of copies of such files, for a user who must not hold descriptors of the store's own. Whether
 * they are a channel's buffers, the caller looks at afterwards: their owner may change them until they are copied.
 *
 * -EEXIST `dir` exists; -ENOSPC no memory; -EBADMSG one was truncated meanwhile.
 */
int relay_store_copy(const char *dir, const int *fds, size_t n, uint32_t file_mode, uint32_t uid, uint32_t gid);

/* Take a channel out of the store, all at once; its memory lives on while somebody has it mapped. */
int relay_store_remove(const char *dir, uint32_t n_buffers);

/*
 * A directory that was made because the path of a channel leads through it is implicit: whoever removes the last channel in it
 * removes it, too. Its mode, owner and group say so; whoever changes one of them makes it an ordinary directory, which stays.
 */
enum { RELAY_IMPLICIT_MARK = 0x800 };     /* S_ISUID, which has no meaning of its own for a directory */
int relay_implicit_make(const char *dir); /* 0, or -errno as mkdir(2); all of it or nothing */
int relay_implicit_is(const char *dir);   /* 1 or 0 */

/*
 * Map one buffer for reading, writing and consuming. NULL and errno: EPROTO another layout version; EMEDIUMTYPE a record
 * ring (ring.h); EBADMSG not a relay buffer, truncated or damaged; else as open(2), mmap(2).
 */
struct rchan_buf *relay_buf_open(const char *mem_file);
struct rchan_buf *relay_buf_fdopen(int fd);    /* the same for a file that is open, O_RDWR; fd stays the caller's */
void relay_buf_release(struct rchan_buf *buf); /* NULL is ignored */
int relay_buf_fd(const struct rchan_buf *buf); /* of the mem file, O_RDWR */
/* For who maps more buffers than there are descriptors: its mem file stays mapped. */
void relay_buf_close_fd(struct rchan_buf *buf);

/*
 * Let nobody free pages of a store file which other users than this process's may write to: its inode becomes immutable
 * (src/immutable.c). Descriptors that are open stay what they are. 1; 0: there are no such users, and the flag stays as it is;
 * -ENOTTY, -EOPNOTSUPP: the file system knows no such flag; -EPERM: this process has no CAP_LINUX_IMMUTABLE.
 */
int relay_file_protect(int fd);
int relay_file_unprotect(int fd);    /* 1: it was immutable; 0: it was not; -errno */
int relay_file_is_protected(int fd); /* 1 or 0 */

/*
 * chown and chmod a store file, open O_RDWR. One that is immutable stays so, whoever may write to it then, because programs may
 * have it mapped. 0 or -errno.
 */
int relay_file_change_owner(int fd, uint32_t mode, uint32_t uid, uint32_t gid);

/* Open, O_RDWR, and unlink a store file that may be immutable. A descriptor or 0, or -errno. */
int relay_file_open(const char *path);
int relay_file_unlink(const char *path);

/* Everything there is to know of a buffer, at one moment. Counts are since creation or reset; each is below 2^63. */
struct relay_stats {
	uint64_t subbuf_size, n_subbufs, file_bytes;
	uint32_t cpu, n_buffers, mode, scheme, buffers, delivery, read, flush_interval_ms;
	uint32_t closed, disabled;   /* 0 or 1 */
	uint64_t produced, consumed; /* sub-buffers, free-running */
	uint64_t offset;             /* bytes used in the current sub-buffer */
	uint64_t records, bytes;     /* ever written, reserved ones included */
	uint64_t padding;            /* bytes of finished sub-buffers that hold nothing */
	/* Given to readers. Records have no marks: those of a piece count when its last byte is given, so a piece
	 * of which a reader took a part, and whose rest was then overwritten, counts whole among the overwritten. */
	uint64_t read_records, read_bytes;
	uint64_t unread_bytes;
	uint64_t unread_holes; /* bytes of those that nobody will get: discarded or torn; where they are many, as far as
	                        * they have been counted: the next call goes on */
	uint64_t reads, wakeups;
	uint64_t lost_records, lost_bytes; /* all that will not be read, which are: */
	uint64_t lost_full_records, lost_full_bytes;
	uint64_t lost_too_large_records, lost_too_large_bytes;
	uint64_t lost_disabled_records, lost_disabled_bytes;
	uint64_t lost_overwritten_records, lost_overwritten_bytes;
	uint64_t lost_torn_records, lost_torn_bytes;
	uint64_t discarded_records, discarded_bytes; /* reservations that were taken back, as readers pass them */
	uint64_t switch_time_ns;                     /* CLOCK_REALTIME of the last switch, or of the creation */
	uint32_t reserve, timestamp, start_reserve, end_reserve, channel_start_reserve;
	uint32_t suspended; /* 0 or 1: writes are lost until relay_buf_resume() */
	uint32_t format, pid;
};
int relay_buf_stats(struct rchan_buf *buf, struct relay_stats *stats);

/* What a statistic says: how often something has happened, which buffers add up; how much there is now, the same; how it is now,
 * of which the largest counts; how it is now, of which only each buffer's says something. */
enum relay_statistic_form {
	RELAY_STATISTIC_COUNT = 0,
	RELAY_STATISTIC_LEVEL = 1,
	RELAY_STATISTIC_LATEST = 2,
	RELAY_STATISTIC_OF_BUFFER = 3
};

/* Who counts it. Of a ring that was consumed by who knows only the kernel's format, it is not known what consumers count, nor,
 * in overwrite mode, what was overwritten unread. */
enum relay_statistic_source {
	RELAY_STATISTIC_OF_ALL = 0,
	RELAY_STATISTIC_OF_CONSUMERS = 1,
	RELAY_STATISTIC_OF_OVERWRITTEN = 2
};

/* A number that the file server shows: a row of the one table of them. */
struct relay_statistic {
	const char *name;  /* of its files, in .channels/PATH/ and .channels/PATH/bufferN/ */
	const char *field; /* of struct relay_stats or relay_ring_stats */
	const char *unit;  /* of the counter of its name; NULL: there is none */
	const char *help;  /* the same, what it counts */
	uint32_t form;     /* enum relay_statistic_form */
	uint32_t source;   /* enum relay_statistic_source */
};

/* Row i of those of a type of channel; NULL: there are no more. */
const struct relay_statistic *relay_statistic_at(uint32_t type, unsigned i);

/* As relay_write(), into this very buffer: goes to its CPU for the moment if its scheme needs that;
 * -EPERM: this thread may not run there; -EBUSY: in scheme locking another writer is at work, and the record is not
 * counted as lost. */
int relay_buf_write(struct rchan_buf *buf, const void *data, size_t length);

/* As relay_reserve(), _commit() and _discard(), in this very buffer. Reserving returns 0 and where, or as
 * relay_buf_write(). */
int relay_buf_reserve(struct rchan_buf *buf, size_t length, void **to);
void relay_buf_commit(struct rchan_buf *buf, void *reserved);
void relay_buf_discard(struct rchan_buf *buf, void *reserved);

/* From now on cb->subbuf_start decides when this process is about to begin a sub-buffer; it does with the first one, if
 * nobody has begun that. `cb` stays the caller's. */
void relay_buf_set_callbacks(struct rchan_buf *buf, const struct rchan_callbacks *cb);

/* Count a record of `length` bytes that was too large to get here. -EMSGSIZE, or as relay_buf_write(). */
int relay_buf_refuse_too_large(struct rchan_buf *buf, size_t length);

/* As relay_flush() and relay_reset(), this buffer only. Reset waits for no reader: -EBUSY while a reader
 * stands between next() and done(). */
int relay_buf_flush(struct rchan_buf *buf);
int relay_buf_reset(struct rchan_buf *buf);

/* As relay_resume() in classic.h: what is unread counts as consumed from now on, for those who ask whether there is
 * room; readers still get what is not overwritten. 0, also if nothing is suspended; -EBUSY: a callback runs. */
int relay_buf_resume(struct rchan_buf *buf);

/* Set or clear RELAY_CLOSED or RELAY_DISABLED. When it returns, no write that began before is still under
 * way, except on a CPU where this thread may not run (-EPERM; the flag is set all the same). Wakes all. */
int relay_buf_stop(struct rchan_buf *buf, uint32_t flag, int on);

/* What is there to read, as bits. Helps complete what dead or slow writers left. */
enum {
	RELAY_HAS_DATA = 1,     /* at least one byte, the current sub-buffer included */
	RELAY_HAS_FINISHED = 2, /* produced > consumed: poll's condition for delivery=bulk */
	RELAY_IS_CLOSED = 4,
	RELAY_IS_DAMAGED = 8,    /* the memory contradicts itself */
	RELAY_LOOK_AGAIN = 16,   /* there is so much to pass before the next byte that it is not known yet: ask again */
	RELAY_IS_HELD = 32,      /* beside RELAY_HAS_DATA: another thread or process is reading, so a read would wait */
	RELAY_HAS_DISCARDED = 64 /* of a ring: the next record is one that a consumer skips, which makes room */
};
int relay_buf_state(struct rchan_buf *buf);

/* After -EBADMSG or RELAY_IS_DAMAGED: what contradicts itself, as "relay_subbuf[0].start_bytes is 9, more than 8"; "" if
 * nothing has. Valid until the next call with this buffer. */
const char *relay_buf_damage(struct rchan_buf *buf);

/*
 * Consume in order. begin() takes the reader's lock and describes up to max_bytes of data in at most n_spans
 * pieces inside the memory, each of one sub-buffer, padding and torn records left out; then either end():
 * they are consumed, or abort(): they stay. Returns the number of pieces, *total their sum; 0: nothing to read
 * (the lock is not held). -EBUSY: another thread or process is consuming, or there is so much to pass before the next
 * byte that the next call has to go on with it. -EBADMSG: damaged.
 * valid(): 0 while what begin() described is intact; -EOVERFLOW: lapped by producers (overwrite mode only):
 * call abort(), the next begin() counts what was lost. end() may follow abort() or another end() without harm.
 */
struct relay_span {
	const void *data;
	size_t length;
};
int relay_consume_begin(struct rchan_buf *buf, size_t max_bytes, struct relay_span *spans, size_t n_spans,
                        size_t *total);

/* As begin(), behind the next `skip` bytes of data, which end() consumes with the rest; *end is the stream position
 * (bytes written before it) behind what is described. With abort() it is a look at what others are to read. */
int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end);

/* Consume unseen what is unread before stream position `at`. 0, -EBUSY or -EBADMSG as above. */
int relay_consume_to(struct rchan_buf *buf, uint64_t at);
int relay_consume_valid(struct rchan_buf *buf);

/* How many records are in what begin() described, if the memory is honest: those that were lost or discarded left out. */
uint64_t relay_consume_records(const struct rchan_buf *buf);
void relay_consume_end(struct rchan_buf *buf);
void relay_consume_abort(struct rchan_buf *buf);

/* As relay_subbufs_consumed() in kernel/relay.c: the next n sub-buffers are consumed; more than n_subbufs is
 * ignored, more than are finished means those that are; it stops before one with an open reservation. -EBUSY as above. */
int relay_buf_subbufs_consumed(struct rchan_buf *buf, uint64_t n);

/*
 * Sleeping. arm() asks for a wake-up at the next switch (RELAY_ARM_SWITCH) or record (RELAY_ARM_RECORD) and
 * returns, in *seq, what the buffer's wake-up counter was before; look at relay_buf_state() again after it,
 * then sleep until the counter differs. wait_any() sleeps on up to 127 buffers at once and on `stop`, a word of
 * the caller's that somebody changes and wakes with relay_wake_word(); it returns when any of the counters or
 * the word (compared with stop_value) has changed or timeout_ms (-1: none) has passed: 0; -EINTR: a signal came.
 */
int relay_buf_arm(struct rchan_buf *buf, uint32_t what, uint32_t *seq);
uint32_t relay_buf_wake_seq(const struct rchan_buf *buf);
int relay_buf_wait_any(struct rchan_buf *const *bufs, const uint32_t *seqs, size_t n, uint32_t *stop,
                       uint32_t stop_value, int timeout_ms);
void relay_wake_word(uint32_t *word);

/*
 * Reservations of the dead. Resolves the claims whose owner is no more: by process id where this process can
 * see it, and all that were made through the open file that the server called `token` (0: none). Readers and
 * writers do the former on their own when a claim is in their way. Returns how many it resolved.
 */
int relay_buf_resolve(struct rchan_buf *buf, uint64_t token);

/* Give all claims that this process makes in this buffer the file server's name for its open file. */
void relay_buf_set_token(struct rchan_buf *buf, uint64_t token);

/*
 * Count an open of `buf` with which it can be mapped (`opened` 1), or the end of one (0), and tell the process that
 * made the channel, which sleeps on `first`, its buffer 0. relay_buf_forget_mapped(): all opens have ended.
 */
void relay_buf_count_mapped(struct rchan_buf *buf, struct rchan_buf *first, int opened);
void relay_buf_forget_mapped(struct rchan_buf *buf, struct rchan_buf *first);

/*
 * When data last moved: what the file server shows and keeps here for the next one. `count` is bytes ever written,
 * `time_ns` when it first saw as many (CLOCK_REALTIME); both 0: nobody has kept it yet. The store file's own time does
 * not tell: the kernel sets it when a mapping's page is first stored to, not with each store, nor only with data.
 */
void relay_buf_mtime(const struct rchan_buf *buf, uint64_t *count, uint64_t *time_ns);
void relay_buf_keep_mtime(struct rchan_buf *buf, uint64_t count, uint64_t time_ns);

/*
 * From now on a mapping of a store file that somebody truncates costs its buffer (RELAY_IS_DAMAGED), not the
 * process: installs a SIGBUS handler that puts zero pages there and passes on what is not ours.
 */
int relay_guard_install(void);

#ifdef __cplusplus
}
#endif
#endif
