/* SPDX-License-Identifier: MIT */
/*
 * One buffer, driven by operations on the standard input, one a line; each is answered by one line.
 *
 *     make DIRECTORY SUBBUF_SIZE N_SUBBUFS no-overwrite|overwrite|callback rseq|lockless commit|visible
 *     open MEMORY_FILE default|no-overwrite|overwrite HEADER commit|visible
 *     write HEXADECIMAL   reserve HEXADECIMAL   commit NUMBER   discard NUMBER
 *     read MAX_BYTES   flush   consumed N   reset   close
 *
 *     RESULT DATA produced consumed lost_full lost_too_large padding finished overwritten_records overwritten_bytes
 *     discarded_records discarded_bytes
 *
 * RESULT is what the library returned, DATA what was read, in hexadecimal, or "-". `open` says how subbuf_start decides;
 * "default" is none. HEADER bytes are reserved at the head of each sub-buffer and, if they are enough, get its padding.
 * NUMBER counts the reservations that wait, the oldest being 0; what one is to hold is stored when it is committed, or
 * at once where readers see it at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <relayfs/layout.h>
#include <relayfs/relay.h>
#include <relayfs/store.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1 << 18, MAX_BYTES = 1 << 20, MAX_SPANS = 1024, MAX_RESERVED = 256 };

struct reservation {
	void *at, *data;
	size_t length;
};

static struct rchan_buf *buf;
static unsigned home_cpu;
static unsigned char data[MAX_BYTES];
static size_t n_data; /* how much of it was read */
static struct reservation reserved[MAX_RESERVED];
static size_t n_reserved;
static bool overwrites, visible;
static size_t header;

static void fail(const char *what, int err)
{
	fprintf(stderr, "replay: %s: %s\n", what, strerror(err));
	exit(1);
}

static void pin(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set))
		fail("sched_getaffinity", errno);
	while (!CPU_ISSET(home_cpu, &set))
		home_cpu++;
	CPU_ZERO(&set);
	CPU_SET(home_cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity", errno);
}

static int subbuf_start(struct rchan_buf *begun, void *subbuf, void *prev_subbuf, unsigned prev_padding)
{
	(void)subbuf;
	if (prev_subbuf && header >= sizeof(prev_padding))
		memcpy(prev_subbuf, &prev_padding, sizeof(prev_padding));
	if (!overwrites && relay_buf_full(begun))
		return 0;
	subbuf_start_reserve(begun, header);
	return 1;
}

static int make_channel(const char *arguments)
{
	char directory[4000], mode[20], scheme[20], reserve[20];
	struct relay_spec spec = {.size = sizeof(spec), .n_buffers = relay_n_possible_cpus(), .file_mode = 0600};
	unsigned long long subbuf_size, n_subbufs;
	if (sscanf(arguments, "%3999s %llu %llu %19s %19s %19s", directory, &subbuf_size, &n_subbufs, mode, scheme,
	           reserve) != 6)
		return -EINVAL;
	spec.subbuf_size = subbuf_size;
	spec.n_subbufs = n_subbufs;
	spec.mode = !strcmp(mode, "callback")    ? RELAY_CALLBACK
	            : !strcmp(mode, "overwrite") ? RELAY_OVERWRITE
	                                         : RELAY_NO_OVERWRITE;
	spec.scheme = strcmp(scheme, "rseq") == 0      ? RELAY_RSEQ
	              : strcmp(scheme, "locking") == 0 ? RELAY_LOCKING
	                                               : RELAY_LOCKLESS;
	spec.reserve = strcmp(reserve, "visible") ? RELAY_RESERVE_COMMIT : RELAY_RESERVE_VISIBLE;
	spec.uid = spec.gid = (uint32_t)-1;
	return relay_store_create(directory, &spec);
}

static int close_buf(void)
{
	while (n_reserved)
		free(reserved[--n_reserved].data);
	relay_buf_release(buf);
	buf = NULL;
	return 0;
}

static int open_buf(const char *arguments)
{
	static const struct rchan_callbacks callbacks = {.subbuf_start = subbuf_start};
	char file[4000], mode[20], reserve[20];
	if (sscanf(arguments, "%3999s %19s %zu %19s", file, mode, &header, reserve) != 4)
		return -EINVAL;
	overwrites = !strcmp(mode, "overwrite");
	visible = !strcmp(reserve, "visible");
	close_buf();
	buf = relay_buf_open(file);
	if (!buf)
		return -errno;
	if (strcmp(mode, "default"))
		relay_buf_set_callbacks(buf, &callbacks);
	return 0;
}

