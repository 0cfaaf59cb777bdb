/* SPDX-License-Identifier: MIT */
/*
 * A program that writes garbage to files that take commands, and much of it at once, until its input ends.
 *
 *     flooder SEED FILE...
 *
 * It knows the words of the commands, so that many lines are nearly right. Prints "attacking", and at the end how often
 * it wrote.
 */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { MANY_BYTES = 1 << 20, KEPT = 64 };

static const char *const words[] = {"create",
                                    "remove",
                                    "flush",
                                    "reset",
                                    "enable",
                                    "disable",
                                    "resume",
                                    "consumed",
                                    "adopt",
                                    "trace",
                                    "start",
                                    "stop",
                                    "add",
                                    "del",
                                    "adjust",
                                    "flood/a",
                                    "flood/b",
                                    "flood/c",
                                    "neighbour/cpu",
                                    "victim/0",
                                    "victim/1",
                                    "t",
                                    "control",
                                    "../x",
                                    ".traces",
                                    "/",
                                    "type=ring",
                                    "size=4K",
                                    "size=1T",
                                    "size=0",
                                    "subbuf_size=4K",
                                    "n_subbufs=2",
                                    "n_subbufs=4294967295",
                                    "buffers=single",
                                    "mode=overwrite",
                                    "mode=callback",
                                    "perm=0777",
                                    "perm=07777777777777",
                                    "uid=0",
                                    "gid=0",
                                    "uid=-1",
                                    "flush_interval=1",
                                    "scheme=locking",
                                    "0",
                                    "1",
                                    "2",
                                    "-1",
                                    "4294967296",
                                    "18446744073709551616",
                                    "0,1,2,3",
                                    "3",
                                    "event",
                                    "{",
                                    "};",
                                    "name",
                                    "id",
                                    "fields",
                                    "struct",
                                    "integer { size = 64; }",
                                    "allocate 0",
                                    "t flood",
                                    "s flood",
                                    "kind=gauge",
                                    "mode=0222",
                                    "unit=x",
                                    "help=y z",
                                    "pid:1",
                                    "filter=uid:0",
                                    "*:*",
                                    "\xff\xfe",
                                    "%s%n",
                                    "=",
                                    "==",
                                    "# nothing"};

static char text[MANY_BYTES];

static size_t add_line(size_t at)
{
	for (uint64_t n = 1 + random_below(6); n && at < MANY_BYTES - 64; n--)
		at += (size_t)snprintf(text + at, 64, "%s ", words[random_below(sizeof(words) / sizeof(*words))]);
	text[at++] = '\n';
	return at;
}

static size_t make_text(void)
{
	size_t length = 0;
	switch (random_below(24)) {
	case 0: /* the same short command as often as there is room */
		for (; length + 16 < MANY_BYTES / 4; length += 10)
			memcpy(text + length, "remove a/b\n" + (random_below(100) == 0), 10);
		return length;
	case 1:
		memset(text, '\n', MANY_BYTES / 2);
		return MANY_BYTES / 2;
	case 2:
		for (length = 0; length < 4096; length++)
			text[length] = (char)random_below(256);
		return length;
	case 3:
		memset(text, 'a', MANY_BYTES);
		return 1 + random_below(MANY_BYTES);
	default:
		for (uint64_t n = 1 + random_below(4); n; n--)
			length = add_line(length);
		return length;
	}
}

static int told_to_end(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;
	return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int main(int argc, char **argv)
{
	int kept[KEPT];
	unsigned long written = 0, refused = 0;
	if (argc < 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state = strtoull(argv[1], NULL, 0) * 2 + 1;
	for (unsigned i = 0; i < KEPT; i++)
		kept[i] = -1;
	puts("attacking");
	fflush(stdout);
	while (!told_to_end()) {
		/* Some descriptors stay open, as long as their turn does not come again. */
		unsigned slot = (unsigned)random_below(KEPT);
		if (kept[slot] >= 0)
			close(kept[slot]);
		kept[slot] = open(argv[2 + random_below((uint64_t)argc - 2)], O_RDWR | O_CLOEXEC);
		if (kept[slot] < 0)
			kept[slot] = open(argv[2 + random_below((uint64_t)argc - 2)], O_WRONLY | O_CLOEXEC);
		for (uint64_t n = 1 + random_below(4); n && kept[slot] >= 0; n--, written++) {
			refused += write(kept[slot], text, make_text()) < 0;
			if (random_below(4) == 0 && pread(kept[slot], text, 4096, 0) < 0)
				refused++;
		}
		usleep((useconds_t)random_below(3000)); /* its rhythm, so that others find the server idle and busy */
	}
	printf("writes %lu refused %lu\n", written, refused);
	return 0;
}
