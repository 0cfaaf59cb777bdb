/* SPDX-License-Identifier: MIT */
/* A program that loads the library while it runs: loader LIBRARY MNT/app/channel. Writes one line there. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	void *(*attach)(const char *) = (void *(*)(const char *))dlsym(library, "relay_attach");
	int (*write_record)(void *, const void *, size_t) =
	    (int (*)(void *, const void *, size_t))dlsym(library, "relay_write");
	void *chan = attach(argv[2]);
	return !chan || write_record(chan, "loaded\n", 7);
}
