/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace_struct.h>: structs as fields of events, for <relayfs/trace.h>, which includes this.
 *
 *     struct point { int x, y; };
 *     RELAY_TRACE_STRUCT(point, struct point, (i32, x), (i32, y))                at file scope
 *     RELAY_TRACE_EVENT(ui, click, (u32, id), (struct, at, point))
 *
 *     trace_ui_click(id, &at);
 *
 * RELAY_TRACE_STRUCT(NAME, C_TYPE, (TYPE, MEMBER), ...) declares which members of a C type become fields: 1 to 16 members,
 * declared like the fields of an event. The parameter of the tracepoint is a pointer to the C type; if it is NULL, all
 * members are zero. A string is a pointer, or an array that contains a null byte. The length of bytes and sequences is in the
 * member NAME_length. A struct in a struct is the member itself, not a pointer. There are no arrays of structs. A struct may
 * be in at most 7 others. An event has at most 64 fields, including those of its structs. A field's name, after the names
 * of its structs with a dot behind each, has at most 127 bytes.
 */
#ifndef RELAYFS_TRACE_STRUCT_H
#define RELAYFS_TRACE_STRUCT_H

#include <relayfs/trace_event.h>

/* clang-format off */

/* The number of a struct's fields, and two types whose sizes are numbers: the depth to which structs are nested in it, and the
 * length of its longest name. */
#define RELAY_TRACE_COUNTED_number(ctype, type, name) +1
#define RELAY_TRACE_COUNTED_string(name) +1
#define RELAY_TRACE_COUNTED_bytes(name) +1
#define RELAY_TRACE_COUNTED_array(ctype, number, name, count) +1
#define RELAY_TRACE_COUNTED_sequence(ctype, number, name) +1
#define RELAY_TRACE_COUNTED_enum(name, of) +1
#define RELAY_TRACE_COUNTED_struct(name, of) +relay_trace_struct_##of##_n_
#define RELAY_TRACE_DEPTH_number(ctype, type, name)
#define RELAY_TRACE_DEPTH_string(name)
#define RELAY_TRACE_DEPTH_bytes(name)
#define RELAY_TRACE_DEPTH_array(ctype, number, name, count)
#define RELAY_TRACE_DEPTH_sequence(ctype, number, name)
#define RELAY_TRACE_DEPTH_enum(name, of)
#define RELAY_TRACE_DEPTH_struct(name, of) char name[1 + sizeof(relay_trace_struct_##of##_depth_)];
#define RELAY_TRACE_LONGEST_number(ctype, type, name) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_string(name) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_bytes(name) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_array(ctype, number, name, count) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_sequence(ctype, number, name) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_enum(name, of) char name[sizeof(#name)];
#define RELAY_TRACE_LONGEST_struct(name, of) char name[sizeof(#name) + sizeof(relay_trace_struct_##of##_longest_)];
/* Unless is_so is true, this does not compile, and the error message has the name `what`. */
#define RELAY_TRACE_CHECK_(what, is_so) typedef char what[(is_so) ? 1 : -1] __attribute__((__unused__));

/* Variables for pointers and lengths of members. They are read once, because another thread of the program may change the
 * members while the event is written. */
#define RELAY_TRACE_KEPT_number(ctype, type, name)
#define RELAY_TRACE_KEPT_string(name) const char *name; size_t name##_size_;
#define RELAY_TRACE_KEPT_bytes(name) const void *name; size_t name##_length;
#define RELAY_TRACE_KEPT_array(ctype, number, name, count)
#define RELAY_TRACE_KEPT_sequence(ctype, number, name) const ctype *name; size_t name##_length;
#define RELAY_TRACE_KEPT_enum(name, of)
#define RELAY_TRACE_KEPT_struct(name, of) struct relay_trace_struct_##of##_kept_ name;
/* Sets these variables, and adds the length of the member's value to length_. */
#define RELAY_TRACE_KEEP_number(ctype, type, name) length_ += sizeof(ctype);
#define RELAY_TRACE_KEEP_string(name)                                                                                  \
	kept_->name = from_->name;                                                                                     \
	kept_->name##_size_ = kept_->name ? strlen(kept_->name) + 1 : 1;                                               \
	length_ += kept_->name##_size_;
