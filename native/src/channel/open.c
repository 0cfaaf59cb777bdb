/* SPDX-License-Identifier: MIT */
/*
 * Making and removing channels.
 *
 *     relay_open(BASE, PARENT, ...)    files: by the mount's `create`; nothing mounted: in the store itself
 *     relay_open(NULL, NULL, ...)      unnamed memory, for this process and its children
 *     relay_late_setup_files()         the same memory gets names: by the mount's `adopt`, or in the store itself
 *     relay_close()                    removes the files
 */
#define _GNU_SOURCE
#include "base/owner.h"
#include "channel/buf_mapped.h"
#include "channel/channel.h"
#include "channel/create_buf_file.h"
#include "channel/direct.h"
#include "channel/move.h"
#include "channel/remote.h"
#include "store/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *fail(int err)
{
	errno = -err;
	return NULL;
}

/* --- making --- */

static int create_in_mount(const struct relay_place *place, const void *options)
{
	return relay_place_control(place, "create", options);
}

static int create_in_store(const struct relay_place *place, const void *options)
{
	struct relay_spec spec;
	relay_spec_default(&spec);
	int err = relay_options_parse(options, &spec);
	return err ? err : relay_direct_create(place, &spec);
}

static int create(struct relay_place *place, const char *path, const char *options)
{
	int err = relay_place_new(place, path);
	return err ? err : relay_carry_out(place, &(struct relay_operation){create_in_mount, create_in_store, options});
}

/* Format the keys for `create PATH`: from the arguments and callbacks, then cb->options. NULL: no memory. */
static char *options_of(const struct rchan *chan, size_t subbuf_size, size_t n_subbufs, uint32_t buffers)
{
	static const char *const shapes[] = {"", " buffers=global", " buffers=single"};
	const char *further = chan->cb && chan->cb->options ? chan->cb->options : "";
	const char *mode = chan->cb && chan->cb->subbuf_start ? " mode=callback" : "";
	/* As in the kernel, poll(2) on a channel of relay_open() reports finished sub-buffers, unless cb->options says otherwise. */
	const char *delivery = relay_options_have(further, "delivery=") ? "" : " delivery=bulk";
	char perm[32] = "", *options;
	if (chan->n_names && !relay_options_have(further, "perm="))
		snprintf(perm, sizeof(perm), " perm=%04o", (unsigned)chan->names[0].mode);
	int n = asprintf(&options, "subbuf_size=%zu n_subbufs=%zu%s%s%s%s %s", subbuf_size, n_subbufs, mode,
	                 shapes[buffers], delivery, perm, further);
	return n < 0 ? NULL : options;
}

/* --- removing --- */

static int remove_in_mount(const struct relay_place *place, const void *unused)
{
	(void)unused;
	return relay_place_control(place, "remove", "");
}

static int remove_in_store(const struct relay_place *place, const void *unused)
{
	(void)unused;
	return relay_direct_remove(place);
}

/* True if the channel was removed; another channel may have its name since then. */
static bool is_removed(const struct rchan *chan)
{
	if (chan->remote)
		return relay_remote_is_removed(chan->remote);
	return chan->n_buffers && __atomic_load_n(&chan->bufs[0].control->flags, __ATOMIC_RELAXED) & RELAY_CLOSED;
}

static void remove_files(struct rchan *chan)
{
	bool exist = chan->place.channel && !is_removed(chan);
	relay_create_buf_file_remove(chan, exist);
	if (!exist || is_removed(chan))
		return;
	int err = relay_carry_out(&chan->place, &(struct relay_operation){remove_in_mount, remove_in_store, NULL});
	/* The files could not be removed, for example because the server has ended: close the channel, and the next
	 * server removes it. */
	for (uint32_t i = 0; err && err != -EPERM && i < chan->n_buffers; i++)
		relay_buf_stop(&chan->bufs[i], RELAY_CLOSED, 1);
}

struct rchan *relay_create(const char *path, const char *options)
{
	struct relay_place place = {0};
	struct rchan *chan = NULL;
	int err = create(&place, path, options ? options : "");
	if (!err && !(chan = relay_attach(path))) {
		err = -errno;
		relay_carry_out(&place, &(struct relay_operation){remove_in_mount, remove_in_store, NULL});
	}
	relay_place_free(&place);
	return err ? fail(err) : chan;
}

