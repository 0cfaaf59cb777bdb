/* SPDX-License-Identifier: MIT */
/* The texts of the library's errors. A text covers all functions that return the error; the manual says which functions
 * do. */
#include <errno.h>
#include <relayfs/relay.h>
#include <stddef.h>
#include <string.h>

static const struct {
	int error;
	const char *text;
} texts[] = {
    {ENOENT,
     "no such channel or file, or no relayfs is mounted there: relay_attach() and relay_rings_attach() take a path "
     "without the number at its end, relay_reader_open() one with it"},
    {ENOTDIR, "a part of the path is a channel or a file, where a directory was expected"},
    {EISDIR, "the path is that of a directory, where a channel or a file was expected"},
    {EMEDIUMTYPE,
     "the channel is of the other kind: relay_attach() and relay_reader_open() take channels of relay files, "
     "relay_rings_attach() those of record rings"},
    {EBADMSG, "the memory is damaged, or is no relayfs"},
    {EPROTO, "the memory was made by another version of relayfs"},
    {EACCES, "this user may not write to the files, or not to the mount's control"},
    {EPERM, "it belongs to another user, or the thread may not run on the CPU of a buffer"},
    {EINVAL, "an argument, or a key of the options, is not allowed; error_log in the mount says why a channel was not "
             "made"},
    {EEXIST, "there is such a channel or file, or the channel has files already"},
    {ENOSPC, "there is no room: the buffer is full, or the store has not enough memory left"},
    {EMSGSIZE, "the record is longer than the channel allows"},
    {ECANCELED, "the channel is disabled"},
    {EPIPE, "the channel has been removed"},
    {EDEADLK, "called from the channel's own callback, which may not do this"},
    {EBUSY,
     "another thread or program uses what is needed, and did not finish in time; or a server serves the store whose "
     "mount this process does not see: channels are made and removed in that mount"},
    {EOVERFLOW, "the data was overwritten while it was read"},
    {ESTALE, "the record was consumed or overwritten while it was copied: begin with the next one"},
    {EAGAIN, "not possible at this moment: try again"},
    {EINTR, "interrupted by a signal"},
    {EALREADY, "the data that was taken before is still in use, or the app is running or stopped already"},
    {EXDEV, "the mount's store lies in another file system than the buffers: see RELAYFS_STORE"},
    {ENODEV, "the mount cannot map files for this user"},
    {ENOTSUP, "not possible with these options, or in a thread without restartable sequences"},
    {EFBIG, "the memory would be longer than files of this process may be (RLIMIT_FSIZE)"},
    {EMFILE, "this process has too many files, channels or rings open"},
    {ENOTCONN, "the file server has ended"},
    {EBADF, "not open, or the program has closed descriptors of the library"},
};

const char *relay_strerror(int error)
{
	int code = error < 0 ? -error : error;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].error == code)
			return texts[i].text;
	return strerror(code);
}
