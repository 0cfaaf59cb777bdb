/* SPDX-License-Identifier: MIT */
/*
 * Fill a channel, read a file in blocks of one size, or read a channel without a copy and compare with touching the same
 * memory.
 *
 *     bench_read fill CHANNEL                      prints the bytes written until it was full
 *     bench_read pour FILE FIFO                    writes a file that it maps to who reads the FIFO
 *     bench_read blocks SIZE COUNT FILE            prints the nanoseconds of a read(2) after the first ten
 *     bench_read zero-copy ROUNDS CHANNEL MEM_FILE prints a line a sample:  NAME GIGABYTES_PER_SECOND BYTES
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <relayfs/reader.h>
#include <relayfs/relay.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RECORD_BYTES = 4096, POUR_BYTES = 64 << 10 };

static volatile uint64_t sink;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "bench_read: %s: %s\n", what, strerror(errno));
	exit(2);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Load every byte once. */
static void touch(const void *data, size_t length)
{
	const uint64_t *words = data;
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < length / sizeof(*words); i++)
		sum += words[i];
	sink = sum;
}

static size_t fill(struct rchan *chan)
{
	static char record[RECORD_BYTES];
	size_t written = 0;
	int err;

	memset(record, 'r', sizeof(record));
	while ((err = relay_write(chan, record, sizeof(record))) == 0)
		written += sizeof(record);
	if (err != -ENOSPC)
		die("fill");
	return written;
}

static void pour(const char *file, const char *fifo)
{
	int from = open(file, O_RDONLY), to = open(fifo, O_WRONLY);
	off_t bytes = lseek(from, 0, SEEK_END), at = 0;
	const char *memory = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, from, 0);
	ssize_t n = 1;

	for (; memory != MAP_FAILED && at < bytes && n > 0; at += n)
		n = write(to, memory + at, bytes - at < POUR_BYTES ? (size_t)(bytes - at) : POUR_BYTES);
	if (from < 0 || to < 0 || at != bytes)
		die(fifo);
}

static size_t read_all(struct relay_reader *reader)
{
	const void *data;
	size_t length, total = 0;

	while (relay_reader_next(reader, &data, &length, 0) == 1) {
		touch(data, length);
		if (relay_reader_done(reader) != 0)
			die("done");
		total += length;
	}
	return total;
}

static void print(const char *name, size_t bytes, double ns)
{
	printf("%s %.4f %zu\n", name, (double)bytes / ns, bytes);
}

/* A descriptor's first reads find out what it is; the others are alike. */
static void read_blocks(size_t size, long count, const char *file)
{
	int fd = open(file, O_RDONLY);
	char *block = malloc(size);
	double start = 0;
	long i;

	for (i = 0; i < count + 10; i++) {
		if (i == 10)
			start = now_ns();
		if (fd < 0 || read(fd, block, size) != (ssize_t)size)
			die(file);
	}
	printf("%.1f\n", (now_ns() - start) / (double)count);
	close(fd);
	free(block);
}

static void compare(int rounds, struct rchan *chan, const char *relay_file, const char *mem_file)
{
	struct relay_reader *reader = relay_reader_open(relay_file);
	int fd = open(mem_file, O_RDONLY), round;
	size_t bytes = fill(chan), got;
	void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	double start, read_ns, touch_ns;

	if (!reader || fd < 0 || memory == MAP_FAILED)
		die(relay_file);
	/* The first round is for the page tables. */
	for (round = 0; round <= rounds; round++) {
		start = now_ns();
		touch(memory, bytes);
		touch_ns = now_ns() - start;
		start = now_ns();
		got = read_all(reader);
		read_ns = now_ns() - start;
		if (got != bytes)
			errx(2, "%zu bytes were read of %zu", got, bytes);
		if (round > 0) {
			print("touch", bytes, touch_ns);
			print("zero-copy", bytes, read_ns);
		}
		bytes = fill(chan);
	}
	relay_reader_close(reader);
}

int main(int argc, char **argv)
{
	struct rchan *chan;

	if (argc == 5 && strcmp(argv[1], "blocks") == 0) {
		read_blocks(strtoul(argv[2], NULL, 10), atol(argv[3]), argv[4]);
		return 0;
	}
	if (argc == 4 && strcmp(argv[1], "pour") == 0) {
		pour(argv[2], argv[3]);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "fill") == 0) {
		chan = relay_attach(argv[2]);
		if (!chan)
			die(argv[2]);
		printf("%zu\n", fill(chan));
	} else if (argc == 5 && strcmp(argv[1], "zero-copy") == 0) {
		chan = relay_attach(argv[3]);
		if (!chan)
			die(argv[3]);
		compare(atoi(argv[2]), chan, argv[3], argv[4]);
	} else {
		return 2;
	}
	relay_close(chan);
	return 0;
}
