/* SPDX-License-Identifier: MIT */
/*
 * The version of what <relayfs/producer.h> compiles into programs: the first fields of struct rchan, struct rchan_buf,
 * struct relay_ring and struct relay_counters, and the formats in shared memory. If one of them changes, it is increased. The library sets the
 * element of its own version in arrays that are 0 otherwise. So a program that was compiled for another version finds no
 * buffers and no counters, and calls the library.
 */
#ifndef RELAYFS_INLINE_VERSION_H
#define RELAYFS_INLINE_VERSION_H

#include <stdint.h>

enum {
	RELAY_INLINE_VERSION = 2, /* less than RELAY_INLINE_VERSIONS */
	RELAY_INLINE_VERSIONS = 8
};

/* Always inlined. The address of such a function is that of the library's. */
#define RELAY_INLINE extern __inline__ __attribute__((__gnu_inline__, __always_inline__, __artificial__))

/* The model of thread-local variables. With initial-exec, code accesses them without a function call. glibc reserves
 * space for such variables of libraries that dlopen(3) loads; musl refuses to load such libraries. */
#ifdef __GLIBC__
#define RELAY_TLS __attribute__((__tls_model__("initial-exec")))
#else
#define RELAY_TLS
#endif

#endif
