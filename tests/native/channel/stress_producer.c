/* SPDX-License-Identifier: MIT */
/*
 * Writes records as unpleasantly as a program can: several threads, each moved from CPU to CPU, each
 * interrupted at random moments by a timer whose handler writes too, a fork in the middle whose child goes on.
 * What it wrote stands in the ledger (stress.h), also when it is killed.
 *
 *     stress_producer --ledger FILE --stream FIRST (--channel MNT/app/cpu | --store DIR | --late PARENT/BASE)
 *                     [--threads N] [--records N] [--signals MICROSECONDS] [--migrate RECORDS]
 *                     [--fork STREAM] [--seed N] [--reserve] [--callback keep|replace] [--scheme NAME]
 *                     [--unplugged]
 *
 * Thread t writes streams FIRST + 2t and, from its signal handler, FIRST + 2t + 1. --records 0: until SIGTERM.
 * --store writes to the memory files without a mount. --reserve: not only copies, see stress_stream.h. After SIGUSR1
 * it dies in its next callback. --late: it opens a channel without files, and gives it files there while it writes;
 * --scheme of that. Exit 0: every record was taken, or the channel was removed, and until then every record was taken.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <relayfs/relay.h>
#include <relayfs/store.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stress_callback.h"
#include "stress_options.h"
#include "stress_stream.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { MAX_THREADS = 64, MAX_BUFFERS = 1024, TICK_SIGNAL = 34 /* SIGRTMIN, as a constant */ };

struct worker {
	pthread_t thread;
	unsigned number;
	bool failed;
	timer_t timer;
	uint64_t random; /* the handler's, for the timer's next interval */
	struct stress_stream own, handler;
};

static struct {
	const char *ledger_file, *channel, *store, *late, *scheme, *callback;
	uint64_t first_stream, n_threads, n_records, signal_us, migrate, seed;
	uint64_t fork_stream; /* 0: it does not fork */
	bool reserves, unplugged;
} options = {.n_threads = 2, .n_records = 10000, .seed = 1};

static struct rchan *chan;
static unsigned n_buffers;
static volatile sig_atomic_t asked_to_stop;
static struct stress_ledger *ledger;
static cpu_set_t all_cpus;
static struct worker workers[MAX_THREADS];
static __thread struct worker *self;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "stress_producer: %s: %s\n", what, strerror(errno));
	exit(2);
}

static struct rchan_buf **open_buffers(void)
{
	struct rchan_buf **bufs = calloc(MAX_BUFFERS, sizeof(*bufs));
	char path[4096];
	unsigned i;

	if (!bufs)
		die("memory");
	for (i = 0; i < n_buffers; i++) {
		snprintf(path, sizeof(path), "%s/mem%u", options.store, i);
		bufs[i] = relay_buf_open(path);
		if (!bufs[i])
			die(path);
		if (options.callback)
			relay_buf_set_callbacks(bufs[i], stress_callbacks(options.callback));
	}
	return bufs;
}

static unsigned count_buffers(void)
{
	char path[4096];
	unsigned n = 0;

	do
		snprintf(path, sizeof(path), "%s/mem%u", options.store, n++);
	while (n < MAX_BUFFERS && access(path, F_OK) == 0);
	return n - 1;
}

static void arm_timer(struct worker *w)
{
	uint64_t us = options.signal_us / 2 + stress_random(&w->random) % (options.signal_us + 1);
	struct itimerspec when = {.it_value = {.tv_sec = 0, .tv_nsec = (long)(us % 1000000) * 1000 + 1}};

	timer_settime(w->timer, 0, &when, NULL);
}

/* A refused record of a handler is tried again by its next call: a handler cannot wait. What it reserves it keeps
 * until then. */
static void on_tick(int signal)
{
	int saved_errno = errno;

	(void)signal;
	stress_settle(&self->handler);
	if (self->handler.sequence < STRESS_N_SEQUENCES - 1)
		stress_write_next(&self->handler);
	arm_timer(self);
	errno = saved_errno;
}

static void start_timer(struct worker *w)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TICK_SIGNAL};

	event.sigev_notify_thread_id = gettid();
	if (timer_create(CLOCK_MONOTONIC, &event, &w->timer) != 0)
		die("timer_create");
	arm_timer(w);
}

static void block_tick(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, TICK_SIGNAL);
	pthread_sigmask(how, &set, NULL);
}

static void stop_timer(struct worker *w)
{
	timer_delete(w->timer);
	block_tick(SIG_BLOCK);
	stress_settle(&w->handler);
}

