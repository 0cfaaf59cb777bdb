/* SPDX-License-Identifier: MIT */
/* Tracepoints, as a program has them. */
#define _GNU_SOURCE
#include "served_store.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

STORE(traces);

RELAY_TRACE_EVENT(other, text, (string, text))
RELAY_TRACE_EVENT(other, data, (bytes, data))

enum { LARGE_SUBBUF_SIZE = 4 * SUBBUF_SIZE, SIGNAL_US = 200 };

/* --- which traces take an event --- */

TEST(each_event_goes_to_all_traces)
{
	char name[8];
	for (unsigned i = 0; i < RELAY_N_TRACES; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		start(i, name);
	}
	for (int i = 0; i < 10; i++)
		trace_test_number(1);
	for (unsigned i = 0; i < RELAY_N_TRACES; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		CHECK_EQ(events_in(name), 10);
	}
}

TEST(nothing_is_made_before_the_first_event)
{
	start(0, "t");
	trace_test_number(1);
	start(1, "u");
	CHECK_EQ(written_to("t").n_processes, 1);
	CHECK_EQ(written_to("u").n_processes, 0);
}

TEST(what_is_prepared_is_there_before_the_first_event)
{
	struct relay_trace trace = a_trace("t"), unwanted = a_trace("u");
	strcpy(unwanted.rules, "+no:*\n");
	show(0, &trace);
	show(1, &unwanted);
	relay_trace_prepare();
	CHECK_EQ(written_to("t").n_processes, 1);
	CHECK_EQ(written_to("u").n_processes, 0);
	trace_test_tick();
	CHECK_EQ(events_in("t"), 1);
}

TEST(a_stopped_trace_takes_nothing_and_goes_on_when_it_is_started)
{
	struct relay_trace trace = start(0, "t");
	trace_test_tick();
	trace.is_started = 0;
	show(0, &trace);
	trace_test_tick();
	CHECK_EQ(events_in("t"), 1);
	trace.is_started = 1;
	show(0, &trace);
	trace_test_tick();
	CHECK_EQ(events_in("t"), 2);
	CHECK_EQ(written_to("t").n_processes, 1);
}

/* Which of test:tick, test:number, other:text, as bits. */
static int taken_by(struct relay_trace *trace, const char *rules)
{
	uint64_t before = events_in("t");
	int taken = 0;
	strcpy(trace->rules, rules);
	show(0, trace);
	for (int i = 0; i < 3; i++) {
		if (i == 0)
			trace_test_tick();
		else if (i == 1)
			trace_test_number(1);
		else
			trace_other_text("x");
		taken |= (int)(events_in("t") - before) << i;
		before = events_in("t");
	}
	return taken;
}

TEST(rules_are_seen_at_once)
{
	struct relay_trace trace = start(0, "t");
	CHECK_EQ(taken_by(&trace, ""), 7);
	CHECK_EQ(taken_by(&trace, "-test:tick\n"), 6);
	CHECK_EQ(taken_by(&trace, "+test:tick\n"), 1);
	CHECK_EQ(taken_by(&trace, "+*\n-test:*\n"), 4);
	CHECK_EQ(taken_by(&trace, "-*\n+test:*\n-test:number\n"), 1);
	CHECK_EQ(taken_by(&trace, "+none\n"), 0);
	CHECK_EQ(taken_by(&trace, "-*:t*\n"), 2);
	CHECK_EQ(taken_by(&trace, ""), 7);
}

static bool is_taken(struct relay_trace *trace, const char *filter)
{
	uint64_t before = events_in("t");
	strcpy(trace->filter, filter);
	show(0, trace);
	trace_test_tick();
	return events_in("t") - before == 1;
}

TEST(filters_choose_processes)
{
	struct relay_trace trace = start(0, "t");
	char own[64];
	CHECK(is_taken(&trace, ""));
	CHECK(is_taken(&trace, "test_trac*"));
	CHECK(!is_taken(&trace, "trac*"));
	snprintf(own, sizeof(own), "pid:%ld", (long)getpid());
	CHECK(is_taken(&trace, own));
	snprintf(own, sizeof(own), "pid:1,uid:%ld", (long)geteuid());
	CHECK(is_taken(&trace, own));
	snprintf(own, sizeof(own), "pid:%ld,uid:%ld", (long)getpid() + 1, (long)geteuid() + 1);
	CHECK(!is_taken(&trace, own));
	snprintf(own, sizeof(own), "pid:%ldx", (long)getpid());
	CHECK(!is_taken(&trace, own));
	CHECK(is_taken(&trace, "a,b,test_*"));
}

