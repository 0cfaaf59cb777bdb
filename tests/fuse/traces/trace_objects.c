/* SPDX-License-Identifier: MIT */
/*
 * A traced program whose events have addresses:
 *
 *     here           an event with the address of a function of the program
 *     load FILE      load a library, and write an event with the address of its function
 *     fork           the child writes an event as `here`, and ends
 *     die            abort
 *
 * With -DLIBRARY it is that library, which has no tracepoints.
 */
#ifdef LIBRARY

int function_of_library(void);
int function_of_library(void)
{
	return 42;
}

#else
#include <dlfcn.h>
#include <relayfs/trace.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

RELAY_TRACE_EVENT(loaded, here, (x64, address))

static __attribute__((noinline)) void function_of_program(void)
{
	trace_loaded_here((uintptr_t)function_of_program);
}

int main(void)
{
	char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (strncmp(line, "load ", 5) == 0) {
			void *library = dlopen(line + 5, RTLD_NOW);

			if (!library)
				return 1;
			trace_loaded_here((uintptr_t)dlsym(library, "function_of_library"));
		} else if (strcmp(line, "fork") == 0) {
			if (fork() == 0) {
				function_of_program();
				_exit(0);
			}
			wait(NULL);
		} else if (strcmp(line, "die") == 0) {
			abort();
		} else {
			function_of_program();
		}
		puts("0");
		fflush(stdout);
	}
	return 0;
}
#endif
