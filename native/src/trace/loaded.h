/* SPDX-License-Identifier: MIT */
/*
 * The program and the shared libraries that this process has loaded, for those who turn addresses into symbols: lines
 *
 *     BASE SIZE BIAS BUILD_ID PATH
 *
 * BASE, SIZE: where it is in memory. BIAS: an address less this one is the address in the file. BUILD_ID: in hexadecimal, - if it
 * has none. Numbers are hexadecimal, with 0x. In PATH, bytes that do not show, blanks, quotes, backslashes and % are %XX.
 *
 * Lines are only added: a library that was unloaded keeps its line, and of two that overlap, the later one counts.
 */
#ifndef RELAYFS_TRACE_LOADED_H
#define RELAYFS_TRACE_LOADED_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Find out what was loaded since the last call. true: there are new lines. The caller does not hold relay_trace_lock(), because
 * dl_iterate_phdr(3) takes a lock of the loader, which may be held by a thread that waits for relay_trace_lock(). Nothing is found
 * while another thread looks; nor, unless `again`, in a child of fork(2) whose parent has found something, because a thread that is
 * not there may have held that lock.
 */
bool relay_loaded_look(bool again);

/* Return the lines so far, and their length. The caller holds relay_trace_lock(). */
const char *relay_loaded_lines(size_t *length);

/* Whether there are more than so many bytes of lines. */
bool relay_loaded_has_more(size_t length);

/* In the child of fork(2). */
void relay_loaded_begin_child(void);

#endif
