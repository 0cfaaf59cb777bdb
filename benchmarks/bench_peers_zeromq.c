/* SPDX-License-Identifier: MIT */
/*
 * What flows from one process to another through ZeroMQ: PUSH and PULL, on a unix socket.
 *
 *     bench_peers_zeromq SECONDS WRITER_CPU READER_CPU DIRECTORY
 *
 * DIRECTORY: for the socket. Prints the lines of bench_flow.h.
 */
#define _GNU_SOURCE
#include "bench_flow.h"

#include <zmq.h>

#define SCHEME "ipc://"

/* Each process has a context of its own, because one that was forked is of no use. */
static void *open_socket(int type, int (*attach)(void *socket, const char *address), const struct flow *flow)
{
	void *context = zmq_ctx_new();
	void *socket = context ? zmq_socket(context, type) : NULL;
	if (!socket || attach(socket, flow->path) != 0)
		errx(2, "ZeroMQ: %s: %s", flow->path, zmq_strerror(zmq_errno()));
	return socket;
}

static uint64_t read_zeromq(const struct flow *flow)
{
	void *socket = open_socket(ZMQ_PULL, zmq_bind, flow);
	static unsigned char buffer[LONGEST];
	uint64_t bytes = 0;
	while (bytes % 64 != 1) {
		const int n = zmq_recv(socket, buffer, sizeof(buffer), 0);
		if (n < 0)
			errx(2, "zmq_recv: %s", zmq_strerror(zmq_errno()));
		touch(buffer, (size_t)n);
		bytes += (uint64_t)n;
	}
	return bytes - 1;
}

struct to {
	void *socket;
	size_t length;
};

static void send_one(void *context)
{
	const struct to *to = context;
	if (zmq_send(to->socket, record, to->length, 0) < 0)
		errx(2, "zmq_send: %s", zmq_strerror(zmq_errno()));
}

static uint64_t write_zeromq(const struct flow *flow)
{
	/* Who connects too early tries again after 100 ms. */
	while (access(flow->path + strlen(SCHEME), F_OK) != 0)
		sched_yield();
	struct to to = {.socket = open_socket(ZMQ_PUSH, zmq_connect, flow), .length = flow->length};
	const uint64_t records = write_for(flow, send_one, &to);
	to.length = 1;
	send_one(&to);
	return records;
}

int main(int argc, char **argv)
{
	char address[256];
	if (argc != 5)
		return 2;
	snprintf(address, sizeof(address), SCHEME "%s/zeromq", argv[4]);
	struct flow flow = {.seconds = atof(argv[1]), .cpus = {atoi(argv[2]), atoi(argv[3])}, .path = address};
	for (flow.length = 64; flow.length <= LONGEST; flow.length *= LONGEST / 64) {
		measure("zeromq", flow, write_zeromq, read_zeromq, no_wakeups);
		unlink(address + strlen(SCHEME));
	}
	return 0;
}
