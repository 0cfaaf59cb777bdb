/* SPDX-License-Identifier: MIT */
/*
 * trace_states [LEDGER]: a program with states. It answers each line of the standard input with 0:
 *
 *     set FD PEER     the state states:connection of the key FD
 *     clear FD        it has none any more
 *     long FD N       the same with a peer of N bytes
 *     emit N          N events states:step, numbered on
 *     fork            a child emits one event and ends in order
 *     kill            segmentation fault
 *     flat            states of the key 1 for ever, with numbers from 1 as peers; each number is stored in LEDGER then
 */
#include <fcntl.h>
#include <inttypes.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

RELAY_TRACE_STATE(states, connection, (u32, fd), (string, peer))
RELAY_TRACE_EVENT(states, step, (u64, seq))

static void set_flat_out(const char *ledger)
{
	int fd = open(ledger, O_RDWR | O_CREAT, 0600);
	uint64_t *n = mmap(NULL, sizeof(*n), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char peer[32];
	for (;; __atomic_store_n(n, *n + 1, __ATOMIC_RELEASE)) {
		snprintf(peer, sizeof(peer), "%" PRIu64, *n + 1);
		trace_states_connection(1, peer);
	}
}

static void emit(unsigned long n)
{
	static uint64_t seq;
	while (n--)
		trace_states_step(seq++);
}

static void fork_child(void)
{
	pid_t child = fork();
	if (child == 0) {
		emit(1);
		exit(0);
	}
	waitpid(child, NULL, 0);
}

static void set_long(uint32_t fd, size_t n)
{
	char *peer = calloc(n + 1, 1);
	memset(peer, 'x', n);
	trace_states_connection(fd, peer);
	free(peer);
}

int main(int argc, char **argv)
{
	char line[256], word[16], peer[128];
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long n = 0, length = 0;
		sscanf(line, "%15s %lu %lu", word, &n, &length);
		if (sscanf(line, "set %*u %127s", peer) == 1)
			trace_states_connection((uint32_t)n, peer);
		else if (strcmp(word, "clear") == 0)
			trace_states_connection_clear((uint32_t)n);
		else if (strcmp(word, "long") == 0)
			set_long((uint32_t)n, length);
		else if (strcmp(word, "emit") == 0)
			emit(n);
		else if (strcmp(word, "fork") == 0)
			fork_child();
		else if (strcmp(word, "kill") == 0)
			*(volatile char *)NULL = 1;
		else if (strcmp(word, "flat") == 0 && argc > 1)
			set_flat_out(argv[1]);
		puts("0");
		fflush(stdout);
	}
	return 0;
}
