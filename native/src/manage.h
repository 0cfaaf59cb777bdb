/* SPDX-License-Identifier: MIT */
/* The steps that manage.c takes inside a buffer, on its CPU; they live with what they touch. */
#ifndef RELAYFS_MANAGE_H
#define RELAYFS_MANAGE_H

#include "buf.h"

/* All return 0, an error, or RELAY_WRONG_CPU. */
int relay_refuse_too_large(struct rchan_buf *buf, size_t length);
int relay_switch(struct rchan_buf *buf); /* flush: leave the sub-buffer, full or not */
int relay_seal(struct rchan_buf *buf);   /* lockless: make every change of head that is under way fail */
int relay_clear(struct rchan_buf *buf);  /* head and losses to their initial state */

#endif
