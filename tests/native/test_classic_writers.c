/* SPDX-License-Identifier: MIT */
/*
 * Channels of 2003 whose writers are killed: in each callback, between reserve and commit, with the lock, and after
 * each single change that the library makes to the shared memory. And: no writer starves.
 *
 * This process opens the channel. A child makes a call and dies in it; then this process, which has the same callbacks,
 * goes on, and reads all that there is: the marks and records of classic_marks.h, each once and in order, but for the
 * one record of the child.
 *
 * For the last kind of death the child is stepped from instruction to instruction. Only when the memory has changed
 * others could see a difference: so one death for each change is all there can be. RELAYFS_STRESS=long: one for each
 * instruction, all the same.
 */
#define _GNU_SOURCE
#define RELAYFS_CLASSIC_LONG_NAMES
#include "check.h"

#include <pthread.h>
#include <relayfs/classic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "classic_marks.h"

enum {
	N_BUFS_MAX = 4,
	SMALL = 300, /* the longest record, with its delta, of this process; the child's are longer */
	LARGE = 600,
	PARENT = 0, /* streams */
	CHILD = 1,
	N_IDS = 1 << 20,
	GOES_ON_NS = 100000000,
	SLEEP_NS = 200000, /* twice what it asks for */
	MAX_STEPS = 100000,
	FEWEST_CHANGES = 4,
#ifdef __SANITIZE_ADDRESS__
	STEPS = 0 /* it makes ten of each, and finds what it looks for without deaths */
#else
	STEPS = 1
#endif
};

/* --- the channel --- */

/* Where in a callback to die. */
enum death_place { NOWHERE, IN_START, IN_END, IN_DELIVER, IN_FULL };
enum moment { BEFORE, AMID, AFTER };

struct death {
	enum death_place where;
	enum moment when;
};
static struct death death; /* this process's */

static int full_answer;

static struct channel {
	int id;
	char path[64], mem_file[4096];
	struct rchan_buf *buf; /* to read with */
	unsigned char *memory;
	size_t memory_bytes;
	struct walk walk;
	uint64_t next_written, next_read; /* the parent's records */
	uint64_t n_written, n_entered;
	unsigned n_killed;
} channel;

/* What callbacks of all processes note. */
static struct {
	uint64_t current_id;
	uint8_t delivered[N_IDS];
} * shared;

static void die_if(enum death_place where, enum moment when)
{
	if (death.where == where && death.when == when)
		kill(getpid(), SIGKILL);
}

static int on_start(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
                    uint64_t start_tsc, int using_tsc)
{
	struct mark mark = {
	    .buffer_id = buffer_id, .time_us = mark_us(start_time), .tsc = start_tsc, .using_tsc = (uint64_t)using_tsc};

	(void)channel_id;
	die_if(IN_START, BEFORE);
	memset(current_write_pos, '#', MARK_BYTES / 2);
	die_if(IN_START, AMID);
	__atomic_store_n(&shared->current_id, buffer_id, __ATOMIC_RELAXED);
	put_mark(current_write_pos, MARK_HEADER, mark);
	die_if(IN_START, AFTER);
	return MARK_BYTES;
}

static int on_end(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
                  uint64_t end_tsc, int using_tsc)
{
	struct mark mark = {.buffer_id = __atomic_load_n(&shared->current_id, __ATOMIC_RELAXED),
	                    .time_us = mark_us(end_time),
	                    .tsc = end_tsc,
	                    .using_tsc = (uint64_t)using_tsc,
	                    .unused = (uint64_t)(end_of_buffer - current_write_pos)};

	(void)channel_id;
	die_if(IN_END, BEFORE);
	memset(current_write_pos, '#', MARK_BYTES / 2);
	die_if(IN_END, AMID);
	put_mark(current_write_pos, MARK_FOOTER, mark);
	die_if(IN_END, AFTER);
	return MARK_BYTES;
}

static void on_deliver(int channel_id, char *from, uint32_t len)
{
	struct mark first;

	(void)channel_id;
	die_if(IN_DELIVER, BEFORE);
	memcpy(&first, from, sizeof(first));
	CHECK(len >= 2 * MARK_BYTES && first.buffer_id < N_IDS);
	__atomic_store_n(&shared->delivered[first.buffer_id], 1, __ATOMIC_RELAXED);
	die_if(IN_DELIVER, AFTER);
}