static int nibble(char digit)
{
	return digit <= '9' ? digit - '0' : digit - 'a' + 10;
}

static size_t parse(const char *hexadecimal)
{
	size_t length = strspn(hexadecimal, "0123456789abcdef") / 2;
	for (size_t i = 0; i < length; i++)
		data[i] = (unsigned char)(nibble(hexadecimal[2 * i]) << 4 | nibble(hexadecimal[2 * i + 1]));
	return length;
}

static int reserve_record(const char *hexadecimal)
{
	struct reservation *new = &reserved[n_reserved];
	if (n_reserved == MAX_RESERVED)
		fail("reserve", ENOBUFS);
	new->length = parse(hexadecimal);
	int err = relay_buf_reserve(buf, new->length, &new->at);
	if (err || new->length == 0)
		return err;
	new->data = malloc(new->length);
	if (!new->data)
		fail("malloc", errno);
	memcpy(new->data, data, new->length);
	if (visible) /* readers do not wait for the commit */
		memcpy(new->at, data, new->length);
	n_reserved++;
	return 0;
}

static int finish_record(const char *number, bool commit)
{
	size_t i = strtoull(number, NULL, 10);
	if (i >= n_reserved)
		return -EINVAL;
	struct reservation done = reserved[i];
	memmove(&reserved[i], &reserved[i + 1], (n_reserved-- - i - 1) * sizeof(done));
	if (commit && !visible)
		memcpy(done.at, done.data, done.length);
	(commit ? relay_buf_commit : relay_buf_discard)(buf, done.at);
	free(done.data);
	return 0;
}

static int read_some(size_t max_bytes)
{
	struct relay_span spans[MAX_SPANS];
	size_t total = 0;
	int n = relay_consume_begin(buf, max_bytes < MAX_BYTES ? max_bytes : MAX_BYTES, spans, MAX_SPANS, &total);
	for (int i = 0; i < n; i++) {
		memcpy(data + n_data, spans[i].data, spans[i].length);
		n_data += spans[i].length;
	}
	if (n > 0 && relay_consume_valid(buf))
		fail("relay_consume_valid", EOVERFLOW);
	if (n > 0 && total != n_data)
		fail("relay_consume_begin: its total is not the sum of its pieces", ERANGE);
	relay_consume_end(buf);
	return n < 0 ? n : 0;
}

static int act(const char *word, const char *arguments)
{
	if (!strcmp(word, "make"))
		return make_channel(arguments);
	if (!strcmp(word, "open"))
		return open_buf(arguments);
	if (!strcmp(word, "write"))
		return relay_buf_write(buf, data, parse(arguments));
	if (!strcmp(word, "reserve"))
		return reserve_record(arguments);
	if (!strcmp(word, "commit") || !strcmp(word, "discard"))
		return finish_record(arguments, *word == 'c');
	if (!strcmp(word, "read"))
		return read_some(strtoull(arguments, NULL, 10));
	if (!strcmp(word, "flush"))
		return relay_buf_flush(buf);
	if (!strcmp(word, "consumed"))
		return relay_buf_subbufs_consumed(buf, strtoull(arguments, NULL, 10));
	if (!strcmp(word, "reset"))
		return relay_buf_reset(buf);
	if (!strcmp(word, "close"))
		return close_buf();
	return -EINVAL;
}

static void print_counts(void)
{
	struct relay_stats stats;
	int err = relay_buf_stats(buf, &stats), state = relay_buf_state(buf);
	if (err || state & RELAY_IS_DAMAGED)
		fail("relay_buf_stats", err ? -err : EBADMSG);
	unsigned long long numbers[] = {stats.produced,
	                                stats.consumed,
	                                stats.lost_full_records,
	                                stats.lost_too_large_records,
	                                stats.padding,
	                                (state & RELAY_HAS_FINISHED) != 0,
	                                stats.lost_overwritten_records,
	                                stats.lost_overwritten_bytes,
	                                stats.discarded_records,
	                                stats.discarded_bytes};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		printf(" %llu", numbers[i]);
}

static void answer(int result)
{
	printf("%d ", result);
	if (!n_data)
		putchar('-');
	for (size_t i = 0; i < n_data; i++)
		printf("%02x", data[i]);
	if (buf)
		print_counts();
	putchar('\n');
	fflush(stdout);
}

int main(void)
{
	static char line[LINE_BYTES];
	pin();
	while (fgets(line, sizeof(line), stdin)) {
		size_t word = strcspn(line, " \n");
		const char *arguments = line[word] ? line + word + 1 : "";
		line[word] = 0;
		n_data = 0;
		answer(act(line, arguments));
	}
	return close_buf();
}
