/* SPDX-License-Identifier: MIT */
/*
 * What flows from the kernel to a process through its BPF ring buffer: a program that BPF_PROG_TEST_RUN repeats outputs records, and
 * libbpf reads them on another CPU. A program in the kernel cannot wait: what finds no room is lost, and counted.
 *
 *     bench_peers_bpf SECONDS WRITER_CPU READER_CPU
 *
 * Prints the lines of bench_flow.h; nothing and status 3: this kernel does not let us.
 */
#define _GNU_SOURCE
#include "bench_flow.h"
#include "bench_kernel_ring.h"

#include <bpf/libbpf.h>

enum { RING_BYTES = 2 << 20, REPEATED = 500 };

static int ring_map, source_map, program;

/* bpf_ringbuf_output() of the first `length` bytes of the only value of source_map. */
static bool load(size_t length)
{
	const struct bpf_insn output[] = {
	    BPF_MAP_ADDRESS(BPF_REG_1, ring_map),
	    BPF_INSN(BPF_LD | BPF_DW | BPF_IMM, BPF_REG_2, BPF_PSEUDO_MAP_VALUE, 0, source_map),
	    BPF_INSN(0, 0, 0, 0, 0),
	    BPF_SET(BPF_REG_3, (int)length),
	    BPF_SET(BPF_REG_4, 0),
	    BPF_HELPER(BPF_FUNC_ringbuf_output),
	    BPF_SET(BPF_REG_0, 0),
	    BPF_RETURN};
	program = kernel_load(output, sizeof(output));
	return program >= 0;
}

static bool make_maps(void)
{
	union bpf_attr ring = {.map_type = BPF_MAP_TYPE_RINGBUF, .max_entries = RING_BYTES};
	union bpf_attr source = {
	    .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = LONGEST, .max_entries = 1};
	ring_map = bpf(BPF_MAP_CREATE, &ring);
	source_map = bpf(BPF_MAP_CREATE, &source);
	return ring_map >= 0 && source_map >= 0;
}

static uint64_t bytes;

static int take(void *context, void *data, size_t length)
{
	(void)context;
	touch(data, length);
	bytes += length;
	return 0;
}

static uint64_t read_kernel(const struct flow *flow)
{
	(void)flow;
	struct ring_buffer *ring = ring_buffer__new(ring_map, take, NULL, NULL);
	if (!ring)
		die("ring_buffer__new");
	/* Whether it has ended is asked before: what was written until then is read. */
	for (bool ended = false; !ended;) {
		ended = found->ended;
		while (ring_buffer__poll(ring, 10) > 0)
			;
	}
	ring_buffer__free(ring);
	return bytes;
}

static uint64_t write_kernel(const struct flow *flow)
{
	static char packet[64];
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	uint64_t records = 0;
	found->began = clock_ns(CLOCK_MONOTONIC);
	for (; clock_ns(CLOCK_MONOTONIC) < end; records += REPEATED) {
		union bpf_attr attr = {.test = {.prog_fd = (uint32_t)program,
		                                .data_in = (uintptr_t)packet,
		                                .data_size_in = sizeof(packet),
		                                .repeat = REPEATED}};
		if (bpf(BPF_PROG_TEST_RUN, &attr) != 0)
			die("BPF_PROG_TEST_RUN");
		note_progress(&found->writer, (records + REPEATED) * flow->length);
	}
	return records;
}

int main(int argc, char **argv)
{
	const size_t lengths[] = {64, LONGEST};
	if (argc != 4)
		return 2;
	if (!make_maps())
		return 3;
	struct flow flow = {.seconds = atof(argv[1]), .cpus = {atoi(argv[2]), atoi(argv[3])}};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		if (!load(lengths[i]))
			return 3;
		flow.length = lengths[i];
		measure("bpf-ring", flow, write_kernel, read_kernel, no_wakeups);
		close(program);
	}
	return 0;
}