int relay_store_remove_channel(const char *path)
{
	struct relay_place place = {0};
	int err = relay_place_channel(&place, path);
	if (!err)
		err = relay_carry_out(&place, &(struct relay_operation){remove_in_mount, remove_in_store, NULL});
	relay_place_free(&place);
	return err;
}

/* --- opening --- */

/* Opening has failed, perhaps because no descriptor is free. Close those of the buffers, because removing needs
 * some. */
static void undo_files(struct rchan *chan)
{
	relay_buf_mapped_stop(chan);
	relay_chan_unmap(chan);
	remove_files(chan);
}

/* Store the place of the channel's files, or, if making them has failed with `err`, free it. Returns err. */
static int settle_place(struct rchan *chan, struct relay_place *place, int err)
{
	if (err) {
		relay_place_free(place);
		relay_create_buf_file_remove(chan, false);
	} else {
		chan->place = *place;
	}
	return err;
}

static int open_files(struct rchan *chan, const char *base_filename, const char *parent, size_t subbuf_size,
                      size_t n_subbufs)
{
	char *path;
	uint32_t buffers;
	int err = relay_create_buf_file_ask(chan, base_filename, parent, chan->n_places, &path, &buffers);
	if (err)
		return err;
	char *options = options_of(chan, subbuf_size, n_subbufs, buffers);
	struct relay_place place = {0};
	err = options ? create(&place, path, options) : -ENOMEM;
	free(options);
	free(path);
	err = settle_place(chan, &place, err);
	if (err)
		return err;
	err = relay_chan_attach(chan);
	if (!err)
		err = relay_buf_mapped_start(chan);
	if (err)
		undo_files(chan);
	return err;
}

static int open_unnamed(struct rchan *chan, size_t subbuf_size, size_t n_subbufs)
{
	int global = relay_create_buf_file_ask_global(chan);
	if (global < 0)
		return global;
	char *options = options_of(chan, subbuf_size, n_subbufs, global ? RELAY_GLOBAL : RELAY_PERCPU);
	int *fds = calloc(chan->n_places, sizeof(*fds));
	relay_spec_default(&chan->spec);
	int err = options && fds ? relay_options_parse(options, &chan->spec) : -ENOMEM;
	if (!err)
		err = relay_direct_create_unnamed(&chan->spec, fds);
	if (!err)
		err = relay_chan_map(chan, fds, chan->spec.n_buffers);
	free(options);
	free(fds);
	return err;
}

/* False if cb->options has buffers= and there is a create_buf_file, which determines the number of buffers. */
static bool is_consistent(const struct rchan_callbacks *cb)
{
	return !cb->create_buf_file || !cb->options || !relay_options_have(cb->options, "buffers=");
}

struct rchan *relay_open(const char *base_filename, const char *parent, size_t subbuf_size, size_t n_subbufs,
                         const struct rchan_callbacks *cb, void *private_data)
{
	if ((!base_filename && parent) || (base_filename && !*base_filename) ||
	    !relay_buf_file_bytes(subbuf_size, n_subbufs) || (cb && !is_consistent(cb)))
		return fail(-EINVAL);
	struct rchan *chan = relay_chan_new(relay_n_possible_cpus(), cb, private_data);
	if (!chan)
		return NULL;
	int err = base_filename ? open_files(chan, base_filename, parent, subbuf_size, n_subbufs)
	                        : open_unnamed(chan, subbuf_size, n_subbufs);
	chan->maker = err ? 0 : relay_owner_process();
	if (!err)
		return chan;
	relay_close(chan);
	return fail(err);
}

/* --- late setup --- */

/* "3,4,5 perm=0640 uid=0 gid=0" */
static char *adopt_words(const struct rchan *chan)
{
	char *words = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&words, &size);
	if (!out)
		return NULL;
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		fprintf(out, "%s%d", i ? "," : "", relay_buf_fd(&chan->bufs[i]));
	fprintf(out, " perm=%04o uid=%u gid=%u", chan->spec.file_mode, chan->spec.uid, chan->spec.gid);
	if (fclose(out) == 0)
		return words;
	free(words);
	return NULL;
}

