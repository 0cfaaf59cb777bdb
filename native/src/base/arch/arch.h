/* SPDX-License-Identifier: MIT */
/* The header files of the architecture for which this is compiled. Other files that depend on the architecture: quiet.c,
 * counters/reader.c, <relayfs/trace_event.h>, <relayfs/producer.h> and <relayfs/inline/rseq.h>. */
#ifndef RELAYFS_BASE_ARCH_ARCH_H
#define RELAYFS_BASE_ARCH_ARCH_H

#if defined(__x86_64__)
#define RELAY_ARCH_CPU_H "base/arch/x86_64/cpu.h"
#define RELAY_ARCH_RSEQ_H "base/arch/x86_64/rseq.h"
#define RELAY_ARCH_STACK_H "base/arch/x86_64/stack.h"
#elif defined(__aarch64__)
#define RELAY_ARCH_CPU_H "base/arch/aarch64/cpu.h"
#define RELAY_ARCH_RSEQ_H "base/arch/aarch64/rseq.h"
#define RELAY_ARCH_STACK_H "base/arch/aarch64/stack.h"
#else
#error "relayfs knows x86-64 and arm64"
#endif

#endif
