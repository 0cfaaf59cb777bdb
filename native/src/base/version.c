/* SPDX-License-Identifier: MIT */
#include <relayfs/version.h>

const char *relay_version(void)
{
	return RELAY_VERSION;
}
