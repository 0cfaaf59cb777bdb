/* SPDX-License-Identifier: MIT */
/* Streams are merged in the order of their times, whatever they hold. */
#define _GNU_SOURCE
#include "packets.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

LIBRARY(static);

enum { MANY = 67, EVENTS_EACH = 300, SEEDS = 40 };

TEST(another_merge_goes_on_where_one_has_ended)
{
	/* After each number of events, of which several are of one time, and of which the program writes the next one. */
	enum { N_TIMES = 5 };
	static const uint64_t times[N_TIMES] = {10, 20, 20, 20, 30};
	static const char *const left[N_TIMES] = {"a20 a20 a20 a30", "a20 a20 a30", "a20 a30", "a30", ""};

	for (size_t n = 1; n <= N_TIMES; n++) {
		struct queue before = {.watermark = times[n - 1]}, after = {.is_ended = true};
		AUTOPTR(relay_merge) first = merge_of(0, EVER);

		give(&before, packet_of(0, 0, n, times));
		add_queue(first, 0, 0, &before);
		given_times(first);
		const struct relay_merge_stats reached = stats(first);

		AUTOPTR(relay_merge) second = merge_of(relay_merge_reached(first) + 1, EVER);

		relay_merge_skip(second, reached.time, reached.n_at_time);
		give(&after, packet_of(0, 0, N_TIMES, times));
		add_queue(second, 0, 0, &after);
		CHECK_TEXT(given_times(second), left[n - 1]);
		CHECK_FIELDS(stats(second), (events, N_TIMES - n), (late, 0), (time, 30), (n_at_time, 1));
	}
}

TEST(events_come_in_the_order_of_their_times)
{
	struct relay_merge *merge = merge_of(0, EVER);
	struct queue a = {.is_ended = true}, b = a, c = a;

	give(&a, packet_of(0, 0, TIMES(10, 40, 40)));
	give(&a, packet_of(0, 3, TIMES(60)));
	give(&b, packet_of(1, 0, TIMES(20, 30, 70)));
	give(&c, packet_of(2, 0, TIMES(15, 65)));
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 0, 1, &b);
	add_queue(merge, 0, 2, &c);
	CHECK_TEXT(given_times(merge), "a10 c15 b20 b30 a40 a40 a60 c65 b70");
	CHECK(relay_merge_is_ended(merge));
	CHECK_FIELDS(stats(merge), (events, 9), (late, 0), (time, 70));
	relay_merge_free(merge);
	CHECK(a.n_closed == 1 && b.n_closed == 1 && c.n_closed == 1);
}

TEST(of_the_same_time_the_stream_that_was_added_first_comes_first)
{
	struct queue a = {.is_ended = true}, b = a, c = a;
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	give(&a, packet_of(0, 0, TIMES(5, 7)));
	give(&b, packet_of(1, 0, TIMES(5, 5, 7)));
	give(&c, packet_of(2, 0, TIMES(4, 5, 7)));
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 0, 1, &b);
	add_queue(merge, 0, 2, &c);
	CHECK_TEXT(given_times(merge), "c4 a5 b5 b5 c5 a7 b7 c7");
}

TEST(a_merge_of_nothing_has_ended)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	CHECK(relay_merge_next(merge) == NULL && relay_merge_is_ended(merge));
}

TEST(random_streams_of_any_number_are_sorted)
{
	static struct queue queues[MANY];

	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		unsigned n = seed < 10 ? seed : (unsigned)rand() % MANY + 1;
		AUTOPTR(relay_merge) merge = merge_of(0, EVER);
		uint64_t last = 0, count = 0, next[MANY] = {0};
		const struct relay_event *event;

		srand(seed);
		for (unsigned i = 0; i < n; i++) {
			uint64_t times[EVENTS_EACH], time = 0;

			for (int j = 0; j < EVENTS_EACH; j++)
				times[j] = time += (uint64_t)rand() % 3;
			queues[i] = (struct queue){.is_ended = true};
			give(&queues[i], packet_of(i, 0, EVENTS_EACH, times));
			add_queue(merge, 0, i, &queues[i]);
		}
		for (uint32_t last_stream = 0; (event = relay_merge_next(merge)); count++) {
			uint32_t stream = event->stream->number;

			CHECK(event->time > last || (event->time == last && (!count || stream >= last_stream)));
			CHECK_EQ(number_of(event), (uint64_t)stream << 24 | next[stream]);
			next[stream]++;
			last = event->time;
			last_stream = stream;
		}
		CHECK_EQ(count, (uint64_t)n * EVENTS_EACH);
	}
}

