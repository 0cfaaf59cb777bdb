/* SPDX-License-Identifier: MIT */
/*
 * The options of the control file's `create`, in one table for each type of channel, and those of `trace create`.
 *
 * A new option needs a field in RELAY_OPTION_FIELDS (layout.h) or RELAY_RING_OPTION_FIELDS (ring_layout.h); a row in a
 * table of this file; the code that uses it; and a paragraph in relayfs(5).
 */
#define _GNU_SOURCE
#include "store/options.h"

#include "base/clock.h"
#include "base/faults.h"
#include "store/framing.h"

#include <errno.h>
#include <inttypes.h>
#include <relayfs/trace_store.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	MAX_VALUE = 32,           /* bytes of a value, with the null byte */
	LEAST_TRACE_SUBBUF = 4096 /* bytes; a smaller sub-buffer would hold little besides the packet's header */
};
#define TRACE_MEMORY_MAX (1ull << 62) /* bytes */

enum holder { SPEC, GEOMETRY, STATS, N_HOLDERS };

/* An option and the field for its value: `width` bytes, at[HOLDER] bytes from the beginning of the holder's struct.
 * width 0: there is no field; at[GEOMETRY] 0: there is one in the spec only. */
struct row {
	struct relay_option option;
	size_t at[N_HOLDERS], width;
};

struct table {
	const struct row *rows;
	unsigned n;
};

static const char *const types[] = {"relay", "ring", NULL};
static const char *const modes[] = {"no-overwrite", "overwrite", "callback", NULL};
static const char *const ring_modes[] = {"no-overwrite", "overwrite", NULL};
static const char *const buffers[] = {"percpu", "global", "single", NULL};
static const char *const schemes[] = {"any", "rseq", "lockless", "locking", NULL};
static const char *const ring_schemes[] = {"any", "rseq", "lockless", NULL};
static const char *const deliveries[] = {"bulk", "packet", NULL};
static const char *const reads[] = {"nowait", "wait", NULL};
static const char *const reserves[] = {"commit", "visible", NULL};
#define CLOCK_WORD(number, word, ...) [number] = (word),
static const char *const timestamps[] = {"none", RELAY_CLOCKS(CLOCK_WORD) NULL};
#define FRAMING_WORD(number, word, ...) [number] = (word),
static const char *const framings[] = {RELAY_FRAMINGS(FRAMING_WORD) NULL};
static const char *const trace_buffers[] = {"perprocess", "peruser", "shared", NULL};
#define TRACE_CLOCK_WORD(number, word, ...) [(number)-RELAY_MONO] = (word),
static const char *const clocks[] = {RELAY_CLOCKS(TRACE_CLOCK_WORD) NULL};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define WIDTH(type, field) sizeof(((struct type *)0)->field)

#define KEY(name) .option.key = (name), .option.file = (name)
#define HIDDEN_KEY(name) .option.key = (name)
#define WORDS(list) .option.form = RELAY_OPTION_WORD, .option.words = (list), .option.most = N_OF(list) - 2
#define NUMBER(low, high, text) \
	.option.form = RELAY_OPTION_NUMBER, .option.least = (low), .option.most = (high), .option.allowed = (text)
#define BYTES(low, high, text) \
	.option.form = RELAY_OPTION_BYTES, .option.least = (low), .option.most = (high), .option.allowed = (text)
#define TYPE(number)                                                                                            \
	{                                                                                                       \
		KEY("type"), .option.form = RELAY_OPTION_WORD, .option.words = types, .option.least = (number), \
			     .option.most = (number)                                                            \
	}
#define DEFAULT(number) .option.initial = (number)

/* The field of a relay channel, which has the same name in the spec, the geometry and the statistics. */
#define BUFFER(name)                                                                     \
	.option.field = #name,                                                           \
	.at = {offsetof(struct relay_spec, name), offsetof(struct relay_geometry, name), \
	       offsetof(struct relay_stats, name)},                                      \
	.width = WIDTH(relay_spec, name)
/* The field of a ring, which may have another name in the geometry. */
#define RING(name, of_geometry)                                                                           \
	.option.field = #name,                                                                            \
	.at = {offsetof(struct relay_ring_spec, name), offsetof(struct relay_ring_geometry, of_geometry), \
	       offsetof(struct relay_ring_stats, name)},                                                  \
	.width = WIDTH(relay_ring_spec, name)
