/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_MERGE_GROWN_H
#define RELAYFS_MERGE_GROWN_H

#include <stdlib.h>
#include <string.h>

/* Return an array of *n elements of `size` bytes, enlarged by zeroed elements if it has no element `index`. NULL: no
 * memory, and the array is unchanged. */
static inline void *relay_grown(void *array, size_t *n, size_t index, size_t size)
{
	if (index < *n)
		return array;
	size_t more = 2 * index + 16;
	unsigned char *grown = reallocarray(array, more, size);
	if (!grown)
		return NULL;
	memset(grown + *n * size, 0, (more - *n) * size);
	*n = more;
	return grown;
}

#endif
