/* SPDX-License-Identifier: MIT */
/*
 * Does to a channel, while others write and read it, what control may do, at random: until SIGTERM.
 *
 *     stress_control --ledger FILE --store DIR --seed N [--callback keep|replace] [--pid PID]... CALL...
 *
 * CALL: flush, reset, disable (and enable again), consumed, stats, affinity (of the threads of the PIDs), unplug (a CPU,
 * and plug it in again; what has to be done on it may then fail with EPERM). Says when
 * it begins, and how often it did each, as one JSON object. What a reset means to records it notes in the ledger (stress.h).
 * Exit 0: every call said what it may say.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"
#include "stress_callback.h"
#include "stress_options.h"

enum { MAX_BUFFERS = 1024, MAX_PIDS = 64, PAUSE_NS = 500000, UNPLUGGED_NS = 20000000, RESET_TRIES = 20000 };

static struct {
	const char *ledger_file, *store, *callback;
	uint64_t seed;
	pid_t pids[MAX_PIDS];
	unsigned n_pids;
	bool unplugs;
} options;

static struct rchan_buf *bufs[MAX_BUFFERS];
static unsigned n_buffers;
static struct stress_ledger *ledger;
static uint64_t chance;
static volatile sig_atomic_t asked_to_stop;

static _Noreturn void die(const char *what, int err)
{
	fprintf(stderr, "stress_control: %s: %s\n", what, strerror(err));
	exit(2);
}

static struct rchan_buf *any_buffer(void)
{
	return bufs[stress_random(&chance) % n_buffers];
}

static void pause_a_little(void)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)(stress_random(&chance) % PAUSE_NS)}, NULL);
}

static bool is_unplugged(int err)
{
	return err == -EPERM && options.unplugs;
}

/* EBUSY: a reservation holds the memory that would be entered. */
static int flush(void)
{
	int err = relay_buf_flush(any_buffer());

	return err == -EBUSY || is_unplugged(err) ? 0 : err;
}

static void raise_to(uint64_t *word, uint64_t value)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (old < value &&
	       !__atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

/* EBUSY: readers have the buffer, or reservations take their time. */
static int reset_one(struct rchan_buf *buf)
{
	int err = -EBUSY, tries;

	for (tries = 0; (err == -EBUSY || is_unplugged(err)) && tries < RESET_TRIES; tries++) {
		err = relay_buf_reset(buf);
		if (err)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	}
	return err;
}

static int reset(void)
{
	static struct stress_reset before[STRESS_N_STREAMS];
	uint32_t i;
	int err = 0;

	for (i = 0; i < STRESS_N_STREAMS; i++) {
		before[i].written = __atomic_load_n(&ledger->slot[i].written, __ATOMIC_SEQ_CST);
		before[i].discarded = __atomic_load_n(&ledger->slot[i].discarded, __ATOMIC_SEQ_CST);
	}
	for (i = 0; i < n_buffers && !err; i++)
		err = reset_one(bufs[i]);
	for (i = 0; i < STRESS_N_STREAMS; i++) {
		raise_to(&ledger->reset[i].written, before[i].written);
		raise_to(&ledger->reset[i].discarded, before[i].discarded);
		raise_to(&ledger->reset[i].tried, __atomic_load_n(&ledger->slot[i].tried, __ATOMIC_SEQ_CST));
		raise_to(&ledger->reset[i].discarding, __atomic_load_n(&ledger->slot[i].discarding, __ATOMIC_SEQ_CST));
	}
	__atomic_add_fetch(&ledger->n_resets, 1, __ATOMIC_SEQ_CST);
	return err;
}

static int disable(void)
{
	struct rchan_buf *buf = any_buffer();
	int err = relay_buf_stop(buf, RELAY_DISABLED, 1);

	pause_a_little();
	relay_buf_stop(buf, RELAY_DISABLED, 0);
	return is_unplugged(err) ? 0 : err;
}

/* EBUSY: a reader has it. */
static int consumed(void)
{
	int err = relay_buf_subbufs_consumed(any_buffer(), 1 + stress_random(&chance) % 2);

	return err == -EBUSY ? 0 : err;
}

static int stats(void)
{
	struct relay_stats f;
	struct rchan_buf *buf = any_buffer();
	int err = relay_buf_stats(buf, &f);

	if (!err && relay_buf_state(buf) & RELAY_IS_DAMAGED)
		err = -EBADMSG;
	return err;
}

static void move(pid_t thread)
{
	cpu_set_t set;
	uint64_t r = stress_random(&chance);

	CPU_ZERO(&set);
	CPU_SET(r % n_buffers, &set);
	if (r & 1ull << 32)
		CPU_SET((r + 1) % n_buffers, &set);
	/* A thread that has ended, or a CPU that is not there: nothing happens. */
	sched_setaffinity(thread, sizeof(set), &set);
}

static int affinity(void)
{
	char path[64];
	struct dirent *entry;
	DIR *tasks;

	if (!options.n_pids)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/task", options.pids[stress_random(&chance) % options.n_pids]);
	tasks = opendir(path);
	if (!tasks)
		return 0;
	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			move(atoi(entry->d_name));
	closedir(tasks);
	return 0;
}

static void plug(unsigned cpu, const char *on)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/online", cpu);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, on, 1) != 1)
		die(path, errno);
	close(fd);
}

