/* SPDX-License-Identifier: MIT */
#include "quiet.h"

__thread bool relay_quiet_self __attribute__((tls_model("initial-exec")));
