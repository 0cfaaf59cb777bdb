/* SPDX-License-Identifier: MIT */
/* Streaming a channel by one reader for each of its buffers (<relayfs/relay_app.h>). */
#define _GNU_SOURCE
#include "apps/app_reader.h"
#include "channel/channel.h"
#include "store/options.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct relay_app {
	struct rchan *chan;
	struct app_reader *readers; /* one for each buffer of chan */
	struct app_shared shared;
	bool keep_enabled, running;
	void *private_data;
};

/* An app delivers finished sub-buffers, unless `create` asks for packet delivery. */
static struct rchan *make_channel(const char *path, const char *create)
{
	const char *delivery = relay_options_have(create, "delivery=") ? "" : "delivery=bulk ";
	char *options;
	if (asprintf(&options, "%s%s", delivery, create) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	struct rchan *chan = relay_create(path, options);
	int saved = errno;
	free(options);
	errno = saved;
	return chan;
}

struct rchan *relay_app_attach(const char *path, const char *create)
{
	struct rchan *chan = create ? make_channel(path, create) : NULL;
	/* Another reader or producer made it first. */
	return chan || (create && errno != EEXIST) ? chan : relay_attach(path);
}

/* --- opening --- */

/* Allocate memory for data that is read, or copied because it goes to a file or can be overwritten meanwhile. */
static int make_room(struct app_reader *reader, bool to_file)
{
	size_t size = to_file ? relay_app_room_bytes(reader->buf) : reader->buf->subbuf_size;
	if (reader->shared->way == RELAY_APP_READ)
		return relay_app_room_open(&reader->room, size > APP_READ_BYTES ? size : APP_READ_BYTES, to_file);
	if (to_file || reader->buf->mode != RELAY_NO_OVERWRITE)
		return relay_app_room_open(&reader->room, size, to_file);
	return 0;
}

static int open_reader(struct app_reader *reader, const struct relay_app_options *options)
{
	int err = make_room(reader, options->output != NULL);
	if (!err && options->output)
		err = relay_app_output_open(&reader->output, reader->buf, &reader->room, options->output,
		                            options->append);
	if (!err && options->way == RELAY_APP_READ) {
		reader->file = open(reader->buf->relay_file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		err = reader->file < 0 ? -errno : 0;
	}
	return err;
}

static int open_readers(struct relay_app *app, const struct relay_app_options *options)
{
	uint32_t n = app->chan->n_buffers;
	app->readers = calloc(n, sizeof(*app->readers));
	if (!app->readers)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		app->readers[i] = (struct app_reader){
		    .shared = &app->shared, .buf = &app->chan->bufs[i], .output.fd = -1, .file = -1};
	int err = 0;
	for (uint32_t i = 0; i < n && !err; i++)
		err = open_reader(&app->readers[i], options);
	return err;
}

static int open_app(struct relay_app *app, const char *path, const struct relay_app_options *options)
{
	app->shared.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	app->shared.over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (app->shared.stop_fd < 0 || app->shared.over_fd < 0)
		return -errno;
	app->chan = relay_app_attach(path, options->create);
	if (app->chan && app->chan->remote)
		return -EOPNOTSUPP;
	return app->chan ? open_readers(app, options) : -errno;
}

/* Fields that the caller's version does not have are 0. */
static int take_options(struct relay_app_options *to, const struct relay_app_options *from)
{
	if (!from || from->size < sizeof(size_t))
		return -EINVAL;
	*to = (struct relay_app_options){0};
	memcpy(to, from, from->size < sizeof(*to) ? from->size : sizeof(*to));
	return !to->output == !to->process_subbuf || to->way > RELAY_APP_READ ? -EINVAL : 0;
}

struct relay_app *relay_app_open(const char *path, const struct relay_app_options *given)
{
	struct relay_app_options options;
	int err = take_options(&options, given);
	struct relay_app *app = err ? NULL : calloc(1, sizeof(*app));
	if (app) {
		app->shared = (struct app_shared){.app = app,
		                                  .way = options.way,
		                                  .process_subbuf = options.process_subbuf,
		                                  .max_blocks = UINT64_MAX,
		                                  .stop_fd = -1,
		                                  .over_fd = -1};
		app->keep_enabled = options.keep_enabled;
		app->private_data = options.private_data;
		err = open_app(app, path, &options);
		if (!err)
			return app;
		relay_app_close(app);
	}
	errno = err ? -err : ENOMEM;
	return NULL;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void relay_app_close(struct relay_app *app)
{
	if (!app)
		return;
	relay_app_stop(app);
	for (uint32_t i = 0; app->readers && i < app->chan->n_buffers; i++) {
		relay_app_output_close(&app->readers[i].output);
		close_fd(app->readers[i].file);
		relay_app_room_close(&app->readers[i].room);
	}
	free(app->readers);
	relay_close(app->chan);
	close_fd(app->shared.stop_fd);
	close_fd(app->shared.over_fd);
	free(app);
}

/* --- running --- */

int relay_app_limit(struct relay_app *app, uint64_t bytes)
{
	if (app->running)
		return -EALREADY;
	if (app->shared.process_subbuf)
		return -EINVAL;
	app->shared.max_blocks = bytes == UINT64_MAX ? UINT64_MAX : bytes / APP_BLOCK_BYTES;
	return 0;
}

static int prepare(struct app_reader *reader)
{
	struct relay_stats stats;
	int err = relay_buf_stats(reader->buf, &stats);
	if (err)
		return err;
	uint64_t lost_records, lost_bytes;
	relay_app_lost(&stats, &lost_records, &lost_bytes);
	relay_app_count(&reader->stats.bytes, 0);
	relay_app_count(&reader->stats.pieces, 0);
	relay_app_count(&reader->stats.max_backlog, 0);
	relay_app_count(&reader->stats.lost_records, lost_records);
	relay_app_count(&reader->stats.lost_bytes, lost_bytes);
	relay_app_output_begin(&reader->output, &stats);
	return 0;
}

static void clear(int event_fd)
{
	uint64_t count;
	while (read(event_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* Start a reader's thread with all signals blocked: they are for the program's own threads. */
static int start_readers(struct relay_app *app)
{
	uint32_t n = app->chan->n_buffers;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = 0;
	for (uint32_t i = 0; i < n && !err; i++) {
		struct app_reader *reader = &app->readers[i];
		reader->on_its_cpu = n > 1;
		err = -pthread_create(&reader->thread, NULL, relay_app_reader_run, reader);
		reader->running = !err;
		if (err)
			__atomic_sub_fetch(&app->shared.n_running, n - i, __ATOMIC_RELAXED);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

/* Set `stop`, wait until the readers have read up to `until`, and return the first failure. */
static int join_readers(struct relay_app *app)
{
	int result = 0;
	/* Pairs with the acquire in is_told_to_stop() in apps/app_reader.c. */
	__atomic_store_n(&app->shared.stop, 1, __ATOMIC_RELEASE);
	relay_wake_word(&app->shared.stop);
	while (write(app->shared.stop_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
	for (uint32_t i = 0; i < app->chan->n_buffers; i++) {
		struct app_reader *reader = &app->readers[i];
		if (!reader->running)
			continue;
		pthread_join(reader->thread, NULL);
		reader->running = false;
		relay_app_output_end(&reader->output);
		if (!result)
			result = reader->result;
	}
	return result;
}

int relay_app_start(struct relay_app *app)
{
	int err = app->running ? -EALREADY : 0;
	for (uint32_t i = 0; i < app->chan->n_buffers && !err; i++)
		err = prepare(&app->readers[i]);
	if (err)
		return err;
	clear(app->shared.stop_fd);
	clear(app->shared.over_fd);
	app->shared.stop = 0;
	app->shared.n_blocks = 0;
	app->shared.n_running = app->chan->n_buffers;
	err = start_readers(app);
	if (err) {
		for (uint32_t i = 0; i < app->chan->n_buffers; i++)
			app->readers[i].until = 0;
		join_readers(app);
		return err;
	}
	app->running = true;
	for (uint32_t i = 0; i < app->chan->n_buffers; i++)
		relay_buf_stop(&app->chan->bufs[i], RELAY_DISABLED, 0);
	return 0;
}

/* Finish the current sub-buffers. No write is under way any more, except on a CPU where this thread may not run. */
static void finish(struct relay_app *app, struct app_reader *reader)
{
	struct relay_stats stats;
	if (!app->keep_enabled)
		relay_buf_stop(reader->buf, RELAY_DISABLED, 1);
	bool is_read = !relay_buf_stats(reader->buf, &stats);
	/* The flush may fail, because the channel was removed or the CPU is not allowed. Then the reader reads the
	 * unfinished sub-buffer. */
	if (is_read && stats.offset)
		relay_buf_flush(reader->buf);
	if (is_read && app->keep_enabled)
		is_read = !relay_buf_stats(reader->buf, &stats);
	reader->until = is_read ? stats.bytes : 0;
}

int relay_app_stop(struct relay_app *app)
{
	if (!app->running)
		return -EALREADY;
	for (uint32_t i = 0; i < app->chan->n_buffers; i++)
		finish(app, &app->readers[i]);
	app->running = false;
	return join_readers(app);
}

/* --- statistics --- */

int relay_app_fd(const struct relay_app *app)
{
	return app->shared.over_fd;
}

void *relay_app_private(const struct relay_app *app)
{
	return app->private_data;
}

unsigned relay_app_n_buffers(const struct relay_app *app)
{
	return app->chan->n_buffers;
}

/* Losses since relay_app_start(). After a reset the channel counts from 0 again, so all are new. */
static uint64_t since(uint64_t now, uint64_t start)
{
	return now < start ? now : now - start;
}

int relay_app_stats(struct relay_app *app, unsigned cpu, struct relay_app_stats *stats)
{
	struct relay_stats now;
	if (cpu >= app->chan->n_buffers)
		return -EINVAL;
	const struct app_reader *reader = &app->readers[cpu];
	int err = relay_buf_stats(reader->buf, &now);
	if (err)
		return err;
	/* Relaxed: no other data depends on these. */
	stats->bytes = __atomic_load_n(&reader->stats.bytes, __ATOMIC_RELAXED);
	stats->pieces = __atomic_load_n(&reader->stats.pieces, __ATOMIC_RELAXED);
	stats->max_backlog = __atomic_load_n(&reader->stats.max_backlog, __ATOMIC_RELAXED);
	relay_app_lost(&now, &stats->lost_records, &stats->lost_bytes);
	stats->lost_records =
	    since(stats->lost_records, __atomic_load_n(&reader->stats.lost_records, __ATOMIC_RELAXED));
	stats->lost_bytes = since(stats->lost_bytes, __atomic_load_n(&reader->stats.lost_bytes, __ATOMIC_RELAXED));
	return 0;
}
