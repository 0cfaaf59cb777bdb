/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace.h>: tracepoints. Many processes write into the traces of one mount, as CTF 1.8.
 *
 *     RELAY_TRACE_EVENT(server, request, (u32, id), (string, path), (f64, ms))      at file scope
 *
 *     trace_server_request(id, path, ms);                              no trace wants it: a load and a branch
 *
 *     # echo 'trace create t' > MNT/control; echo 'trace start t' > MNT/control
 *     # relayctl record t -o DIR; babeltrace2 DIR
 *
 * A program with tracepoints is linked with -lrelayfs and runs the same whether or not anything is mounted. An event is
 * written to each started trace that wants it. The buffers are made when the first event is written; only this process
 * writes to them, or all processes of its user, or all processes (buffers= of `trace create`). To learn which events
 * are wanted, the program reads a page that the file server writes and that this process has mapped read-only.
 *
 * The program writes to the traces of the mount $RELAYFS, or else of the first relayfs mount that belongs to root or to this
 * user. If there is none, a thread of the library waits for one. Environment:
 *
 *     RELAYFS_TRACE=off             the program is never traced
 *     RELAYFS_TRACE_EARLY=NAME[,subbuf_size=..][,n_subbufs=..][,mode=..]
 *                                   events are kept in memory until a trace NAME exists, and become part of it
 *
 * Fields are declared as (TYPE, NAME), at most 16:
 *
 *     u8 u16 u32 u64  i8 i16 i32 i64    integers, the parameter is uint8_t NAME ...
 *     x8 x16 x32 x64                    the same as u8 ..., shown in hexadecimal
 *     f32 f64                           float NAME, double NAME
 *     string                            const char *NAME; NULL is written as ""
 *     bytes                             const void *NAME, size_t NAME_length
 *
 * and of the types of numbers, here u32, of enums and of structs:
 *
 *     (array, NAME, u32, 16)            const uint32_t *NAME: that many numbers
 *     (sequence, NAME, u32)             const uint32_t *NAME, size_t NAME_length: NAME_length numbers
 *     (enum, NAME, ENUM)                an integer with labels, after RELAY_TRACE_ENUM(ENUM, u8, {"label", 0}, ...)
 *     (struct, NAME, STRUCT)            const C_TYPE *NAME, after RELAY_TRACE_STRUCT(STRUCT, C_TYPE, (TYPE, NAME), ...)
 *
 * Threads and signals: trace_..() may be called by any thread, and in signal handlers, except for the first event that a
 * process writes to a trace, for which buffers are made (relay_trace_prepare()). A child of fork() has its own buffers.
 */
#ifndef RELAYFS_TRACE_H
#define RELAYFS_TRACE_H

#include <relayfs/trace_event.h>
#include <relayfs/trace_struct.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)

/* --- the parts of a declaration; names that end in _ are internal --- */

/* Write an event; <relayfs/producer.h> defines it, too. */
#ifndef RELAY_TRACE_EMIT_
#define RELAY_TRACE_EMIT_(event, record, length) relay_trace_emit(event, record, length)
#endif

#define RELAY_TRACE_HIDDEN_ __attribute__((__weak__, __visibility__("hidden")))

/* Begin and end of the section with the pointers to all events of this object file, as the linker names them. */
#define RELAY_TRACE_BOUND_(symbol) __asm__(symbol) RELAY_TRACE_HIDDEN_
extern struct relay_trace_event *const relay_trace_events_begin_[] RELAY_TRACE_BOUND_("__start_relay_trace_events");
extern struct relay_trace_event *const relay_trace_events_end_[] RELAY_TRACE_BOUND_("__stop_relay_trace_events");

/* A page of its own, because the control file's page is mapped over it. */
union relay_trace_own_page_ {
	struct relay_trace_page page;
	char bytes[RELAY_TRACE_PAGE_BYTES];
};
RELAY_TRACE_HIDDEN_ __attribute__((__aligned__(RELAY_TRACE_PAGE_BYTES))) union relay_trace_own_page_ relay_trace_page_;
RELAY_TRACE_HIDDEN_ struct relay_trace_object relay_trace_object_;

