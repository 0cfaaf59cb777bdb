/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "merge/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST_CAPACITY = 1 << 16, U64_DIGITS = 20, DOUBLE_BYTES = 32 };

bool relay_output_grow(struct relay_output *output, size_t n)
{
	size_t capacity = output->capacity ? output->capacity : FIRST_CAPACITY;
	while (capacity - output->length < n && capacity <= SIZE_MAX / 2)
		capacity *= 2;
	char *more = capacity - output->length < n ? NULL : realloc(output->at, capacity);
	if (!more) {
		output->has_failed = true;
		return false;
	}
	output->at = more;
	output->capacity = capacity;
	return true;
}

/* --- numbers --- */

/* Write a number in at least `at_least` digits, the last one before `end`. Returns where they begin. */
static char *digits_before(char *end, uint64_t number, unsigned at_least)
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324"
				    "25262728293031323334353637383940414243444546474849"
				    "50515253545556575859606162636465666768697071727374"
				    "75767778798081828384858687888990919293949596979899";
	char *at = end;
	for (; number >= 100; number /= 100)
		memcpy(at -= 2, pairs + 2 * (number % 100), 2);
	if (number >= 10)
		memcpy(at -= 2, pairs + 2 * number, 2);
	else
		*--at = (char)('0' + number);
	while ((size_t)(end - at) < at_least)
		*--at = '0';
	return at;
}

void relay_put_padded(struct relay_output *output, uint64_t number, unsigned digits)
{
	char text[U64_DIGITS];
	const char *at = digits_before(text + sizeof(text), number, digits);
	relay_put(output, at, (size_t)(text + sizeof(text) - at));
}

void relay_put_u64(struct relay_output *output, uint64_t number)
{
	relay_put_padded(output, number, 1);
}

void relay_put_i64(struct relay_output *output, int64_t number)
{
	if (number < 0)
		relay_put_byte(output, '-');
	relay_put_u64(output, number < 0 ? -(uint64_t)number : (uint64_t)number);
}

void relay_put_hex(struct relay_output *output, uint64_t number)
{
	int shift = 60;
	relay_put_text(output, "0x");
	while (shift > 0 && !(number >> shift))
		shift -= 4;
	for (; shift >= 0; shift -= 4)
		relay_put_byte(output, (unsigned char)"0123456789ABCDEF"[number >> shift & 15]);
}

void relay_put_bytes(struct relay_output *output, const unsigned char *data, size_t length)
{
	if (!relay_output_has_room(output, 2 * length))
		return;
	char *to = output->at + output->length;
	for (size_t i = 0; i < length; i++) {
		*to++ = "0123456789abcdef"[data[i] >> 4];
		*to++ = "0123456789abcdef"[data[i] & 15];
	}
	output->length += 2 * length;
}

static const char *name_of(double number)
{
	if (isnan(number))
		return "NaN";
	return number < 0 ? "-Infinity" : "Infinity";
}

/* Write a number, not an integer, if at most nine decimals, and 15 digits in all, tell it from all others. false: more are
 * needed. printf("%.15g") would write the same, but takes half a microsecond. */
static bool put_decimals(struct relay_output *output, double number)
{
	const double scale = 1e9, most = 1e15, least = 1e-4;
	const double size = fabs(number);
	if (size < least || size * scale >= most)
		return false;
	const uint64_t scaled = (uint64_t)(size * scale + 0.5);
	if ((double)scaled / scale != size)
		return false;
	uint64_t decimals = scaled % 1000000000;
	unsigned n = 9;
	for (; decimals % 10 == 0; decimals /= 10)
		n--;
	if (number < 0)
		relay_put_byte(output, '-');
	relay_put_u64(output, scaled / 1000000000);
	relay_put_byte(output, '.');
	relay_put_padded(output, decimals, n);
	return true;
}

void relay_put_double(struct relay_output *output, double number, bool is_single, const char *quote)
{
	const double most_exact = 1e15;
	char text[DOUBLE_BYTES];
	if (!isfinite(number)) {
		relay_put_text(output, quote);
		relay_put_text(output, name_of(number));
		relay_put_text(output, quote);
		return;
	}
	if (fabs(number) < most_exact && number == (double)(int64_t)number && !(number == 0 && signbit(number))) {
		relay_put_i64(output, (int64_t)number);
		return;
	}
	if (!is_single && put_decimals(output, number))
		return;
	snprintf(text, sizeof(text), "%.*g", is_single ? 6 : 15, number);
	if (is_single ? strtof(text, NULL) != (float)number : strtod(text, NULL) != number)
		snprintf(text, sizeof(text), "%.*g", is_single ? 9 : 17, number);
	relay_put_text(output, text);
}

