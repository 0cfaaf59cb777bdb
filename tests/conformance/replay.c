/* SPDX-License-Identifier: MIT */
/*
 * One buffer, driven by operations on the standard input, one a line; each is answered by one line.
 *
 *     open DIRECTORY SUBBUF_SIZE N_SUBBUFS no-overwrite|overwrite rseq|lockless
 *     write HEXADECIMAL   read MAX_BYTES
 *     flush   consumed N   reset
 *
 *     RESULT DATA produced consumed lost_full lost_too_large padding finished overwritten_records overwritten_bytes bytes
 *
 * RESULT is what the library returned, DATA what was read, in hexadecimal, or "-".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1 << 18, MAX_BYTES = 1 << 20, MAX_SPANS = 64 };

static struct rchan_buf *buf;
static unsigned home_cpu;
static unsigned char data[MAX_BYTES];
static size_t n_data; /* how much of it was read */

static void fail(const char *what, int err)
{
	fprintf(stderr, "replay: %s: %s\n", what, strerror(err));
	exit(1);
}

static void pin(void)
{
	cpu_set_t set;
	home_cpu = (unsigned)sched_getcpu();
	CPU_ZERO(&set);
	CPU_SET(home_cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity", errno);
}

static int open_buf(const char *arguments)
{
	char directory[4000], mode[20], scheme[20], path[4096];
	struct relay_spec spec = {.size = sizeof(spec), .n_buffers = relay_n_possible_cpus(), .file_mode = 0600};
	unsigned long long subbuf_size, n_subbufs;
	if (sscanf(arguments, "%3999s %llu %llu %19s %19s", directory, &subbuf_size, &n_subbufs, mode, scheme) != 5)
		return -EINVAL;
	spec.subbuf_size = subbuf_size;
	spec.n_subbufs = n_subbufs;
	spec.mode = strcmp(mode, "overwrite") ? RELAY_NO_OVERWRITE : RELAY_OVERWRITE;
	spec.scheme = strcmp(scheme, "rseq") ? RELAY_SCHEME_LOCKLESS : RELAY_SCHEME_RSEQ;
	spec.uid = spec.gid = (uint32_t)-1;
	relay_buf_release(buf);
	int err = relay_store_create(directory, &spec);
	if (err)
		return err;
	snprintf(path, sizeof(path), "%s/mem%u", directory, home_cpu);
	buf = relay_buf_open(path);
	return buf ? 0 : -errno;
}

static int nibble(char digit)
{
	return digit <= '9' ? digit - '0' : digit - 'a' + 10;
}

static int write_record(const char *hexadecimal)
{
	size_t length = strspn(hexadecimal, "0123456789abcdef") / 2;
	for (size_t i = 0; i < length; i++)
		data[i] = (unsigned char)(nibble(hexadecimal[2 * i]) << 4 | nibble(hexadecimal[2 * i + 1]));
	return relay_buf_write(buf, data, length);
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
	if (!strcmp(word, "open"))
		return open_buf(arguments);
	if (!strcmp(word, "write"))
		return write_record(arguments);
	if (!strcmp(word, "read"))
		return read_some(strtoull(arguments, NULL, 10));
	if (!strcmp(word, "flush"))
		return relay_buf_flush(buf);
	if (!strcmp(word, "consumed"))
		return relay_buf_subbufs_consumed(buf, strtoull(arguments, NULL, 10));
	if (!strcmp(word, "reset"))
		return relay_buf_reset(buf);
	return -EINVAL;
}

static void answer(int result)
{
	struct relay_facts facts;
	int err = relay_buf_facts(buf, &facts), state = relay_buf_state(buf);
	if (err || state & RELAY_IS_DAMAGED)
		fail("relay_buf_facts", err ? -err : EBADMSG);
	printf("%d ", result);
	if (!n_data)
		putchar('-');
	for (size_t i = 0; i < n_data; i++)
		printf("%02x", data[i]);
	unsigned long long numbers[] = {facts.produced,
	                                facts.consumed,
	                                facts.lost_full_records,
	                                facts.lost_too_large_records,
	                                facts.padding,
	                                (state & RELAY_HAS_FINISHED) != 0,
	                                facts.lost_overwritten_records,
	                                facts.lost_overwritten_bytes,
	                                facts.bytes};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		printf(" %llu", numbers[i]);
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
		int result = act(line, arguments);
		if (!buf)
			fail("open", -result);
		answer(result);
	}
	relay_buf_release(buf);
	return 0;
}