#define RELAY_TRACE_KEEP_bytes(name)                                                                                   \
	kept_->name = from_->name;                                                                                     \
	kept_->name##_length = from_->name##_length;                                                                   \
	length_ += relay_trace_size_(kept_->name##_length);
#define RELAY_TRACE_KEEP_array(ctype, number, name, count) length_ += (count) * sizeof(ctype);
#define RELAY_TRACE_KEEP_sequence(ctype, number, name)                                                                 \
	kept_->name = from_->name;                                                                                     \
	kept_->name##_length = from_->name##_length;                                                                   \
	length_ += relay_trace_sequence_size_(kept_->name##_length, sizeof(ctype));
#define RELAY_TRACE_KEEP_enum(name, of) length_ += sizeof(relay_trace_enum_##of##_t_);
#define RELAY_TRACE_KEEP_struct(name, of) length_ += relay_trace_struct_##of##_keep_(&kept_->name, &from_->name);
/* Stores the member's value. */
#define RELAY_TRACE_STORE_number(ctype, type, name) \
	{ const ctype value_ = from_->name; at_ = relay_trace_put_(at_, &value_, sizeof(value_)); }
#define RELAY_TRACE_STORE_string(name) \
	at_ = relay_trace_put_(at_, kept_->name ? kept_->name : "", kept_->name##_size_);
#define RELAY_TRACE_STORE_bytes(name) at_ = relay_trace_put_bytes_(at_, kept_->name, kept_->name##_length);
#define RELAY_TRACE_STORE_array(ctype, number, name, count) \
	{ const ctype *values_ = from_->name; at_ = relay_trace_put_array_(at_, values_, (count) * sizeof(ctype)); }
#define RELAY_TRACE_STORE_sequence(ctype, number, name) \
	at_ = relay_trace_put_sequence_(at_, kept_->name, kept_->name##_length, sizeof(ctype));
#define RELAY_TRACE_STORE_enum(name, of) \
	{ const relay_trace_enum_##of##_t_ value_ = (relay_trace_enum_##of##_t_)from_->name; \
	  at_ = relay_trace_put_(at_, &value_, sizeof(value_)); }
#define RELAY_TRACE_STORE_struct(name, of) at_ = relay_trace_struct_##of##_put_(at_, &kept_->name);

#define RELAY_TRACE_STRUCT(name, ctype, ...)                                                                           \
	typedef ctype relay_trace_struct_##name##_t_;                                                                  \
	enum { relay_trace_struct_##name##_n_ = 0 RELAY_TRACE_EACH_(RELAY_TRACE_COUNTED, name, ctype, __VA_ARGS__) };  \
	typedef union {                                                                                                \
		char this_one_[1];                                                                                     \
		RELAY_TRACE_EACH_(RELAY_TRACE_DEPTH, name, ctype, __VA_ARGS__)                                         \
	} relay_trace_struct_##name##_depth_;                                                                          \
	RELAY_TRACE_CHECK_(relay_trace_struct_##name##_is_nested_too_deep,                                             \
	                   sizeof(relay_trace_struct_##name##_depth_) <= RELAY_TRACE_DEPTH_MAX)                        \
	typedef union {                                                                                                \
		RELAY_TRACE_EACH_(RELAY_TRACE_LONGEST, name, ctype, __VA_ARGS__)                                       \
	} relay_trace_struct_##name##_longest_;                                                                        \
	static const struct relay_trace_field relay_trace_struct_##name##_fields_[] __attribute__((__unused__)) = {    \
	    RELAY_TRACE_EACH_(RELAY_TRACE_DESCRIBE, name, ctype, __VA_ARGS__){NULL, 0}};                               \
	static const struct relay_trace_enum relay_trace_struct_##name##_enums_[] __attribute__((__unused__)) = {      \
	    RELAY_TRACE_EACH_(RELAY_TRACE_LABELS, name, ctype, __VA_ARGS__){NULL, NULL, 0}};                           \
	static const struct relay_trace_members *const relay_trace_struct_##name##_structs_[]                          \
	    __attribute__((__unused__)) = {RELAY_TRACE_EACH_(RELAY_TRACE_MEMBERS, name, ctype, __VA_ARGS__) NULL};     \
	static const struct relay_trace_members relay_trace_struct_##name##_ __attribute__((__unused__)) = {           \
	    relay_trace_struct_##name##_fields_,                                                                       \
	    relay_trace_struct_##name##_enums_,                                                                        \
	    relay_trace_struct_##name##_structs_,                                                                      \
	    sizeof(relay_trace_struct_##name##_fields_) / sizeof(struct relay_trace_field) - 1,                        \
	    sizeof(relay_trace_struct_##name##_enums_) / sizeof(struct relay_trace_enum) - 1};                         \
	static const unsigned char relay_trace_struct_##name##_zero_[sizeof(relay_trace_struct_##name##_t_)]           \
	    __attribute__((__aligned__(__alignof__(relay_trace_struct_##name##_t_)), __unused__)) = {0};               \
	struct relay_trace_struct_##name##_kept_ {                                                                     \
		const relay_trace_struct_##name##_t_ *from_;                                                           \
		RELAY_TRACE_EACH_(RELAY_TRACE_KEPT, name, ctype, __VA_ARGS__)                                          \
	};                                                                                                             \
	static inline __attribute__((__unused__)) size_t relay_trace_struct_##name##_keep_(                            \
	    struct relay_trace_struct_##name##_kept_ *kept_, const relay_trace_struct_##name##_t_ *from_)              \
	{                                                                                                              \
		size_t length_ = 0;                                                                                    \
		if (!from_)                                                                                            \
			from_ = (const relay_trace_struct_##name##_t_ *)(const void *)relay_trace_struct_##name##_zero_; \
		kept_->from_ = from_;                                                                                  \
		RELAY_TRACE_EACH_(RELAY_TRACE_KEEP, name, ctype, __VA_ARGS__)                                          \
		return length_;                                                                                        \
	}                                                                                                              \
	static inline __attribute__((__unused__)) unsigned char *relay_trace_struct_##name##_put_(                     \
	    unsigned char *at_, const struct relay_trace_struct_##name##_kept_ *kept_)                                 \
	{                                                                                                              \
		const relay_trace_struct_##name##_t_ *from_ = kept_->from_;                                            \
		RELAY_TRACE_EACH_(RELAY_TRACE_STORE, name, ctype, __VA_ARGS__)                                         \
		(void)from_;                                                                                           \
		return at_;                                                                                            \
	}

/* clang-format on */

#endif
