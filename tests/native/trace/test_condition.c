/* SPDX-License-Identifier: MIT */
/* Conditions of rules: which events they take, and forms of them in the control file that no server would make. */
#define _GNU_SOURCE
#include "random.h"
#include "served_store.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

STORE(traces);
BUILDS(plain, memory, threads);

RELAY_TRACE_ENUM(state, i8, {"IDLE", -1}, {"BUSY", 1})
RELAY_TRACE_EVENT_LEVEL(WARNING, test, fields, (string, text), (i16, small), (u64, large), (f32, real),
                        (enum, state, state), (bytes, data), (array, three, u8, 3), (sequence, many, u16), (u8, last))

enum { N_THREADS = 4, N_FORMS = 20000, N_CHANGES = 300 };
enum { NOT_EQUAL = RELAY_LESS | RELAY_GREATER | RELAY_UNORDERED, AT_MOST = RELAY_LESS | RELAY_EQUAL };

/* Append a name or a text, and return where it is. */
static uint16_t place(struct relay_conditions *conditions, const char *text)
{
	size_t at = 1;
	while (conditions->texts[at])
		at += strlen(conditions->texts + at) + 1;
	strcpy(conditions->texts + at, text);
	return (uint16_t)at;
}

static struct relay_condition_step step(struct relay_conditions *conditions, const char *field, int accepts,
                                        enum relay_operand operand, uint64_t number, const char *text)
{
	return (struct relay_condition_step){
	    .operand = (uint8_t)operand,
	    .accepts = (uint8_t)accepts,
	    .next = {RELAY_CONDITION_REFUSE, RELAY_CONDITION_TAKE},
	    .field = place(conditions, field),
	    .text = place(conditions, text),
	    .number = number,
	};
}

static void emit_fields(void)
{
	trace_test_fields("abc", -5, UINT64_MAX, 0.5f, -1, "12345", 5, (const uint8_t[]){1, 2, 3},
	                  (const uint16_t[]){1, 2}, 2, 200);
}

/* Whether the event is taken under a condition of one step. */
static bool is_taken(struct relay_trace *trace, const char *field, int accepts, enum relay_operand operand,
                     uint64_t number, const char *text)
{
	const uint64_t before = events_in(trace->name);
	strcpy(trace->rules, "+test:* a condition\n");
	trace->conditions = (struct relay_conditions){.n_steps = 1, .n_conditions = 1};
	trace->conditions.steps[0] = step(&trace->conditions, field, accepts, operand, number, text);
	show(0, trace);
	emit_fields();
	return events_in(trace->name) - before;
}

static uint64_t bits_of(double real)
{
	uint64_t bits;
	memcpy(&bits, &real, sizeof(bits));
	return bits;
}

TEST(fields_of_all_types_are_compared)
{
	struct relay_trace trace = start(0, "t");
	const uint64_t minus_5 = (uint64_t)-5;
	emit_fields(); /* its buffers are there */
	CHECK(is_taken(&trace, "text", RELAY_EQUAL, RELAY_OPERAND_TEXT, 0, "abc"));
	CHECK(is_taken(&trace, "text", RELAY_LESS, RELAY_OPERAND_TEXT, 0, "abd"));
	CHECK(!is_taken(&trace, "text", RELAY_EQUAL, RELAY_OPERAND_TEXT, 0, "ab"));
	CHECK(is_taken(&trace, "small", RELAY_EQUAL, RELAY_OPERAND_NEGATIVE, minus_5, ""));
	CHECK(is_taken(&trace, "small", RELAY_LESS, RELAY_OPERAND_POSITIVE, minus_5, ""));
	CHECK(is_taken(&trace, "small", RELAY_GREATER, RELAY_OPERAND_REAL, bits_of(-5.5), ""));
	CHECK(is_taken(&trace, "large", RELAY_EQUAL, RELAY_OPERAND_POSITIVE, UINT64_MAX, ""));
	CHECK(is_taken(&trace, "large", RELAY_GREATER, RELAY_OPERAND_NEGATIVE, UINT64_MAX, ""));
	CHECK(is_taken(&trace, "real", RELAY_EQUAL, RELAY_OPERAND_REAL, bits_of(0.5), ""));
	CHECK(is_taken(&trace, "real", RELAY_LESS, RELAY_OPERAND_POSITIVE, 1, ""));
	CHECK(is_taken(&trace, "real", RELAY_GREATER, RELAY_OPERAND_NEGATIVE, minus_5, ""));
	CHECK(is_taken(&trace, "real", RELAY_UNORDERED, RELAY_OPERAND_REAL, bits_of(__builtin_nan("")), ""));
	CHECK(is_taken(&trace, "state", RELAY_EQUAL, RELAY_OPERAND_TEXT, 0, "IDLE"));
	CHECK(is_taken(&trace, "state", RELAY_LESS, RELAY_OPERAND_TEXT, 0, "BUSY"));
	CHECK(is_taken(&trace, "state", RELAY_EQUAL, RELAY_OPERAND_NEGATIVE, UINT64_MAX, ""));
	CHECK(is_taken(&trace, "last", RELAY_EQUAL, RELAY_OPERAND_POSITIVE, 200, ""));
	CHECK(is_taken(&trace, "", AT_MOST, RELAY_OPERAND_LEVEL, RELAY_TRACE_LEVEL_WARNING, ""));
	CHECK(!is_taken(&trace, "", RELAY_LESS, RELAY_OPERAND_LEVEL, RELAY_TRACE_LEVEL_WARNING, ""));
}