static int on_full(int channel_id)
{
	(void)channel_id;
	die_if(IN_FULL, BEFORE);
	return full_answer;
}

static const struct relay_classic_callbacks callbacks = {
    .buffer_start = on_start, .buffer_end = on_end, .deliver = on_deliver, .buffers_full = on_full};

static void enter(struct walk *walk, const struct stress_record *record);
static void make_large(void);

static void map_memory(void)
{
	struct stat status;

	channel.buf = relay_buf_open(channel.mem_file);
	CHECK(channel.buf != NULL);
	CHECK_EQ(fstat(relay_buf_fd(channel.buf), &status), 0);
	channel.memory_bytes = (size_t)status.st_size;
	channel.memory = mmap(NULL, channel.memory_bytes, PROT_READ, MAP_SHARED, relay_buf_fd(channel.buf), 0);
	CHECK(channel.memory != MAP_FAILED);
}

static void open_channel(int full)
{
	static unsigned n;
	char mount[4096], store[4000];
	bool locking = scheme == RELAY_LOCKING;
	uint32_t flags = RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK | RELAY_TIMESTAMP_TSC;

	memset(&channel, 0, sizeof(channel));
	snprintf(mount, sizeof(mount), "%s/mnt", scratch);
	snprintf(store, sizeof(store), "%s/store", scratch);
	mkdir(mount, 0755);
	CHECK_EQ(setenv("RELAYFS", mount, 1), 0);
	CHECK_EQ(setenv("RELAYFS_STORE", store, 1), 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	snprintf(channel.path, sizeof(channel.path), "/classic%u", n++);
	snprintf(channel.mem_file, sizeof(channel.mem_file), "%s%s/mem0", store, channel.path);
	full_answer = full;
	channel.id = relay_classic_open(channel.path, locking ? 2000 : 2048, locking ? 2 : N_BUFS_MAX,
	                                flags | (locking ? RELAY_SCHEME_LOCKING : RELAY_SCHEME_LOCKLESS), &callbacks,
	                                MARK_BYTES, MARK_BYTES, 0);
	CHECK(channel.id >= 0);
	channel.walk = (struct walk){.has_holes = true, .loses = full == 0, .enter = enter};
	map_memory();
	make_large();
}

static struct rchan_info info_of_channel(void)
{
	struct rchan_info info;

	CHECK_EQ(relay_classic_info(channel.id, &info), 0);
	return info;
}

/* --- records --- */

static uint32_t length_of(uint32_t stream, uint64_t sequence)
{
	return stress_length(stream, (uint32_t)sequence) + DELTA_BYTES;
}

/* The first of the stream's records from `sequence` on that is longer than `above` and not longer than `most`. */
static uint64_t next_of(uint32_t stream, uint64_t sequence, uint32_t above, uint32_t most)
{
	while (length_of(stream, sequence) <= above || length_of(stream, sequence) > most)
		sequence++;
	return sequence;
}

static void enter(struct walk *walk, const struct stress_record *record)
{
	uint64_t expected = next_of(PARENT, channel.next_read, 0, SMALL);

	if (record->stream == STRESS_SUBBUF)
		return;
	channel.n_entered++;
	if (record->stream == CHILD)
		return;
	CHECK_EQ(record->stream, PARENT);
	if (walk->loses)
		CHECK(record->sequence >= expected);
	else
		CHECK_EQ(record->sequence, expected);
	channel.next_read = record->sequence + 1;
}

static struct record {
	char data[LARGE];
	uint64_t sequence;
	uint32_t length;
	int delta_at; /* -1: none */
} own, large;

static void make_record(struct record *record, uint32_t stream, uint64_t sequence)
{
	record->sequence = sequence;
	record->length = fill_record(record->data, stream, sequence, NO_DELTA);
	record->delta_at = has_delta(stream, sequence) ? (int)(record->length - DELTA_BYTES) : -1;
}

static int write_record(const struct record *record)
{
	int result = relay_classic_write(channel.id, record->data, record->length, record->delta_at);

	CHECK(result < 0 || result == (int)record->length);
	return result < 0 ? result : 0;
}

static int write_own(void)
{
	int err;

	make_record(&own, PARENT, next_of(PARENT, channel.next_written, 0, SMALL));
	err = write_record(&own);
	if (!err) {
		channel.next_written = own.sequence + 1;
		channel.n_written++;
	}
	return err;
}

/* The next child's: it is made before there is one. */
static void make_large(void)
{
	make_record(&large, CHILD, next_of(CHILD, large.sequence + 1, SMALL, LARGE));
}

static int write_large(void)
{
	return write_record(&large);
}

static void read_all(void)
{
	static char data[1 << 16];
	const char *problem;
	size_t n, at;

	while ((n = consume_into(channel.buf, data, sizeof(data))) > 0) {
		problem = walk_piece(&channel.walk, data, n, &at);
		if (problem)
			fprintf(stderr, "sub-buffer %llu, at %zu of %zu, kill %u: %s\n",
			        (unsigned long long)channel.walk.next_id - 1, at, n, channel.n_killed, problem);
		CHECK(problem == NULL);
	}
}

static uint32_t bytes_left(const struct rchan_info *info)
{
	return info->buf_size - info->cur_idx % info->buf_size - MARK_BYTES;
}

/* Until the next record of the child must switch, `n_finished` sub-buffers being unread. */
static void fill_up(uint64_t n_finished)
{
	struct rchan_info info = info_of_channel();

	while (info.bufs_produced - info.bufs_consumed < n_finished || info.cur_idx % info.buf_size == 0 ||
	       bytes_left(&info) > SMALL) {
		CHECK_EQ(write_own(), 0);
		info = info_of_channel();
	}
}

static void fill_one(void)
{
	fill_up(0);
}

static void fill_all(void)
{
	fill_up(info_of_channel().n_bufs - 1);
}

/* --- going on --- */

static uint64_t fastest_ns = UINT64_MAX;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static long n_sleeps(void)
{
	struct rusage usage;

	CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

/* The next write is stored within 100 ms. Of a machine that is busy elsewhere so much cannot be said; but what this
 * thread ran, and how often it went to sleep for what the library sleeps at once. */
static void write_in_time(void)
{
	uint64_t start = now_ns(CLOCK_MONOTONIC), ran = now_ns(CLOCK_THREAD_CPUTIME_ID), took;
	long sleeps = n_sleeps();

	CHECK_EQ(write_own(), 0);
	took = now_ns(CLOCK_MONOTONIC) - start;
	ran = now_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
	CHECK(ran + (uint64_t)(n_sleeps() - sleeps) * SLEEP_NS < GOES_ON_NS);
	if (took < fastest_ns)
		fastest_ns = took;
}

static void go_on(void)
{
	write_in_time();
	read_all();
}

/* The channel is suspended, or the next write makes it so. */
static void go_on_after_resume(void)
{
	struct rchan_info info;

	while (!write_own())
		;
	info = info_of_channel();
	CHECK(info.suspended);
	CHECK_EQ(info.bufs_produced - info.bufs_consumed, info.n_bufs);
	read_all();
	CHECK_EQ(write_own(), -ENOSPC);
	relay_classic_resume(channel.id);
	go_on();
}

/* All of it has been read; what was lost is known. */
static void check_account(void)
{
	struct relay_facts facts;
	struct rchan_info info = info_of_channel();
	uint32_t last = info.buf_id;
	uint64_t id;

	/* The last one in which somebody died is delivered, too. */
	while (info.bufs_produced <= last) {
		CHECK_EQ(write_own(), 0);
		read_all();
		info = info_of_channel();
	}
	for (id = 0; id < info.bufs_produced; id++)
		CHECK(shared->delivered[id]);
	facts = facts_of(channel.buf);
	CHECK_EQ(facts.unread_bytes, 0);
	CHECK_EQ(facts.records, facts.read_records + facts.lost_overwritten_records + facts.lost_torn_records);
	CHECK(facts.lost_torn_records <= channel.n_killed);
	CHECK(facts.records >= channel.n_written && facts.records <= channel.n_written + channel.n_killed);
	if (channel.walk.loses)
		return;
	CHECK_EQ(facts.read_records, channel.n_entered);
	CHECK_EQ(facts.lost_overwritten_records, 0);
}

static void close_channel(void)
{
	CHECK_EQ(relay_classic_close(channel.id), 0);
	read_all();
	CHECK(!channel.walk.inside);
	if (!channel.walk.loses)
		CHECK_EQ(channel.n_entered + facts_of(channel.buf).lost_torn_records, facts_of(channel.buf).records);
	munmap(channel.memory, channel.memory_bytes);
	relay_buf_release(channel.buf);
	munmap(shared, sizeof(*shared));
}

/* --- deaths of the child's own --- */

static pid_t fork_child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static void note_killed(void)
{
	channel.n_killed++;
	make_large();
}

/* It is dead, and its parent has not looked after it yet: first comes the next write. */
static void let_die(struct death of, void (*work)(void), void (*next)(void))
{
	siginfo_t status;
	pid_t pid = fork_child();

	if (pid == 0) {
		death = of;
		work();
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitid(P_PID, (id_t)pid, &status, WEXITED | WNOWAIT), 0);
	CHECK_EQ(status.si_code, CLD_KILLED);
	note_killed();
	next();
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

static void write_one_large(void)
{
	write_large();
}

enum { TIMES = 5, MOST_TIMES = 50 };

static void kill_in_callback(enum death_place where, enum moment last, int full, void (*prepare)(void),
                             void (*next)(void))
{
	struct death of = {.where = where};
	int i;

	open_channel(full);
	for (of.when = BEFORE; of.when <= last; of.when++) {
		/* The clock on the wall is the machine's: one of several deaths at the same place has to do. */
		for (i = 0; i < TIMES || (fastest_ns >= GOES_ON_NS && i < MOST_TIMES); i++) {
			prepare();
			let_die(of, write_one_large, next);
		}
		CHECK(fastest_ns < GOES_ON_NS);
		fastest_ns = UINT64_MAX;
	}
	check_account();
	CHECK_EQ(facts_of(channel.buf).lost_torn_records, 0); /* nothing was reserved yet */
	close_channel();
}

TEST(who_is_killed_in_buffer_start_is_replaced)
{
	kill_in_callback(IN_START, AFTER, 1, fill_one, go_on);
}

TEST(who_is_killed_in_buffer_start_over_unread_data_is_replaced)
{
	kill_in_callback(IN_START, AFTER, 0, fill_all, go_on);
}

TEST(who_is_killed_in_buffer_end_is_replaced)
{
	kill_in_callback(IN_END, AFTER, 1, fill_one, go_on);
}

TEST(who_is_killed_in_deliver_is_replaced)
{
	kill_in_callback(IN_DELIVER, AMID, 1, fill_one, go_on);
}

TEST(who_is_killed_in_buffers_full_is_replaced)
{
	kill_in_callback(IN_FULL, BEFORE, 1, fill_all, go_on_after_resume);
}

/* --- with a reservation, or the lock --- */

static struct rchan *rchan;

static char *reserve_large(uint64_t *delta)
{
	int err;
	char *to = relay_classic_reserve(rchan, large.length, NULL, delta, &err);

	CHECK(to != NULL && err == 0);
	return to;
}

static void lock(void)
{
	rchan = rchan_get(channel.id);
	CHECK(rchan != NULL);
	CHECK_EQ(relay_lock_channel(rchan), 0);
}

static void lock_and_reserve(void)
{
	lock();
	memset(reserve_large(NULL), '#', SMALL);
}

static void kill_with(void (*work)(void), bool torn)
{
	int i;

	open_channel(1);
	for (i = 0; i < TIMES; i++) {
		fill_one();
		let_die((struct death){NOWHERE, BEFORE}, work, go_on);
		CHECK_EQ(facts_of(channel.buf).lost_torn_records, torn ? i + 1 : 0);
	}
	check_account();
	close_channel();
}

TEST(a_dead_holder_loses_the_lock)
{
	kill_with(lock, false);
}

TEST(a_dead_writer_s_reservation_is_torn)
{
	kill_with(lock_and_reserve, true);
}

/* --- deaths after each change --- */

/* Where a child is to die: about to execute what lies at `at` for the `times`-th time. */
struct point {
	unsigned long at;
	unsigned times;
};

static struct {
	struct point point[MAX_STEPS];
	unsigned n;
} points;

static bool is_long(void)
{
	const char *how = getenv("RELAYFS_STRESS");

	return how && strcmp(how, "long") == 0;
}

/* It waits to be traced through `work`. */
static pid_t start_traced(void (*work)(void))
{
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		/* What is done once only, to find out who this process is, need not be stepped through. */
		info_of_channel();
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		work();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSTOPPED(status));
	return pid;
}

/* Let it run on until it stops. false: it has ended well. */
static bool run_traced(pid_t pid, enum __ptrace_request how)
{
	int status;

	CHECK_EQ(ptrace(how, pid, NULL, NULL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFSTOPPED(status)) {
		CHECK_EQ(WSTOPSIG(status), SIGTRAP);
		return true;
	}
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return false;
}

static unsigned long where_it_is(pid_t pid)
{
	struct user_regs_struct registers;

	CHECK_EQ(ptrace(PTRACE_GETREGS, pid, NULL, &registers), 0);
	return registers.rip;
}

static bool memory_has_changed(unsigned char *before)
{
	if (!is_long() && memcmp(before, channel.memory, channel.memory_bytes) == 0)
		return false;
	memcpy(before, channel.memory, channel.memory_bytes);
	return true;
}

/* A child does its work from instruction to instruction: note where it is when the memory has changed. */
static void find_points(void (*work)(void))
{
	static unsigned long way[MAX_STEPS];
	unsigned char *before = malloc(channel.memory_bytes);
	unsigned n_steps = 0, i;
	pid_t pid = start_traced(work);

	CHECK(before != NULL);
	memcpy(before, channel.memory, channel.memory_bytes);
	for (points.n = 0; run_traced(pid, STEPS ? PTRACE_SINGLESTEP : PTRACE_CONT); n_steps++) {
		CHECK(n_steps < MAX_STEPS);
		way[n_steps] = where_it_is(pid);
		if (!memory_has_changed(before))
			continue;
		points.point[points.n] = (struct point){.at = way[n_steps]};
		for (i = 0; i <= n_steps; i++)
			points.point[points.n].times += way[i] == way[n_steps];
		points.n++;
	}
	free(before);
}

/* Step over the instruction at the breakpoint, which the child has just met. */
static bool step_over(pid_t pid, unsigned long at, long text)
{
	struct user_regs_struct registers;
	long breakpoint = (text & ~0xffl) | 0xcc;

	CHECK_EQ(ptrace(PTRACE_GETREGS, pid, NULL, &registers), 0);
	registers.rip = at;
	CHECK_EQ(ptrace(PTRACE_SETREGS, pid, NULL, &registers), 0);
	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, at, text), 0);
	if (!run_traced(pid, PTRACE_SINGLESTEP))
		return false;
	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, at, breakpoint), 0);
	return true;
}

