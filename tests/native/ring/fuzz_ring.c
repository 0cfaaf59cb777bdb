/* SPDX-License-Identifier: MIT */
/*
 * For libFuzzer: what consumers, producers and file servers make of a ring whose memory somebody else has written to.
 *
 * Each input is a list of stores into the memory of a ring that holds a few records. It is compiled together with the
 * library's own sources, so that every branch in them guides the fuzzer.
 */
#define _GNU_SOURCE
#include "ring/ring.h"

#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RING_SIZE = 4096, MOST_RECORDS = RING_SIZE / RELAY_RING_HEADER_BYTES, STORE_BYTES = 12 };

static struct kind {
	uint32_t mode;
	int fd; /* of the memory */
	unsigned char *memory, *as_made;
	size_t bytes;
} kinds[] = {{.mode = RELAY_NO_OVERWRITE}, {.mode = RELAY_OVERWRITE}};

/* Records of many lengths, past the end and round; one discarded, one open. */
static void fill(struct relay_ring *ring)
{
	static const unsigned char bytes[600] = "record";
	for (unsigned i = 0; i < 60; i++) {
		uint64_t missed;
		unsigned char out[sizeof(bytes)];
		relay_ring_output(ring, bytes, i * 37 % sizeof(bytes), 0);
		if (i < 50)
			relay_ring_read(ring, out, sizeof(out), &missed);
	}
	relay_ring_discard(relay_ring_reserve(ring, 24, 0), 0);
	relay_ring_reserve(ring, 8, 0);
}

static void make(struct kind *kind)
{
	char dir[] = "/dev/shm/relayfs-fuzz-XXXXXX", channel[64], file[80];
	struct relay_ring_spec spec = {.size = sizeof(spec),
	                               .ring_size = RING_SIZE,
	                               .n_rings = 1,
	                               .mode = kind->mode,
	                               .scheme = RELAY_LOCKLESS,
	                               .buffers = RELAY_GLOBAL,
	                               .file_mode = 0600,
	                               .uid = geteuid(),
	                               .gid = getegid()};
	must(mkdtemp(dir) != NULL, "no directory");
	snprintf(channel, sizeof(channel), "%s/ring", dir);
	snprintf(file, sizeof(file), "%s/mem0", channel);
	must(relay_ring_create(channel, &spec) == 0, "no ring");
	struct relay_ring *ring = relay_ring_open(file);
	must(ring != NULL, "no ring to open");
	fill(ring);
	kind->fd = dup(relay_ring_fd(ring));
	relay_ring_close(ring);
	relay_store_remove(channel, 1);
	rmdir(dir);
	kind->bytes = (size_t)lseek(kind->fd, 0, SEEK_END);
	kind->memory = mmap(NULL, kind->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kind->fd, 0);
	kind->as_made = malloc(kind->bytes);
	must(kind->memory != MAP_FAILED && kind->as_made, "no memory");
	memcpy(kind->as_made, kind->memory, kind->bytes);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		make(&kinds[i]);
	return 0;
}

/* One store: 4 bytes where, 8 bytes what; the top bits of where say how. */
static void spoil(struct kind *kind, const unsigned char *input)
{
	uint32_t where;
	uint64_t what, there;
	memcpy(&where, input, sizeof(where));
	memcpy(&what, input + sizeof(where), sizeof(what));
	unsigned char *at = kind->memory + (where & 0x0fffffff) % (kind->bytes / 8) * 8;
	memcpy(&there, at, sizeof(there));
	switch (where >> 28 & 3) {
	case 0: /* a little off is what checks miss */
		what = there + (uint64_t)(int8_t)what;
		break;
	case 1:
		what ^= there;
		break;
	case 2: /* a header */
		what = (there & ~0xffffffffull) | (uint32_t)what;
		break;
	}
	memcpy(at, &what, sizeof(what));
}

static uint64_t touch(const struct relay_ring *ring, const void *data, size_t length)
{
	const unsigned char *at = data;
	uint64_t sum = 0;
	must(at >= ring->data && length <= 2 * RING_SIZE && at + length <= ring->data + 2 * RING_SIZE,
	     "a record outside of the data");
	for (size_t i = 0; i < length; i++)
		sum += at[i];
	return sum;
}

static void consume(struct relay_ring *ring)
{
	const void *data;
	size_t length;
	uint64_t missed;
	unsigned char out[RING_SIZE];
	unsigned n = 0;
	int result;
	while ((result = relay_ring_next(ring, &data, &length)) == 1) {
		touch(ring, data, length);
		must(++n <= MOST_RECORDS, "more records than fit");
	}
	must(result <= 0, "next() says something new");
	if (n % 2)
		relay_ring_abort(ring);
	else
		relay_ring_release(ring);
	for (n = 0; relay_ring_read(ring, out, sizeof(out), &missed) >= 0; n++)
		must(n <= MOST_RECORDS, "more records than fit to read");
	for (n = 0; relay_ring_read_framed(ring, out, sizeof(out), 1) > 0; n++)
		must(n <= MOST_RECORDS, "more records than fit for a file server");
	relay_ring_damaged_at(ring);
}

/* As a file server passes long records on. */
static void consume_in_parts(struct relay_ring *ring)
{
	unsigned char out[RING_SIZE];
	for (unsigned n = 0; n <= MOST_RECORDS; n++) {
		struct relay_ring_parts parts;
		ssize_t most = relay_ring_parts_begin(ring, &parts), got;
		if (most < 0)
			return;
		must((size_t)most <= sizeof(out), "a record that is longer than the ring");
		while ((got = relay_ring_parts_copy(ring, &parts, out, 100)) > 0)
			must(got <= 100 && parts.copied <= (uint64_t)most, "more bytes than the record has");
		if (got < 0 || (got = relay_ring_parts_consume(ring, &parts, out)) < 0)
			return;
		must(got <= most, "more bytes than were announced");
	}
	must(0, "more records than fit in parts");
}

static void produce(struct relay_ring *ring)
{
	for (int i = 0; i < 3; i++) {
		relay_ring_output(ring, "0123456789", 10, RELAY_RING_FORCE_WAKEUP);
		void *record = relay_ring_reserve(ring, 40, 0);
		if (record) {
			touch(ring, record, 40);
			memset(record, 'r', 40);
			relay_ring_commit(record, 0);
		}
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *input, size_t size)
{
	struct relay_ring_stats stats;
	if (size < 1 + STORE_BYTES)
		return 0;
	struct kind *kind = &kinds[input[0] & 1];
	bool opened_before = input[0] & 2;
	memcpy(kind->memory, kind->as_made, kind->bytes);
	struct relay_ring *ring = opened_before ? relay_ring_fdopen(kind->fd) : NULL;
	for (size_t at = 1; at + STORE_BYTES <= size; at += STORE_BYTES)
		spoil(kind, input + at);
	if (!ring)
		ring = relay_ring_fdopen(kind->fd);
	if (!ring)
		return 0;
	relay_ring_state(ring);
	relay_ring_stats(ring, &stats);
	if (input[0] & 4)
		produce(ring);
	if (input[0] & 8)
		consume_in_parts(ring);
	consume(ring);
	relay_ring_resolve(ring, 0);
	for (uint64_t what = 0; what < 5; what++)
		relay_ring_query(ring, what);
	produce(ring);
	consume(ring);
	relay_ring_close(ring);
	return 0;
}