TEST(patterns_match_whole_texts)
{
	struct relay_trace trace = start(0, "t");
	const char *const match[] = {"abc", "*", "a*", "*c", "a*c", "?b?", "***a**b*c*", "\\a\\b\\c", "*bc", "*?c"};
	const char *const no_match[] = {"",     "ab",  "abcd", "b*", "*b",     "????",
	                                "a\\*", "\\*", "?",    "a?", "*abcd*", "ab\\"};
	emit_fields();
	for (size_t i = 0; i < sizeof(match) / sizeof(match[0]); i++)
		CHECK(is_taken(&trace, "text", RELAY_EQUAL, RELAY_OPERAND_PATTERN, 0, match[i]));
	for (size_t i = 0; i < sizeof(no_match) / sizeof(no_match[0]); i++)
		CHECK(!is_taken(&trace, "text", RELAY_EQUAL, RELAY_OPERAND_PATTERN, 0, no_match[i]));
}

TEST(an_event_without_the_field_or_with_another_type_is_not_taken_whatever_is_compared)
{
	struct relay_trace trace = start(0, "t");
	const int always = RELAY_LESS | RELAY_EQUAL | RELAY_GREATER | RELAY_UNORDERED;
	emit_fields();
	CHECK(is_taken(&trace, "last", always, RELAY_OPERAND_POSITIVE, 0, ""));
	CHECK(!is_taken(&trace, "none", always, RELAY_OPERAND_POSITIVE, 0, ""));
	CHECK(!is_taken(&trace, "last", always, RELAY_OPERAND_TEXT, 0, "200"));
	CHECK(!is_taken(&trace, "last", always, RELAY_OPERAND_PATTERN, 0, "*"));
	CHECK(!is_taken(&trace, "real", always, RELAY_OPERAND_TEXT, 0, "0.5"));
	CHECK(!is_taken(&trace, "text", always, RELAY_OPERAND_POSITIVE, 0, ""));
	CHECK(!is_taken(&trace, "text", always, RELAY_OPERAND_REAL, 0, ""));
	CHECK(!is_taken(&trace, "state", always, RELAY_OPERAND_TEXT, 0, "NONE"));
	CHECK(!is_taken(&trace, "state", always, RELAY_OPERAND_PATTERN, 0, "IDLE"));
	CHECK(!is_taken(&trace, "data", always, RELAY_OPERAND_TEXT, 0, "12345"));
	CHECK(!is_taken(&trace, "three", always, RELAY_OPERAND_POSITIVE, 1, ""));
	CHECK(!is_taken(&trace, "many", always, RELAY_OPERAND_POSITIVE, 1, ""));
	const uint64_t before = events_in("t");
	is_taken(&trace, "", always, RELAY_OPERAND_LEVEL, 0, "");
	CHECK_EQ(events_in("t"), before + 1);
	trace_test_number(1); /* which has no level */
	CHECK_EQ(events_in("t"), before + 1);
}