static void migrate(struct stress_stream *s)
{
	uint64_t r = stress_random(&s->random);
	unsigned cpu = (unsigned)(r >> 8) % CPU_SETSIZE;
	cpu_set_t one;

	if (r % 4 == 0) {
		sched_setaffinity(0, sizeof(all_cpus), &all_cpus);
		return;
	}
	while (!CPU_ISSET(cpu, &all_cpus))
		cpu = (cpu + 1) % CPU_SETSIZE;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void on_stop(int signal)
{
	(void)signal;
	asked_to_stop = 1;
}

static void on_death_wish(int signal)
{
	(void)signal;
	stress_die_in_callback = 1;
}

/* Finish what another thread leaves to us. */
static void serve_others(const struct worker *w)
{
	if (options.n_threads > 1)
		stress_serve(&workers[(w->number + 1) % options.n_threads].own);
}

static bool is_passing(int err)
{
	return err == -ENOSPC || err == -EBUSY || err == -ECANCELED || (err == -EPERM && options.unplugged);
}

/* A full buffer is waited for: give readers the CPU, more so the longer it lasts. It may be our own reservations
 * that they wait for. */
static int write_patiently(struct worker *w)
{
	struct timespec pause = {.tv_nsec = 50000};
	unsigned tries;
	int err;

	for (tries = 0; is_passing(err = stress_write_next(&w->own)); tries++) {
		if (asked_to_stop)
			break;
		stress_settle(&w->own);
		serve_others(w);
		if (tries < 8)
			sched_yield();
		else
			nanosleep(&pause, NULL);
	}
	return err;
}

static int write_records(struct worker *w, uint64_t n)
{
	struct stress_stream *s = &w->own;
	uint64_t i;
	int err = 0;

	for (i = 0; i < n && !asked_to_stop; i++) {
		if (options.migrate && stress_random(&s->random) % options.migrate == 0)
			migrate(s);
		serve_others(w);
		err = write_patiently(w);
		if (err == -EPIPE)
			return stress_settle(s), 0;
		if (err && !asked_to_stop) {
			fprintf(stderr, "stress_producer: stream %u record %llu: %s\n", s->id,
			        (unsigned long long)s->sequence, strerror(-err));
			break;
		}
	}
	stress_settle(s);
	return err && !asked_to_stop ? -1 : 0;
}

static void set_stream(struct stress_stream *s, uint32_t id)
{
	s->id = id;
	s->sequence = 0;
	s->filled = 0;
	s->chan = chan;
	s->n_buffers = n_buffers;
	s->reserves = options.reserves;
	s->unplugged = options.unplugged;
	memset(s->open, 0, sizeof(s->open));
	s->slot = &ledger->slot[id];
	s->random = stress_mix(options.seed * 4096 + id) | 1;
}

/* The child: this one thread, new streams, the same channel handle. */
static _Noreturn void run_child(struct worker *w, uint64_t n)
{
	int failed;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.n_threads = 1;
	set_stream(&w->own, options.fork_stream);
	set_stream(&w->handler, options.fork_stream + 1);
	if (options.signal_us) {
		start_timer(w);
		block_tick(SIG_UNBLOCK);
	}
	failed = write_records(w, n);
	if (options.signal_us)
		stop_timer(w);
	_exit(failed || w->handler.slot->other ? 1 : 0);
}

static pid_t fork_writer(struct worker *w, uint64_t n)
{
	pid_t child;

	/* Between fork and set_stream two processes would write one stream. */
	block_tick(SIG_BLOCK);
	child = fork();
	if (child == 0)
		run_child(w, n);
	block_tick(SIG_UNBLOCK);
	if (child < 0)
		die("fork");
	return child;
}

static void run_streams(struct worker *w)
{
	uint64_t half = options.n_records / 2;
	pid_t child = 0;
	int status = 0;

	if (options.n_records == 0) {
		w->failed = write_records(w, STRESS_N_SEQUENCES - 1) != 0;
		return;
	}
	w->failed = write_records(w, half) != 0;
	if (options.fork_stream && w->number == 0)
		child = fork_writer(w, half);
	w->failed |= write_records(w, options.n_records - half) != 0;
	if (child) {
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		w->failed |= status != 0;
	}
}

static void *run_worker(void *argument)
{
	struct worker *w = self = argument;

	w->random = stress_mix(options.seed + w->number) | 1;
	set_stream(&w->own, options.first_stream + 2 * w->number);
	set_stream(&w->handler, options.first_stream + 2 * w->number + 1);
	w->own.hands_over = options.n_threads > 1;
	if (!chan) {
		w->own.bufs = open_buffers();
		w->handler.bufs = open_buffers();
	}
	if (options.signal_us)
		start_timer(w);
	run_streams(w);
	if (options.signal_us)
		stop_timer(w);
	w->failed |= w->handler.slot->other != 0;
	return NULL;
}

static void map_ledger(void)
{
	int fd = open(options.ledger_file, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*ledger)) != 0)
		die(options.ledger_file);
	ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ledger == MAP_FAILED)
		die(options.ledger_file);
	close(fd);
}

