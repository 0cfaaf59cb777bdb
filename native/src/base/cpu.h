/* SPDX-License-Identifier: MIT */
/*
 * What each architecture defines in base/arch/ARCHITECTURE/cpu.h:
 *
 *     relay_u128_cmpxchg()   Compare and swap both words at once, with a full barrier. Returns false if they were not
 *                            the old values.
 *     relay_cpu_has_tsc()    True if this counter exists, and counts at a constant rate.
 *     relay_relax()          Tell the CPU that this thread spins in a loop.
 *     relay_prefetch_for_store()   Have the CPU fetch a cache line that this thread will store to; of any address.
 *     relay_where_equal()    Compare each of RELAY_COMPARED bytes with `byte`: bit n is 1 if byte n is equal.
 */
#ifndef RELAYFS_BASE_CPU_H
#define RELAYFS_BASE_CPU_H

#include "base/arch/arch.h"

#include <relayfs/layout.h>
#include <stdbool.h>
#include <stdint.h>

enum { RELAY_COMPARED = 64 };

#include RELAY_ARCH_CPU_H

enum { RELAY_PREFETCH_BYTES = 1024 };

/*
 * Called by a producer that is going to store a record at `at`. A locked instruction waits until all earlier stores are
 * in the cache, and the memory of a record was last read on a reader's CPU. So a producer that reserves with a locked
 * instruction would wait, for each record, until the line of the record before has come from there. Therefore the line
 * is fetched some records ahead. Without locked instructions, stores overlap by themselves.
 */
static inline void relay_prefetch_ahead(const void *at)
{
	relay_prefetch_for_store((const char *)at + RELAY_PREFETCH_BYTES);
}

#endif