TEST(each_trace_has_its_own_condition)
{
	struct relay_trace few = a_trace("few"), none = a_trace("none");
	start(0, "all");
	strcpy(few.rules, "+*\n+test:n* n < 10\n");
	few.conditions = (struct relay_conditions){.n_steps = 1, .n_conditions = 1};
	few.conditions.steps[0] = step(&few.conditions, "n", RELAY_LESS, RELAY_OPERAND_POSITIVE, 10, "");
	show(1, &few);
	strcpy(none.rules, "+test:number n < 0\n");
	none.conditions = few.conditions;
	none.conditions.steps[0].number = 0;
	show(15, &none);
	for (uint32_t i = 0; i < 100; i++)
		trace_test_number(i);
	trace_test_tick();
	CHECK_EQ(events_in("all"), 101);
	CHECK_EQ(events_in("few"), 11);
	CHECK_EQ(written_to("none").n_processes, 0);
	/* The rule without a condition, which is the last now. */
	strcpy(few.rules, "+test:n* n < 10\n+*\n");
	show(1, &few);
	trace_test_number(50);
	CHECK_EQ(events_in("few"), 12);
	CHECK_EQ(events_in("all"), 102);
	/* A rule whose condition the form does not have. */
	few.conditions.n_conditions = 0;
	strcpy(few.rules, "+test:n* n < 10\n");
	show(1, &few);
	trace_test_number(5);
	CHECK_EQ(events_in("few"), 12);
}

TEST(an_event_that_gets_no_memory_is_lost_under_a_condition_too)
{
	struct relay_trace trace = start(0, "t");
	trace_test_tick();
	is_taken(&trace, "text", RELAY_EQUAL, RELAY_OPERAND_TEXT, 0, "no");
	CHECK_EQ(written_to("t").lost + written_to("t").too_large, 0);
	trace_test_fields("no", 0, 0, 0, 0, "", (size_t)1 << 30, NULL, NULL, 0, 0);
	CHECK_EQ(written_to("t").lost + written_to("t").too_large, 1);
}

/* --- records and forms that cannot be --- */

TEST(a_record_that_is_cut_is_not_read_beyond_its_end)
{
	const struct relay_trace_field fields[] = {{"text", RELAY_TRACE_STRING}, {"n", RELAY_TRACE_U32}};
	struct relay_trace_event *event = relay_trace_declare("test", "cut", fields, 2);
	struct relay_trace trace = start(0, "t");
	CHECK(event != NULL);
	for (int kind = 0; kind < 2; kind++) {
		is_taken(&trace, kind ? "text" : "n", NOT_EQUAL, kind ? RELAY_OPERAND_TEXT : RELAY_OPERAND_POSITIVE, 5,
		         "b");
		const uint64_t before = events_in("t");
		for (size_t length = 0; length <= 6; length++) {
			/* Of the length that the event says, for the sanitizer to see; the text is cut, or the number. */
			struct relay_trace_record *record = malloc(sizeof(*record) + length);
			CHECK(record != NULL);
			memcpy(record + 1, "a\0\1\0\0\0", length);
			relay_trace_emit(event, record, sizeof(*record) + length);
			free(record);
		}
		CHECK_EQ(events_in("t") - before, kind ? 5 : 1);
	}
}

static void check_unsound(struct relay_trace *trace)
{
	struct relay_trace got;
	show(0, trace);
	CHECK_EQ(relay_traces_get(server, 0, &got), -EBADMSG);
	trace_test_number(1);
	CHECK_EQ(events_in("t"), 1);
}

TEST(a_form_that_leads_out_of_the_memory_or_does_not_end_is_not_followed)
{
	struct relay_trace good = start(0, "t"), bad;
	trace_test_number(1);
	strcpy(good.rules, "+test:number n < 10\n");
	good.conditions = (struct relay_conditions){.n_steps = 2, .n_conditions = 1};
	good.conditions.steps[0] = step(&good.conditions, "n", RELAY_EQUAL, RELAY_OPERAND_POSITIVE, 10, "");
	good.conditions.steps[1] = good.conditions.steps[0];
#define CHECK_UNSOUND(member, value)           \
	do {                                   \
		bad = good;                    \
		bad.conditions.member = value; \
		check_unsound(&bad);           \
	} while (0)
	CHECK_UNSOUND(steps[1].next[0], 1); /* itself */
	CHECK_UNSOUND(steps[1].next[1], 0); /* back */
	CHECK_UNSOUND(steps[0].next[0], 0);
	CHECK_UNSOUND(steps[0].next[0], 2);
	CHECK_UNSOUND(steps[0].next[1], 253);
	CHECK_UNSOUND(steps[0].operand, RELAY_N_OPERANDS);
	CHECK_UNSOUND(steps[0].field, RELAY_CONDITION_TEXT_BYTES);
	CHECK_UNSOUND(steps[0].text, UINT16_MAX);
	CHECK_UNSOUND(texts[RELAY_CONDITION_TEXT_BYTES - 1], 'x');
	CHECK_UNSOUND(first[0], 2);
	CHECK_UNSOUND(n_steps, RELAY_CONDITION_STEPS + 1);
	CHECK_UNSOUND(n_conditions, UINT32_MAX);
#undef CHECK_UNSOUND
	show(0, &good);
	trace_test_number(10);
	CHECK_EQ(events_in("t"), 2);
}

