/* SPDX-License-Identifier: MIT */
#include "base/taken.h"

struct relay_taken *relay_taken_where;

void relay_taken_store(struct relay_taken *where)
{
	relay_taken_where = where;
}
