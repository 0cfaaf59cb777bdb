/* SPDX-License-Identifier: MIT */
/*
 * The requests of a session, each one write(2) to the open MNT/.traces/join:
 *
 *     "TRACE PROGRAM\nimage HEX\n"     opens the session; the directory's name is then read at offset 0
 *     "event { ... };\n"               declares an event; its id is then read at DECLARED_AT, because in a directory of
 *                                      several processes it is not the id in the declaration
 *     "allocate CPU\n"                 allocates the memory of that CPU's buffer
 *     "state PLACE\n" and bytes        writes a struct relay_state_value to that place of .state
 *     "objects\n" and lines            appends them to .objects (trace/loaded.h)
 *
 * A process that may not write so many bytes to a file (RLIMIT_FSIZE) sends a request by setting the extended attribute
 * user.relayfs.join, whose value is a token, by which the server finds the session, and the text. The token is read at
 * TOKEN_AT.
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
 * Return a number that identifies this copy of the library in this process. A process may have a second copy, linked
 * into a shared library, or may have had one before execve(2), whose end the server may not have noticed yet. Each copy
 * numbers events on its own, so the server gives each its own directory.
 */
static uint64_t image(void)
{
	static uint64_t number;
	/* The address differs between copies in one program, the time between programs before and after execve(2). */
	uint64_t none = 0, made = (relay_clock_ns(CLOCK_MONOTONIC) + (uintptr_t)&number) | 1;
	/* Relaxed: no other memory depends on the number. Of several threads one stores it, and all return it. */
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