/* The permission, user and group of a channel's files, which only the spec has. The default user and group are those of
 * the process that makes the channel. */
#define IN_SPEC(type, name) .option.field = #name, .at = {offsetof(struct type, name)}, .width = WIDTH(type, name)
#define OWNER(spec)                                                                                            \
	{HIDDEN_KEY("perm"),          .option.form = RELAY_OPTION_PERM, .option.most = RELAY_PERM_BUFFER_MOST, \
	 .option.allowed = perm_text, IN_SPEC(spec, file_mode),         DEFAULT(RELAY_PERM_BUFFER)},           \
	    {HIDDEN_KEY("uid"), NUMBER(0, UINT32_MAX - 1, "a user's number"), IN_SPEC(spec, uid)},             \
	{                                                                                                      \
		HIDDEN_KEY("gid"), NUMBER(0, UINT32_MAX - 1, "a group's number"), IN_SPEC(spec, gid)           \
	}

/* The field of struct relay_trace. */
#define TRACE(name) .option.field = #name, .at = {offsetof(struct relay_trace, name)}, .width = WIDTH(relay_trace, name)

#define UNITS "with an optional K, M or G"
static const char reserve_text[] = "bytes, " UNITS;
static const char perm_text[] = "three octal digits without execute permission, such as 0640";

static const struct row relay_rows[] = {
    TYPE(RELAY_TYPE_RELAY),
    {KEY("subbuf_size"), BYTES(1, UINT32_MAX, "bytes, 1 to 4294967295, " UNITS), BUFFER(subbuf_size),
     DEFAULT(256 << 10)},
    {KEY("n_subbufs"), NUMBER(1, UINT32_MAX, "a number, 1 to 4294967295"), BUFFER(n_subbufs), DEFAULT(8)},
    {KEY("mode"), WORDS(modes), BUFFER(mode)},
    {KEY("buffers"), WORDS(buffers), BUFFER(buffers)},
    {KEY("scheme"), WORDS(schemes), BUFFER(scheme)},
    /* poll(2) reports each record that read(2) would return. relay_open() passes delivery=bulk, as the kernel does. */
    {KEY("delivery"), WORDS(deliveries), BUFFER(delivery), DEFAULT(RELAY_PACKET)},
    {KEY("read"), WORDS(reads), BUFFER(read)},
    {KEY("reserve"), WORDS(reserves), BUFFER(reserve)},
    {KEY("start_reserve"), BYTES(0, UINT32_MAX, reserve_text), BUFFER(start_reserve)},
    {KEY("end_reserve"), BYTES(0, UINT32_MAX, reserve_text), BUFFER(end_reserve)},
    {KEY("channel_start_reserve"), BYTES(0, UINT32_MAX, reserve_text), BUFFER(channel_start_reserve)},
    {KEY("timestamp"), WORDS(timestamps), BUFFER(timestamp)},
    {KEY("times"), WORDS(timestamps), BUFFER(times)},
    {KEY("flush_interval"), NUMBER(0, INT32_MAX, "milliseconds; 0: never"), BUFFER(flush_interval_ms)},
    OWNER(relay_spec),
};

static const struct row ring_rows[] = {
    TYPE(RELAY_TYPE_RING),
    {HIDDEN_KEY("size"), .option.file = "ring_size", .option.form = RELAY_OPTION_POWER_OF_2,
     .option.least = RELAY_PAGE_BYTES, .option.most = RELAY_RING_SIZE_MAX,
     .option.allowed = "bytes, " UNITS ": a power of two, 4096 or more", RING(ring_size, size), DEFAULT(1 << 20)},
    {KEY("mode"), WORDS(ring_modes), RING(mode, mode)},
    {KEY("buffers"), WORDS(buffers), RING(buffers, buffers), DEFAULT(RELAY_GLOBAL)},
    {KEY("scheme"), WORDS(ring_schemes), RING(scheme, scheme)},
    {KEY("read"), WORDS(reads), RING(read, read)},
    {KEY("framing"), WORDS(framings), RING(framing, framing)},
    {KEY("times"), WORDS(timestamps), RING(times, times)},
    OWNER(relay_ring_spec),
};