/* --- what is lost --- */

TEST(an_event_that_is_too_large_is_counted)
{
	struct relay_trace large = a_trace("large");
	char *data = calloc(1, LARGE_SUBBUF_SIZE);
	CHECK(data != NULL);
	large.subbuf_size = LARGE_SUBBUF_SIZE;
	large.n_subbufs = 8;
	start(0, "t");
	show(1, &large);
	/* 8 of the event's head, 4 of the thread, 4 of the length; a packet has a head, too. */
	size_t head = sizeof(struct relay_packet) + 16;
	size_t longest = LARGE_SUBBUF_SIZE - head, longest_there = SUBBUF_SIZE - head;
	trace_other_data(data, longest_there);
	trace_other_data(data, longest_there + 1);
	trace_other_data(data, 65536);
	trace_other_data(data, longest);
	trace_other_data(data, longest + 1);
	trace_other_data(data, SIZE_MAX);
	trace_test_tick();
	CHECK_EQ(events_in("t"), 2);
	CHECK_EQ(written_to("t").too_large, 5);
	CHECK_EQ(events_in("large"), 5);
	CHECK_EQ(written_to("large").too_large, 2);
	free(data);
}

TEST(what_finds_no_room_is_counted)
{
	struct relay_trace trace = a_trace("t");
	trace.subbuf_size = 4096;
	trace.n_subbufs = 2;
	show(0, &trace);
	for (unsigned i = 0; i < 1000; i++)
		trace_test_number(i);
	struct written sum = written_to("t");
	CHECK(sum.events > 300 && sum.lost > 0);
	CHECK_EQ(sum.events + sum.lost, 1000);
}

TEST(what_comes_before_the_trace_can_be_joined_is_counted)
{
	struct relay_trace trace = a_trace("t");
	char name[] = "moved";
	/* Its directory is gone for a while. */
	CHECK_EQ(rename(path_of("t", ""), path_of(name, "")), 0);
	show(0, &trace);
	for (int i = 0; i < 5; i++)
		trace_test_tick();
	CHECK_EQ(rename(path_of(name, ""), path_of("t", "")), 0);
	uint64_t written = 0, tries = 0;
	while (!written && tries < 10000) {
		usleep(1000);
		trace_test_tick();
		tries++;
		written = events_in("t");
	}
	CHECK_EQ(written, 1);
	CHECK_EQ(written_to("t").lost, 5 + tries - 1);
}

/* --- what the process holds --- */

TEST(the_buffers_of_a_trace_that_is_taken_away_are_let_go_with_the_next_event)
{
	struct relay_trace trace = start(0, "t");
	int descriptors = count_descriptors();
	trace_test_number(1);
	CHECK(count_lines("/proc/self/maps", "/mem") > 0);
	/* As `trace stop` and `trace remove` do. */
	trace.is_started = 0;
	show(0, &trace);
	trace_test_number(2);
	show(0, &(struct relay_trace){.id = 0});
	trace_test_number(3);
	CHECK_EQ(count_lines("/proc/self/maps", "/mem"), 0);
	CHECK_EQ(count_descriptors(), descriptors);
	relay_traces_settle(server);
	trace_test_number(4);
	CHECK_EQ(count_lines("/proc/self/maps", "/mem"), 0);
}

TEST(the_control_page_cannot_be_written)
{
	start(0, "t");
	trace_test_tick();
	CHECK_EQ(mprotect(&relay_trace_page_, RELAY_TRACE_PAGE_BYTES, PROT_READ | PROT_WRITE), -1);
	CHECK_EQ(errno, EACCES);
	pid_t child = fork();
	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile uint32_t *)&relay_trace_page_.page.active = 0;
		_exit(0);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	/* A sanitizer tells of it in its own way. */
	CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
}

TEST(errno_stays)
{
	start(0, "t");
	errno = E2BIG;
	trace_test_tick();
	trace_other_data("", SIZE_MAX);
	relay_trace_prepare();
	CHECK_EQ(relay_log("nobody listens"), 0);
	CHECK_EQ(errno, E2BIG);
	CHECK_EQ(events_in("t"), 1);
}

/* --- events that are declared at run time --- */

