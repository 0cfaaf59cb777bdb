/* SPDX-License-Identifier: MIT */
/*
 * Checking the files of a set of counters: relay_counters_check() of <relayfs/check_store.h>.
 *
 * They are read, and not mapped: they are sparse, and a load from a mapping would allocate memory in the store. The
 * records are read a chunk at a time, however many there are. If the generation has changed meanwhile, all is read again.
 */
#define _GNU_SOURCE
#include "base/faults.h"
#include "counters/copy.h"
#include "counters/files.h"
#include "counters/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* TRIES: to read all in one generation. FLAGS_MAX: update flags that are read. */
enum { TRIES = 16, FLAGS_MAX = 1 << 16 };

struct check {
	struct relay_counters *counters;
	struct relay_faults *faults;
	struct relay_perf_record *records; /* of the present chunk */
	uint32_t n_instances, n_flags;
};

#define RECORD(chunk, slot, field) \
	record_at(check, chunk, slot) + offsetof(struct relay_perf_record, field), check->records[slot].field

static uint64_t record_at(const struct check *check, uint32_t chunk, uint32_t slot)
{
	uint64_t n = (uint64_t)chunk * RELAY_PERF_SLOTS + slot;
	return relay_perf_records_at(check->counters->n_index) + n * sizeof(struct relay_perf_record);
}

/* Add a field of a record. */
__attribute__((format(printf, 6, 7))) static void wrong(const struct check *check, uint64_t at, uint64_t value,
                                                        uint32_t n, const char *field, const char *allowed, ...)
{
	char name[RELAY_FAULT_NAME_BYTES], text[RELAY_FAULT_TEXT_BYTES];
	va_list arguments;
	snprintf(name, sizeof(name), "relay_perf_record[%u].%s", n, field);
	va_start(arguments, allowed);
	vsnprintf(text, sizeof(text), allowed, arguments);
	va_end(arguments);
	relay_fault_value(check->faults, at, value, name, "%s", text);
}

/* Check the record of an instance. Returns 1: it has a name; 0. *live is increased if it is listed. */
static uint32_t check_instance(const struct check *check, uint32_t chunk, uint32_t slot, uint32_t *live)
{
	const struct relay_perf_record *record = &check->records[slot];
	uint32_t n = chunk * RELAY_PERF_SLOTS + slot;
	if (record->state >= RELAY_PERF_CHUNK)
		wrong(check, RECORD(chunk, slot, state), n, "state", "%d to %d", RELAY_PERF_FREE, RELAY_PERF_DELETED);
	if (record->state != RELAY_PERF_LIVE && record->state != RELAY_PERF_DELETED)
		return 0;
	*live += record->state == RELAY_PERF_LIVE;
	if (record->kind > RELAY_PERF_GAUGE)
		wrong(check, RECORD(chunk, slot, kind), n, "kind", "%d to %d", RELAY_PERF_COUNTER, RELAY_PERF_GAUGE);
	uint64_t name_at = record_at(check, chunk, slot) + offsetof(struct relay_perf_record, name);
	bool is_text = memchr(record->name, 0, sizeof(record->name)) && memchr(record->unit, 0, sizeof(record->unit)) &&
	               memchr(record->help, 0, sizeof(record->help));
	if (!is_text || relay_perf_check_name(record->name))
		wrong(check, name_at, (unsigned char)record->name[0], n, "name",
		      "a name that can be added, and texts that end");
	else if (!relay_perf_has_entry(check->counters, n, record->name, false))
		wrong(check, name_at, (unsigned char)record->name[0], n, "name", "one of which the index has an entry");
	return 1;
}

static void check_counts(const struct check *check, uint32_t chunk, uint32_t taken, uint32_t live)
{
	uint32_t n = chunk * RELAY_PERF_SLOTS;
	if (check->records->taken != taken)
		wrong(check, RECORD(chunk, 0, taken), n, "taken", "%u, by the records of its chunk", taken);
	if (check->records->live != live)
		wrong(check, RECORD(chunk, 0, live), n, "live", "%u, by the records of its chunk", live);
}

/* The update flags of a chunk's blocks are 0. Returns 0 or -errno. */
static int check_flags(struct check *check, uint32_t chunk)
{
	const struct relay_counters *counters = check->counters;
	for (uint32_t block = 0; block < counters->seen.nr_blocks && check->n_flags < FLAGS_MAX;
	     block++, check->n_flags++) {
		uint64_t flag,
		    at = relay_perf_chunk_offset(&counters->seen, chunk) + block * counters->seen.block_bytes;
		ssize_t got = pread(counters->main.file.fd, &flag, sizeof(flag), (off_t)at);
		if (got != (ssize_t)sizeof(flag))
			return got < 0 ? -errno : -EBADMSG;
		if (flag)
			relay_fault_value(check->faults, at, flag, "an update flag of counters", "0");
	}
	return 0;
}

