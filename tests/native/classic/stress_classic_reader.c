/* SPDX-License-Identifier: MIT */
/* Who reads the channel of stress_classic.c, checks it, and resumes it; and at times lets it overrun. */
#define _GNU_SOURCE
#include "stress_classic.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	N_SPANS = 64,
	READ_BYTES = 1 << 20,
	READ_SECONDS = 60,
	OVERRUN = 12 /* sub-buffers: more than there are */
};

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
	struct relay_stats stats = {0};

	if (relay_buf_stats(reader.buf, &stats))
		wrong("no stats", 0, 0);
	return stats.unread_bytes > 0;
}

/* A file server notes what was read when it has given it. */
void read_all(void)
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

void read_while_written(void)
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

void open_reader(void)
{
	char mem[4096];

	snprintf(mem, sizeof(mem), "%s%s/mem0", getenv("RELAYFS_STORE"), CHANNEL_PATH);
	reader.tally.mem_file = strdup(mem);
	reader.tally.relay_file = CHANNEL_PATH;
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

const struct walk *reader_walk(void)
{
	return &reader.walk;
}

unsigned close_reader(uint64_t client_bytes)
{
	reader.account.client_bytes = client_bytes;
	account_add(&reader.tally, reader.buf, &reader.account);
	relay_buf_release(reader.buf);
	return account_close(&reader.account);
}
