/* SPDX-License-Identifier: MIT */
/*
 * A channel of 2003 under stress: threads and forked children write it in every way there is, with callbacks that put
 * headers and footers around what they write, while it is read, suspended and resumed.
 *
 *     stress_classic LEDGER SCHEME USAGE DELIVERY TIMESTAMP MODE READER RECORDS [RELAY_FILE]
 *
 *     SCHEME     lockless | locking | any          USAGE   smp | global        DELIVERY  bulk | packet
 *     TIMESTAMP  tsc | clock                       MODE    suspend | overwrite | null: what buffers_full says
 *     READER     read    the file; what a suspended channel holds also from the mapped memory: it must be the same
 *                mapped  the memory alone, unused bytes left out as relay_info() says (suspend only)
 *     RECORDS    of each thread
 *     RELAY_FILE the channel's file in a mount; without, it is read in the store
 *
 * $RELAYFS and $RELAYFS_STORE say where. Prints the account (stress_account.h) as one JSON object. Exit 0: it is right.
 */
#define _GNU_SOURCE
#define RELAYFS_CLASSIC_LONG_NAMES
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/classic.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "classic_marks.h"
#include "stress_account.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	/* In a child they find their locks as other threads held them when it was forked. */
	N_CHILDREN = 0,
	N_THREADS = 4,
#else
	N_CHILDREN = 2,
	N_THREADS = 2,
#endif
	N_SPANS = 64,
	READ_BYTES = 1 << 20,
	TICK_SIGNAL = 34, /* SIGRTMIN, as a constant */
	TICK_NS = 300000,
	PAUSE_NS = 50000,
	READ_SECONDS = 60,
	START_RESERVE = MARK_BYTES,
	END_RESERVE = MARK_BYTES,
	CHANNEL_START_RESERVE = MARK_BYTES,
	OVERRUN = 12 /* sub-buffers: more than there are */
};

static const char channel_path[] = "/stress/classic";

static struct {
	const char *mode, *relay_file;
	bool mapped, packet;
	uint32_t flags;
	uint64_t n_records;
} options;

/* What all processes have in common. */
static struct {
	int id; /* 0 is one, too */
	uint32_t bufsize, n_bufs;
	struct stress_ledger *ledger;
} channel;

/* Writers: callbacks, under the channel's lock; n_packets and n_written: anybody. */
static struct shared {
	uint64_t n_starts, n_ends, n_delivered, n_full;
	uint64_t n_packets, n_written;
	uint64_t n_wrong;
} * shared;

static void wrong(const char *what, uint64_t left, uint64_t right)
{
	__atomic_add_fetch(&shared->n_wrong, 1, __ATOMIC_RELAXED);
	complain("%s: %llu %llu", what, (unsigned long long)left, (unsigned long long)right);
}

static bool suspends(void)
{
	return strcmp(options.mode, "suspend") == 0;
}

/* --- callbacks --- */

static __thread uint32_t written_now; /* bytes: what this thread is about to write */

static int on_start(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
                    uint64_t start_tsc, int using_tsc)
{
	struct mark mark = {
	    .buffer_id = buffer_id, .time_us = mark_us(start_time), .tsc = start_tsc, .using_tsc = (uint64_t)using_tsc};
	int n = put_mark(current_write_pos, MARK_HEADER, mark);

	if (buffer_id != shared->n_starts || (buffer_id && channel_id != channel.id))
		wrong("buffer_start", buffer_id, shared->n_starts);
	if (buffer_id == 0) {
		channel.id = channel_id;
		n += put_mark(current_write_pos + n, MARK_CHANNEL, mark);
	}
	shared->n_starts++;
	return n;
}

static int on_end(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
                  uint64_t end_tsc, int using_tsc)
{
	struct mark mark = {.buffer_id = shared->n_ends,
	                    .time_us = mark_us(end_time),
	                    .tsc = end_tsc,
	                    .using_tsc = (uint64_t)using_tsc,
	                    .unused = (uint64_t)(end_of_buffer - current_write_pos)};

	if (channel_id != channel.id || shared->n_ends + 1 != shared->n_starts)
		wrong("buffer_end", shared->n_ends, shared->n_starts);
	if (mark.unused < END_RESERVE || mark.unused > channel.bufsize) {
		wrong("buffer_end: unused", mark.unused, channel.bufsize);
		return 0;
	}
	shared->n_ends++;
	return put_mark(current_write_pos, MARK_FOOTER, mark);
}