TEST(an_empty_stream_holds_back_what_is_not_older_than_its_watermark)
{
	struct queue a = {.watermark = 0}, b = {.watermark = 0};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	give(&a, packet_of(0, 0, TIMES(10, 20, 30)));
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 0, 1, &b);
	CHECK_TEXT(given_times(merge), "");
	CHECK(!relay_merge_is_ended(merge));
	b.watermark = 20;
	CHECK_TEXT(given_times(merge), "a10");
	b.watermark = 21;
	CHECK_TEXT(given_times(merge), "a20");
	give(&b, packet_of(1, 0, TIMES(25)));
	b.watermark = 25;
	CHECK_TEXT(given_times(merge), "b25");
	b.watermark = 100;
	CHECK_TEXT(given_times(merge), "a30");
	a.is_ended = b.is_ended = true;
	CHECK_TEXT(given_times(merge), "");
	CHECK(relay_merge_is_ended(merge));
	CHECK_EQ(stats(merge).late, 0);
}

TEST(empty_streams_whose_watermarks_rise_are_asked_once_a_call)
{
	struct queue queues[3] = {0};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	for (unsigned i = 0; i < 3; i++)
		add_queue(merge, 0, i, &queues[i]);
	for (unsigned n = 1; n < 10; n++) {
		for (unsigned i = 0; i < 3; i++)
			queues[i].watermark += 10;
		CHECK(relay_merge_next(merge) == NULL);
		CHECK(queues[0].n_asked <= n && queues[1].n_asked <= n && queues[2].n_asked <= n);
	}
}

TEST(what_comes_late_is_given_out_at_once_and_counted)
{
	struct queue a = {.is_ended = true}, b = {.watermark = 50}, late = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	give(&a, packet_of(0, 0, TIMES(10, 40, 60)));
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 0, 1, &b);
	CHECK_TEXT(given_times(merge), "a10 a40");
	/* It had said that nothing before 50 would come. */
	give(&b, packet_of(1, 0, TIMES(30, 55)));
	b.is_ended = true;
	give(&late, packet_of(2, 0, TIMES(5, 58)));
	add_queue(merge, 0, 2, &late);
	CHECK_TEXT(given_times(merge), "c5 b30 b55 c58 a60");
	CHECK_FIELDS(stats(merge), (late, 2), (events, 7), (time, 60));
}

static struct made *losing(uint64_t time, uint64_t discarded)
{
	struct made *made = packet_of(0, 0, 1, &time);

	made->head.events_discarded = discarded;
	return made;
}

TEST(losses_are_given_out_where_the_packet_begins_that_counts_them)
{
	struct queue a = {.is_ended = true}, b = a;
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	give(&a, begin_packet(9, 0));
	give(&a, losing(10, 3));
	give(&a, losing(30, 3));
	give(&a, losing(50, 10));
	/* A count that goes back is nonsense. */
	give(&a, losing(60, 9));
	give(&b, packet_of(1, 0, TIMES(20, 50)));
	/* The first packet says what was lost before it, of which nobody knows when. */
	b.packets[0]->head.events_discarded = 99;
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 0, 1, &b);
	CHECK_TEXT(given_times(merge), "A10 a10 b20 a30 A50 a50 b50 a60");
	CHECK_FIELDS(stats(merge), (lost, 10), (events, 6));
}

TEST(events_before_and_after_the_limits_are_left_out)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(20, 50);

	give(&a, begin_packet(1, 0));
	give(&a, losing(10, 3));
	give(&a, packet_of(0, 0, TIMES(19, 20, 21, 50, 51)));
	give(&a, losing(50, 7));
	give(&a, losing(60, 8));
	add_queue(merge, 0, 0, &a);
	CHECK_TEXT(given_times(merge), "a20 a21 a50 A50 a50");
	CHECK_EQ(stats(merge).lost, 7);
}