/* clock: the words are numbered from 0, but the field's values from RELAY_MONO, 1; the file server adds the
 * difference. */
static const struct row trace_rows[] = {
    {HIDDEN_KEY("subbuf_size"), BYTES(LEAST_TRACE_SUBBUF, UINT32_MAX, "bytes, 4096 to 4294967295, " UNITS),
     TRACE(subbuf_size), DEFAULT(64 << 10)},
    {HIDDEN_KEY("n_subbufs"), NUMBER(1, UINT32_MAX, "a number, 1 to 4294967295"), TRACE(n_subbufs), DEFAULT(8)},
    {HIDDEN_KEY("memory"), BYTES(1, TRACE_MEMORY_MAX, "bytes, 1 to 4611686018427387904, " UNITS), TRACE(memory)},
    {HIDDEN_KEY("snapshot_memory"), BYTES(1, TRACE_MEMORY_MAX, "bytes, 1 to 4611686018427387904, " UNITS),
     TRACE(snapshot_memory)},
    {HIDDEN_KEY("flush_interval"), NUMBER(0, INT32_MAX, "milliseconds; 0: never"), TRACE(flush_interval_ms),
     DEFAULT(1000)},
    {HIDDEN_KEY("mode"), WORDS(ring_modes), TRACE(mode)},
    {HIDDEN_KEY("buffers"), WORDS(trace_buffers), TRACE(buffers)},
    {HIDDEN_KEY("clock"), WORDS(clocks), TRACE(clock)},
};

static const struct table tables[] = {
    {relay_rows, N_OF(relay_rows)}, {ring_rows, N_OF(ring_rows)}, {trace_rows, N_OF(trace_rows)}};

const struct relay_option *relay_option_at(uint32_t type, unsigned i)
{
	return type < N_OF(tables) && i < tables[type].n ? &tables[type].rows[i].option : NULL;
}

const struct relay_option *relay_option_find(uint32_t type, const char *key)
{
	const struct relay_option *option;
	for (unsigned i = 0; (option = relay_option_at(type, i)) && strcmp(option->key, key) != 0; i++)
		;
	return option;
}

/* --- one value --- */

static int parse_word(const struct relay_option *option, const char *value, uint64_t *number)
{
	for (*number = 0; option->words[*number]; ++*number)
		if (strcmp(value, option->words[*number]) == 0)
			return 0;
	return -EINVAL;
}

/* Parse the digits at the beginning of `value`; *end receives the address after them. 0; -EINVAL: none; -ERANGE. */
static int parse_digits(const char *value, int base, char **end, uint64_t *number)
{
	if (*value < '0' || *value > '9')
		return -EINVAL;
	errno = 0;
	*number = strtoull(value, end, base);
	return -errno;
}

static int parse_number(const char *value, int base, uint64_t *number)
{
	char *end;
	int err = parse_digits(value, base, &end, number);
	return err || *end ? -EINVAL : 0;
}

static const char units[] = "kmg";

static int parse_bytes(const char *value, uint64_t *number)
{
	char *end;
	if (parse_digits(value, 10, &end, number))
		return -EINVAL;
	const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
	if (*(end + !!unit) || *number > UINT64_MAX >> shift)
		return -EINVAL;
	*number <<= shift;
	return 0;
}

static int parse(const struct relay_option *option, const char *value, uint64_t *number)
{
	switch (option->form) {
	case RELAY_OPTION_WORD:
		return parse_word(option, value, number);
	case RELAY_OPTION_PERM:
		return parse_number(value, 8, number);
	case RELAY_OPTION_NUMBER:
		return parse_number(value, 10, number);
	default:
		return parse_bytes(value, number);
	}
}

static bool is_allowed(const struct relay_option *option, uint64_t number)
{
	if (option->form == RELAY_OPTION_PERM && number & ~option->most)
		return false;
	if (option->form == RELAY_OPTION_POWER_OF_2 && number & (number - 1))
		return false;
	return number >= option->least && number <= option->most;
}

