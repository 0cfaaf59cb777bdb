/* SPDX-License-Identifier: MIT */
/*
 * libbpf's own consumer of ring buffers, on a ring's memory file: it prints so many records, each on a line.
 *
 *     libbpf_consumer MEM SIZE RECORDS
 *
 * libbpf asks the kernel how large the map of a descriptor is. A memory file is no map, so this one call of bpf(2) is
 * answered here; all else is libbpf and the file.
 */
#define _GNU_SOURCE
#include <bpf/libbpf.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOK_MS = 1000000 };

static unsigned ring_size;
static long wanted;

/* Instead of libc's. */
long syscall(long number, ...)
{
	long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	long a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number != SYS_bpf || a[0] != BPF_OBJ_GET_INFO_BY_FD)
		return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	struct bpf_map_info info = {.type = BPF_MAP_TYPE_RINGBUF, .max_entries = ring_size};
	const union bpf_attr *attr = (const union bpf_attr *)a[1];
	memcpy((void *)attr->info.info, &info, attr->info.info_len < sizeof(info) ? attr->info.info_len : sizeof(info));
	return 0;
}

static int show(void *context, void *data, size_t size)
{
	(void)context;
	printf("%.*s\n", (int)size, (const char *)data);
	fflush(stdout);
	wanted--;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int fd = open(argv[1], O_RDWR);
	ring_size = (unsigned)atol(argv[2]);
	wanted = atol(argv[3]);
	struct ring_buffer *rings = fd < 0 ? NULL : ring_buffer__new(fd, show, NULL, NULL);
	if (!rings) {
		perror(argv[1]);
		return 1;
	}
	while (wanted > 0) {
		/* 0 also after a wake-up for nothing but discarded records, which libbpf has passed then. */
		int result = ring_buffer__poll(rings, LOOK_MS);
		if (result < 0) {
			fprintf(stderr, "ring_buffer__poll: %s\n", strerror(-result));
			return 1;
		}
	}
	ring_buffer__free(rings);
	return 0;
}
