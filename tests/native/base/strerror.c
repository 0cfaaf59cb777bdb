/* SPDX-License-Identifier: MIT */
/* Prints what relay_strerror() says of each number that is given. */
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		puts(relay_strerror(atoi(argv[i])));
	return argc < 2;
}
