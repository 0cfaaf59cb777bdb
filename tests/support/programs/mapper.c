/* SPDX-License-Identifier: MIT */
/*
 * An ordinary program that maps a file and knows nothing of relayfs.
 *
 *     mapper FILE ro|rw|nonblock LENGTH
 *
 * Prints "mapped" or "open: ERRNO" or "mmap: ERRNO". Then each line of its input is a command:
 *     show OFFSET LENGTH    prints the bytes and a newline
 *     put OFFSET TEXT       stores the text and prints "done"
 *     truncate LENGTH       prints "0" or the errno
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int failed(const char *what)
{
	printf("%s: %d\n", what, errno);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int writes = strcmp(argv[2], "rw") == 0;
	size_t length = strtoull(argv[3], NULL, 10);
	int fd = open(argv[1], writes ? O_RDWR : strcmp(argv[2], "ro") ? O_RDONLY | O_NONBLOCK : O_RDONLY);
	if (fd < 0)
		return failed("open");
	char *memory = mmap(NULL, length, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return failed("mmap");
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("mapped");

	char line[256], text[200];
	size_t offset, n;
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "show %zu %zu", &offset, &n) == 2 && offset <= length && n <= length - offset) {
			fwrite(memory + offset, 1, n, stdout);
			putchar('\n');
		} else if (sscanf(line, "put %zu %199s", &offset, text) == 2 && offset + strlen(text) <= length) {
			memcpy(memory + offset, text, strlen(text));
			puts("done");
		} else if (sscanf(line, "truncate %zu", &n) == 1) {
			printf("%d\n", ftruncate(fd, (off_t)n) ? errno : 0);
		} else {
			return 2;
		}
		fflush(stdout);
	}
	return 0;
}