static void __attribute__((__constructor__, __unused__)) relay_trace_enter_(void)
{
	if (relay_trace_object_.page)
		return; /* registered by another source file of this object */
	relay_trace_object_.page = &relay_trace_page_.page;
	relay_trace_object_.events = relay_trace_events_begin_;
	relay_trace_object_.events_end = relay_trace_events_end_;
	relay_trace_register(&relay_trace_object_);
}

static void __attribute__((__destructor__, __unused__)) relay_trace_leave_(void)
{
	if (!relay_trace_object_.page)
		return;
	relay_trace_unregister(&relay_trace_object_);
	relay_trace_object_.page = NULL;
}

static inline unsigned char *relay_trace_put_(unsigned char *at, const void *from, size_t length)
{
	if (length)
		memcpy(at, from, length);
	return at + length;
}

static inline size_t relay_trace_size_(size_t length)
{
	const size_t most = RELAY_TRACE_EVENT_MAX;
	return sizeof(uint32_t) + (length < most ? length : most);
}

static inline size_t relay_trace_sequence_size_(size_t count, size_t each)
{
	const size_t most = RELAY_TRACE_EVENT_MAX;
	return relay_trace_size_(count < most / each ? count * each : most);
}

static inline unsigned char *relay_trace_put_sequence_(unsigned char *at, const void *from, size_t count, size_t each)
{
	uint32_t prefix = (uint32_t)count;
	return relay_trace_put_(relay_trace_put_(at, &prefix, sizeof(prefix)), from, count * each);
}

/* An array in a struct; NULL counts as zeroes. */
static inline unsigned char *relay_trace_put_array_(unsigned char *at, const void *from, size_t length)
{
	if (from)
		return relay_trace_put_(at, from, length);
	memset(at, 0, length);
	return at + length;
}

static inline unsigned char *relay_trace_put_bytes_(unsigned char *at, const void *from, size_t length)
{
	uint32_t prefix = (uint32_t)length;
	return relay_trace_put_(relay_trace_put_(at, &prefix, sizeof(prefix)), from, length);
}

/* clang-format off */

/* Expand to code for a field, by its type: DO_number(C TYPE, RELAY_TRACE_ constant, name), DO_string(name), DO_bytes(name),
 * DO_array(C TYPE, number of the type, name, count), DO_sequence(C TYPE, number of the type, name), DO_enum(name, enum),
 * DO_struct(name, struct). */
#define RELAY_TRACE_AS_u8(DO, name) DO##_number(uint8_t, U8, name)
#define RELAY_TRACE_AS_u16(DO, name) DO##_number(uint16_t, U16, name)
#define RELAY_TRACE_AS_u32(DO, name) DO##_number(uint32_t, U32, name)
#define RELAY_TRACE_AS_u64(DO, name) DO##_number(uint64_t, U64, name)
#define RELAY_TRACE_AS_i8(DO, name) DO##_number(int8_t, I8, name)
#define RELAY_TRACE_AS_i16(DO, name) DO##_number(int16_t, I16, name)
#define RELAY_TRACE_AS_i32(DO, name) DO##_number(int32_t, I32, name)
#define RELAY_TRACE_AS_i64(DO, name) DO##_number(int64_t, I64, name)
#define RELAY_TRACE_AS_x8(DO, name) DO##_number(uint8_t, X8, name)
#define RELAY_TRACE_AS_x16(DO, name) DO##_number(uint16_t, X16, name)
#define RELAY_TRACE_AS_x32(DO, name) DO##_number(uint32_t, X32, name)
#define RELAY_TRACE_AS_x64(DO, name) DO##_number(uint64_t, X64, name)
#define RELAY_TRACE_AS_f32(DO, name) DO##_number(float, F32, name)
#define RELAY_TRACE_AS_f64(DO, name) DO##_number(double, F64, name)
#define RELAY_TRACE_AS_string(DO, name) DO##_string(name)
#define RELAY_TRACE_AS_bytes(DO, name) DO##_bytes(name)
#define RELAY_TRACE_AS_array(DO, name, type, count) DO##_array(RELAY_TRACE_C_(type), RELAY_TRACE_NUMBER_(type), name, count)
#define RELAY_TRACE_AS_sequence(DO, name, type) DO##_sequence(RELAY_TRACE_C_(type), RELAY_TRACE_NUMBER_(type), name)
#define RELAY_TRACE_AS_enum(DO, name, of) DO##_enum(name, of)
#define RELAY_TRACE_AS_struct(DO, name, of) DO##_struct(name, of)
#define RELAY_TRACE_FIELD_(DO, type, ...) RELAY_TRACE_AS_##type(DO, __VA_ARGS__)