/* Returns 0 or -errno. */
static int check_chunk(struct check *check, uint32_t chunk)
{
	const struct relay_counters *counters = check->counters;
	struct relay_perf_record *record = check->records;
	uint32_t n_domains = counters->table->n_domains, taken = 0, live = 0, n = chunk * RELAY_PERF_SLOTS;
	ssize_t bytes = RELAY_PERF_SLOTS * sizeof(*record);
	ssize_t got = pread(counters->names.file.fd, record, (size_t)bytes, (off_t)record_at(check, chunk, 0));
	if (got != bytes)
		return got < 0 ? -errno : -EBADMSG;
	if (record->state != RELAY_PERF_CHUNK)
		wrong(check, RECORD(chunk, 0, state), n, "state", "%d, that of a chunk", RELAY_PERF_CHUNK);
	if (record->domain != RELAY_PERF_NO_DOMAIN && record->domain >= n_domains)
		wrong(check, RECORD(chunk, 0, domain), n, "domain", "less than %u, or %u", n_domains,
		      RELAY_PERF_NO_DOMAIN);
	if (record->used >= RELAY_PERF_SLOTS) {
		wrong(check, RECORD(chunk, 0, used), n, "used", "less than %d", RELAY_PERF_SLOTS);
		return 0;
	}
	for (uint32_t slot = 1; slot <= record->used; slot++)
		taken += check_instance(check, chunk, slot, &live);
	check->n_instances += taken;
	check_counts(check, chunk, taken, live);
	return check_flags(check, chunk);
}

static int check_all(struct check *check)
{
	struct relay_counters *counters = check->counters;
	const struct relay_perf_table *table = counters->table;
	uint32_t n_chunks = counters->header->nr_chunks;
	int err = relay_perf_copy_part(&counters->names, RELAY_PAGE_BYTES, counters->n_index * sizeof(uint32_t));
	if (table->n_domains == 0 || table->n_domains > RELAY_PERF_DOMAINS)
		relay_fault_value(check->faults, offsetof(struct relay_perf_table, n_domains), table->n_domains,
		                  "relay_perf_table.n_domains", "1 to %d", RELAY_PERF_DOMAINS);
	relay_fault_above(check->faults, offsetof(struct relay_perf_header, nr_chunks), n_chunks,
	                  "relay_perf_header.nr_chunks", counters->chunks_max);
	for (uint32_t chunk = 0; !err && chunk < n_chunks && chunk < counters->chunks_max; chunk++)
		err = check_chunk(check, chunk);
	if (!err && check->n_instances != table->n_instances)
		relay_fault_value(check->faults, offsetof(struct relay_perf_table, n_instances), table->n_instances,
		                  "relay_perf_table.n_instances", "%u, by the records", check->n_instances);
	return err;
}

/* Check all in one generation. Returns 0 or -errno: -EAGAIN: it has changed meanwhile. */
static int check_generation(struct check *check)
{
	struct relay_counters *counters = check->counters;
	int err = relay_perf_copy_heads(counters);
	uint64_t gen1 = counters->header->gen1, gen2 = counters->header->gen2;
	check->faults->n = check->faults->n_more = check->n_instances = check->n_flags = 0;
	if (!err && gen1 != gen2) {
		relay_fault_left(
		    check->faults, offsetof(struct relay_perf_header, gen1), gen1, "relay_perf_header.gen1",
		    "it is not gen2: a process has died while it changed names; the next server completes it");
		return -EAGAIN;
	}
	err = err ? err : check_all(check);
	if (!err)
		err = relay_perf_copy_part(&counters->main, 0, RELAY_PAGE_BYTES);
	if (!err && (counters->header->gen1 != gen1 || counters->header->gen2 != gen2)) {
		/* What was read was of different moments. */
		check->faults->n = check->faults->n_more = 0;
		err = -EAGAIN;
	}
	return err;
}

int relay_counters_check(const char *dir, struct relay_faults *faults)
{
	struct relay_counters counters = {.dir_fd = -1, .faults = faults};
	struct check check = {.counters = &counters, .faults = faults};
	int err = relay_perf_map(&counters, dir, NULL, true);
	if (err)
		return err == -EBADMSG || err == -EPROTO ? (faults->n ? 0 : err) : err;
	check.records = malloc(RELAY_PERF_SLOTS * sizeof(*check.records));
	err = check.records ? -EAGAIN : -ENOMEM;
	for (int tries = 0; err == -EAGAIN && tries < TRIES; tries++)
		err = check_generation(&check);
	free(check.records);
	relay_perf_unmap(&counters);
	return err;
}
