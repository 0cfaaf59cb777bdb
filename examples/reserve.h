/* The contents of a sub-buffer in the `reserve` example: a header, then records, then padding. */
#ifndef RESERVE_H
#define RESERVE_H

enum { SUBBUF_SIZE = 16384, N_SUBBUFS = 16, TEXT_MAX = 100, HEADER_MAGIC = 0x72657376 };

struct header {
	unsigned magic;
	unsigned written; /* bytes of text in the sub-buffer. Writers: all producers, before they commit */
};

struct record {
	unsigned short reserved; /* bytes, including these two members */
	unsigned short used;     /* bytes of text */
	char text[];
};

#endif
