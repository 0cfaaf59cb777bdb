/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_TRACE_FIELD_TYPES_H
#define RELAYFS_TRACE_FIELD_TYPES_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <string.h>

/* By enum relay_trace_type. */
extern const struct relay_field_type relay_field_types[RELAY_N_TRACE_TYPES];

/* True if `type` of a struct relay_trace_field says what a field can be. */
bool relay_field_is_sound(uint32_t type);

/* Return the type of a field; of an array, a sequence or an enum, that of its numbers. `type` has to be sound. */
static inline const struct relay_field_type *relay_field_base(uint32_t type)
{
	return &relay_field_types[type & (RELAY_TRACE_IS_ENUM - 1)];
}

/* Return how many numbers an array has; 0: the field is no array. */
static inline uint32_t relay_field_count(uint32_t type)
{
	return type >> RELAY_TRACE_COUNT_SHIFT;
}

/* Load a number of `bytes` bytes, and set the upper bits to 0. */
static inline uint64_t relay_load_unsigned(const unsigned char *at, uint32_t bytes)
{
	uint64_t eight;
	uint32_t four;
	uint16_t two;
	switch (bytes) {
	case sizeof(eight):
		memcpy(&eight, at, sizeof(eight));
		return eight;
	case sizeof(four):
		memcpy(&four, at, sizeof(four));
		return four;
	case sizeof(two):
		memcpy(&two, at, sizeof(two));
		return two;
	default:
		return *at;
	}
}

/* Return the signed number with the same `bytes` bytes. The shift to the right copies the sign. */
static inline int64_t relay_as_signed(uint64_t number, uint32_t bytes)
{
	const uint32_t unused = 64 - 8 * bytes;
	return (int64_t)(number << unused) >> unused;
}

/* Load a float or a double. */
static inline double relay_load_real(const unsigned char *at, uint32_t bytes)
{
	double eight;
	float four;
	if (bytes == sizeof(eight)) {
		memcpy(&eight, at, sizeof(eight));
		return eight;
	}
	memcpy(&four, at, sizeof(four));
	return (double)four;
}

/* Return the number of structs that a field is in, by its name. */
static inline uint32_t relay_field_depth(const char *name)
{
	uint32_t depth = 0;
	for (; (name = strchr(name, '.')); name++)
		depth++;
	return depth;
}

/* Return the last part of a field's name, without the names of its structs. */
static inline const char *relay_field_own_name(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot ? dot + 1 : name;
}

/* Return the number of structs that both fields are in; *length receives the length of the part of their names that names
 * these structs, with the dots. */
static inline uint32_t relay_common_structs(const char *one, const char *other, size_t *length)
{
	uint32_t depth = 0;
	*length = 0;
	for (size_t i = 0; one[i] && one[i] == other[i]; i++)
		if (one[i] == '.') {
			depth++;
			*length = i + 1;
		}
	return depth;
}

/* Return the labels of a field, by its name. NULL: it has none. */
const struct relay_trace_enum *relay_field_enum(const struct relay_trace_event *event, const char *field);

/* Return the number of event->enums. */
static inline uint32_t relay_event_n_enums(const struct relay_trace_event *event)
{
	return event->has_place > 1 ? event->n_enums : 0;
}

#endif
