/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/quiet.h"

#include "base/scratch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <ucontext.h>
#include <unistd.h>

enum { WORDS_BYTES = 64 };

__thread bool relay_quiet_self RELAY_TLS;
__thread bool relay_blind_self RELAY_TLS;

/* The state of a quiet thread. */
static __thread struct {
	int status;         /* descriptor of /proc/thread-self/status, + 1; 0: none */
	bool is_restricted; /* it may make no system calls */
	/* The lines about seccomp in that file when the thread became quiet, "Seccomp:\t0\nSeccomp_filters:\t0". They
	 * are compared as a whole, because programs in a container have filters from the start. */
	char words[WORDS_BYTES];
} self RELAY_TLS;

/* Read the lines about seccomp as they are now. Returns false if that fails. */
static bool read_words(char words[WORDS_BYTES])
{
	char *text = relay_scratch_take();
	if (!text)
		return false;
	ssize_t got = self.status ? read(self.status - 1, text, RELAY_SCRATCH_BYTES - 1) : -1;
	text[got > 0 ? got : 0] = 0;
	/* The program may have closed the descriptor and opened another file with the same number. */
	bool is_status = got > 0 && strncmp(text, "Name:", 5) == 0;
	const char *at = is_status ? strstr(text, "\nSeccomp:") : NULL;
	const char *end = at ? strstr(at, "\nSpeculation") : NULL;
	size_t length = end ? (size_t)(end - at) : at ? strcspn(at + 1, "\n") + 1 : 0;
	memset(words, 0, WORDS_BYTES);
	if (length && length < WORDS_BYTES)
		memcpy(words, at, length);
	relay_scratch_give_back(text);
	return words[0] != 0;
}

static bool may_call(void)
{
	char words[WORDS_BYTES];
	if (!read_words(words) || memcmp(words, self.words, sizeof(words)) != 0)
		return false;
	/* The state is as before, so lseek(2) is permitted. */
	return lseek(self.status - 1, 0, SEEK_SET) == 0;
}

#if defined(__x86_64__)

/* The addresses of the rdtsc instruction in relay_quiet_look(), which faults if the counter is forbidden, and of the
 * one after. */
extern const char relay_quiet_probe[] __attribute__((visibility("hidden")));
extern const char relay_quiet_probed[] __attribute__((visibility("hidden")));

static struct sigaction previous;

static void handle_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	if (*at == (greg_t)relay_quiet_probe) {
		relay_blind_self = true;
		*at = (greg_t)relay_quiet_probed;
	} else if (previous.sa_flags & SA_SIGINFO) {
		previous.sa_sigaction(signal, info, context);
	} else if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) {
		previous.sa_handler(signal);
	} else {
		/* Return to the instruction that faulted: it faults again, and the default action kills the process. */
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
	}
}

static void install_handler(void)
{
	/* SA_ONSTACK, because the program's handler, which handle_fault() calls, may need the alternate stack. */
	struct sigaction action = {.sa_sigaction = handle_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
	sigaction(SIGSEGV, &action, &previous);
}

static void handle_faults(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, install_handler);
}

/* noinline and noclone, because the symbols in the assembly may be defined only once. */
__attribute__((noinline, noclone)) void relay_quiet_look(void)
{
	if (relay_blind_self)
		return;
	__asm__ volatile(".globl relay_quiet_probe, relay_quiet_probed\n\t"
	                 ".hidden relay_quiet_probe, relay_quiet_probed\n"
	                 "relay_quiet_probe:\n\t"
	                 "rdtsc\n"
	                 "relay_quiet_probed:"
	                 :
	                 :
	                 : "eax", "edx", "memory");
}

#else

static void handle_faults(void)
{
}

void relay_quiet_look(void)
{
}

#endif

void relay_quiet_begin(void)
{
	if (relay_quiet_self)
		return;
	handle_faults();
	self.is_restricted = false;
	self.status = open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC) + 1;
	if (!read_words(self.words) || lseek(self.status - 1, 0, SEEK_SET))
		self.is_restricted = true;
	relay_quiet_self = true;
}

bool relay_quiet_may_call(void)
{
	if (!self.is_restricted && !may_call())
		self.is_restricted = true; /* for ever, because a thread cannot leave seccomp(2) */
	return !self.is_restricted;
}

void relay_quiet_end(void)
{
	if (self.status)
		close(self.status - 1);
	self.status = 0;
	relay_quiet_self = relay_blind_self = false;
}