int relay_option_parse(const struct relay_option *option, const char *value, uint64_t *number)
{
	int err = parse(option, value, number);
	return err || !is_allowed(option, *number) ? -EINVAL : 0;
}

static int format_bytes(uint64_t number, char *text, size_t size)
{
	int unit = -1;
	while (unit + 1 < (int)sizeof(units) - 1 && number && number % 1024 == 0) {
		number /= 1024;
		unit++;
	}
	const char suffix[] = {(char)(unit < 0 ? 0 : units[unit] & ~0x20), 0}; /* a capital letter */
	return snprintf(text, size, "%" PRIu64 "%s", number, suffix);
}

int relay_option_format(const struct relay_option *option, uint64_t number, char *text, size_t size)
{
	switch (option->form) {
	case RELAY_OPTION_WORD:
		return snprintf(text, size, "%s", number <= option->most ? option->words[number] : "?");
	case RELAY_OPTION_PERM:
		return snprintf(text, size, "%04" PRIo64, number);
	case RELAY_OPTION_NUMBER:
		return snprintf(text, size, "%" PRIu64, number);
	default:
		return format_bytes(number, text, size);
	}
}

/* --- the options of a command --- */

static void store_value(const struct row *row, void *spec, uint64_t number)
{
	void *field = (char *)spec + row->at[SPEC];
	if (row->width == sizeof(uint64_t))
		*(uint64_t *)field = number;
	else if (row->width)
		*(uint32_t *)field = (uint32_t)number;
}

/* The spec into which options are parsed. */
struct target {
	const struct table *table;
	void *spec;
	unsigned given; /* a bit for each row whose option was parsed */
};

static int parse_one(const char *word, size_t length, struct target *target)
{
	const char *equals = memchr(word, '=', length);
	size_t key_length = equals ? (size_t)(equals - word) : 0, value_length = length - key_length - 1;
	for (unsigned i = 0; equals && i < target->table->n; i++) {
		const struct row *row = &target->table->rows[i];
		char value[MAX_VALUE] = "";
		uint64_t number;
		if (strlen(row->option.key) != key_length || memcmp(row->option.key, word, key_length) != 0)
			continue;
		if (target->given & 1u << i || value_length >= sizeof(value))
			return -EINVAL;
		target->given |= 1u << i;
		memcpy(value, equals + 1, value_length);
		int err = relay_option_parse(&row->option, value, &number);
		if (!err)
			store_value(row, target->spec, number);
		return err;
	}
	return -EINVAL;
}

/* Return the first word at or after `at`. NULL: there is none. */
static const char *next_word(const char *at, size_t *length)
{
	at += strspn(at, " \t");
	*length = strcspn(at, " \t");
	return *length ? at : NULL;
}

static int parse_all(const char *options, uint32_t type, void *spec)
{
	struct target target = {&tables[type], spec, 0};
	size_t length;
	for (const char *word = options; (word = next_word(word, &length)); word += length) {
		int err = parse_one(word, length, &target);
		if (err)
			return err;
	}
	return 0;
}

static uint32_t n_buffers(uint32_t shape)
{
	return shape == RELAY_PERCPU ? relay_n_possible_cpus() : 1;
}

int relay_options_parse(const char *options, struct relay_spec *spec)
{
	int err = parse_all(options, RELAY_TYPE_RELAY, spec);
	spec->n_buffers = n_buffers(spec->buffers);
	return err;
}

int relay_options_parse_rings(const char *options, struct relay_ring_spec *spec)
{
	int err = parse_all(options, RELAY_TYPE_RING, spec);
	spec->n_rings = n_buffers(spec->buffers);
	return err;
}

bool relay_options_have(const char *options, const char *key)
{
	size_t length;
	for (const char *word = options; word && (word = next_word(word, &length)); word += length)
		if (strncmp(word, key, strlen(key)) == 0)
			return true;
	return false;
}

/* --- specs, geometries, statistics --- */

static void fill_defaults(uint32_t type, void *spec)
{
	const struct table *table = &tables[type];
	for (const struct row *row = table->rows; row < table->rows + table->n; row++)
		store_value(row, spec, row->option.initial);
}

