/* SPDX-License-Identifier: MIT */
/*
 * A producer that forks: parent and children write to the channel that was attached before.
 *
 *     forker MNT/app/cpu CHILDREN RECORDS
 *
 * Records are lines "WHO SEQUENCE"; WHO 0 is the parent. A refused record ends the process with status 1.
 */
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int write_all(struct rchan *chan, int who, int first, int end)
{
	for (int i = first; i < end; i++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "%d %08d\n", who, i);
		int err = relay_write(chan, line, (size_t)length);
		if (err) {
			fprintf(stderr, "%d %d: %s\n", who, i, strerror(-err));
			return 1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int n_children = atoi(argv[2]), n_records = atoi(argv[3]), failed = 0, status;
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan) {
		perror(argv[1]);
		return 2;
	}
	failed |= write_all(chan, 0, 0, n_records / 2);
	for (int who = 1; who <= n_children; who++)
		if (fork() == 0)
			_exit(write_all(chan, who, 0, n_records));
	failed |= write_all(chan, 0, n_records / 2, n_records);
	while (wait(&status) > 0)
		failed |= status != 0;
	relay_close(chan);
	return failed;
}
