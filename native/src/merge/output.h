/* SPDX-License-Identifier: MIT */
/* A growing array of bytes to be output, and functions that append values as text. */
#ifndef RELAYFS_MERGE_OUTPUT_H
#define RELAYFS_MERGE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct relay_output {
	char *at;
	size_t length, capacity;
	bool has_failed; /* there was no memory, and something is missing */
};

/* Make room for `n` more bytes. false: no memory; has_failed is set. */
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

/* With leading zeros, so that there are at least `digits` digits. */
void relay_put_padded(struct relay_output *output, uint64_t number, unsigned digits);

/* As 0x and upper-case hexadecimal digits, without leading zeros. */
void relay_put_hex(struct relay_output *output, uint64_t number);

/* Each byte as two lower-case hexadecimal digits. */
void relay_put_bytes(struct relay_output *output, const unsigned char *data, size_t length);

/* With enough digits to distinguish the double (is_single: the float) from all others. NaN and infinities are words between
 * two `quote`. */
void relay_put_double(struct relay_output *output, double number, bool is_single, const char *quote);

enum relay_escapes {
	RELAY_ESCAPE_INVALID, /* bytes that are not UTF-8, as \xNN; all others escape these, too */
	RELAY_ESCAPE_JSON,    /* the characters that JSON requires; \xNN is written \\xNN */
	RELAY_ESCAPE_TEXT,    /* quotes, backslashes, and control characters, which would change the terminal */
	RELAY_ESCAPE_LINE     /* as RELAY_ESCAPE_TEXT, except quotes */
};

/* True if all of it is UTF-8. */
bool relay_is_utf8(const void *data, size_t length);

/* Write bytes in base64. */
void relay_put_base64(struct relay_output *output, const unsigned char *data, size_t length);

/* Write a string without quotes around it. The output is always UTF-8. */
void relay_put_string(struct relay_output *output, const void *data, size_t length, enum relay_escapes escapes);

#endif