/* A whole sub-buffer, from header to footer. */
static void deliver_subbuf(int channel_id, char *from, uint32_t len)
{
	struct walk walk = {.bufsize = channel.bufsize, .next_id = shared->n_delivered};
	struct mark first;
	size_t at;
	const char *problem = walk_piece(&walk, from, len, &at);

	if (problem) {
		wrong("deliver", shared->n_delivered, at);
		complain("deliver: %s", problem);
	}
	if (channel_id != channel.id || (!problem && (walk.n_headers != 1 || walk.n_footers != 1)))
		wrong("deliver: headers, footers", walk.n_headers, walk.n_footers);
	/* Whatever it was: the next one is to follow it. */
	memcpy(&first, from, sizeof(first));
	shared->n_delivered = first.buffer_id + 1;
}

/* What this thread has written; others may be writing over it already. */
static void deliver_packet(int channel_id, char *from, uint32_t len)
{
	if (channel_id != channel.id || !from || len != written_now)
		wrong("deliver", len, written_now);
	__atomic_add_fetch(&shared->n_packets, 1, __ATOMIC_RELAXED);
}

static int on_full(int channel_id)
{
	if (channel_id != channel.id || shared->n_ends != shared->n_starts)
		wrong("buffers_full", shared->n_ends, shared->n_starts);
	shared->n_full++;
	return suspends();
}

static struct relay_classic_callbacks callbacks = {
    .buffer_start = on_start, .buffer_end = on_end, .buffers_full = on_full};

/* --- writers --- */

struct stream {
	uint32_t id;
	uint64_t sequence, random;
	struct stress_slot *slot;
	struct rchan *rchan;
	/* A reservation that is not committed yet; NULL: none. */
	char *held;
	uint64_t held_sequence;
	char record[STRESS_LENGTH_MAX + DELTA_BYTES];
};

struct writer {
	pthread_t thread;
	struct stream own, handler; /* the handler's records come between the thread's instructions */
	bool done;
};

static struct writer writers[N_THREADS];
static __thread struct writer *self;

static void note_written(struct stream *s)
{
	uint64_t n = s->held ? s->held_sequence : s->sequence;

	__atomic_store_n(&s->slot->written, n, __ATOMIC_SEQ_CST);
}

static void commit(struct stream *s)
{
	uint32_t before = written_now;

	if (!s->held)
		return;
	written_now = stress_length(s->id, (uint32_t)s->held_sequence) + DELTA_BYTES;
	relay_classic_commit(s->rchan, s->held, written_now);
	written_now = before;
	s->held = NULL;
	note_written(s);
}

static int copy_record(struct stream *s)
{
	uint32_t length = fill_record(s->record, s->id, s->sequence, NO_DELTA), before = written_now;
	int result;

	written_now = length;
	result = relay_classic_write(channel.id, s->record, length,
	                             has_delta(s->id, s->sequence) ? (int)(length - DELTA_BYTES) : -1);
	written_now = before;
	if (result >= 0 && result != (int)length)
		wrong("relay_write", (uint64_t)result, length);
	return result < 0 ? result : 0;
}

/* As the announcement has it; only without the lock it may stay open for a while. */
static int reserve_record(struct stream *s)
{
	uint32_t length = stress_length(s->id, (uint32_t)s->sequence) + DELTA_BYTES;
	bool locking = options.flags & RELAY_SCHEME_LOCKING, with_delta = has_delta(s->id, s->sequence);
	uint64_t delta = NO_DELTA;
	struct timeval now;
	int err = relay_lock_channel(s->rchan);

	if (err)
		return err;
	s->held =
	    relay_classic_reserve(s->rchan, length, s->random % 8 ? NULL : &now, with_delta ? &delta : NULL, &err);
	if (s->held) {
		s->held_sequence = s->sequence;
		fill_record(s->held, s->id, s->sequence, delta);
		if (locking || s->random % 2)
			commit(s);
	}
	relay_unlock_channel(s->rchan);
	return err;
}

