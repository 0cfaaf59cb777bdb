/* SPDX-License-Identifier: MIT */
/* Messages of protobuf, which perfetto.c writes. */
#ifndef RELAYFS_MERGE_PROTOBUF_H
#define RELAYFS_MERGE_PROTOBUF_H

#include "merge/output.h"

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, TAG_BITS = 3, VARINT_BYTES = 10 };

static inline void put_varint(struct relay_output *output, uint64_t number)
{
	unsigned char bytes[VARINT_BYTES];
	size_t n = 0;
	for (; number >= 0x80; number >>= 7)
		bytes[n++] = (unsigned char)(number | 0x80);
	bytes[n++] = (unsigned char)number;
	relay_put(output, bytes, n);
}

static inline void put_number(struct relay_output *output, uint32_t field, uint64_t number)
{
	put_varint(output, field << TAG_BITS | WIRE_VARINT);
	put_varint(output, number);
}

static inline void put_double(struct relay_output *output, uint32_t field, double number)
{
	put_varint(output, field << TAG_BITS | WIRE_FIXED64);
	relay_put(output, &number, sizeof(number));
}

/* Begin a field with a length, such as a message. Returns the argument `begin` of end_message(). */
static inline size_t begin_message(struct relay_output *output, uint32_t field)
{
	put_varint(output, field << TAG_BITS | WIRE_LENGTH);
	relay_put_byte(output, 0);
	return output->length;
}

/* Store the length of a message in the byte that begin_message() has left for it, and make room if it takes more. */
static inline void end_message(struct relay_output *output, size_t begin)
{
	const size_t length = output->length - begin;
	if (output->has_failed)
		return;
	if (length < 0x80) {
		output->at[begin - 1] = (char)length;
		return;
	}
	/* The length is first written behind the message, to know how many bytes it takes. Then the message is moved, and
	 * the length is copied to its place. */
	put_varint(output, length);
	const size_t more = output->length - begin - length;
	unsigned char bytes[VARINT_BYTES];
	if (output->has_failed)
		return;
	memcpy(bytes, output->at + begin + length, more);
	memmove(output->at + begin + more - 1, output->at + begin, length);
	memcpy(output->at + begin - 1, bytes, more);
	output->length--;
}

static inline void put_string(struct relay_output *output, uint32_t field, const void *text, size_t length)
{
	size_t string = begin_message(output, field);
	relay_put_string(output, text, length, RELAY_ESCAPE_INVALID);
	end_message(output, string);
}

#endif