/* The C type and the number of a type of numbers. */
#define RELAY_TRACE_C_(type) RELAY_TRACE_AS_##type(RELAY_TRACE_C, unused_)
#define RELAY_TRACE_C_number(ctype, type, name) ctype
#define RELAY_TRACE_NUMBER_(type) RELAY_TRACE_AS_##type(RELAY_TRACE_TYPE, unused_)
#define RELAY_TRACE_TYPE_number(ctype, type, name) (uint32_t)RELAY_TRACE_##type

/*
 * RELAY_TRACE_ENUM(NAME, TYPE, {"LABEL", VALUE}, ...): declares an enum for fields (enum, FIELD, NAME), at file scope.
 * The fields are written as integers of this type; the listed values have labels, which are C names.
 */
#define RELAY_TRACE_ENUM(name, type, ...)                                                                              \
	typedef RELAY_TRACE_C_(type) relay_trace_enum_##name##_t_;                                                     \
	enum { relay_trace_enum_##name##_type_ = RELAY_TRACE_NUMBER_(type) };                                          \
	static const struct relay_trace_label relay_trace_enum_##name##_[] __attribute__((__unused__)) = {__VA_ARGS__};

/* Parameters and arguments for the field, with a comma before each. */
#define RELAY_TRACE_NEXT_number(ctype, type, name) , ctype name
#define RELAY_TRACE_NEXT_string(name) , const char *name
#define RELAY_TRACE_NEXT_bytes(name) , const void *name, size_t name##_length
#define RELAY_TRACE_NEXT_array(ctype, number, name, count) , const ctype *name
#define RELAY_TRACE_NEXT_sequence(ctype, number, name) , const ctype *name, size_t name##_length
#define RELAY_TRACE_NEXT_enum(name, of) , relay_trace_enum_##of##_t_ name
#define RELAY_TRACE_NEXT_struct(name, of) , const relay_trace_struct_##of##_t_ *name
#define RELAY_TRACE_PASS_number(ctype, type, name) , name
#define RELAY_TRACE_PASS_string(name) , name
#define RELAY_TRACE_PASS_bytes(name) , name, name##_length
#define RELAY_TRACE_PASS_array(ctype, number, name, count) , name
#define RELAY_TRACE_PASS_sequence(ctype, number, name) , name, name##_length
#define RELAY_TRACE_PASS_enum(name, of) , name
#define RELAY_TRACE_PASS_struct(name, of) , name
/* The field's struct relay_trace_field. */
#define RELAY_TRACE_DESCRIBE_number(ctype, type, name) {#name, RELAY_TRACE_##type},
#define RELAY_TRACE_DESCRIBE_string(name) {#name, RELAY_TRACE_STRING},
#define RELAY_TRACE_DESCRIBE_bytes(name) {#name, RELAY_TRACE_BYTES},
#define RELAY_TRACE_DESCRIBE_array(ctype, number, name, count) {#name, number | RELAY_TRACE_COUNT_OF_(count)},
#define RELAY_TRACE_DESCRIBE_sequence(ctype, number, name) {#name, number | RELAY_TRACE_IS_SEQUENCE},
#define RELAY_TRACE_DESCRIBE_enum(name, of) {#name, (uint32_t)relay_trace_enum_##of##_type_ | RELAY_TRACE_IS_ENUM},
#define RELAY_TRACE_DESCRIBE_struct(name, of) {#name, RELAY_TRACE_IS_STRUCT},
/* The count in a field's type. Does not compile unless the count is 1 to 65535. */
#define RELAY_TRACE_COUNT_OF_(count)                                                                                   \
	((uint32_t)(count) * (uint32_t)sizeof(char[(count) > 0 && (count) < 65536 ? 1 : -1]) << RELAY_TRACE_COUNT_SHIFT)
/* The field's struct relay_trace_enum, if the field is an enum. */
#define RELAY_TRACE_LABELS_number(ctype, type, name)
#define RELAY_TRACE_LABELS_string(name)
#define RELAY_TRACE_LABELS_bytes(name)
#define RELAY_TRACE_LABELS_array(ctype, number, name, count)
#define RELAY_TRACE_LABELS_sequence(ctype, number, name)
#define RELAY_TRACE_LABELS_enum(name, of) \
	{#name, relay_trace_enum_##of##_, sizeof(relay_trace_enum_##of##_) / sizeof(struct relay_trace_label)},
#define RELAY_TRACE_LABELS_struct(name, of)
/* Its struct relay_trace_members, if it is one. */
#define RELAY_TRACE_MEMBERS_number(ctype, type, name)
#define RELAY_TRACE_MEMBERS_string(name)
#define RELAY_TRACE_MEMBERS_bytes(name)
#define RELAY_TRACE_MEMBERS_array(ctype, number, name, count)
#define RELAY_TRACE_MEMBERS_sequence(ctype, number, name)
#define RELAY_TRACE_MEMBERS_enum(name, of)
#define RELAY_TRACE_MEMBERS_struct(name, of) &relay_trace_struct_##of##_,
/* The length of the field, computed once; a term of the event's length; and the store of its value. */
#define RELAY_TRACE_SIZE_number(ctype, type, name)
#define RELAY_TRACE_SIZE_string(name) size_t name##_size_ = name ? strlen(name) + 1 : 1;
#define RELAY_TRACE_SIZE_bytes(name)
#define RELAY_TRACE_SIZE_array(ctype, number, name, count)
#define RELAY_TRACE_SIZE_sequence(ctype, number, name)
#define RELAY_TRACE_SIZE_enum(name, of)
#define RELAY_TRACE_SIZE_struct(name, of)                                                                              \
	struct relay_trace_struct_##of##_kept_ name##_kept_;                                                           \
	size_t name##_size_ = relay_trace_struct_##of##_keep_(&name##_kept_, name);
#define RELAY_TRACE_ADD_number(ctype, type, name) +sizeof(ctype)
#define RELAY_TRACE_ADD_string(name) +name##_size_
#define RELAY_TRACE_ADD_bytes(name) +relay_trace_size_(name##_length)
#define RELAY_TRACE_ADD_array(ctype, number, name, count) +(count) * sizeof(ctype)
#define RELAY_TRACE_ADD_sequence(ctype, number, name) +relay_trace_sequence_size_(name##_length, sizeof(ctype))
#define RELAY_TRACE_ADD_enum(name, of) +sizeof(name)
#define RELAY_TRACE_ADD_struct(name, of) +name##_size_
#define RELAY_TRACE_PUT_number(ctype, type, name) at_ = relay_trace_put_(at_, &name, sizeof(ctype));
#define RELAY_TRACE_PUT_string(name) at_ = relay_trace_put_(at_, name ? name : "", name##_size_);
#define RELAY_TRACE_PUT_bytes(name) at_ = relay_trace_put_bytes_(at_, name, name##_length);
#define RELAY_TRACE_PUT_array(ctype, number, name, count) at_ = relay_trace_put_(at_, name, (count) * sizeof(ctype));
#define RELAY_TRACE_PUT_sequence(ctype, number, name) \
	at_ = relay_trace_put_sequence_(at_, name, name##_length, sizeof(ctype));
#define RELAY_TRACE_PUT_enum(name, of) at_ = relay_trace_put_(at_, &name, sizeof(name));
#define RELAY_TRACE_PUT_struct(name, of) at_ = relay_trace_struct_##of##_put_(at_, &name##_kept_);

/* DO for each field. */
#define RELAY_TRACE_EACH1_(DO, field) RELAY_TRACE_ONE_(DO, field)
#define RELAY_TRACE_EACH2_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH1_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH3_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH2_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH4_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH3_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH5_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH4_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH6_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH5_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH7_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH6_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH8_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH7_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH9_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH8_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH10_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH9_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH11_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH10_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH12_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH11_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH13_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH12_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH14_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH13_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH15_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH14_(DO, __VA_ARGS__)
#define RELAY_TRACE_EACH16_(DO, field, ...) RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EACH15_(DO, __VA_ARGS__)
#define RELAY_TRACE_ONE_(DO, field) RELAY_TRACE_EXPAND_(RELAY_TRACE_FIELD_, (DO, RELAY_TRACE_BARE_ field))
#define RELAY_TRACE_EXPAND_(macro, arguments) macro arguments
#define RELAY_TRACE_BARE_(...) __VA_ARGS__

/* The number of fields after provider and name. */
#define RELAY_TRACE_COUNT_(...) RELAY_TRACE_PICK_(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, none)
#define RELAY_TRACE_PICK_(p, n, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, count, ...) count
#define RELAY_TRACE_PASTE_(a, b, c) RELAY_TRACE_PASTED_(a, b, c)
#define RELAY_TRACE_PASTED_(a, b, c) a##b##c
#define RELAY_TRACE_EACH_(DO, ...) RELAY_TRACE_PASTE_(RELAY_TRACE_OF, RELAY_TRACE_COUNT_(__VA_ARGS__), _)(DO, __VA_ARGS__)
#define RELAY_TRACE_OF0_(DO, p, n)
#define RELAY_TRACE_OF1_(DO, p, n, ...) RELAY_TRACE_EACH1_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF2_(DO, p, n, ...) RELAY_TRACE_EACH2_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF3_(DO, p, n, ...) RELAY_TRACE_EACH3_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF4_(DO, p, n, ...) RELAY_TRACE_EACH4_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF5_(DO, p, n, ...) RELAY_TRACE_EACH5_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF6_(DO, p, n, ...) RELAY_TRACE_EACH6_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF7_(DO, p, n, ...) RELAY_TRACE_EACH7_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF8_(DO, p, n, ...) RELAY_TRACE_EACH8_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF9_(DO, p, n, ...) RELAY_TRACE_EACH9_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF10_(DO, p, n, ...) RELAY_TRACE_EACH10_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF11_(DO, p, n, ...) RELAY_TRACE_EACH11_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF12_(DO, p, n, ...) RELAY_TRACE_EACH12_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF13_(DO, p, n, ...) RELAY_TRACE_EACH13_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF14_(DO, p, n, ...) RELAY_TRACE_EACH14_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF15_(DO, p, n, ...) RELAY_TRACE_EACH15_(DO, __VA_ARGS__)
#define RELAY_TRACE_OF16_(DO, p, n, ...) RELAY_TRACE_EACH16_(DO, __VA_ARGS__)

/* The parameter list without its first comma; `void` if it is empty. */
#define RELAY_TRACE_PARAMS_(...) RELAY_TRACE_PASTE_(RELAY_TRACE_PARAMS, RELAY_TRACE_COUNT_(__VA_ARGS__), _)(__VA_ARGS__)
#define RELAY_TRACE_PARAMS0_(p, n) void
#define RELAY_TRACE_PARAMS1_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH1_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS2_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH2_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS3_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH3_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS4_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH4_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS5_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH5_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS6_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH6_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS7_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH7_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS8_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH8_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS9_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH9_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS10_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH10_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS11_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH11_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS12_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH12_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS13_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH13_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS14_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH14_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS15_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH15_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_PARAMS16_(p, n, ...) RELAY_TRACE_EXPAND_(RELAY_TRACE_REST_, (p RELAY_TRACE_EACH16_(RELAY_TRACE_NEXT, __VA_ARGS__)))
#define RELAY_TRACE_REST_(first, ...) __VA_ARGS__

/*
 * RELAY_TRACE_EVENT(provider, name, (type, field), ...): declares the event "provider:name" and defines
 *
 *     static inline void trace_PROVIDER_NAME(fields)
 *
 * Use it at file scope, in a header or a source file; several files may have the same declaration. provider and name are
 * C names.
 */
#define RELAY_TRACE_EVENT(...) RELAY_TRACE_EVENT_(0, plain_, RELAY_TRACE_HEAD_(__VA_ARGS__, 0), __VA_ARGS__)

/* The same with a level, of enum relay_trace_level without RELAY_TRACE_LEVEL_: RELAY_TRACE_EVENT_LEVEL(ERR, server, failed). */
#define RELAY_TRACE_EVENT_LEVEL(level, ...)                                                                            \
	RELAY_TRACE_EVENT_(RELAY_TRACE_LEVEL_##level + 1, plain_, RELAY_TRACE_HEAD_(__VA_ARGS__, 0), __VA_ARGS__)
#define RELAY_TRACE_HEAD_(provider, name, ...) provider, name
#define RELAY_TRACE_EVENT_(...) RELAY_TRACE_DEFINE_(__VA_ARGS__)
#define RELAY_TRACE_DEFINE_(level, role, provider, name, ...)                                                          \
	RELAY_TRACE_CHECK_(trace_##provider##_##name##_has_more_than_64_fields,                                        \
	                   (RELAY_TRACE_ROLE_BYTES_##role RELAY_TRACE_EACH_(RELAY_TRACE_COUNTED, __VA_ARGS__)) <= 64)  \
	typedef union {                                                                                                \
		char none_[1];                                                                                         \
		RELAY_TRACE_EACH_(RELAY_TRACE_LONGEST, __VA_ARGS__)                                                    \
	} trace_##provider##_##name##_longest_;                                                                        \
	RELAY_TRACE_CHECK_(trace_##provider##_##name##_has_a_name_of_more_than_127_bytes,                              \
	                   sizeof(trace_##provider##_##name##_longest_) <= 128)                                        \
	static const struct relay_trace_field trace_##provider##_##name##_fields[] = {                                 \
	    RELAY_TRACE_ROLE_FIELD_##role RELAY_TRACE_EACH_(RELAY_TRACE_DESCRIBE, __VA_ARGS__){NULL, 0}};              \
	static const struct relay_trace_enum trace_##provider##_##name##_enums[] __attribute__((__unused__)) = {       \
	    RELAY_TRACE_EACH_(RELAY_TRACE_LABELS, __VA_ARGS__){NULL, NULL, 0}};                                        \
	static const struct relay_trace_members *const trace_##provider##_##name##_structs[]                           \
	    __attribute__((__unused__)) = {RELAY_TRACE_EACH_(RELAY_TRACE_MEMBERS, __VA_ARGS__) NULL};                  \
	static struct relay_trace_event trace_##provider##_##name##_event = {                                          \
	    #provider,                                                                                                 \
	    #name,                                                                                                     \
	    trace_##provider##_##name##_fields,                                                                        \
	    sizeof(trace_##provider##_##name##_fields) / sizeof(struct relay_trace_field) - 1,                         \
	    level,                                                                                                     \
	    sizeof(trace_##provider##_##name##_structs) == sizeof(const struct relay_trace_members *) ? 2 : 3,         \
	    0,                                                                                                         \
	    0,                                                                                                         \
	    __FILE__,                                                                                                  \
	    __LINE__,                                                                                                  \
	    sizeof(trace_##provider##_##name##_enums) / sizeof(struct relay_trace_enum) - 1,                           \
	    sizeof(trace_##provider##_##name##_enums) == sizeof(struct relay_trace_enum)                               \
		? NULL                                                                                                 \
		: trace_##provider##_##name##_enums,                                                                   \
	    sizeof(trace_##provider##_##name##_structs) == sizeof(const struct relay_trace_members *)                  \
		? NULL                                                                                                 \
		: trace_##provider##_##name##_structs};                                                                \
	static struct relay_trace_event *const trace_##provider##_##name##_pointer                                     \
	    __attribute__((__section__("relay_trace_events"), __used__)) = &trace_##provider##_##name##_event;         \
	static __attribute__((__noinline__, __unused__)) void trace_##provider##_##name##_emit(                        \
	    struct relay_trace_event *event_ RELAY_TRACE_EACH_(RELAY_TRACE_NEXT, __VA_ARGS__))                         \
	{                                                                                                              \
		RELAY_TRACE_EACH_(RELAY_TRACE_SIZE, __VA_ARGS__)                                                       \
		size_t length_ = sizeof(struct relay_trace_record) + RELAY_TRACE_ROLE_BYTES_##role                     \
		    RELAY_TRACE_EACH_(RELAY_TRACE_ADD, __VA_ARGS__);                                                   \
		struct relay_trace_record *record_ = length_ <= RELAY_TRACE_STACK_MAX                                  \
		                                         ? (struct relay_trace_record *)__builtin_alloca(length_)      \
		                                         : relay_trace_borrow(length_);                                \
		if (!record_) {                                                                                        \
			RELAY_TRACE_ROLE_EMIT_##role(event_, NULL, length_);                                           \
			return;                                                                                        \
		}                                                                                                      \
		unsigned char *at_ = (unsigned char *)(record_ + 1);                                                   \
		RELAY_TRACE_ROLE_PUT_##role                                                                            \
		RELAY_TRACE_EACH_(RELAY_TRACE_PUT, __VA_ARGS__)                                                        \
		(void)at_;                                                                                             \
		RELAY_TRACE_ROLE_EMIT_##role(event_, record_, length_);                                                \
		if (length_ > RELAY_TRACE_STACK_MAX)                                                                   \
			relay_trace_give_back(record_);                                                                \
	}                                                                                                              \
	static inline __attribute__((__always_inline__, __unused__)) void trace_##provider##_##name(                   \
	    RELAY_TRACE_PARAMS_(__VA_ARGS__))                                                                          \
	{                                                                                                              \
		if (RELAY_TRACE_ROLE_ALWAYS_##role ||                                                                  \
		    RELAY_TRACE_IS_WANTED(&relay_trace_page_.page, &trace_##provider##_##name##_event))                \
			trace_##provider##_##name##_emit(                                                              \
			    &trace_##provider##_##name##_event RELAY_TRACE_EACH_(RELAY_TRACE_PASS, __VA_ARGS__));      \
	}

/*
 * RELAY_TRACE_SPAN(provider, name, (type, field), ...): declares a span, an activity that takes time and that viewers
 * of tracks show as a slice (relayctl export --perfetto), and defines
 *
 *     static inline void trace_PROVIDER_NAME(fields)          it begins: the event "provider:name"
 *     static inline void trace_PROVIDER_NAME_end(void)        it ends: "provider:name_end"
 *     RELAY_TRACE_SCOPE(provider, name)(fields);              it begins, and ends where the block is left
 *
 * An end belongs to the span that the thread began last, so the spans of a thread must be nested. A thread that leaves
 * a block by longjmp() does not end the spans that began there. By the convention of Perfetto, both events have a field
 * track_event_type.
 */
#define RELAY_TRACE_SPAN(...) RELAY_TRACE_SPAN_(RELAY_TRACE_HEAD_(__VA_ARGS__, 0), __VA_ARGS__)
#define RELAY_TRACE_SPAN_(...) RELAY_TRACE_DEFINE_SPAN_(__VA_ARGS__)
#define RELAY_TRACE_DEFINE_SPAN_(provider, name, ...)                                                                  \
	RELAY_TRACE_EVENT_(0, begin_, provider, name, __VA_ARGS__)                                                     \
	RELAY_TRACE_EVENT_(0, end_, provider, name##_end, provider, name##_end)                                        \
	static inline __attribute__((__always_inline__, __unused__)) char trace_##provider##_##name##_enter_(          \
	    RELAY_TRACE_PARAMS_(__VA_ARGS__))                                                                          \
	{                                                                                                              \
		if (!RELAY_TRACE_IS_WANTED(&relay_trace_page_.page, &trace_##provider##_##name##_event))               \
			return 0;                                                                                      \
		trace_##provider##_##name##_emit(                                                                      \
		    &trace_##provider##_##name##_event RELAY_TRACE_EACH_(RELAY_TRACE_PASS, __VA_ARGS__));              \
		return 1;                                                                                              \
	}                                                                                                              \
	static inline __attribute__((__unused__)) void trace_##provider##_##name##_leave_(const char *entered)         \
	{                                                                                                              \
		if (*entered)                                                                                          \
			trace_##provider##_##name##_end();                                                             \
	}
#define RELAY_TRACE_SCOPE(provider, name)                                                                              \
	const char RELAY_TRACE_PASTE_(relay_trace_scope_, provider##_##name, __LINE__)                                 \
	    __attribute__((__cleanup__(trace_##provider##_##name##_leave_), __unused__)) =                             \
		trace_##provider##_##name##_enter_

/* The first field of a span's events. */
#define RELAY_TRACE_ROLE_FIELD_plain_
#define RELAY_TRACE_ROLE_FIELD_begin_ {"track_event_type", RELAY_TRACE_U8},
#define RELAY_TRACE_ROLE_FIELD_end_ RELAY_TRACE_ROLE_FIELD_begin_
#define RELAY_TRACE_ROLE_BYTES_plain_ 0
#define RELAY_TRACE_ROLE_BYTES_begin_ 1
#define RELAY_TRACE_ROLE_BYTES_end_ 1
#define RELAY_TRACE_ROLE_FIELD_state_
#define RELAY_TRACE_ROLE_BYTES_state_ 0
#define RELAY_TRACE_ROLE_PUT_state_
#define RELAY_TRACE_ROLE_PUT_plain_
#define RELAY_TRACE_ROLE_PUT_begin_ *at_++ = 'B';
#define RELAY_TRACE_ROLE_PUT_end_ *at_++ = 'E';
/* What writes an event, and whether it is called also while no trace wants the event. */
#define RELAY_TRACE_ROLE_EMIT_plain_ RELAY_TRACE_EMIT_
#define RELAY_TRACE_ROLE_EMIT_begin_ RELAY_TRACE_EMIT_
#define RELAY_TRACE_ROLE_EMIT_end_ RELAY_TRACE_EMIT_
#define RELAY_TRACE_ROLE_EMIT_state_ relay_trace_set_state
#define RELAY_TRACE_ROLE_ALWAYS_plain_ 0
#define RELAY_TRACE_ROLE_ALWAYS_begin_ 0
#define RELAY_TRACE_ROLE_ALWAYS_end_ 0
#define RELAY_TRACE_ROLE_ALWAYS_state_ 1

/*
 * RELAY_TRACE_STATE(provider, name, (type, key), (type, field), ...): declares an event that tells a state: configuration, a
 * connection. It defines
 *
 *     static inline void trace_PROVIDER_NAME(key, fields)     sets the state of this key: the event "provider:name"
 *     static inline void trace_PROVIDER_NAME_clear(key)       this key has no state any more; writes no event
 *
 * The last value of each key is kept, also of those that were set before a trace existed, and stands at the front of each
 * snapshot, recording and crash card: see relay_trace_set_state(). The key is the first field; if that is a struct, the first
 * field in it. A child of fork() begins with the states of its parent.
 */
#define RELAY_TRACE_STATE(...)                                                                                         \
	RELAY_TRACE_STATE_(RELAY_TRACE_KEY_(__VA_ARGS__, 0), RELAY_TRACE_HEAD_(__VA_ARGS__, 0), __VA_ARGS__)
#define RELAY_TRACE_KEY_(provider, name, key, ...) key
#define RELAY_TRACE_STATE_(...) RELAY_TRACE_DEFINE_STATE_(__VA_ARGS__)
#define RELAY_TRACE_DEFINE_STATE_(key, provider, name, ...)                                                            \
	RELAY_TRACE_EVENT_(0, state_, provider, name, __VA_ARGS__)                                                     \
	static __attribute__((__noinline__, __unused__)) void trace_##provider##_##name##_clear(                       \
	    RELAY_TRACE_PARAMS_(provider, name, key))                                                                  \
	{                                                                                                              \
		RELAY_TRACE_EACH_(RELAY_TRACE_SIZE, provider, name, key)                                               \
		size_t length_ =                                                                                       \
		    sizeof(struct relay_trace_record) RELAY_TRACE_EACH_(RELAY_TRACE_ADD, provider, name, key);         \
		struct relay_trace_record *record_ = length_ <= RELAY_TRACE_STACK_MAX                                  \
		                                         ? (struct relay_trace_record *)__builtin_alloca(length_)      \
		                                         : relay_trace_borrow(length_);                                \
		if (!record_)                                                                                          \
			return;                                                                                        \
		unsigned char *at_ = (unsigned char *)(record_ + 1);                                                   \
		RELAY_TRACE_EACH_(RELAY_TRACE_PUT, provider, name, key)                                                \
		(void)at_;                                                                                             \
		relay_trace_clear_state(&trace_##provider##_##name##_event, record_, length_);                         \
		if (length_ > RELAY_TRACE_STACK_MAX)                                                                   \
			relay_trace_give_back(record_);                                                                \
	}

/* RELAY_TRACE_COUNTER(provider, name, type): declares an event with a number that viewers of tracks plot, and defines
 *
 *     static inline void trace_PROVIDER_NAME(counter_value)
 */
#define RELAY_TRACE_COUNTER(provider, name, type) RELAY_TRACE_EVENT(provider, name, (type, counter_value))

/* clang-format on */

#endif /* __GNUC__ */

#ifdef __cplusplus
}
#endif
#endif