/* Mostly sound, so that it is followed. */
static void make_form(struct relay_conditions *conditions)
{
	static const char *const names[] = {"text",  "small", "large", "real", "state", "data",
	                                    "three", "many",  "last",  "IDLE", "a*"};
	*conditions = (struct relay_conditions){.n_steps = (uint32_t)(1 + random_below(RELAY_CONDITION_STEPS))};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		place(conditions, names[i]);
	for (uint32_t i = 0; i < conditions->n_steps; i++) {
		struct relay_condition_step *at = &conditions->steps[i];
		*at = step(conditions, "", (int)random_below(256), (enum relay_operand)random_below(RELAY_N_OPERANDS),
		           random_below(3) ? random_below(8) : random_word(), "");
		at->field = (uint16_t)random_below(64);
		at->text = (uint16_t)random_below(64);
		for (int k = 0; k < 2; k++) {
			uint64_t next = i + 1 + random_below(4);
			at->next[k] = (uint8_t)(next < conditions->n_steps ? next : RELAY_CONDITION_TAKE + next % 2);
		}
	}
	conditions->n_conditions = 1;
	conditions->first[0] = (uint8_t)random_below(conditions->n_steps);
	for (uint64_t wrong = random_below(3); wrong; wrong--)
		((unsigned char *)conditions)[random_below(sizeof(*conditions))] = (unsigned char)random_word();
}

TEST(random_forms_harm_nobody)
{
	struct relay_trace trace = start(0, "t");
	start(1, "other");
	strcpy(trace.rules, "+test:* x\n");
	for (int i = 0; i < N_FORMS; i++) {
		make_form(&trace.conditions);
		show(0, &trace);
		emit_fields();
	}
	struct written sum = written_to("other");
	CHECK_EQ(sum.events + sum.lost, N_FORMS);
}

/* Write forms into the control file as no server does, and have programs copy them, until the process is killed. */
static void scribble(const struct relay_trace *other)
{
	struct relay_trace trace = *other;
	struct relay_conditions sound;
	int fd = open(path_of(".traces", ""), O_RDWR);
	unsigned char *slot = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
	CHECK(slot != MAP_FAILED);
	unsigned char *form = slot + sizeof(uint64_t) + offsetof(struct relay_trace, conditions);
	for (uint32_t i = 0;; i++) {
		if (i % 64 == 0) {
			make_form(&sound);
			memcpy(form, &sound, sizeof(sound));
			trace.is_started = i % 128 != 0;
			show(2, &trace);
		}
		form[random_below(sizeof(sound))] = (unsigned char)random_word();
	}
}

TEST(a_form_that_changes_while_it_is_copied_harms_nobody)
{
	struct relay_trace trace = start(0, "t"), third = a_trace("third");
	start(1, "other");
	third.is_started = 0;
	strcpy(trace.rules, "+test:* x\n");
	show(0, &trace);
	pid_t child = fork();
	if (!child)
		scribble(&third);
	for (int i = 0; i < N_FORMS; i++)
		emit_fields();
	kill(child, SIGKILL);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	struct written sum = written_to("other");
	CHECK_EQ(sum.events + sum.lost, N_FORMS);
}

/* --- changes --- */

static bool is_over;

static void *write_until_over(void *unused)
{
	for (uint32_t i = 0; !__atomic_load_n(&is_over, __ATOMIC_RELAXED); i++)
		trace_test_number(i % 20);
	return unused;
}

TEST(conditions_change_while_threads_evaluate_them)
{
	pthread_t threads[N_THREADS];
	struct relay_trace trace = a_trace("t");
	trace.mode = RELAY_OVERWRITE;
	show(0, &trace);
	for (int i = 0; i < N_THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, write_until_over, NULL), 0);
	for (int i = 0; i < N_CHANGES; i++) {
		strcpy(trace.rules, i % 3 ? "+test:number n\n" : "+test:*\n");
		trace.conditions = (struct relay_conditions){.n_steps = 1, .n_conditions = 1};
		trace.conditions.steps[0] =
		    step(&trace.conditions, "n", i % 2 ? AT_MOST : RELAY_GREATER, RELAY_OPERAND_POSITIVE, 9, "");
		show(0, &trace);
		usleep(i % 10 * 100);
	}
	__atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
	join_threads(threads, N_THREADS);
	/* What is left in the end is evaluated. */
	const uint64_t before = events_in("t");
	for (uint32_t i = 0; i < 20; i++)
		trace_test_number(i);
	CHECK_EQ(events_in("t") - before, 10);
}