TEST(events_without_names_are_left_out)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = relay_merge_new(0, EVER);
	struct relay_merge_process process = a_process(one_u32());

	CHECK_EQ(relay_layouts_add(process.layouts, 7, (uint32_t[]){RELAY_TRACE_STRING}, 1), 0);
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	give(&a, packet_of(0, 0, TIMES(10)));
	put_event(a.packets[0], 11, 7, "text", 5);
	put_event(a.packets[0], 12, 0, "1234", 4);
	add_queue(merge, 0, 0, &a);
	CHECK_TEXT(given_times(merge), "a10 a12");
}

TEST(what_is_no_event_ends_its_packet_alone)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	give(&a, packet_of(0, 0, TIMES(10, 11)));
	put_event(a.packets[0], 12, 99, "undeclared", 10);
	give(&a, packet_of(0, 0, TIMES(20)));
	put(a.packets[1], "cut", 3);
	give(&a, packet_of(0, 0, TIMES(30, 29)));
	a.packets[2]->head.timestamp_end = 30;
	give(&a, packet_of(0, 0, TIMES(40)));
	add_queue(merge, 0, 0, &a);
	CHECK_TEXT(given_times(merge), "a10 a11 a20 a30 a40");
	CHECK_EQ(stats(merge).damaged, 3);
}

/* --- clocks, contexts, fields --- */

static uint64_t time_of(uint64_t ticks, uint64_t freq, uint64_t offset_s, uint64_t offset)
{
	struct relay_layouts *layouts = one_u32();
	struct relay_merge_process process = a_process(layouts);
	struct relay_traced traced;

	process.freq = freq;
	process.offset_s = offset_s;
	process.offset = offset;
	CHECK_EQ(relay_traced_init(&traced, &process), 0);
	uint64_t time = relay_traced_time(&traced, ticks);

	relay_traced_free(&traced);
	return time;
}

TEST(ticks_become_ns_since_1970)
{
	CHECK_EQ(time_of(5, 1000000000, 1700000000, 17), 1700000000000000022);
	CHECK_EQ(time_of(1ull << 60, 1000000000, 0, 0), 1ull << 60);
	CHECK_EQ(time_of(0, 3000000000, 1700000000, 1500000000), 1700000000499999999);
	CHECK_EQ(time_of(7, 1, 10, 3), 20000000000);
	for (uint64_t freq = 12345; freq < 1ull << 40; freq = freq * 7 + 1)
		for (uint64_t s = 1; s < 1000000; s = s * 11 + 3) {
			uint64_t ns = time_of(s * freq, freq, 0, 0);

			CHECK(ns <= s * 1000000000 && ns + 1 >= s * 1000000000);
		}
}

TEST(a_process_that_cannot_be_is_refused)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = relay_merge_new(0, EVER);
	struct relay_merge_process process = a_process(one_u32());

	process.freq = 0;
	CHECK_EQ(relay_merge_add_process(merge, &process), -EINVAL);
	process = a_process(one_u32());
	process.vpid_at = 0;
	CHECK_EQ(relay_merge_add_process(merge, &process), -EINVAL);
	a.source = (struct relay_source){.next = next_of_queue, .close = close_queue};
	CHECK_EQ(relay_merge_add_source(merge, 0, 0, &a.source, 0), -EINVAL);
	CHECK_EQ(a.n_closed, 1);
}

TEST(the_context_says_whose_an_event_is)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}};
	static const struct relay_trace_event declared = {
	    .provider = "p", .name = "e", .fields = fields, .n_fields = 1};
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = relay_merge_new(0, EVER);
	struct relay_merge_process process = a_process(relay_layouts_new(8));

	CHECK_EQ(relay_layouts_declare(process.layouts, 0, &declared), 0);
	process.pid = 0;
	process.vpid_at = 4;
	process.vtid_at = 0;
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	give(&a, begin_packet(1, 0));
	put_event(a.packets[0], 2, 0, (uint32_t[]){77, 55, 1234}, 12);
	add_queue(merge, 0, 0, &a);
	const struct relay_event *event = relay_merge_next(merge);

	CHECK_EQ(relay_event_tid(event), 77);
	CHECK_EQ(relay_event_pid(event), 55);
	CHECK_EQ(number_of(event), 1234);
}

