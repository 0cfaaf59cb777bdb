/* SPDX-License-Identifier: MIT */
/* What a process has written to a trace, as files that CTF readers read, without its metadata:
 *
 *     copy_trace STORE/NAME/PROCESS-PID OUT      makes OUT/cpu0 ...
 */
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>

static int copy(struct rchan_buf *buf, const char *out)
{
	struct relay_stats stats;
	uint64_t number = 0, records = 0;
	ssize_t got = 0;
	FILE *file = fopen(out, "w");
	if (!file || relay_buf_flush(buf) || relay_buf_stats(buf, &stats))
		return -1;
	void *packet = malloc(stats.subbuf_size);
	while (packet && (got = relay_packet_copy(buf, &number, &records, packet, stats.subbuf_size)) > 0) {
		if (fwrite(packet, (size_t)got, 1, file) != 1)
			got = -1;
		number++;
	}
	free(packet);
	return fclose(file) || !packet ? -1 : (int)got;
}

int main(int argc, char **argv)
{
	char path[4096], out[4096];
	for (unsigned cpu = 0; argc == 3 && cpu < relay_n_possible_cpus(); cpu++) {
		snprintf(path, sizeof(path), "%s/cpu/mem%u", argv[1], cpu);
		snprintf(out, sizeof(out), "%s/cpu%u", argv[2], cpu);
		struct rchan_buf *buf = relay_buf_open(path);
		if (!buf || copy(buf, out)) {
			perror(path);
			return 1;
		}
		relay_buf_release(buf);
	}
	return argc != 3;
}