TEST(an_event_that_is_declared_twice_is_one)
{
	const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}}, others[] = {{"n", RELAY_TRACE_X32}};
	struct relay_trace_event *event = relay_trace_declare("test", "number", fields, 1);
	CHECK(event != NULL && event == relay_trace_declare("test", "number", fields, 1));
	CHECK(event->id == trace_test_number_event.id);
	CHECK(relay_trace_declare("test", "number", others, 1)->id != event->id);
	CHECK(!relay_trace_wants(event));
	start(0, "t");
	CHECK(relay_trace_wants(event));
	struct {
		struct relay_trace_record head;
		uint32_t n;
	} record = {.n = 5};
	relay_trace_emit(event, &record.head, sizeof(record.head) + sizeof(record.n));
	trace_test_number(5);
	CHECK_EQ(events_in("t"), 2);
	CHECK_EQ(written_to("t").bytes, sizeof(struct relay_packet) + 2 * 16);
}

TEST(events_that_differ_in_their_level_are_two)
{
	struct relay_trace_event said = {.provider = "test", .name = "level", .has_place = 1, .file = "a.c", .line = 7};
	struct relay_trace_event *plain = relay_trace_declare_event(&said);
	CHECK(plain != NULL && plain->level == 0 && plain->line == 7);
	said.level = RELAY_TRACE_LEVEL_ERR + 1;
	struct relay_trace_event *error = relay_trace_declare_event(&said);
	CHECK(error != NULL && error->id != plain->id && error->level == said.level);
	said.file = "b.c";
	CHECK(relay_trace_declare_event(&said) == error);
	CHECK_EQ(strcmp(error->file, "a.c"), 0);
	said.level = RELAY_N_TRACE_LEVELS + 1;
	CHECK(relay_trace_declare_event(&said) == NULL && errno == EINVAL);
}

/* It ends where its memory ends. */
TEST(an_event_of_a_program_that_was_compiled_earlier_is_written)
{
	struct {
		const char *provider, *name;
		const struct relay_trace_field *fields;
		uint32_t n_fields, unused;
		uint64_t id, wanted;
	} * earlier;
	static union relay_trace_own_page_ own __attribute__((aligned(RELAY_TRACE_PAGE_BYTES)));
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	CHECK_EQ(mprotect(memory + page, page, PROT_NONE), 0);
	earlier = (void *)(memory + page - sizeof(*earlier));
	earlier->provider = "earlier";
	earlier->name = "event";
	struct relay_trace_event *const event = (void *)earlier;
	struct relay_trace_object object = {.page = &own.page, .events = &event, .events_end = &event + 1};
	struct relay_trace_record record;
	start(0, "t");
	relay_trace_register(&object);
	CHECK(RELAY_TRACE_IS_WANTED(&own.page, event));
	relay_trace_emit(event, &record, sizeof(record));
	CHECK_EQ(events_in("t"), 1);
	relay_trace_unregister(&object);
	munmap(memory, 2 * page);
}

static int refused(const char *provider, const char *name, const struct relay_trace_field *fields, uint32_t n)
{
	errno = 0;
	CHECK(relay_trace_declare(provider, name, fields, n) == NULL);
	return errno;
}

TEST(what_cannot_be_declared_is_refused)
{
	struct relay_trace_field fields[65] = {{"a", RELAY_TRACE_U8}, {"a", RELAY_TRACE_U8}};
	char name[129], names[65][16];
	CHECK_EQ(refused("test", "two", fields, 2), EINVAL);
	CHECK_EQ(refused("", "x", NULL, 0), EINVAL);
	CHECK_EQ(refused("test", "x.y", NULL, 0), EINVAL);
	CHECK_EQ(refused("test", "x\"", NULL, 0), EINVAL);
	memset(name, 'x', sizeof(name));
	name[128] = 0;
	CHECK_EQ(refused("test", name, NULL, 0), EINVAL);
	CHECK(relay_trace_declare("test.sub", name + 1, NULL, 0) != NULL);
	fields[0].type = RELAY_N_TRACE_TYPES;
	CHECK_EQ(refused("test", "type", fields, 1), EINVAL);
	for (int i = 0; i < 65; i++) {
		snprintf(names[i], sizeof(names[i]), "f%d", i);
		fields[i] = (struct relay_trace_field){names[i], RELAY_TRACE_U8};
	}
	CHECK_EQ(refused("test", "many", fields, 65), EINVAL);
	CHECK(relay_trace_declare("test", "many", fields, 64) != NULL);
}

/* The error for an event with fields of these names, up to NULL; 0: there is none. */
static int refuses_names(const char *const *names)
{
	struct relay_trace_field fields[8];
	uint32_t n = 0;
	for (; names[n]; n++)
		fields[n] = (struct relay_trace_field){names[n], RELAY_TRACE_U8};
	errno = 0;
	return relay_trace_declare("test", "names", fields, n) ? 0 : errno;
}

