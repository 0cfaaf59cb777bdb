/* SPDX-License-Identifier: MIT */
/* Prints its own name to standard error in one write(2), as programs do with what is wrong. Installed setuid, it stands
 * for su, mount or sudo. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[4096];
	int length = snprintf(line, sizeof(line), "%s: usage\n", argc > 0 ? argv[0] : "");
	return write(2, line, (size_t)length) == length ? 0 : 1;
}