/* --- strings --- */

static bool follows(const unsigned char *at, size_t left, size_t n, unsigned char from, unsigned char to)
{
	if (left < n || at[1] < from || at[1] > to)
		return false;
	for (size_t i = 2; i < n; i++)
		if (at[i] >> 6 != 2)
			return false;
	return true;
}

/* Bytes of the character at `at`, not ASCII; 0: not UTF-8 (Unicode, table 3-7). */
static size_t utf8_bytes(const unsigned char *at, size_t left)
{
	const unsigned char first = at[0];
	if (first < 0xc2 || first > 0xf4)
		return 0;
	if (first < 0xe0)
		return follows(at, left, 2, 0x80, 0xbf) ? 2 : 0;
	if (first < 0xf0)
		return follows(at, left, 3, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) ? 3 : 0;
	return follows(at, left, 4, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) ? 4 : 0;
}

static bool is_plain(unsigned char byte, enum relay_escapes escapes)
{
	if (escapes == RELAY_ESCAPE_INVALID)
		return byte < 0x80;
	return byte >= 0x20 && byte < 0x7f && (byte != '"' || escapes == RELAY_ESCAPE_LINE) && byte != '\\';
}

static void put_hex_escape(struct relay_output *output, unsigned char byte, enum relay_escapes escapes)
{
	if (escapes == RELAY_ESCAPE_JSON)
		relay_put_byte(output, '\\');
	relay_put_text(output, "\\x");
	relay_put_bytes(output, &byte, 1);
}

/* Write an ASCII character that is escaped. */
static void put_escape(struct relay_output *output, unsigned char byte, enum relay_escapes escapes)
{
	static const char letters[] = "\"\"\\\\\nn\tt\rr";
	for (const char *at = letters; *at; at += 2)
		if ((unsigned char)*at == byte) {
			relay_put_byte(output, '\\');
			relay_put_byte(output, (unsigned char)at[1]);
			return;
		}
	if (escapes != RELAY_ESCAPE_JSON) {
		put_hex_escape(output, byte, escapes);
		return;
	}
	relay_put_text(output, "\\u00");
	relay_put_bytes(output, &byte, 1);
}

/* Write a character that is not ASCII. Returns how many bytes of `at` it takes. */
static size_t put_other(struct relay_output *output, const unsigned char *at, size_t left, enum relay_escapes escapes)
{
	size_t n = utf8_bytes(at, left);
	/* U+0080 to U+009F are control characters, which JSON permits, but on which terminals act. */
	bool is_control = n == 2 && at[0] == 0xc2 && at[1] < 0xa0;
	if (is_control && escapes == RELAY_ESCAPE_JSON) {
		relay_put_text(output, "\\u00");
		relay_put_bytes(output, at + 1, 1);
		return n;
	}
	if (n && !(is_control && escapes != RELAY_ESCAPE_INVALID)) {
		relay_put(output, at, n);
		return n;
	}
	put_hex_escape(output, at[0], escapes);
	return 1;
}

void relay_put_string(struct relay_output *output, const void *data, size_t length, enum relay_escapes escapes)
{
	const unsigned char *at = data, *end = at + length;
	while (at < end) {
		const unsigned char *plain = at;
		while (at < end && is_plain(*at, escapes))
			at++;
		relay_put(output, plain, (size_t)(at - plain));
		if (at == end)
			return;
		if (*at < 0x80)
			put_escape(output, *at++, escapes);
		else
			at += put_other(output, at, (size_t)(end - at), escapes);
	}
}

bool relay_is_utf8(const void *data, size_t length)
{
	const unsigned char *at = data, *end = at + length;
	while (at < end) {
		size_t n = *at < 0x80 ? 1 : utf8_bytes(at, (size_t)(end - at));
		if (!n)
			return false;
		at += n;
	}
	return true;
}

void relay_put_base64(struct relay_output *output, const unsigned char *data, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (size_t i = 0; i < length; i += 3) {
		const size_t n = length - i < 3 ? length - i : 3;
		const uint32_t word =
		    (uint32_t)data[i] << 16 | (n > 1 ? (uint32_t)data[i + 1] << 8 : 0) | (n > 2 ? data[i + 2] : 0);
		for (size_t digit = 0; digit < 4; digit++)
			relay_put_byte(output,
			               (unsigned char)(digit > n ? '=' : digits[word >> (18 - 6 * digit) & 63]));
	}
}
