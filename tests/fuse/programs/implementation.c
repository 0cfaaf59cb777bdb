/* SPDX-License-Identifier: MIT */
/* The library, for a program that is not linked to it. */
#define _GNU_SOURCE
#define RELAYFS_IMPLEMENTATION
#include <relayfs/producer.h>