TEST(fields_of_all_types_have_their_values)
{
	static const struct relay_trace_field fields[] = {
	    {"u8", RELAY_TRACE_U8},   {"u16", RELAY_TRACE_U16}, {"u32", RELAY_TRACE_U32},  {"u64", RELAY_TRACE_U64},
	    {"i8", RELAY_TRACE_I8},   {"i16", RELAY_TRACE_I16}, {"i32", RELAY_TRACE_I32},  {"i64", RELAY_TRACE_I64},
	    {"f32", RELAY_TRACE_F32}, {"f64", RELAY_TRACE_F64}, {"s", RELAY_TRACE_STRING}, {"b", RELAY_TRACE_BYTES}};
	static const unsigned char data[] = "\xff"
					    "\xfe\xff"
					    "\xfd\xff\xff\xff"
					    "\xfc\xff\xff\xff\xff\xff\xff\xff"
					    "\xff"
					    "\xfe\xff"
					    "\xfd\xff\xff\xff"
					    "\xfc\xff\xff\xff\xff\xff\xff\xff"
					    "\x00\x00\xc0\xbf"
					    "\x00\x00\x00\x00\x00\x00\x04\x40"
					    "text\0"
					    "\3\0\0\0a\0b";
	struct relay_fields at = {NULL, fields, fields + 12, data, data + sizeof(data) - 1, "", 0, false};
	struct relay_value value;
	uint64_t u[] = {0xff, 0xfffe, 0xfffffffd, 0xfffffffffffffffc};

	for (int i = 0; i < 4; i++)
		CHECK(relay_fields_next(&at, &value) && value.u == u[i]);
	for (int i = 0; i < 4; i++)
		CHECK(relay_fields_next(&at, &value) && value.i == -i - 1 &&
		      value.type == relay_field_type_at(RELAY_TRACE_I8 + (unsigned)i));
	CHECK(relay_fields_next(&at, &value) && value.d == -1.5);
	CHECK(relay_fields_next(&at, &value) && value.d == 2.5 && strcmp(value.name, "f64") == 0);
	CHECK(relay_fields_next(&at, &value) && value.length == 4 && memcmp(value.data, "text", 4) == 0);
	CHECK(relay_fields_next(&at, &value) && value.length == 3 && memcmp(value.data, "a\0b", 3) == 0);
	CHECK(!relay_fields_next(&at, &value) && at.at == at.end);
}

TEST(fields_that_are_cut_are_none)
{
	static const struct relay_trace_field kinds[] = {{"u", RELAY_TRACE_U64},
	                                                 {"s", RELAY_TRACE_STRING},
	                                                 {"b", RELAY_TRACE_BYTES},
	                                                 {"e", RELAY_TRACE_U64 | RELAY_TRACE_IS_ENUM},
	                                                 {"q", RELAY_TRACE_U16 | RELAY_TRACE_IS_SEQUENCE},
	                                                 {"a", RELAY_TRACE_U32 | 2 << RELAY_TRACE_COUNT_SHIFT}};
	static const unsigned char data[] = {9, 0, 0, 0, 1, 1, 1};
	struct relay_value value;

	for (int kind = 0; kind < 6; kind++)
		for (size_t n = 0; n < sizeof(data) && (kind != 1 || n < 2); n++) {
			/* Memory of just this length: the address sanitizer sees a byte too many. */
			unsigned char *copy = malloc(n + !n);

			memcpy(copy, data, n);
			struct relay_fields at = {NULL, &kinds[kind], &kinds[kind] + 1, copy, copy + n, "", 0, false};

			CHECK(!relay_fields_next(&at, &value));
			free(copy);
		}
}