/* false: it went another way, and did all its work. */
static bool die_at(struct point point, void (*work)(void))
{
	int status;
	unsigned times = 0;
	pid_t pid = start_traced(work);
	long text = ptrace(PTRACE_PEEKTEXT, pid, point.at, NULL);

	CHECK_EQ(ptrace(PTRACE_POKETEXT, pid, point.at, (text & ~0xffl) | 0xcc), 0);
	for (;;) {
		if (!run_traced(pid, PTRACE_CONT))
			return false;
		if (++times == point.times)
			break;
		if (!step_over(pid, point.at, text))
			return false;
	}
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return true;
}

struct scene {
	int full;              /* what buffers_full answers */
	void (*prepare)(void); /* here */
	void (*work)(void);    /* in the child */
	void (*next)(void);    /* here, when it is dead */
};

static void set(const struct scene *scene)
{
	open_channel(scene->full);
	scene->prepare();
}

static void look_on(const struct scene *scene)
{
	note_killed();
	scene->next();
	if (scene->next != close_channel) {
		check_account();
		close_channel();
	}
}

/* Each on a new channel: what the dead leave behind would lead the next one another way. */
static void kill_after_each_change(struct scene scene)
{
	unsigned i, n_killed = 0;

	/* Each step is two switches between processes, in which all others can have their turn. If we may not, it takes
	 * longer. */
	setpriority(PRIO_PROCESS, 0, -20);
	set(&scene);
	find_points(scene.work);
	look_on(&scene);
	for (i = 0; i < points.n; i++) {
		set(&scene);
		n_killed += die_at(points.point[i], scene.work);
		look_on(&scene);
	}
	CHECK(!STEPS || (points.n >= FEWEST_CHANGES && n_killed >= points.n / 2));
}

