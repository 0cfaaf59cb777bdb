/* SPDX-License-Identifier: MIT */
/* Loaded before a program's libraries (LD_PRELOAD): CLOCK_REALTIME of another machine, and what its kernel says of the clock.
 * The file that OTHER_CLOCK names decides: struct other_clock, which may change while the program runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

struct other_clock {
	int64_t ahead_ns;           /* of this machine's CLOCK_REALTIME */
	int64_t maxerror, esterror; /* us */
	int64_t status;             /* as of struct timex */
	int64_t stall_ns;           /* so long takes each STALL_EVERY-th look at CLOCK_REALTIME */
};

static const int64_t NS = 1000000000;
static const int STALL_EVERY = 40;

static struct other_clock other(void)
{
	static const volatile struct other_clock *shown;
	if (!shown) {
		int fd = open(getenv("OTHER_CLOCK"), O_RDONLY | O_CLOEXEC);
		void *at = mmap(NULL, sizeof(*shown), PROT_READ, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED)
			abort();
		close(fd);
		shown = at;
	}
	return *shown;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	int err = real(clock, now);
	if (err || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
		return err;
	const struct other_clock shown = other();
	static int looks;
	if (shown.stall_ns && ++looks % STALL_EVERY == 0)
		nanosleep(&(struct timespec){.tv_nsec = shown.stall_ns}, NULL);
	int64_t ns = now->tv_sec * NS + now->tv_nsec + shown.ahead_ns;
	*now = (struct timespec){.tv_sec = ns / NS, .tv_nsec = ns % NS};
	return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	*now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *now)
{
	struct timespec precise;
	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}

int adjtimex(struct timex *state)
{
	const struct other_clock now = other();
	*state = (struct timex){.maxerror = now.maxerror, .esterror = now.esterror, .status = (int)now.status};
	return now.status & STA_UNSYNC ? TIME_ERROR : TIME_OK;
}