static void count_refusal(struct stream *s, int err)
{
	if (err == -ENOSPC) {
		s->slot->full_records++;
		s->slot->full_bytes += stress_length(s->id, (uint32_t)s->sequence) + DELTA_BYTES;
	} else if (err != -EBUSY) {
		s->slot->other++;
		s->slot->other_errno = (uint64_t)-err;
	}
}

static int write_next(struct stream *s)
{
	int err;

	commit(s);
	stress_random(&s->random);
	__atomic_store_n(&s->slot->tried, s->sequence + 1, __ATOMIC_SEQ_CST);
	err = s->random >> 32 & 1 ? copy_record(s) : reserve_record(s);
	if (err) {
		count_refusal(s, err);
		__atomic_store_n(&s->slot->tried, s->sequence, __ATOMIC_SEQ_CST);
		return err;
	}
	__atomic_add_fetch(&shared->n_written, 1, __ATOMIC_RELAXED);
	s->sequence++;
	note_written(s);
	return 0;
}

static void on_tick(int signal)
{
	int saved_errno = errno;

	(void)signal;
	write_next(&self->handler);
	errno = saved_errno;
}

static void open_stream(struct stream *s, uint32_t id)
{
	s->id = id;
	s->random = stress_mix(id) | 1;
	s->slot = &channel.ledger->slot[id];
	s->rchan = rchan_get(channel.id);
	if (!s->rchan)
		die("rchan_get");
}

static void close_stream(struct stream *s)
{
	commit(s);
	rchan_put(s->rchan);
}

static timer_t start_timer(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TICK_SIGNAL};
	struct itimerspec when = {.it_value.tv_nsec = TICK_NS, .it_interval.tv_nsec = TICK_NS};
	timer_t timer;

	event.sigev_notify_thread_id = gettid();
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0)
		die("timer");
	return timer;
}

