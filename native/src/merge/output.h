/* SPDX-License-Identifier: MIT */
/* Bytes that are to be written, which grow; and how values are written as text. */
#ifndef RELAYFS_MERGE_OUTPUT_H
#define RELAYFS_MERGE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct relay_output {
	char *at;
	size_t length, capacity;
	bool has_failed; /* there was no memory for all of it */
};

/* Have room for `n` more bytes; false: there is none, and what is put is dropped. */
bool relay_output_grow(struct relay_output *output, size_t n);

static inline bool relay_output_has_room(struct relay_output *output, size_t n)
{
	return output->capacity - output->length >= n || relay_output_grow(output, n);
}

static inline void relay_put(struct relay_output *output, const void *data, size_t n)
{
	if (n == 0 || !relay_output_has_room(output, n))
		return;
	memcpy(output->at + output->length, data, n);
	output->length += n;
}

static inline void relay_put_byte(struct relay_output *output, unsigned char byte)
{
	if (relay_output_has_room(output, 1))
		output->at[output->length++] = (char)byte;
}

static inline void relay_put_text(struct relay_output *output, const char *text)
{
	relay_put(output, text, strlen(text));
}

void relay_put_u64(struct relay_output *output, uint64_t number);
void relay_put_i64(struct relay_output *output, int64_t number);

/* With leading zeros, `digits` of them. */
void relay_put_padded(struct relay_output *output, uint64_t number, unsigned digits);

/* 0x and upper-case digits, without leading zeros. */
void relay_put_hex(struct relay_output *output, uint64_t number);

/* Two lower-case digits a byte. */
void relay_put_bytes(struct relay_output *output, const unsigned char *data, size_t length);

/* As few digits as tell the double, or float, from all others. What is no finite number is put between two `quote`. */
void relay_put_double(struct relay_output *output, double number, bool is_single, const char *quote);

enum relay_escapes {
	RELAY_ESCAPE_INVALID, /* only what is no UTF-8, as \xNN, as everywhere */
	RELAY_ESCAPE_JSON,    /* what JSON wants; \xNN is written \\xNN */
	RELAY_ESCAPE_TEXT,    /* quotes, backslashes, and what a terminal would not show but do */
	RELAY_ESCAPE_LINE     /* the same without quotes */
};

/* True if all of it is UTF-8. */
bool relay_is_utf8(const void *data, size_t length);

/* In base64. */
void relay_put_base64(struct relay_output *output, const unsigned char *data, size_t length);

/* A string, without quotes around it. The result is UTF-8, whatever the string is. */
void relay_put_string(struct relay_output *output, const void *data, size_t length, enum relay_escapes escapes);

#endif
