/* SPDX-License-Identifier: MIT */
/*
 * A writer that wakes who waits for a buffer or ring as often as it can, as wake-ups do: it changes a word and
 * wakes who sleeps on that.
 *
 *     waker MNT/.channels/PATH/memN
 *
 * Prints "attacking" and goes on until its input ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <relayfs/layout.h>
#include <relayfs/ring_layout.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUND = 100 };

static uint32_t *find_word(unsigned char *last_page)
{
	uint64_t magic;
	memcpy(&magic, last_page, sizeof(magic));
	size_t at = magic == RELAY_RING_MAGIC ? offsetof(struct relay_ring_state, wake_seq)
	                                      : offsetof(struct relay_control, wake_seq);
	return (uint32_t *)(last_page + at);
}

int main(int argc, char **argv)
{
	struct stat status;
	int fd = argc > 1 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0 || fstat(fd, &status))
		return 2;
	unsigned char *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return 2;
	uint32_t *word = find_word(memory + status.st_size - RELAY_PAGE_BYTES);
	struct pollfd input = {.fd = 0, .events = POLLIN};
	puts("attacking");
	fflush(stdout);
	while (!poll(&input, 1, 0))
		for (int i = 0; i < ROUND; i++) {
			__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
			syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		}
	return 0;
}
