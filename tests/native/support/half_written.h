/* SPDX-License-Identifier: MIT */
/*
 * Writers that stop or die in the middle of a write.
 *
 * The record to write straddles into a page that may not be read: the library's own copy faults there, as it
 * would anywhere else, and the handler of that fault holds the writer, or lets it die, at exactly this point.
 *
 *     +--------------------+--------------------+
 *     | ... first part of  | rest: PROT_NONE    |
 *     +--------------------+--------------------+
 *
 * A restartable write begins anew after each fault. A handler that does nothing for a while therefore drives
 * it into its fallback, which reserves, copies and commits as scheme lockless does.
 */
#ifndef HALF_WRITTEN_H
#define HALF_WRITTEN_H

#include "check.h"

#include <fcntl.h>
#include <relayfs/relay.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAULTS_TO_FALLBACK = 1000, PAGE = 4096, DEADLINE_SECONDS = 600, BATCH_LETTERS = 4 };

/* A child that writes one record and stops in the middle. */
struct writer {
	pid_t pid;
	int reached, go; /* pipes: the child is at the point; it may go on */
};

static struct {
	char *pages;
	unsigned faults, faults_until_stop;
	int reached, go;
	struct rchan
	    *batches_to; /* the letters are records of BATCH_LETTERS each, in a batch; NULL: they are one record */
} child;

static inline void on_fault(int signal)
{
	char byte = 'f';

	(void)signal;
	if (++child.faults < child.faults_until_stop)
		return;
	CHECK_EQ(write(child.reached, &byte, 1), 1);
	CHECK_EQ(read(child.go, &byte, 1), 1);
	CHECK_EQ(mprotect(child.pages + PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
}

/* n letters, the second half of them not to be read yet. */
static inline const char *record_that_faults(char letter, size_t n)
{
	struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};

	child.pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(child.pages != MAP_FAILED && n <= PAGE);
	memset(child.pages, letter, 2 * PAGE);
	CHECK_EQ(mprotect(child.pages + PAGE, PAGE, PROT_NONE), 0);
	CHECK_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	return child.pages + PAGE - n / 2;
}

static inline bool write_batch(const char *data, size_t n)
{
	size_t lengths[PAGE / BATCH_LETTERS];

	for (size_t i = 0; i < n / BATCH_LETTERS; i++)
		lengths[i] = BATCH_LETTERS;
	return relay_write_batch(child.batches_to, data, lengths, n / BATCH_LETTERS) == (long)(n / BATCH_LETTERS);
}

static inline _Noreturn void run_writer(const struct rchan_buf *shared, char letter, size_t n, uint64_t token,
                                        unsigned faults)
{
	child.faults_until_stop = faults;
	if (child.batches_to)
		_exit(write_batch(record_that_faults(letter, n), n) ? 0 : 1);
	struct rchan_buf *buf = open_again(shared);
	relay_buf_set_token(buf, token);
	_exit(relay_buf_write(buf, record_that_faults(letter, n), n) == 0 ? 0 : 1);
}

/* Returns when the child stands in the middle of its copy. */
static inline struct writer start_writer(const struct rchan_buf *buf, char letter, size_t n, uint64_t token,
                                         unsigned faults)
{
	int reached[2], go[2];
	struct writer writer;
	char byte;

	CHECK_EQ(pipe2(reached, O_CLOEXEC), 0);
	CHECK_EQ(pipe2(go, O_CLOEXEC), 0);
	alarm(DEADLINE_SECONDS);
	writer.pid = fork_child();
	if (writer.pid == 0) {
		alarm(DEADLINE_SECONDS);
		close(reached[0]);
		close(go[1]);
		child.reached = reached[1];
		child.go = go[0];
		run_writer(buf, letter, n, token, faults);
	}
	close(reached[1]);
	close(go[0]);
	writer.reached = reached[0];
	writer.go = go[1];
	CHECK_EQ(read(writer.reached, &byte, 1), 1);
	alarm(0);
	return writer;
}

/* Where both schemes hold a claim during the copy. */
static inline struct writer start_claimed(const struct rchan_buf *buf, char letter, size_t n)
{
	return start_writer(buf, letter, n, 0, scheme == RELAY_RSEQ ? FAULTS_TO_FALLBACK : 1);
}

static inline int end_writer(struct writer *writer)
{
	int status;

	close(writer->go);
	close(writer->reached);
	CHECK_EQ(waitpid(writer->pid, &status, 0), writer->pid);
	return status;
}

static inline void kill_writer(struct writer *writer)
{
	CHECK_EQ(kill(writer->pid, SIGKILL), 0);
	CHECK_EQ(WTERMSIG(end_writer(writer)), SIGKILL);
}

/* A writer that dies in the middle of a record of n bytes, where both schemes hold a claim. */
static inline void leave_hole(const struct rchan_buf *buf, size_t n)
{
	struct writer writer = start_claimed(buf, 'x', n);

	kill_writer(&writer);
}

static inline void continue_writer(struct writer *writer)
{
	CHECK_EQ(write(writer->go, "g", 1), 1);
	CHECK_EQ(end_writer(writer), 0);
}

/* Where the claims are in the buffer's file. */
static inline off_t claims_at(struct rchan_buf *buf)
{
	return (off_t)stats_of(buf).file_bytes - RELAY_PAGE_BYTES - RELAY_N_CLAIMS * (off_t)sizeof(struct relay_claim);
}

/* A process that makes all reservations there can be, and dies. */
static inline void die_with_all_reservations(const struct rchan_buf *buf, size_t length)
{
	pid_t pid = fork_child();

	if (pid == 0) {
		struct rchan_buf *mine = open_again(buf);
		void *to;

		for (int i = 0; i < RELAY_N_RESERVATIONS; i++)
			CHECK_EQ(relay_buf_reserve(mine, length, &to), 0);
		CHECK_EQ(relay_buf_reserve(mine, length, &to), -ENOSPC);
		_exit(0);
	}
	CHECK_EQ(result_of(pid), 0);
}

static inline void check_torn(struct rchan_buf *buf, uint64_t records, uint64_t bytes)
{
	CHECK_STATS(buf, (lost_torn_records, records), (lost_torn_bytes, bytes), (unread_bytes, 0));
	CHECK_EQ(stats_of(buf).read_records + records + stats_of(buf).lost_overwritten_records, stats_of(buf).records);
	CHECK_EQ(stats_of(buf).read_bytes + bytes + stats_of(buf).lost_overwritten_bytes, stats_of(buf).bytes);
}

#endif
