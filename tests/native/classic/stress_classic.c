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
#include "stress_classic.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/layout.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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
	TICK_SIGNAL = 34, /* SIGRTMIN, as a constant */
	TICK_NS = 300000,
	START_RESERVE = MARK_BYTES,
	END_RESERVE = MARK_BYTES,
	CHANNEL_START_RESERVE = MARK_BYTES
};

struct options options;
struct channel channel;

/* Writers: callbacks, under the channel's lock; n_packets and n_written: anybody. */
static struct shared {
	uint64_t n_starts, n_ends, n_delivered, n_full;
	uint64_t n_packets, n_written;
	uint64_t n_wrong;
} * shared;

void wrong(const char *what, uint64_t left, uint64_t right)
{
	__atomic_add_fetch(&shared->n_wrong, 1, __ATOMIC_RELAXED);
	complain("%s: %llu %llu", what, (unsigned long long)left, (unsigned long long)right);
}

bool suspends(void)
{
	return strcmp(options.mode, "suspend") == 0;
}

struct rchan_info info_of_channel(void)
{
	struct rchan_info info;
	int err = relay_classic_info(channel.id, &info);

	if (err) {
		errno = -err;
		die("relay_info");
	}
	return info;
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

bool writers_are_done(void)
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
	id = relay_classic_open(CHANNEL_PATH, bufsize, n_bufs, options.flags, &callbacks, START_RESERVE, END_RESERVE,
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
	const struct walk *walk = reader_walk();
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
	equal("in the middle of a sub-buffer", walk->inside, false);
	if (!suspends())
		return;
	equal("headers read, buffer_start", walk->n_headers, shared->n_starts);
	equal("footers read, buffer_end", walk->n_footers, shared->n_ends);
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
	return close_reader((shared->n_starts + shared->n_ends + 1) * MARK_BYTES) || shared->n_wrong ? 1 : 0;
}