static int adopt_in_mount(const struct relay_place *place, const void *arg)
{
	char *words = adopt_words(arg);
	int err = words ? relay_place_control(place, "adopt", words) : -ENOMEM;
	free(words);
	return err;
}

static int adopt_in_store(const struct relay_place *place, const void *arg)
{
	const struct rchan *chan = arg;
	int *fds = calloc(chan->n_buffers, sizeof(*fds)), err = fds ? 0 : -ENOMEM;
	for (uint32_t i = 0; !err && i < chan->n_buffers; i++) {
		fds[i] = relay_buf_fd(&chan->bufs[i]);
		err = relay_mapping_own(fds[i], chan->spec.file_mode, chan->spec.uid, chan->spec.gid);
	}
	if (!err)
		err = relay_direct_adopt(place, &chan->spec, fds);
	free(fds);
	return err;
}

/* create_buf_file now decides the name and the mode, but not the number of buffers. */
static int settle_spec(struct rchan *chan, uint32_t buffers)
{
	if (chan->cb && chan->cb->create_buf_file) {
		if ((buffers == RELAY_PERCPU) != (chan->spec.buffers == RELAY_PERCPU))
			return -EINVAL;
		chan->spec.buffers = buffers;
		/* Other processes do not load this until there are files. */
		for (uint32_t i = 0; i < chan->n_buffers; i++)
			chan->bufs[i].control->geometry.buffers = buffers;
	}
	if (chan->n_names && !(chan->cb->options && relay_options_have(chan->cb->options, "perm=")))
		chan->spec.file_mode = (uint32_t)chan->names[0].mode;
	return 0;
}

/* Check that the program has not closed the library's descriptors, without which unnamed memory cannot get a name. */
static bool has_descriptors(const struct rchan *chan)
{
	for (uint32_t i = 0; i < chan->n_buffers; i++)
		if (!relay_descriptor_is_ours(&chan->bufs[i].mapping.file))
			return false;
	return true;
}

static int set_up_files(struct rchan *chan, const char *base_filename, const char *parent)
{
	char *path;
	uint32_t buffers;
	if (!has_descriptors(chan))
		return -EBADF;
	int err = relay_create_buf_file_ask(chan, base_filename, parent, chan->n_buffers, &path, &buffers);
	if (err)
		return err;
	struct relay_place place = {0};
	struct relay_operation operation = {adopt_in_mount, adopt_in_store, chan};
	err = settle_spec(chan, buffers);
	if (!err)
		err = relay_place_new(&place, path);
	if (!err)
		err = relay_is_foreign(&place) ? relay_chan_move(chan, &place, &operation)
		                               : relay_carry_out(&place, &operation);
	free(path);
	err = settle_place(chan, &place, err);
	if (err)
		return err;
	relay_chan_show(chan);
	return relay_buf_mapped_start(chan);
}

int relay_late_setup_files(struct rchan *chan, const char *base_filename, const char *parent)
{
	if (!chan || !base_filename || !*base_filename)
		return -EINVAL;
	/* If several threads call this at once, all but one get -EEXIST. */
	if (__atomic_exchange_n(&chan->has_files, true, __ATOMIC_ACQ_REL))
		return -EEXIST;
	int err = set_up_files(chan, base_filename, parent);
	if (err && !chan->place.channel)
		__atomic_store_n(&chan->has_files, false, __ATOMIC_RELEASE);
	return err;
}

bool relay_chan_is_ours(const struct rchan *chan)
{
	return chan->maker && (chan->maker == relay_owner_process() || !relay_owner_alive(chan->maker));
}

void relay_chan_remove(struct rchan *chan)
{
	relay_buf_mapped_stop(chan);
	if (relay_chan_is_ours(chan))
		remove_files(chan);
}

void relay_close(struct rchan *chan)
{
	if (!chan)
		return;
	relay_chan_remove(chan);
	relay_chan_free(chan);
}
