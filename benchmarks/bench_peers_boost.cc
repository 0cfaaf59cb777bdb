/* SPDX-License-Identifier: MIT */
/*
 * What flows from one process to another through two of Boost's queues in shared memory.
 *
 *     bench_peers_boost SECONDS WRITER_CPU READER_CPU
 *
 *     spsc    boost::lockfree::spsc_queue of records of one length, in memory of Boost.Interprocess; both sides spin
 *     queue   boost::interprocess::message_queue, which locks; both sides sleep
 *
 * Both have room for 2 MiB of records. Prints the lines of bench_flow.h.
 */
#include "bench_flow.h"

#include <boost/interprocess/anonymous_shared_memory.hpp>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <new>
#include <string>

namespace ipc = boost::interprocess;

enum { ROOM_BYTES = 2 << 20 };

template <size_t N> struct fixed {
	unsigned char bytes[N];
};

template <size_t N> using spsc = boost::lockfree::spsc_queue<fixed<N>, boost::lockfree::capacity<ROOM_BYTES / N>>;

static void *shared;

template <size_t N> static void push_one(void *context)
{
	auto *queue = static_cast<spsc<N> *>(context);
	while (!queue->push(*reinterpret_cast<const fixed<N> *>(record)))
		;
}

template <size_t N> static uint64_t write_spsc(const struct flow *flow)
{
	return write_for(flow, push_one<N>, shared);
}

template <size_t N> static uint64_t read_spsc(const struct flow *)
{
	auto *queue = static_cast<spsc<N> *>(shared);
	uint64_t bytes = 0;
	auto take = [&bytes](const fixed<N> &one) {
		touch(&one, N);
		bytes += N;
	};
	/* Whether it has ended is asked before: what was written until then is read. */
	for (bool ended = false; !ended;) {
		ended = found->ended;
		while (queue->consume_all(take))
			;
	}
	return bytes;
}

template <size_t N> static void measure_spsc(struct flow flow)
{
	ipc::mapped_region region = ipc::anonymous_shared_memory(sizeof(spsc<N>));
	shared = new (region.get_address()) spsc<N>;
	flow.length = N;
	measure("boost-spsc", flow, write_spsc<N>, read_spsc<N>, no_wakeups);
}

static void send_one(void *context)
{
	const struct flow *flow = static_cast<const struct flow *>(context);
	static_cast<ipc::message_queue *>(shared)->send(record, flow->length, 0);
}

static uint64_t write_queue(const struct flow *flow)
{
	struct flow last = *flow;
	const uint64_t records = write_for(flow, send_one, const_cast<struct flow *>(flow));
	last.length = 1;
	send_one(&last);
	return records;
}

static uint64_t read_queue(const struct flow *)
{
	static unsigned char buffer[LONGEST];
	uint64_t bytes = 0;
	while (bytes % 64 != 1) {
		size_t n = 0;
		unsigned priority = 0;
		static_cast<ipc::message_queue *>(shared)->receive(buffer, sizeof(buffer), n, priority);
		touch(buffer, n);
		bytes += n;
	}
	return bytes - 1;
}

static void measure_queue(struct flow flow, size_t length)
{
	const std::string name = "relayfs-bench-" + std::to_string(getpid());
	ipc::message_queue queue(ipc::create_only, name.c_str(), ROOM_BYTES / length, length);
	ipc::message_queue::remove(name.c_str());
	shared = &queue;
	flow.length = length;
	measure("boost-queue", flow, write_queue, read_queue, no_wakeups);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	struct flow flow = {};
	flow.seconds = atof(argv[1]);
	flow.cpus[0] = atoi(argv[2]);
	flow.cpus[1] = atoi(argv[3]);
	measure_spsc<64>(flow);
	measure_spsc<LONGEST>(flow);
	measure_queue(flow, 64);
	measure_queue(flow, LONGEST);
	return 0;
}
