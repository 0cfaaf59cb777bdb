/* SPDX-License-Identifier: MIT */
/* The document's two examples of subbuf_start, for producers and for those who flush and reset. */
#ifndef STRESS_CALLBACK_H
#define STRESS_CALLBACK_H

#include <relayfs/relay.h>
#include <signal.h>

/* "keep": no-overwrite; "replace": overwrite; anything else: NULL. */
const struct rchan_callbacks *stress_callbacks(const char *name);

/* Set: the next callback that is about to say yes spoils the sub-buffer and dies. */
extern volatile sig_atomic_t stress_die_in_callback;

#endif
