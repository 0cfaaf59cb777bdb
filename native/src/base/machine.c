/* SPDX-License-Identifier: MIT */
/* The number of CPUs, and the default scheme of buffers on this machine; declared in <relayfs/store.h>. */
#define _GNU_SOURCE
#include "base/affinity.h"
#include "base/directory.h"
#include "base/rseq.h"

#include <relayfs/store.h>

#include <fcntl.h>
#include <unistd.h>

/* Return the number that the system lists; 0: the list cannot be read. */
static unsigned listed_cpus(void)
{
	char text[4096] = "";
	unsigned last = 0;
	int fd = open("/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	/* In "0-3,8-11", the last number is the largest. */
	for (ssize_t i = 0; i < got;)
		if (text[i] >= '0' && text[i] <= '9')
			for (last = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++)
				last = last * 10 + (unsigned)(text[i] - '0');
		else
			i++;
	return got > 0 && last < RELAY_MAX_BUFFERS ? last + 1 : 0;
}

unsigned relay_n_possible_cpus(void)
{
	unsigned listed = listed_cpus();
	if (listed)
		return listed;
	long configured = sysconf(_SC_NPROCESSORS_CONF);
	return configured > 0 ? (unsigned)configured : 1;
}

unsigned relay_n_cpus_most(void)
{
	unsigned listed = listed_cpus();
	return listed ? listed : RELAY_MAX_BUFFERS;
}

uint32_t relay_scheme_default(uint32_t buffers)
{
	return buffers == RELAY_PERCPU && relay_rseq_registered() ? RELAY_RSEQ : RELAY_LOCKLESS;
}