static void write_well(void)
{
	CHECK_EQ(write_large(), 0);
}

static void reserve_and_commit(void)
{
	uint64_t delta;
	char *to;

	lock();
	to = reserve_large(&delta);
	memcpy(to, large.data, large.length);
	if (large.delta_at >= 0)
		memcpy(to + large.delta_at, &delta, sizeof(delta));
	relay_classic_commit(rchan, to, large.length);
	relay_unlock_channel(rchan);
	rchan_put(rchan);
}

static void suspend(void)
{
	CHECK_EQ(write_large(), -ENOSPC);
}

static void resume(void)
{
	relay_classic_resume(channel.id);
}

static void consume_one(void)
{
	relay_classic_buffers_consumed(channel.id, 1);
}

static void fill_all_and_suspend(void)
{
	fill_all();
	CHECK_EQ(write_large(), -ENOSPC);
}

static void resume_and_go_on(void)
{
	relay_classic_resume(channel.id);
	read_all();
	go_on();
}

TEST(a_write_that_switches_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, write_well, go_on});
}

TEST(a_write_that_overwrites_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){0, fill_all, write_well, go_on});
}

TEST(a_write_that_suspends_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_all, suspend, go_on_after_resume});
}

TEST(a_reservation_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, reserve_and_commit, go_on});
}

