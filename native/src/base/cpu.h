/* SPDX-License-Identifier: MIT */
/*
 * What each architecture defines in base/arch/ARCHITECTURE/cpu.h:
 *
 *     relay_u128_cmpxchg()   Compare and swap both words at once, with a full barrier. Returns false if they were not
 *                            the old values.
 *     relay_cpu_has_tsc()    True if this counter exists, and counts at a constant rate.
 *     relay_relax()          Tell the CPU that this thread spins in a loop.
 */
#ifndef RELAYFS_BASE_CPU_H
#define RELAYFS_BASE_CPU_H

#include "base/arch/arch.h"

#include <relayfs/layout.h>
#include <stdbool.h>
#include <stdint.h>

#include RELAY_ARCH_CPU_H

#endif
