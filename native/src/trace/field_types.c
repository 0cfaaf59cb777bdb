/* SPDX-License-Identifier: MIT */
/* The types of the fields of events. A field of any type is aligned to a byte. The packet checker, the merge, the exports and
 * Python read this table. */
#include "trace/field_types.h"

#include <string.h>

/* class: TSDL's name of the kind of type; properties: what stands between its braces */
#define NUMBER(name, kind, bytes, class, properties, tsdl)                                              \
	{                                                                                               \
		name, kind, bytes, "typealias " class " { " properties " } := " tsdl ";\n", tsdl " _$;" \
	}
#define INTEGER(letter, bits, kind, signed, base, tsdl)   \
	NUMBER(letter #bits, kind, (bits) / 8, "integer", \
	       "size = " #bits "; align = 8; signed = " signed "; base = " base ";", tsdl #bits "_t")
#define UNSIGNED(bits) INTEGER("u", bits, RELAY_FIELD_UNSIGNED, "false", "10", "uint")
#define SIGNED(bits) INTEGER("i", bits, RELAY_FIELD_SIGNED, "true", "10", "int")
#define HEX(bits) INTEGER("x", bits, RELAY_FIELD_HEX, "false", "16", "xint")
#define REAL(name, bytes, exponent, mantissa, tsdl)             \
	NUMBER(name, RELAY_FIELD_REAL, bytes, "floating_point", \
	       "exp_dig = " #exponent "; mant_dig = " #mantissa "; align = 8;", tsdl)

const struct relay_field_type relay_field_types[RELAY_N_TRACE_TYPES] = {
    [RELAY_TRACE_U8] = UNSIGNED(8),
    [RELAY_TRACE_U16] = UNSIGNED(16),
    [RELAY_TRACE_U32] = UNSIGNED(32),
    [RELAY_TRACE_U64] = UNSIGNED(64),
    [RELAY_TRACE_I8] = SIGNED(8),
    [RELAY_TRACE_I16] = SIGNED(16),
    [RELAY_TRACE_I32] = SIGNED(32),
    [RELAY_TRACE_I64] = SIGNED(64),
    [RELAY_TRACE_X8] = HEX(8),
    [RELAY_TRACE_X16] = HEX(16),
    [RELAY_TRACE_X32] = HEX(32),
    [RELAY_TRACE_X64] = HEX(64),
    [RELAY_TRACE_F32] = REAL("f32", 4, 8, 24, "float"),
    [RELAY_TRACE_F64] = REAL("f64", 8, 11, 53, "double"),
    [RELAY_TRACE_STRING] = {"string", RELAY_FIELD_STRING, 0, "", "string { encoding = UTF8; } _$;"},
    [RELAY_TRACE_BYTES] = {"bytes", RELAY_FIELD_BYTES, 0, "", "uint32_t __$_length;\n\t\txint8_t _$[__$_length];"},
};

const struct relay_field_type *relay_field_type_at(uint32_t type)
{
	return type < RELAY_N_TRACE_TYPES ? &relay_field_types[type] : NULL;
}

bool relay_field_is_sound(uint32_t type)
{
	const uint32_t base = type & (RELAY_TRACE_IS_ENUM - 1), count = relay_field_count(type);
	const uint32_t is = (type & ((1u << RELAY_TRACE_COUNT_SHIFT) - 1)) - base;
	if (base >= RELAY_N_TRACE_TYPES)
		return false;
	const bool is_number = relay_field_types[base].bytes,
		   is_real = relay_field_types[base].kind == RELAY_FIELD_REAL;
	switch (is) {
	case 0:
		return !count || is_number;
	case RELAY_TRACE_IS_SEQUENCE:
		return !count && is_number;
	case RELAY_TRACE_IS_ENUM:
		return !count && is_number && !is_real;
	default:
		return false;
	}
}

const struct relay_trace_enum *relay_field_enum(const struct relay_trace_event *event, const char *field)
{
	for (uint32_t i = 0; i < relay_event_n_enums(event); i++)
		if (strcmp(event->enums[i].field, field) == 0)
			return &event->enums[i];
	return NULL;
}