/* The first one stays. */
static int unplug(void)
{
	unsigned cpu = 1 + (unsigned)(stress_random(&chance) % (n_buffers - 1));

	plug(cpu, "0");
	nanosleep(&(struct timespec){.tv_nsec = (long)(stress_random(&chance) % UNPLUGGED_NS)}, NULL);
	plug(cpu, "1");
	return 0;
}

static struct call {
	const char *name;
	int (*call)(void);
	unsigned long n;
} all_calls[] = {{"flush", flush, 0}, {"reset", reset, 0},       {"disable", disable, 0}, {"consumed", consumed, 0},
                 {"stats", stats, 0}, {"affinity", affinity, 0}, {"unplug", unplug, 0}};
enum { N_CALLS = sizeof(all_calls) / sizeof(all_calls[0]) };

static struct call *find_call(const char *name)
{
	for (unsigned i = 0; i < N_CALLS; i++)
		if (strcmp(all_calls[i].name, name) == 0)
			return &all_calls[i];
	die(name, EINVAL);
}

static void run_calls(char **names, unsigned n)
{
	while (!asked_to_stop) {
		struct call *call = find_call(names[stress_random(&chance) % n]);
		int err = call->call();

		if (err)
			die(call->name, -err);
		call->n++;
		__atomic_add_fetch(&ledger->n_calls, 1, __ATOMIC_RELAXED);
		pause_a_little();
	}
}

static void print_counts(void)
{
	for (unsigned i = 0; i < N_CALLS; i++)
		printf("%s\"%s\": %lu", i ? ", " : "{", all_calls[i].name, all_calls[i].n);
	puts("}");
}

static void open_buffers(void)
{
	char path[4096];

	for (n_buffers = 0; n_buffers < MAX_BUFFERS; n_buffers++) {
		snprintf(path, sizeof(path), "%s/mem%u", options.store, n_buffers);
		if (access(path, F_OK) != 0)
			break;
		bufs[n_buffers] = relay_buf_open(path);
		if (!bufs[n_buffers])
			die(path, errno);
		if (options.callback)
			relay_buf_set_callbacks(bufs[n_buffers], stress_callbacks(options.callback));
	}
	if (n_buffers == 0)
		die(options.store, ENOENT);
}

static void map_ledger(void)
{
	int fd = open(options.ledger_file, O_RDWR);

	ledger = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ledger == MAP_FAILED)
		die(options.ledger_file, errno);
	close(fd);
}

static void add_pid(const char *value)
{
	if (options.n_pids < MAX_PIDS)
		options.pids[options.n_pids++] = atoi(value);
}

static void parse_options(int argc, char **argv)
{
	static const struct stress_option known[] = {{"ledger", .text = &options.ledger_file},
	                                             {"store", .text = &options.store},
	                                             {"seed", .number = &options.seed},
	                                             {"callback", .text = &options.callback},
	                                             {"pid", .call = add_pid},
	                                             {0}};

	stress_parse_options(argc, argv, known);
	if (!options.ledger_file || !options.store || optind == argc)
		die("arguments", EINVAL);
}

static void on_stop(int signal)
{
	(void)signal;
	asked_to_stop = 1;
}

int main(int argc, char **argv)
{
	struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
	unsigned i;

	parse_options(argc, argv);
	for (i = (unsigned)optind; i < (unsigned)argc; i++)
		options.unplugs |= strcmp(argv[i], "unplug") == 0;
	sigaction(SIGTERM, &stop, NULL);
	chance = stress_mix(options.seed) | 1;
	map_ledger();
	open_buffers();
	puts("controlling");
	fflush(stdout);
	run_calls(argv + optind, (unsigned)(argc - optind));
	print_counts();
	for (i = 0; i < n_buffers; i++)
		relay_buf_release(bufs[i]);
	return 0;
}
