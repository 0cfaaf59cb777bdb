/* SPDX-License-Identifier: MIT */
/*
 * The kernel's own BPF ring buffer, for comparison: bpf(2) without libbpf, which needs privileges.
 *
 *     map:       BPF_MAP_TYPE_RINGBUF, of which user space may map the two positions
 *     programs:  one does what a program that has a record to output does, one leaves out the call, ...
 *     run:       BPF_PROG_TEST_RUN repeats one in the kernel, and says how long it took
 */
#ifndef BENCH_KERNEL_RING_H
#define BENCH_KERNEL_RING_H

#include "bench.h"

#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Never full in one run. */
enum { KERNEL_RING_BYTES = 1 << 26, KERNEL_RUNS = 400000, KERNEL_RECORD = 64 };

struct kernel_ring {
	int map, empty, output, nothing, reserve; /* nothing: reserve without its two calls */
	volatile uint64_t *consumer;
	const volatile uint64_t *producer;
};

static inline int bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

#define BPF_INSN(CODE, DST, SRC, OFF, IMM)                                                     \
	{                                                                                      \
		.code = (CODE), .dst_reg = (DST), .src_reg = (SRC), .off = (OFF), .imm = (IMM) \
	}
#define BPF_SET(DST, IMM) BPF_INSN(BPF_ALU64 | BPF_MOV | BPF_K, DST, 0, 0, IMM)
#define BPF_COPY(DST, SRC) BPF_INSN(BPF_ALU64 | BPF_MOV | BPF_X, DST, SRC, 0, 0)
#define BPF_STORE_WORD(DST, OFF) BPF_INSN(BPF_ST | BPF_MEM | BPF_DW, DST, 0, OFF, 1)
#define BPF_MAP_ADDRESS(DST, FD) \
	BPF_INSN(BPF_LD | BPF_DW | BPF_IMM, DST, BPF_PSEUDO_MAP_FD, 0, FD), BPF_INSN(0, 0, 0, 0, 0)
#define BPF_HELPER(FUNCTION) BPF_INSN(BPF_JMP | BPF_CALL, 0, 0, 0, FUNCTION)
#define BPF_RETURN BPF_INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* The record, on the stack. */
#define BPF_RECORD                                                                                             \
	BPF_STORE_WORD(BPF_REG_10, -64), BPF_STORE_WORD(BPF_REG_10, -56), BPF_STORE_WORD(BPF_REG_10, -48),     \
	    BPF_STORE_WORD(BPF_REG_10, -40), BPF_STORE_WORD(BPF_REG_10, -32), BPF_STORE_WORD(BPF_REG_10, -24), \
	    BPF_STORE_WORD(BPF_REG_10, -16), BPF_STORE_WORD(BPF_REG_10, -8)

static inline int kernel_load(const struct bpf_insn *program, size_t bytes)
{
	union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_SCHED_CLS,
	                       .insns = (uintptr_t)program,
	                       .insn_cnt = (uint32_t)(bytes / sizeof(*program)),
	                       .license = (uintptr_t) "Dual MIT/GPL"};

	return bpf(BPF_PROG_LOAD, &attr);
}

static inline bool kernel_load_all(struct kernel_ring *ring)
{
	const struct bpf_insn empty[] = {BPF_RECORD, BPF_SET(BPF_REG_0, 0), BPF_RETURN};
	const struct bpf_insn output[] = {BPF_RECORD,
	                                  BPF_MAP_ADDRESS(BPF_REG_1, ring->map),
	                                  BPF_COPY(BPF_REG_2, BPF_REG_10),
	                                  BPF_INSN(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -KERNEL_RECORD),
	                                  BPF_SET(BPF_REG_3, KERNEL_RECORD),
	                                  BPF_SET(BPF_REG_4, BPF_RB_NO_WAKEUP),
	                                  BPF_HELPER(BPF_FUNC_ringbuf_output),
	                                  BPF_RETURN};
	const struct bpf_insn nothing[] = {BPF_SET(BPF_REG_0, 0), BPF_RETURN};
	const struct bpf_insn reserve[] = {BPF_MAP_ADDRESS(BPF_REG_1, ring->map),
	                                   BPF_SET(BPF_REG_2, 8),
	                                   BPF_SET(BPF_REG_3, 0),
	                                   BPF_HELPER(BPF_FUNC_ringbuf_reserve),
	                                   BPF_INSN(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 4, 0),
	                                   BPF_STORE_WORD(BPF_REG_0, 0),
	                                   BPF_COPY(BPF_REG_1, BPF_REG_0),
	                                   BPF_SET(BPF_REG_2, BPF_RB_NO_WAKEUP),
	                                   BPF_HELPER(BPF_FUNC_ringbuf_submit),
	                                   BPF_SET(BPF_REG_0, 0),
	                                   BPF_RETURN};

	ring->empty = kernel_load(empty, sizeof(empty));
	ring->output = kernel_load(output, sizeof(output));
	ring->nothing = kernel_load(nothing, sizeof(nothing));
	ring->reserve = kernel_load(reserve, sizeof(reserve));
	return ring->empty >= 0 && ring->output >= 0 && ring->nothing >= 0 && ring->reserve >= 0;
}

/* false and errno: the kernel does not let us. */
static inline bool kernel_make(struct kernel_ring *ring)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_RINGBUF, .max_entries = KERNEL_RING_BYTES};
	long page = sysconf(_SC_PAGESIZE);

	ring->map = bpf(BPF_MAP_CREATE, &attr);
	if (ring->map < 0)
		return false;
	ring->consumer = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, ring->map, 0);
	ring->producer = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, ring->map, page);
	return ring->consumer != MAP_FAILED && ring->producer != MAP_FAILED && kernel_load_all(ring);
}

/* Run a program; how many of its records of so many bytes came into the ring is counted. */
static inline void kernel_sample(const char *name, struct kernel_ring *ring, int program, size_t record)
{
	static char packet[64];
	union bpf_attr attr = {.test = {.prog_fd = (uint32_t)program,
	                                .data_in = (uintptr_t)packet,
	                                .data_size_in = sizeof(packet),
	                                .repeat = KERNEL_RUNS}};
	uint64_t start = *ring->consumer = *ring->producer;
	long taken;

	if (bpf(BPF_PROG_TEST_RUN, &attr) != 0)
		die("BPF_PROG_TEST_RUN");
	taken = record ? (long)((*ring->producer - start) / (record + 8)) : KERNEL_RUNS;
	printf("%s %u %ld %ld\n", name, attr.test.duration, taken, KERNEL_RUNS - taken);
}

static inline void kernel_sample_all(struct kernel_ring *ring)
{
	kernel_sample("kernel-loop-64", ring, ring->empty, 0);
	kernel_sample("kernel-output-64", ring, ring->output, KERNEL_RECORD);
	kernel_sample("kernel-loop-8", ring, ring->nothing, 0);
	kernel_sample("kernel-reserve-8", ring, ring->reserve, 8);
}

#endif