TEST(a_resume_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_all_and_suspend, resume, resume_and_go_on});
}

TEST(who_consumes_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){0, fill_all, consume_one, go_on});
}

static void close_well(void)
{
	CHECK_EQ(relay_classic_close(channel.id), 0);
}

/* What the dead did not do, this process does. */
TEST(a_close_is_killed_after_each_change)
{
	kill_after_each_change((struct scene){1, fill_one, close_well, close_channel});
}

/* --- fairness --- */

enum { N_WRITERS = 4, SHARE = 2000, UNFAIR = 500, RACE_SECONDS = 60 };

static struct race {
	time_t deadline;
	unsigned long written[N_WRITERS];
} * race;

static bool all_have_their_share(void)
{
	unsigned i;

	for (i = 0; i < N_WRITERS; i++)
		if (__atomic_load_n(&race->written[i], __ATOMIC_RELAXED) < SHARE)
			return false;
	return true;
}

/* Nobody lets up before the slowest has had his share. */
static void *run(void *argument)
{
	unsigned long *written = argument;
	char data[16] = "a fair share";

	while (!all_have_their_share() && time(NULL) < race->deadline)
		if (relay_classic_write(channel.id, data, sizeof(data), 0) == sizeof(data))
			__atomic_add_fetch(written, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void allow_all_cpus(void)
{
	cpu_set_t all;

	memset(&all, 0xff, sizeof(all));
	CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* Two threads and two processes: when the slowest has written 2000 records, the four have not written more than 500
 * times four such shares. */
TEST(no_classic_writer_starves)
{
	pthread_t thread;
	pid_t children[2];
	unsigned long sum = 0;
	unsigned i;

	open_channel(0);
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(race != MAP_FAILED);
	race->deadline = time(NULL) + RACE_SECONDS;
	allow_all_cpus();
	for (i = 0; i < 2; i++) {
		children[i] = fork_child();
		if (children[i] == 0) {
			run(&race->written[i]);
			_exit(0);
		}
	}
	CHECK_EQ(pthread_create(&thread, NULL, run, &race->written[2]), 0);
	run(&race->written[3]);
	pthread_join(thread, NULL);
	for (i = 0; i < 2; i++)
		CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
	for (i = 0; i < N_WRITERS; i++)
		sum += race->written[i];
	CHECK_EQ(facts_of(channel.buf).records, sum);
	CHECK(all_have_their_share());
	CHECK(sum <= (unsigned long)N_WRITERS * SHARE * UNFAIR);
	CHECK_EQ(relay_classic_close(channel.id), 0);
	relay_buf_release(channel.buf);
}