TEST(fields_of_structs_have_names_with_dots)
{
	static const char *const good[][5] = {{"a.x"},
	                                      {"a.x", "a.y", "x"},
	                                      {"a.a.a", "a.a.b", "a.b", "b.a"},
	                                      {"a.b.x", "a.bc.x", "a.b_.x"},
	                                      {"1.2.3.4.5.6.7.8.9"}};
	static const char *const bad[][5] = {{".x"},
	                                     {"a."},
	                                     {"a..x"},
	                                     {"."},
	                                     {"1.2.3.4.5.6.7.8.9.10"},
	                                     {"a.x", "a.x"},
	                                     {"a.x", "b", "a.y"},
	                                     {"a.b.x", "a.c", "a.b.y"},
	                                     {"a", "a.x"},
	                                     {"a.x", "a"},
	                                     {"a.x", "a.x.y"},
	                                     {"a.b.x", "b", "a.b"}};
	char name[129] = "a.";
	const char *const names[] = {name, NULL};
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		CHECK_EQ(refuses_names(good[i]), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		CHECK_EQ(refuses_names(bad[i]), EINVAL);
	memset(name + 2, 'x', 125);
	CHECK_EQ(refuses_names(names), 0);
	name[127] = 'x';
	CHECK_EQ(refuses_names(names), EINVAL);
}

static int refuses_labels(uint32_t type, const struct relay_trace_label *labels, uint32_t n)
{
	const struct relay_trace_field field = {"e", type};
	const struct relay_trace_enum of_field = {"e", labels, n};
	const struct relay_trace_event event = {.provider = "test",
	                                        .name = "labels",
	                                        .fields = &field,
	                                        .n_fields = 1,
	                                        .has_place = 2,
	                                        .n_enums = n ? 1 : 0,
	                                        .enums = &of_field};
	errno = 0;
	return relay_trace_declare_event(&event) ? 0 : errno;
}

TEST(types_and_labels_that_cannot_be_are_refused)
{
	const uint32_t an_enum = RELAY_TRACE_U8 | RELAY_TRACE_IS_ENUM, one = 1u << RELAY_TRACE_COUNT_SHIFT;
	const uint32_t wrong[] = {RELAY_TRACE_STRING | RELAY_TRACE_IS_SEQUENCE,
	                          RELAY_TRACE_BYTES | one,
	                          RELAY_TRACE_F32 | RELAY_TRACE_IS_ENUM,
	                          RELAY_TRACE_U8 | RELAY_TRACE_IS_SEQUENCE | one,
	                          RELAY_TRACE_U8 | RELAY_TRACE_IS_SEQUENCE | RELAY_TRACE_IS_ENUM,
	                          an_enum | one,
	                          RELAY_TRACE_U8 | 0x400};
	const struct relay_trace_label labels[] = {{"a", 0}, {"b", 255}, {"b", 1}}, large[] = {{"a", 256}},
				       odd[] = {{"\"", 1}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		CHECK_EQ(refuses_labels(wrong[i], labels, 2), EINVAL);
	CHECK_EQ(refuses_labels(an_enum, labels, 3), EINVAL);
	CHECK_EQ(refuses_labels(an_enum, large, 1), EINVAL);
	CHECK_EQ(refuses_labels(an_enum, odd, 1), EINVAL);
	CHECK_EQ(refuses_labels(an_enum, NULL, 0), EINVAL);
	CHECK_EQ(refuses_labels(an_enum, labels, 2), 0);
	CHECK_EQ(refuses_labels(RELAY_TRACE_I8 | RELAY_TRACE_IS_ENUM, labels, 2), EINVAL);
}

TEST(events_that_differ_in_their_labels_are_two)
{
	const struct relay_trace_field field = {"e", RELAY_TRACE_U8 | RELAY_TRACE_IS_ENUM};
	struct relay_trace_label labels[] = {{"a", 0}, {"b", 1}};
	const struct relay_trace_enum of_field = {"e", labels, 2};
	const struct relay_trace_event event = {.provider = "test",
	                                        .name = "two",
	                                        .fields = &field,
	                                        .n_fields = 1,
	                                        .has_place = 2,
	                                        .n_enums = 1,
	                                        .enums = &of_field};
	struct relay_trace_event *first = relay_trace_declare_event(&event);
	CHECK(first != NULL && relay_trace_declare_event(&event) == first);
	labels[1].value = 2;
	struct relay_trace_event *second = relay_trace_declare_event(&event);
	CHECK(second != NULL && second->id != first->id);
	CHECK_EQ(first->enums[0].labels[1].value, 1);
	labels[0].name = "c";
	CHECK(relay_trace_declare_event(&event)->id != second->id);
}

/* --- processes and signals --- */

static uint64_t n_handled;

static void handle(int signum)
{
	(void)signum;
	trace_other_text("from the handler");
	n_handled++;
}

TEST(handlers_trace_in_the_middle_of_other_events)
{
	uint64_t n = 0;
	start(0, "t");
	relay_trace_prepare();
	CHECK(signal(SIGALRM, handle) != SIG_ERR);
	CHECK_EQ(setitimer(ITIMER_REAL, &(struct itimerval){{0, SIGNAL_US}, {0, SIGNAL_US}}, NULL), 0);
	while (n_handled < 200)
		trace_test_number((uint32_t)n++);
	CHECK_EQ(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL), 0);
	struct written sum = written_to("t");
	CHECK_EQ(sum.events + sum.lost, n + n_handled);
}

TEST(children_have_buffers_of_their_own)
{
	enum { N_CHILDREN = 10 };
	pthread_t threads[4];
	start(0, "t");
	run_threads(threads, 4, N_EVENTS);
	for (int i = 0; i < N_CHILDREN; i++) {
		pid_t child = fork();
		if (!child) {
			write_events((void *)10);
			_exit(0);
		}
		int status;
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK_EQ(status, 0);
	}
	join_threads(threads, 4);
	struct written sum = written_to("t");
	CHECK_EQ(sum.events + sum.lost, 4 * N_EVENTS + N_CHILDREN * 10);
	CHECK_EQ(sum.n_processes, 1 + N_CHILDREN);
}

static int in_child(void (*function)(void))
{
	pid_t child = fork();
	if (!child) {
		function();
		_exit(0);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

static void tick(void)
{
	trace_test_tick();
}

TEST(a_child_is_not_taken_for_its_parent)
{
	struct relay_trace trace = a_trace("t");
	snprintf(trace.filter, sizeof(trace.filter), "pid:%ld", (long)getpid());
	show(0, &trace);
	tick();
	CHECK_EQ(in_child(tick), 0);
	CHECK_EQ(events_in("t"), 1);
	tick();
	CHECK_EQ(events_in("t"), 2);
}

TEST(a_child_does_not_say_again_what_its_parent_lost)
{
	struct relay_trace trace = a_trace("t");
	CHECK_EQ(rename(path_of("t", ""), path_of("moved", "")), 0);
	show(0, &trace);
	tick();
	CHECK_EQ(rename(path_of("moved", ""), path_of("t", "")), 0);
	CHECK_EQ(in_child(tick), 0);
	struct written sum = written_to("t");
	CHECK_EQ(sum.events, 1);
	CHECK_EQ(sum.lost, 0);
}

/* --- the log --- */

TEST(lines_go_to_the_log_while_there_is_one)
{
	struct relay_spec spec = a_spec(4096, 4, RELAY_NO_OVERWRITE);
	char long_text[3000], path[4096], expected[4096];
	spec.buffers = RELAY_SINGLE;
	spec.n_buffers = 1;
	spec.scheme = RELAY_LOCKLESS;
	memset(long_text, 'y', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = 0;
	a_trace("t");
	for (uint32_t number = 1; number < 4; number++) {
		CHECK_EQ(relay_log("%d", 1), 0);
		CHECK(!relay_log_is_heard());
		CHECK_EQ(relay_store_create(path_of("log", ""), &spec), 0);
		relay_traces_set_log(server, number);
		CHECK(relay_log_is_heard());
		CHECK_EQ(relay_log("%d %s\n", 5, "things"), 1);
		CHECK_EQ(relay_log_text("100 %s\n", 7), 1);
		CHECK_EQ(relay_log("%s", long_text), 1);
		snprintf(path, sizeof(path), "%s", path_of("log", "mem0"));
		struct rchan_buf *buf = relay_buf_open(path);
		CHECK(buf != NULL);
		char *text = strdup(drain(buf)), *next = text, *line;
		const char *const lines[] = {"5 things", "100 %s", long_text};
		for (int i = 0; i < 3; i++) {
			CHECK((line = strsep(&next, "\n")) != NULL);
			snprintf(expected, sizeof(expected), "%s[%ld]: %s", program_invocation_short_name,
			         (long)getpid(), lines[i]);
			CHECK_TEXT(strstr(line, "] ") + 2, expected);
		}
		CHECK_TEXT(next, "");
		free(text);
		relay_buf_release(buf);
		CHECK_EQ(unlink(path), 0);
		CHECK_EQ(rmdir(path_of("log", "")), 0);
		relay_traces_set_log(server, 0);
	}
}
