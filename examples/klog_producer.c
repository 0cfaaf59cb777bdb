/* cc -O2 -o klog_producer klog_producer.c $(pkg-config --cflags --libs relayfs) -pthread */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <relayfs/klog.h>
#include <unistd.h>

enum { N_THREADS = 2, LOOK_US = 20000 };

/* The program's work, with log statements that are always compiled in. */
static void *work(void *argument)
{
	unsigned long who = (unsigned long)argument;
	for (unsigned long i = 0;; i++) {
		klog("thread %lu has done %lu things\n", who, i);
		usleep(1000);
	}
	return NULL;
}

/* Log while the channel exists, and work all the time: klog_producer MNT/app/log
 * Make and remove the channel at any time, or start klog_reader, which makes it. */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: klog_producer MNT/app/log");
	pthread_t threads[N_THREADS];
	for (unsigned long i = 0; i < N_THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			return 1;
	struct rchan *chan = NULL;
	for (;; usleep(LOOK_US)) {
		if (!chan && (chan = relay_attach(argv[1])))
			klog_register(chan);
		/* The channel was removed: close it, and look for another. */
		if (chan && klog("klog_producer is alive\n") == -EPIPE) {
			klog_unregister(chan);
			relay_close(chan);
			chan = NULL;
		}
	}
}
