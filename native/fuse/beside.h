/* SPDX-License-Identifier: MIT */
/*
 * Where the thread of the FUSE loop runs. A program that reads on and the server sleep in turn. If they run on two CPUs,
 * each request wakes two CPUs that sleep, which in a virtual machine takes several times as long as the request. The
 * kernel wakes a thread where it slept if that CPU is idle, so it leaves them there. On one CPU they lose nothing, because they
 * never run at once.
 */
#ifndef RELAY_TAP_BESIDE_H
#define RELAY_TAP_BESIDE_H

#include <stdint.h>

/* Move this thread to the CPU of a thread that reads on; the kernel may move it on at any time. To be called time and again:
 * it looks less often if that thread is here, or if the kernel does move this one. A thread whose CPUs are limited,
 * as by taskset(1), stays where it is. */
void relay_beside(uint32_t thread);

#endif