TEST(names_of_fields_say_where_structs_begin_and_end)
{
	static const char *const names[] = {"n", "s.x", "s.t.u.x", "s.tu.x", "tu.x", "n.x", "..", "", "a."};
	static const unsigned char data[sizeof(names) / sizeof(*names)];
	struct relay_trace_field fields[sizeof(data)];
	struct relay_fields at = {NULL, fields, fields + sizeof(data), data, data + sizeof(data) - 1, "", 0, true};
	struct relay_value value;
	char shown[128] = "";
	size_t length;

	for (size_t i = 0; i < sizeof(data); i++)
		fields[i] = (struct relay_trace_field){names[i], RELAY_TRACE_U8};
	while (relay_fields_next(&at, &value)) {
		const char *from = value.begun, *name;

		for (; value.n_ended; value.n_ended--)
			strcat(shown, "}");
		while ((name = relay_struct_next(&value, &from, &length)))
			strcat(strncat(strcat(shown, " "), name, length), "{");
		strcat(strcat(shown, " "), value.own_name);
	}
	/* The last one is cut, so the struct before it has ended, and it has begun none. */
	CHECK_TEXT(shown, " n s{ x t{ u{ x}} tu{ x}} tu{ x} n{ x} { { }} ");
	CHECK_EQ(at.depth, 0);
}

TEST(fields_are_in_a_few_structs_alone)
{
	struct relay_trace_field field = {"1.2.3.4.5.6.7.8.n", RELAY_TRACE_U8};
	const struct relay_trace_event declared = {.provider = "p", .name = "e", .fields = &field, .n_fields = 1};
	struct relay_layouts *layouts = relay_layouts_new(0);

	CHECK_EQ(relay_layouts_declare(layouts, 0, &declared), 0);
	field.name = "1.2.3.4.5.6.7.8.9.n";
	CHECK_EQ(relay_layouts_declare(layouts, 1, &declared), -EINVAL);
	relay_layouts_free(layouts);
}

/* --- files --- */

static const char *path_of(const char *name)
{
	static char paths[4][4096];
	static unsigned n;

	snprintf(paths[n % 4], sizeof(paths[0]), "%s/%s", scratch, name);
	return paths[n++ % 4];
}

static void append(const char *path, const void *data, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, data, length), length);
	close(fd);
}

static void append_packet(const char *path, struct made *made)
{
	append(path, &made->head, sizeof(made->head));
	append(path, made->events, made->length);
	free(made);
}

static void add_path(struct relay_merge *merge, const char *first, const char *second)
{
	CHECK_EQ(relay_merge_add_files(merge, 0, 0, (const char *[]){first, second}, second ? 2 : 1), 0);
}

TEST(a_stream_goes_on_in_the_next_file)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const char *first = path_of("cpu0"), *second = path_of("cpu0_1"), *other = path_of("cpu1");

	append_packet(first, begin_packet(9, 0));
	append_packet(first, losing(10, 2));
	append_packet(second, losing(30, 5));
	append_packet(other, packet_of(0, 0, TIMES(20, 40)));
	add_path(merge, first, second);
	add_path(merge, other, NULL);
	CHECK_TEXT(given_times(merge), "A10 a10 b20 A30 a30 b40");
	CHECK_EQ(stats(merge).error, 0);
}

TEST(a_file_that_has_gone_is_an_error)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const char *first = path_of("cpu0");

	append_packet(first, packet_of(0, 0, TIMES(10)));
	add_path(merge, first, path_of("missing"));
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(stats(merge).error, -ENOENT);
}

TEST(the_room_at_the_end_of_a_file_is_no_packet)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const char *path = path_of("cpu0");
	struct made *made = packet_of(0, 0, TIMES(10)), *room = begin_packet(11, 7);

	room->head.packet_size = 8 << 12;
	append_packet(path, made);
	append(path, &room->head, sizeof(room->head));
	CHECK_EQ(truncate(path, (off_t)(sizeof(room->head) + 12 + (1 << 12))), 0);
	free(room);
	add_path(merge, path, NULL);
	CHECK_TEXT(given_times(merge), "a10");
	CHECK_EQ(stats(merge).damaged + stats(merge).lost, 0);
}