static void parse_options(int argc, char **argv)
{
	static const struct stress_option known[] = {
	    {"ledger", .text = &options.ledger_file},  {"stream", .number = &options.first_stream},
	    {"channel", .text = &options.channel},     {"store", .text = &options.store},
	    {"late", .text = &options.late},           {"threads", .number = &options.n_threads},
	    {"records", .number = &options.n_records}, {"signals", .number = &options.signal_us},
	    {"migrate", .number = &options.migrate},   {"fork", .number = &options.fork_stream},
	    {"seed", .number = &options.seed},         {"reserve", .flag = &options.reserves},
	    {"unplugged", .flag = &options.unplugged}, {"callback", .text = &options.callback},
	    {"scheme", .text = &options.scheme},       {0}};

	stress_parse_options(argc, argv, known);
	errno = EINVAL;
	if (!options.ledger_file || !!options.channel + !!options.store + !!options.late != 1 ||
	    options.n_threads > MAX_THREADS || options.first_stream + 2 * options.n_threads > STRESS_SUBBUF ||
	    options.fork_stream + 2 > STRESS_SUBBUF || (options.callback && !stress_callbacks(options.callback)) ||
	    options.n_records >= STRESS_N_SEQUENCES)
		die("arguments");
}

/* Only as large as it must be: its writers wait for the files. */
static struct rchan *open_without_files(void)
{
	static struct rchan_callbacks callbacks;
	static char scheme[64];

	if (options.callback)
		callbacks = *stress_callbacks(options.callback);
	snprintf(scheme, sizeof(scheme), "scheme=%s", options.scheme ? options.scheme : "any");
	callbacks.options = scheme;
	return relay_open(NULL, NULL, 60000, 8, &callbacks, NULL);
}

static bool writes_or_is_full(const struct worker *w)
{
	const struct stress_slot *slot = __atomic_load_n(&w->own.slot, __ATOMIC_ACQUIRE);

	return slot && (__atomic_load_n(&slot->written, __ATOMIC_RELAXED) > 100 ||
	                __atomic_load_n(&slot->full_records, __ATOMIC_RELAXED));
}

/* While the others write. */
static void give_files(void)
{
	char *parent = strdup(options.late), *base = strrchr(parent, '/');
	int err;

	while (!writes_or_is_full(&workers[0]))
		sched_yield();
	*base = 0;
	err = relay_late_setup_files(chan, base + 1, parent);
	if (err) {
		errno = -err;
		die(options.late);
	}
	free(parent);
}

static void open_channel(void)
{
	if (options.late) {
		chan = open_without_files();
		if (!chan)
			die("relay_open");
		return;
	}
	if (options.channel) {
		chan = options.callback
		           ? relay_attach_callbacks(options.channel, stress_callbacks(options.callback), NULL)
		           : relay_attach(options.channel);
		if (!chan)
			die(options.channel);
		return;
	}
	n_buffers = count_buffers();
	if (n_buffers == 0)
		die(options.store);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
	struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
	struct sigaction die_soon = {.sa_handler = on_death_wish, .sa_flags = SA_RESTART};
	bool failed = false;
	unsigned i;

	parse_options(argc, argv);
	sched_getaffinity(0, sizeof(all_cpus), &all_cpus);
	sigaction(TICK_SIGNAL, &action, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGUSR1, &die_soon, NULL);
	map_ledger();
	open_channel();
	for (i = 0; i < options.n_threads; i++) {
		workers[i].number = i;
		if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
			die("pthread_create");
	}
	if (options.late)
		give_files();
	for (i = 0; i < options.n_threads; i++) {
		pthread_join(workers[i].thread, NULL);
		failed |= workers[i].failed;
	}
	relay_close(chan);
	return failed ? 1 : 0;
}
