/* SPDX-License-Identifier: MIT */
/*
 *     open MNT/.traces/join
 *     write "TRACE PROGRAM\nimage HEX\n"                read: the directory's name
 *     write "event { ... };\n"                          declared; read at DECLARED_AT: its id, which in a directory of several
 *                                                       processes is not the one that was written
 *     write "allocate CPU\n"                            that CPU's buffer has its memory
 *
 * A process that must not write to files (RLIMIT_FSIZE) sets the extended attribute user.relayfs.join instead, to the number
 * that it reads at TOKEN_AT, which tells the server whose request it is, and the text.
 */
#define _GNU_SOURCE
#include "trace/join.h"

#include "base/clock.h"
#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { TOKEN_AT = 1 << 20, DECLARED_AT = 2 << 20, REQUEST_MAX = 32768 };

bool relay_may_write(uint64_t bytes)
{
	struct rlimit limit;
	return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

static int ask_by_attribute(int session, const char *text, size_t length)
{
	struct {
		uint64_t token;
		char text[];
	} *request = malloc(sizeof(*request) + length);
	if (!request)
		return -ENOMEM;
	ssize_t got = pread(session, &request->token, sizeof(request->token), TOKEN_AT);
	int err = got == sizeof(request->token) ? 0 : got < 0 ? -errno : -EPROTO;
	memcpy(request->text, text, length);
	if (!err && fsetxattr(session, "user.relayfs.join", request, sizeof(*request) + length, 0))
		err = -errno;
	free(request);
	return err;
}

int relay_session_ask(int session, const char *text, size_t length)
{
	if (length > REQUEST_MAX)
		return -EMSGSIZE;
	if (!relay_may_write(length))
		return ask_by_attribute(session, text, length);
	return pwrite(session, text, length, 0) < 0 ? -errno : 0;
}

int relay_session_declared(int session)
{
	uint64_t id;
	ssize_t got = pread(session, &id, sizeof(id), DECLARED_AT);
	if (got < 0)
		return -errno;
	return got == sizeof(id) && id <= RELAY_TRACE_ID_MAX ? (int)id : -EPROTO;
}

static int read_name(int session, char name[RELAY_TRACE_NAME_BYTES])
{
	ssize_t got = pread(session, name, RELAY_TRACE_NAME_BYTES - 1, 0);
	if (got < 0)
		return -errno;
	name[got] = 0;
	name[strcspn(name, "\n")] = 0;
	return !*name || strchr(name, '/') ? -EPROTO : 0;
}

/*
 * What tells this copy of the library from another one of the same process: a second one that a loaded library brings, or that
 * of the program which the process was before execve(2), as the server may not yet know that this one is gone. Each numbers its
 * events in its own way, so no two may declare them in one directory.
 */
static uint64_t image(void)
{
	static uint64_t number;
	/* The address differs between copies of one program, and the time between programs of one process. */
	uint64_t none = 0, made = (relay_clock_ns(CLOCK_MONOTONIC) + (uintptr_t)&number) | 1;
	/* Relaxed: a number only, which every thread finds the same once it is there. */
	if (__atomic_compare_exchange_n(&number, &none, made, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return made;
	return none;
}

int relay_session_open(const char *mount, const char *trace, const char *program, char name[RELAY_TRACE_NAME_BYTES])
{
	char *path = NULL, *line = NULL;
	int err = asprintf(&path, "%s/.traces/join", mount) < 0 ||
	                  asprintf(&line, "%s %s\nimage %" PRIx64 "\n", trace, program, image()) < 0
	              ? -ENOMEM
	              : 0;
	int session = err ? err : relay_mapping_open(path, O_RDWR, true);
	if (session >= 0)
		err = relay_session_ask(session, line, strlen(line));
	else
		err = session;
	if (!err)
		err = read_name(session, name);
	if (err && session >= 0)
		close(session);
	free(path);
	free(line);
	return err ? err : session;
}

bool relay_session_is_served(int session)
{
	uint64_t token;
	return pread(session, &token, sizeof(token), TOKEN_AT) == sizeof(token);
}
