"""Writing to channels, and reading relay files; see <relayfs/relay.h> and <relayfs/reader.h>."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.library import bytes_of, check, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer as AnyBuffer

# relay_write() itself: of a handle's pointer, bytes and their number; returns 0 or a negative errno.
relay_write = lib.relay_write


class ChannelHandle(library.Handle):
    """Attach to a channel for writing.

    path: the path of its relay files without the number
    options: None to attach to an existing channel, else the keys after `create PATH`
    """

    def __init__(self, path: str, options: str | None = None) -> None:
        super().__init__(library.attached_or_made(path, options, lib.relay_attach, lib.relay_create))

    def close(self) -> None:
        """Close the channel."""
        lib.relay_close(self._disown())

    def write(self, data: AnyBuffer, will_retry: bool = False) -> None:
        """Write one record; will_retry: do not count it as lost if it fails with ENOSPC."""
        view = record(data)
        write = lib.relay_try_write if will_retry else lib.relay_write
        check(write(self._open, view, len(view)))

    def write_many(self, records: Iterable[AnyBuffer]) -> int:
        """Write records in order; return how many were written."""
        found = [each if type(each) is bytes else bytes_of(each) for each in records]
        lengths = ffi.new("size_t[]", list(map(len, found)))
        return check(lib.relay_write_batch(self._open, b"".join(found), lengths, len(found)))

    @property
    def largest_record(self) -> int:
        """The bytes of the longest record that the channel takes."""
        return int(lib.relay_largest_record(self._open))

    def writer(self) -> Callable[[bytes], int]:
        """Return a function that writes a record, and returns 0 or a negative errno; this handle is then closed.

        The channel stays open as long as the function exists, so it can be called until the last thread drops it.
        """
        channel = ffi.gc(self._disown(), lib.relay_close)
        write = lib.relay_write

        def write_record(data: bytes) -> int:
            return write(channel, data, len(data))  # type: ignore[no-any-return]

        return write_record

    def flush(self) -> None:
        """Switch to the next sub-buffer in every buffer."""
        check(lib.relay_flush(self._open))

    def reset(self) -> None:
        """Bring every buffer to its initial state."""
        check(lib.relay_reset(self._open))

    def subbufs_consumed(self, cpu: int, n: int) -> None:
        """Mark the next n sub-buffers of a CPU's buffer as consumed."""
        check(lib.relay_subbufs_consumed(self._open, cpu, n))


class ReaderHandle(library.Handle):
    """Read one relay file without copying.

    relay_file: its path
    """

    def __init__(self, relay_file: str) -> None:
        super().__init__(library.opened(lib.relay_reader_open(os.fsencode(relay_file)), relay_file))
        self._data = ffi.new("void **")
        self._length = ffi.new("size_t *")

    def close(self) -> None:
        """Close the file; a piece for which done() was not called stays unread."""
        lib.relay_reader_close(self._disown())

    def next(self, timeout_ms: int) -> memoryview | None:
        """Wait for the next piece; None: there was none in time, or the channel is closed and all data was read."""
        if not check(lib.relay_reader_next(self._open, self._data, self._length, timeout_ms)):
            return None
        return memoryview(ffi.buffer(self._data[0], self._length[0])).toreadonly()

    def time(self) -> int:
        """Return the time of the piece, which is one record, in ticks of the channel's clock; 0: it has none."""
        return int(lib.relay_reader_time(self._open))

    def done(self) -> None:
        """Consume the piece; OSError EOVERFLOW: it was overwritten meanwhile."""
        check(lib.relay_reader_done(self._open))

    def abort(self) -> None:
        """Leave the piece unread."""
        check(lib.relay_reader_abort(self._open))

    def finished(self) -> bool:
        """Whether the channel was removed and all data has been read."""
        return bool(lib.relay_reader_finished(self._open))
