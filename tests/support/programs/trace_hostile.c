/* SPDX-License-Identifier: MIT */
/*
 * A traced program that wants to do harm.
 *
 *     trace_hostile attack              tries what must not be possible; prints what was
 *     trace_hostile spoil SEED ROUNDS   writes random bytes over all memory that it shares with others, where positions
 *                                       are first, and traces on meanwhile; then prints "spoilt" and waits for its end
 */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <relayfs/trace.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

RELAY_TRACE_EVENT(hostile, noise, (u64, seq), (u64, random))

enum { MAX_MAPPINGS = 1024, POSITIONS_BYTES = 4096, PATIENCE_S = 1, FAULT = 1 };

struct mapping {
	unsigned char *start, *end;
	char name[256];
};

static struct mapping mappings[MAX_MAPPINGS];
static unsigned n_mappings;
/* All whose protection begins so, and whose file's name holds this. */
static void find_mappings(const char *protection, const char *name)
{
	char line[4096], seen[8];
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t start, end;
	int at;

	n_mappings = 0;
	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %n", &start, &end, seen, &at) < 3)
			continue;
		if (strncmp(seen, protection, strlen(protection)) != 0 || !strstr(line + at, name))
			continue;
		if (n_mappings == MAX_MAPPINGS)
			break;
		mappings[n_mappings].start = (unsigned char *)start;
		mappings[n_mappings].end = (unsigned char *)end;
		line[strcspn(line, "\n")] = 0;
		snprintf(mappings[n_mappings++].name, sizeof(mappings[0].name), "%s", line + at);
	}
	if (maps)
		fclose(maps);
}

/* --- what must not be possible --- */

static sigjmp_buf back;

static void fault(int signum)
{
	(void)signum;
	siglongjmp(back, FAULT);
}

static void tell(const char *attempt, bool done)
{
	printf("%s: %s\n", attempt, done ? "done" : strerrorname_np(errno));
}

static void write_to_page(struct relay_trace_page *page)
{
	if (sigsetjmp(back, 1) == 0) {
		*(volatile uint32_t *)&page->active = 0xffff;
		tell("store", true);
	} else {
		puts("store: fault");
	}
}

static void write_by_proc(struct relay_trace_page *page)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	uint32_t all = 0xffff;
	bool done = pwrite(fd, &all, sizeof(all), (off_t)(uintptr_t)&page->active) == sizeof(all);

	tell("proc", done);
	close(fd);
}

static void attack(void)
{
	struct relay_trace_page *page = &relay_trace_page_.page;
	char file[256];
	int fd;

	signal(SIGSEGV, fault);
	find_mappings("r--s", ".traces");
	if (n_mappings == 0) {
		puts("no page is mapped");
		return;
	}
	write_to_page(page);
	tell("mprotect", mprotect(page, sizeof(*page), PROT_READ | PROT_WRITE) == 0);
	write_by_proc(page);
	snprintf(file, sizeof(file), "%s", mappings[0].name);
	fd = open(file, O_RDWR | O_CLOEXEC);
	tell("open", fd >= 0);
	tell("unlink", unlink(file) == 0);
	tell("truncate", truncate(file, 0) == 0);
	tell("chmod", chmod(file, 0666) == 0);
}

/* --- what harms itself only --- */

static void trace_some(void)
{
	uint64_t i;

	for (i = 0; i < 100; i++)
		trace_hostile_noise(i, random_word());
}

static void write_random(unsigned char *at, const unsigned char *end)
{
	for (; at < end; at += sizeof(uint64_t)) {
		uint64_t word = random_word();
		/* Small numbers, zeros and ones get further than noise. */
		if (word % 4 == 0)
			word >>= word % 64;
		memcpy(at, &word, sizeof(word));
	}
}

static void spoil(const struct mapping *mapping, bool all)
{
	unsigned char *start = mapping->start, *end = mapping->end;

	if (!all && end - start > POSITIONS_BYTES)
		end = start + POSITIONS_BYTES;
	write_random(start, end);
}

/* Its own end, and that it stands still, are no success of anybody. */
static void trace_whatever_comes(void)
{
	if (sigsetjmp(back, 1) == 0) {
		alarm(PATIENCE_S);
		trace_some();
	}
	alarm(0);
}

static void spoil_all(uint64_t rounds)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
	uint64_t round;
	unsigned i;

	for (i = 0; i < sizeof(faults) / sizeof(*faults); i++)
		signal(faults[i], fault);
	for (round = 0; round < rounds; round++) {
		trace_whatever_comes();
		for (i = 0; i < n_mappings; i++)
			spoil(&mappings[i], round % 2);
	}
	printf("spoilt %u\n", n_mappings);
	pause();
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	trace_some();
	if (argc == 2 && strcmp(argv[1], "attack") == 0) {
		attack();
	} else if (argc == 4 && strcmp(argv[1], "spoil") == 0) {
		random_state = strtoull(argv[2], NULL, 0) * 2 + 1;
		find_mappings("rw-s", "/mem");
		spoil_all(strtoull(argv[3], NULL, 0));
	} else {
		return 2;
	}
	return 0;
}