/* As a recorder leaves it for a moment: its packet_size was to be next. */
TEST(a_packet_that_still_fills_the_file_is_read)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const char *path = path_of("cpu0");
	struct made *made = packet_of(0, 0, TIMES(10, 20));

	made->head.packet_size = 8 << 12;
	append_packet(path, made);
	CHECK_EQ(truncate(path, 1 << 12), 0);
	add_path(merge, path, NULL);
	CHECK_TEXT(given_times(merge), "a10 a20");
	CHECK_EQ(stats(merge).damaged, 0);
}

TEST(a_file_that_cannot_be_read_is_told)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	CHECK_EQ(mkdir(path_of("cpu0"), 0700), 0);
	add_path(merge, path_of("cpu0"), NULL);
	append_packet(path_of("cpu1"), packet_of(0, 0, TIMES(10)));
	add_path(merge, path_of("cpu1"), NULL);
	CHECK_TEXT(given_times(merge), "b10");
	CHECK_EQ(stats(merge).error, -EBADMSG);
}

/* bytes: of the file before */
static void truncate_while_it_is_read(const char *path, off_t bytes)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);

	CHECK_EQ(relay_guard_install(), 0);
	for (uint64_t time = 0; time < 200; time++)
		append_packet(path, packet_of(0, 0, 1, &time));
	if (bytes)
		CHECK_EQ(truncate(path, bytes), 0);
	add_path(merge, path, NULL);
	CHECK(relay_merge_next(merge) != NULL);
	CHECK_EQ(truncate(path, 0), 0);
	while (relay_merge_next(merge))
		;
	CHECK(relay_merge_is_ended(merge));
	CHECK(stats(merge).events < 200);
}

TEST(a_file_that_is_truncated_while_it_is_read_ends_there)
{
	truncate_while_it_is_read(path_of("cpu0"), 0);
	/* Sparse, and longer than the memory of any machine. */
	truncate_while_it_is_read(path_of("cpu1"), (off_t)1 << 43);
}

/* Append a packet whose events are a hole of the file. */
static void append_hole(const char *path, uint64_t bytes)
{
	struct made *made = begin_packet(0, 0);
	struct stat st;

	made->head.timestamp_end = 1;
	made->head.packet_size = made->head.content_size = 8 * (sizeof(made->head) + bytes);
	append(path, &made->head, sizeof(made->head));
	free(made);
	CHECK_EQ(stat(path, &st), 0);
	CHECK_EQ(truncate(path, st.st_size + (off_t)bytes), 0);
}

TEST(holes_of_files_are_no_events)
{
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const uint64_t longest = 0xffffffff; /* of a sub-buffer */

	append_hole(path_of("cpu0"), longest);
	append_packet(path_of("cpu0"), packet_of(0, 0, TIMES(10)));
	append_hole(path_of("cpu1"), longest + 1);
	append_packet(path_of("cpu1"), packet_of(0, 0, TIMES(20)));
	add_path(merge, path_of("cpu0"), NULL);
	add_path(merge, path_of("cpu1"), NULL);
	while (relay_merge_next(merge))
		CHECK(stats(merge).events < 10000);
	CHECK_FIELDS(stats(merge), (time, 10), (damaged, 1), (error, 0));
}

TEST(files_of_anything_are_read_to_their_end)
{
	for (unsigned seed = 0; seed < SEEDS; seed++) {
		AUTOPTR(relay_merge) merge = merge_of(0, EVER);
		struct made *made = packet_of(0, 0, TIMES(10, 20, 30, 40));
		unsigned char *bytes = (unsigned char *)&made->head;
		char name[16];

		srand(seed);
		for (int n = rand() % 8; n; n--)
			bytes[(size_t)rand() % (sizeof(made->head) + made->length)] ^= (unsigned char)(1 << rand() % 8);
		snprintf(name, sizeof(name), "cpu%u", seed);
		append(path_of(name), &made->head, sizeof(made->head));
		append(path_of(name), made->events, made->length);
		free(made);
		append_packet(path_of(name), packet_of(0, 0, TIMES(50)));
		CHECK_EQ(truncate(path_of(name), rand() % 250), 0);
		add_path(merge, path_of(name), NULL);
		given_times(merge);
		CHECK(relay_merge_is_ended(merge));
	}
}