void relay_spec_default(struct relay_spec *spec)
{
	*spec = (struct relay_spec){.size = sizeof(*spec)};
	fill_defaults(RELAY_TYPE_RELAY, spec);
	spec->uid = geteuid();
	spec->gid = getegid();
}

void relay_ring_spec_default(struct relay_ring_spec *spec)
{
	*spec = (struct relay_ring_spec){.size = sizeof(*spec)};
	fill_defaults(RELAY_TYPE_RING, spec);
	spec->uid = geteuid();
	spec->gid = getegid();
}

/* Return the first row whose value is not allowed, and the value; NULL: there is none. */
static const struct row *first_wrong(uint32_t type, enum holder holder, const void *values, uint64_t *number)
{
	const struct table *table = &tables[type];
	for (const struct row *row = table->rows; row < table->rows + table->n; row++) {
		const void *field = (const char *)values + row->at[holder];
		*number = row->width == sizeof(uint64_t) ? *(const uint64_t *)field : *(const uint32_t *)field;
		if (row->at[GEOMETRY] && !is_allowed(&row->option, *number))
			return row;
	}
	return NULL;
}

bool relay_options_allow_spec(const struct relay_spec *spec)
{
	uint64_t number;
	return !first_wrong(RELAY_TYPE_RELAY, SPEC, spec, &number);
}

bool relay_options_allow_ring_spec(const struct relay_ring_spec *spec)
{
	uint64_t number;
	return !first_wrong(RELAY_TYPE_RING, SPEC, spec, &number);
}

static int check_options(uint32_t type, const void *geometry, const char *prefix, uint64_t at,
                         struct relay_faults *faults)
{
	uint64_t number;
	char name[RELAY_FAULT_NAME_BYTES];
	const struct row *row = first_wrong(type, GEOMETRY, geometry, &number);
	if (!row)
		return 0;
	snprintf(name, sizeof(name), "%s.%s", prefix, row->option.field);
	if (row->option.words)
		return relay_fault_value(faults, at + row->at[GEOMETRY], number, name, "%" PRIu64 " to %" PRIu64,
		                         row->option.least, row->option.most);
	return relay_fault_value(faults, at + row->at[GEOMETRY], number, name, "%s", row->option.allowed);
}

int relay_options_check(const struct relay_geometry *geometry, uint64_t at, struct relay_faults *faults)
{
	return check_options(RELAY_TYPE_RELAY, geometry, "relay_geometry", at, faults);
}

int relay_options_check_ring(const struct relay_ring_geometry *geometry, uint64_t at, struct relay_faults *faults)
{
	return check_options(RELAY_TYPE_RING, geometry, "relay_ring_geometry", at, faults);
}

static void copy_values(uint32_t type, enum holder from, const void *source, enum holder to, void *target)
{
	const struct table *table = &tables[type];
	for (const struct row *row = table->rows; row < table->rows + table->n; row++)
		if (row->at[GEOMETRY])
			memcpy((char *)target + row->at[to], (const char *)source + row->at[from], row->width);
}

void relay_options_to_geometry(const struct relay_spec *spec, struct relay_geometry *geometry)
{
	copy_values(RELAY_TYPE_RELAY, SPEC, spec, GEOMETRY, geometry);
	if (geometry->times)
		geometry->timestamp = geometry->times;
	if (geometry->scheme == RELAY_ANY_SCHEME)
		geometry->scheme = relay_scheme_default(geometry->buffers);
}

void relay_options_to_stats(const struct relay_geometry *geometry, struct relay_stats *stats)
{
	copy_values(RELAY_TYPE_RELAY, GEOMETRY, geometry, STATS, stats);
}

void relay_options_to_ring_geometry(const struct relay_ring_spec *spec, struct relay_ring_geometry *geometry)
{
	copy_values(RELAY_TYPE_RING, SPEC, spec, GEOMETRY, geometry);
	if (geometry->scheme == RELAY_ANY_SCHEME)
		geometry->scheme = relay_scheme_default(geometry->buffers);
}

void relay_options_to_ring_stats(const struct relay_ring_geometry *geometry, struct relay_ring_stats *stats)
{
	copy_values(RELAY_TYPE_RING, GEOMETRY, geometry, STATS, stats);
}
