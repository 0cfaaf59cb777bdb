/* SPDX-License-Identifier: MIT */
/* make_channel DIR SUBBUF_SIZE N_SUBBUFS no-overwrite|overwrite|callback rseq|lockless: a channel without a file server. */
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct relay_spec spec = {.size = sizeof(spec),
	                          .n_buffers = relay_n_possible_cpus(),
	                          .buffers = RELAY_PERCPU,
	                          .file_mode = 0600,
	                          .uid = (uint32_t)-1,
	                          .gid = (uint32_t)-1};
	int err;

	if (argc != 6)
		return 2;
	spec.subbuf_size = strtoull(argv[2], NULL, 0);
	spec.n_subbufs = strtoull(argv[3], NULL, 0);
	spec.mode = strcmp(argv[4], "overwrite") == 0  ? RELAY_OVERWRITE
	            : strcmp(argv[4], "callback") == 0 ? RELAY_CALLBACK
	                                               : RELAY_NO_OVERWRITE;
	spec.scheme = strcmp(argv[5], "rseq") == 0      ? RELAY_RSEQ
	              : strcmp(argv[5], "locking") == 0 ? RELAY_LOCKING
	                                                : RELAY_LOCKLESS;
	err = relay_store_create(argv[1], &spec);
	if (err)
		fprintf(stderr, "make_channel: %s: %s\n", argv[1], strerror(-err));
	return err ? 1 : 0;
}
