/* SPDX-License-Identifier: MIT */
/*
 * What flows from one process to another through what a Linux system has for this, beside the pipe of bench_flow.c; nothing is lost,
 * because the writer waits.
 *
 *     bench_peers SECONDS WRITER_CPU READER_CPU DIRECTORY MOST_BYTES
 *
 * DIRECTORY: on tmpfs, for a FIFO and a file; MOST_BYTES: of the file. Prints the lines of bench_flow.h.
 */
#define _GNU_SOURCE
#include "bench_flow.h"

#include <limits.h>
#include <mqueue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static void measure_fifo(struct flow flow, const char *directory)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/fifo", directory);
	if (mkfifo(path, 0600) < 0)
		die(path);
	/* Linux opens one for both without waiting for another one. */
	flow.ends[0] = flow.ends[1] = open(path, O_RDWR | O_CLOEXEC);
	if (flow.ends[0] < 0 || fcntl(flow.ends[0], F_SETPIPE_SZ, 1 << 20) < 0)
		die(path);
	measure("fifo", flow, write_descriptor, read_descriptor, no_wakeups);
	close(flow.ends[0]);
	unlink(path);
}

static void measure_sockets(const char *name, struct flow flow, int type)
{
	const int bytes = 1 << 20;
	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, flow.ends) < 0)
		die("socketpair");
	/* At most what net.core.wmem_max permits. */
	setsockopt(flow.ends[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	measure(name, flow, write_descriptor, read_descriptor, no_wakeups);
	close_ends(flow.ends);
}

static void measure_file(struct flow flow, const char *directory, uint64_t most_bytes)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/file", directory);
	flow.ends[1] = open(path, O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	flow.ends[0] = open(path, O_RDONLY | O_CLOEXEC);
	if (flow.ends[0] < 0 || flow.ends[1] < 0)
		die(path);
	flow.most = most_bytes / flow.length;
	measure("file", flow, write_descriptor, read_descriptor, no_wakeups);
	close_ends(flow.ends);
	unlink(path);
}

/* --- POSIX message queues --- */

static uint64_t read_queue(const struct flow *flow)
{
	char buffer[LONGEST];
	uint64_t bytes = 0;
	while (bytes % 64 != 1) {
		const ssize_t n = mq_receive(flow->ends[0], buffer, sizeof(buffer), NULL);
		if (n < 0)
			die("mq_receive");
		touch(buffer, (size_t)n);
		bytes += (uint64_t)n;
	}
	return bytes - 1;
}

static void send_one(void *context)
{
	const struct flow *flow = context;
	if (mq_send(flow->ends[1], (const char *)record, flow->length, 0) < 0)
		die("mq_send");
}

static uint64_t write_queue(const struct flow *flow)
{
	struct flow last = *flow;
	const uint64_t records = write_for(flow, send_one, (void *)flow);
	last.length = 1;
	send_one(&last);
	return records;
}

/* As many messages as fit into 512 KiB with what the kernel adds, if this program may; else 10, which all programs may. */
static void measure_queue(struct flow flow)
{
	const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	struct mq_attr attr = {.mq_maxmsg = (1 << 19) / (long)(flow.length + 64), .mq_msgsize = (long)flow.length};
	char name[64];
	snprintf(name, sizeof(name), "/relayfs-bench-%d", getpid());
	setrlimit(RLIMIT_MSGQUEUE, &all);
	flow.ends[0] = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &attr);
	if (flow.ends[0] < 0) {
		attr.mq_maxmsg = 10;
		flow.ends[0] = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &attr);
	}
	if (flow.ends[0] < 0)
		die("mq_open");
	mq_unlink(name);
	flow.ends[1] = flow.ends[0];
	measure("mq", flow, write_queue, read_queue, no_wakeups);
	mq_close(flow.ends[0]);
}

int main(int argc, char **argv)
{
	const size_t lengths[] = {64, LONGEST};
	if (argc != 6)
		return 2;
	struct flow flow = {.seconds = atof(argv[1]), .cpus = {atoi(argv[2]), atoi(argv[3])}};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		flow.length = lengths[i];
		measure_fifo(flow, argv[4]);
		measure_sockets("stream", flow, SOCK_STREAM);
		measure_sockets("datagram", flow, SOCK_DGRAM);
		measure_file(flow, argv[4], strtoull(argv[5], NULL, 10));
		measure_queue(flow);
	}
	return 0;
}