static void stop_timer(timer_t timer)
{
	sigset_t set;

	timer_delete(timer);
	sigemptyset(&set);
	sigaddset(&set, TICK_SIGNAL);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Refused: what we hold may be what keeps the others waiting. */
static void *write_all(void *argument)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	timer_t timer;

	self = argument;
	timer = start_timer();
	while (self->own.sequence < options.n_records && !self->own.slot->other) {
		if (write_next(&self->own))
			nanosleep(&pause, NULL);
	}
	stop_timer(timer);
	close_stream(&self->own);
	close_stream(&self->handler);
	__atomic_store_n(&self->done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void start_writers(unsigned process)
{
	unsigned i;

	for (i = 0; i < N_THREADS; i++) {
		open_stream(&writers[i].own, 2 * (process * N_THREADS + i));
		open_stream(&writers[i].handler, 2 * (process * N_THREADS + i) + 1);
		if (pthread_create(&writers[i].thread, NULL, write_all, &writers[i]) != 0)
			die("pthread_create");
	}
}

static void join_writers(void)
{
	unsigned i;

	for (i = 0; i < N_THREADS; i++)
		pthread_join(writers[i].thread, NULL);
}

static pid_t children[N_CHILDREN + 1];

static void fork_children(void)
{
	int i;

	for (i = 0; i < N_CHILDREN; i++) {
		children[i] = fork();
		if (children[i] < 0)
			die("fork");
		if (children[i] > 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		start_writers((unsigned)i + 1);
		join_writers();
		_exit(0);
	}
}

static bool writers_are_done(void)
{
	bool done = true;
	int status, i;

	for (i = 0; i < N_THREADS; i++)
		done &= __atomic_load_n(&writers[i].done, __ATOMIC_ACQUIRE);
	for (i = 0; i < N_CHILDREN; i++) {
		if (children[i] && waitpid(children[i], &status, WNOHANG) == children[i]) {
			if (status)
				wrong("a child's status", (uint64_t)children[i], (uint64_t)status);
			children[i] = 0;
		}
		done &= children[i] == 0;
	}
	return done;
}

/* --- the reader --- */

static struct {
	struct rchan_buf *buf;
	int fd;             /* of RELAY_FILE, or -1 */
	const char *memory; /* mapped */
	char *data, *copy;  /* what was read last, and what lay in memory */
	size_t n_data;
	uint64_t random;
	struct tally tally;
	struct account_options account;
	struct walk walk;
	bool is_lost;
} reader;

static void enter(struct walk *walk, const struct stress_record *record)
{
	(void)walk;
	account_enter(&reader.tally, record);
}

static void take(const char *data, size_t length)
{
	size_t at;
	const char *problem = reader.is_lost ? NULL : walk_piece(&reader.walk, data, length, &at);

	if (!problem)
		return;
	complain("sub-buffer %llu, byte %zu of it and %zu of %zu: %s", (unsigned long long)reader.walk.next_id - 1,
	         reader.walk.used, at, length, problem);
	reader.is_lost = true; /* what follows would be strange, too */
}

/* Once. -EAGAIN: it was overwritten meanwhile, or somebody has the lock under which it might be. */
static ssize_t try_to_consume(char *to)
{
	struct relay_span spans[N_SPANS];
	size_t total, used = 0;
	int n, i;

	account_before_read(&reader.tally);
	n = relay_consume_begin(reader.buf, READ_BYTES, spans, N_SPANS, &total);
	if (n <= 0)
		return n;
	account_during_read(&reader.tally, reader.buf, &reader.account);
	for (i = 0; i < n; i++) {
		memcpy(to + used, spans[i].data, spans[i].length);
		used += spans[i].length;
	}
	if (relay_consume_valid(reader.buf)) {
		relay_consume_abort(reader.buf);
		reader.tally.lapped++;
		return -EAGAIN;
	}
	relay_consume_end(reader.buf);
	return (ssize_t)total;
}

static size_t consume(char *to)
{
	ssize_t n;

	while ((n = try_to_consume(to)) == -EAGAIN)
		sched_yield();
	if (n < 0)
		complain("consume: %s", strerror((int)-n));
	return n < 0 ? 0 : (size_t)n;
}

/* What there is now, at most READ_BYTES. */
static size_t read_into(char *to)
{
	ssize_t n;

	if (reader.fd < 0)
		return consume(to);
	n = read(reader.fd, to, READ_BYTES);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		die("read");
	return n < 0 ? 0 : (size_t)n;
}

/* Behind what was read before, of which at least as much is kept as a channel can hold. */
static size_t read_some(void)
{
	size_t n;

	if (reader.n_data > 2 * READ_BYTES) {
		memmove(reader.data, reader.data + reader.n_data - READ_BYTES, READ_BYTES);
		reader.n_data = READ_BYTES;
	}
	n = read_into(reader.data + reader.n_data);
	take(reader.data + reader.n_data, n);
	reader.n_data += n;
	return n;
}

static bool is_unread(void)
{
	struct relay_facts facts = {0};

	if (relay_buf_facts(reader.buf, &facts))
		wrong("no facts", 0, 0);
	return facts.unread_bytes > 0;
}

/* Nobody writes meanwhile. A file server notes what was read when it has given it. */
static void read_all(void)
{
	time_t deadline = time(NULL) + READ_SECONDS;

	while (is_unread()) {
		if (read_some() == 0)
			sched_yield();
		if (time(NULL) > deadline) {
			wrong("what is unread cannot be read", reader.walk.next_id, 0);
			break;
		}
	}
}

static struct rchan_info info_of_channel(void)
{
	struct rchan_info info;
	int err = relay_classic_info(channel.id, &info);

	if (err) {
		errno = -err;
		die("relay_info");
	}
	return info;
}

/* How many of the finished sub-buffers that nobody has consumed are complete. */
static uint64_t count_complete(const struct rchan_info *info)
{
	uint64_t number = info->bufs_consumed;

	while (number < info->bufs_produced && info->buffer_complete[number % info->n_bufs])
		number++;
	return number - info->bufs_consumed;
}

/* Of sub-buffer `number`, what is not unused. */
static size_t used_bytes(const struct rchan_info *info, uint64_t number)
{
	int32_t unused = info->unused_bytes[number % info->n_bufs];

	if (unused < 0 || (uint32_t)unused > info->buf_size)
		wrong("relay_info: unused", (uint64_t)unused, number);
	return info->buf_size - (uint32_t)unused;
}

static const char *place_of(const struct rchan_info *info, uint64_t number)
{
	return reader.memory + number % info->n_bufs * info->buf_size;
}

/* All of them, as soon as they are complete. */
static struct rchan_info wait_for_complete(void)
{
	struct rchan_info info = info_of_channel();

	while (count_complete(&info) < info.bufs_produced - info.bufs_consumed) {
		sched_yield();
		info = info_of_channel();
	}
	return info;
}

/* The channel is suspended: what lies in memory unread is how what is read ends. Some of it may have been read before. */
static void compare(void)
{
	struct rchan_info info = wait_for_complete();
	size_t in_memory = 0;
	uint64_t number;

	for (number = info.bufs_consumed; number < info.bufs_produced; number++) {
		memcpy(reader.copy + in_memory, place_of(&info, number), used_bytes(&info, number));
		in_memory += used_bytes(&info, number);
	}
	read_all();
	if (in_memory > reader.n_data || memcmp(reader.data + reader.n_data - in_memory, reader.copy, in_memory) != 0)
		wrong("read differs from memory", reader.walk.next_id, in_memory);
}

static void take_mapped(void)
{
	struct rchan_info info = info_of_channel();
	uint64_t n = count_complete(&info), i;

	if (n > 1 && stress_random(&reader.random) % 2)
		n = 1;
	for (i = 0; i < n; i++)
		take(place_of(&info, info.bufs_consumed + i), used_bytes(&info, info.bufs_consumed + i));
	relay_classic_buffers_consumed(channel.id, (uint32_t)n);
}

static void resume_if_all_is_read(void)
{
	struct rchan_info info = info_of_channel();

	if (info.suspended && info.bufs_consumed == info.bufs_produced)
		relay_classic_resume(channel.id);
}

/* At times, wait until writers meet a full channel. */
static void let_overrun(void)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	struct rchan_info info = info_of_channel();
	uint64_t produced = info.bufs_produced;

	if (stress_random(&reader.random) % (suspends() ? 4 : 64))
		return;
	while (!info.suspended && info.bufs_produced < produced + OVERRUN && !writers_are_done()) {
		nanosleep(&pause, NULL);
		info = info_of_channel();
	}
}

static void read_while_written(void)
{
	while (!writers_are_done()) {
		let_overrun();
		if (options.mapped)
			take_mapped();
		else if (suspends() && info_of_channel().suspended)
			compare();
		else
			read_some();
		if (suspends())
			resume_if_all_is_read();
	}
}

static const char *map_data(int fd)
{
	return mmap(NULL, (size_t)channel.bufsize * channel.n_bufs, PROT_READ, MAP_SHARED, fd, 0);
}

static void open_reader(void)
{
	char mem[4096];

	snprintf(mem, sizeof(mem), "%s%s/mem0", getenv("RELAYFS_STORE"), channel_path);
	reader.tally.mem_file = strdup(mem);
	reader.tally.relay_file = channel_path;
	reader.buf = relay_buf_open(mem);
	reader.fd = options.relay_file ? open(options.relay_file, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
	if (!reader.buf || (options.relay_file && reader.fd < 0))
		die(mem);
	reader.memory = map_data(reader.fd);
	/* Not every mount maps files. */
	if (reader.memory == MAP_FAILED)
		reader.memory = map_data(relay_buf_fd(reader.buf));
	reader.data = malloc(4 * READ_BYTES);
	reader.copy = malloc(READ_BYTES);
	if (reader.memory == MAP_FAILED || !reader.data || !reader.copy)
		die("memory");
	reader.random = stress_mix(options.flags) | 1;
	reader.account = (struct account_options){.overwrite = !suspends(), .tail_bytes = DELTA_BYTES};
	reader.walk = (struct walk){.bufsize = channel.bufsize, .loses = reader.account.overwrite, .enter = enter};
}

/* --- the channel --- */

static uint32_t flag(const char *word)
{
	static const struct {
		const char *name;
		uint32_t flag;
	} flags[] = {{"lockless", RELAY_SCHEME_LOCKLESS},
	             {"locking", RELAY_SCHEME_LOCKING},
	             {"any", RELAY_SCHEME_ANY},
	             {"smp", RELAY_USAGE_SMP},
	             {"global", RELAY_USAGE_GLOBAL},
	             {"bulk", RELAY_DELIVERY_BULK},
	             {"packet", RELAY_DELIVERY_PACKET},
	             {"tsc", RELAY_TIMESTAMP_TSC},
	             {"clock", 0}};
	unsigned i;

	for (i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		if (strcmp(flags[i].name, word) == 0)
			return flags[i].flag;
	errno = EINVAL;
	die(word);
}

/* `any` is asked for a size that it can have with a lock only. */
static void open_channel(const char *scheme)
{
	bool lockless = strcmp(scheme, "lockless") == 0;
	uint32_t bufsize = lockless ? 8192 : 7001, n_bufs = strcmp(scheme, "locking") == 0 ? 2 : 4;
	struct rchan_info info;
	int id;

	channel.bufsize = bufsize;
	if (options.packet)
		callbacks.deliver = deliver_packet;
	else
		callbacks.deliver = deliver_subbuf;
	if (strcmp(options.mode, "null") == 0)
		callbacks.buffers_full = NULL;
	id = relay_classic_open(channel_path, bufsize, n_bufs, options.flags, &callbacks, START_RESERVE, END_RESERVE,
	                        CHANNEL_START_RESERVE);
	if (id < 0) {
		errno = -id;
		die("relay_open");
	}
	if (id != channel.id)
		wrong("the channel's id", (uint64_t)id, (uint64_t)channel.id);
	info = info_of_channel();
	channel.n_bufs = info.n_bufs;
	options.flags = info.flags;
}

static void map_ledger(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*channel.ledger)) != 0)
		die(file);
	channel.ledger = mmap(NULL, sizeof(*channel.ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (channel.ledger == MAP_FAILED || shared == MAP_FAILED)
		die("mmap");
	close(fd);
}

static void parse_arguments(int argc, char **argv)
{
	int i;

	if (argc < 9)
		exit(2);
	for (i = 2; i < 6; i++)
		options.flags |= flag(argv[i]);
	options.packet = options.flags & RELAY_DELIVERY_PACKET;
	options.mode = argv[6];
	options.mapped = strcmp(argv[7], "mapped") == 0;
	options.n_records = strtoull(argv[8], NULL, 0);
	options.relay_file = argc > 9 ? argv[9] : NULL;
}

static void equal(const char *what, uint64_t left, uint64_t right)
{
	if (left != right)
		wrong(what, left, right);
}

/* All writers are gone. */
static void check_calls(uint64_t events_lost)
{
	uint64_t full = 0;
	unsigned i;

	for (i = 0; i < STRESS_N_STREAMS; i++)
		full += channel.ledger->slot[i].full_records;
	equal("events lost, refused", events_lost, full);
	equal("buffer_start, buffer_end", shared->n_starts, shared->n_ends);
	if (options.packet)
		equal("deliver, written", shared->n_packets, shared->n_written);
	else
		equal("deliver, buffer_end", shared->n_delivered, shared->n_ends);
	equal("in the middle of a sub-buffer", reader.walk.inside, false);
	if (!suspends())
		return;
	equal("headers read, buffer_start", reader.walk.n_headers, shared->n_starts);
	equal("footers read, buffer_end", reader.walk.n_footers, shared->n_ends);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
	uint64_t events_lost;

	parse_arguments(argc, argv);
	map_ledger(argv[1]);
	account_open(argv[1]);
	sigaction(TICK_SIGNAL, &action, NULL);
	open_channel(argv[2]);
	open_reader();
	fork_children();
	start_writers(0);
	read_while_written();
	join_writers();
	events_lost = info_of_channel().events_lost;
	equal("relay_close", (uint64_t)relay_classic_close(channel.id), 0);
	read_all();
	check_calls(events_lost);
	reader.account.client_bytes = (shared->n_starts + shared->n_ends + 1) * MARK_BYTES;
	account_add(&reader.tally, reader.buf, &reader.account);
	relay_buf_release(reader.buf);
	return account_close(&reader.account) || shared->n_wrong ? 1 : 0;
}
