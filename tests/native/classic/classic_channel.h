/* SPDX-License-Identifier: MIT */
/*
 * Channels of <relayfs/classic.h> in a store that nobody serves, and callbacks that note what they are told.
 *
 *     int id = open_channel(64, 2, RELAY_DELIVERY_BULK, &noting, 8, 4, 0);
 *     write_n(id, 'a', 40);
 *     CHECK_CALLS("s");          buffer_start, in relay_open()
 *     CHECK_CALLS("");           nothing since
 */
#ifndef CLASSIC_CHANNEL_H
#define CLASSIC_CHANNEL_H

#include "check.h"

#include <pthread.h>
#include <relayfs/classic.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, MAX_RECORD = 1 << 16 };
enum { BULK = RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK, PACKET = RELAY_USAGE_GLOBAL | RELAY_DELIVERY_PACKET };

/* One call of a callback; what it has no parameter for is 0. */
struct call {
	char kind; /* 's' buffer_start, 'e' buffer_end, 'd' deliver, 'f' buffers_full */
	int id;
	char *at, *end;
	uint32_t number, length;
	struct timeval time;
	uint64_t tsc;
	int using_tsc;
	pid_t pid;
};

static struct call calls[MAX_EVENTS];
static unsigned n_calls, n_told;

/* What the callbacks do: the headers and footers that they write, and what they return besides. */
static struct {
	const char *header, *first_header, *footer;
	int full;
	void (*in)(const struct call *call);
} answers;

static inline int note(struct call call, const char *text)
{
	call.pid = getpid();
	CHECK(n_calls < MAX_EVENTS);
	calls[n_calls++] = call;
	if (answers.in)
		answers.in(&call);
	if (!text)
		return 0;
	memcpy(call.at, text, strlen(text));
	return (int)strlen(text);
}

static inline int note_start(int id, char *at, uint32_t number, struct timeval time, uint64_t tsc, int using_tsc)
{
	return note(
	    (struct call){
		.kind = 's', .id = id, .at = at, .number = number, .time = time, .tsc = tsc, .using_tsc = using_tsc},
	    number == 0 && answers.first_header ? answers.first_header : answers.header);
}

static inline int note_end(int id, char *at, char *end, struct timeval time, uint64_t tsc, int using_tsc)
{
	return note(
	    (struct call){
		.kind = 'e', .id = id, .at = at, .end = end, .time = time, .tsc = tsc, .using_tsc = using_tsc},
	    answers.footer);
}

static inline void note_deliver(int id, char *from, uint32_t length)
{
	note((struct call){.kind = 'd', .id = id, .at = from, .length = length}, NULL);
}

static inline int note_full(int id)
{
	note((struct call){.kind = 'f', .id = id}, NULL);
	return answers.full;
}

static struct rchan_callbacks noting = {note_start, note_end, note_deliver, note_full};

/* The last call of this kind. */
static inline const struct call *last(char kind)
{
	for (unsigned i = n_calls; i-- > 0;)
		if (calls[i].kind == kind)
			return &calls[i];
	fprintf(stderr, "no call of %c\n", kind);
	exit(1);
}

/* The calls since the last CHECK_CALLS(). */
static inline const char *new_calls(void)
{
	static char text[MAX_EVENTS + 1];
	unsigned n = 0;

	while (n_told < n_calls)
		text[n++] = calls[n_told++].kind;
	text[n] = 0;
	return text;
}

#define CHECK_CALLS(expected)                                                                                        \
	do {                                                                                                         \
		const char *got_ = new_calls();                                                                      \
		if (strcmp(got_, expected) != 0) {                                                                   \
			fprintf(stderr, "%s:%d: %s: called were \"%s\", not \"%s\"\n", __FILE__, __LINE__, __func__, \
			        got_, expected);                                                                     \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

/* Nothing is mounted: channels are made in the store itself. */
static inline void use_store(void)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/mnt", scratch);
	CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
	setenv("RELAYFS", path, 1);
	snprintf(path, sizeof(path), "%s/store", scratch);
	setenv("RELAYFS_STORE", path, 1);
}

static inline uint32_t scheme_flag(void)
{
	return scheme == RELAY_LOCKING ? RELAY_SCHEME_LOCKING : RELAY_SCHEME_LOCKLESS;
}

/* An id that is closed where its block ends. */
#define AUTO_ID __attribute__((cleanup(close_id))) int

static inline void close_id(const int *id)
{
	CHECK_EQ(relay_close(*id), 0);
}

static inline int open_path(const char *path, uint32_t size, uint32_t n, uint32_t flags,
                            const struct rchan_callbacks *callbacks)
{
	use_store();
	return relay_open(path, size, n, flags, callbacks, 0, 0, 0);
}

/* A channel /log/1 of the scheme that is tested, with two sub-buffers: what both schemes can have. */
static inline int open_channel(uint32_t size, uint32_t flags, const struct rchan_callbacks *callbacks,
                               uint32_t start_reserve, uint32_t end_reserve, uint32_t channel_start_reserve)
{
	use_store();
	int id = relay_open("/log/1", size, 2, scheme_flag() | flags, callbacks, start_reserve, end_reserve,
	                    channel_start_reserve);

	CHECK(id >= 0);
	return id;
}

/* 64 bytes, nothing reserved, delivery in bulk. */
static inline int open_plain(void)
{
	return open_channel(64, BULK, &noting, 0, 0, 0);
}

static inline int write_n(int id, char letter, size_t n)
{
	static char data[MAX_RECORD];

	CHECK(n <= sizeof(data));
	memset(data, letter, n);
	return relay_write(id, data, n, -1);
}

static inline struct rchan_info info_of(int id)
{
	struct rchan_info info;

	CHECK_EQ(relay_info(id, &info), 0);
	return info;
}

/* What the store has of /log/1: the side of readers, and of other programs. */
static inline struct rchan_buf *memory_of(const char *path)
{
	char file[4096];

	snprintf(file, sizeof(file), "%s%s/mem0", getenv("RELAYFS_STORE"), path);
	return relay_buf_open(file);
}

static inline struct rchan_buf *open_memory(void)
{
	struct rchan_buf *buf = memory_of("/log/1");

	CHECK(buf != NULL);
	return buf;
}

/* Everything that is unread, as read(2) gives it. */
static inline const char *read_all(void)
{
	AUTOPTR(rchan_buf) buf = open_memory();

	return drain(buf);
}

#define CHECK_READS(expected) CHECK_TEXT(read_all(), expected)

/* Run n threads, with their numbers from 0, to their ends. */
static inline void run_threads(uintptr_t n, void *(*run)(void *))
{
	pthread_t threads[n];

	for (uintptr_t i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, run, (void *)i), 0);
	for (uintptr_t i = 0; i < n; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

/* n times `letter`, as a string; valid until the fourth call from now. */
static inline const char *text_of(char letter, size_t n)
{
	static char texts[4][256];
	static unsigned turn;
	char *text = texts[turn++ % 4];

	CHECK(n < sizeof(texts[0]));
	memset(text, letter, n);
	text[n] = 0;
	return text;
}

#endif
