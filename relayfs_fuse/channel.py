"""Write records from Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relayfs_fuse.native import ChannelHandle, library
from relayfs_fuse.native.channel import relay_write
from relayfs_fuse.native.split import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer as AnyBuffer


class Channel(library.Closing):
    r"""Open an existing channel for writing.

        with Channel("/mnt/relay/app/cpu") as channel:
            channel.write(b"hello\n")

    path: the path of its relay files without the number

    Any number of threads may write through one Channel. Methods raise OSError: ENOSPC, the buffer is full;
    EMSGSIZE, the record is longer than a sub-buffer; ECANCELED, the channel is disabled; EPIPE, it was removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._attach(path, None)

    @classmethod
    def create(cls, path: str | os.PathLike[str], **options: str | int) -> Channel:
        """Make a channel and open it; the channel remains after close().

        options: the keys of the control file's `create`, such as subbuf_size="64K", mode="overwrite"
        """
        channel = cls.__new__(cls)
        channel._attach(path, " ".join(f"{key}={value}" for key, value in options.items()))
        return channel

    def _attach(self, path: str | os.PathLike[str], options: str | None) -> None:
        self.path = os.fspath(path)
        self._handle = ChannelHandle(self.path, options)
        self._pointer = self._handle.pointer

    # Python calls a function with a parameter that is only a keyword in a slower way.
    def write(self, data: AnyBuffer, will_retry: bool = False) -> None:
        """Write one record into the current CPU's buffer.

        data: bytes, or another object with a contiguous buffer
        will_retry: do not count the record as lost if there is no room (ENOSPC), because the caller will try again
        """
        # Bytes need no object of cffi, which takes longer to make than the call.
        if type(data) is bytes and not will_retry:
            error = relay_write(self._pointer, data, len(data))
            if error:
                self._handle.refuse(error)
        else:
            self._handle.write(data, will_retry)

    def write_many(
        self, records: Iterable[AnyBuffer] | AnyBuffer, *, length: int | None = None, separator: bytes | None = None
    ) -> int:
        r"""Write records in order with one call; return the number written.

        records: bytes, or other objects with contiguous buffers; or, with `length` or `separator`, one such object,
            which is cut into records without a copy
        length: bytes of each record; the buffer has a multiple of it
        separator: the byte that ends each record and belongs to it, such as b"\n"; the last record may be without it

        The first record that is refused is counted as lost, and ends the batch; those behind it are not tried. If it is
        the very first, its error is raised. TypeError, ValueError: nothing was written.
        """
        if length is None and separator is None and not isinstance(records, library.ONE_BUFFER):
            return self._handle.write_many(records)  # type: ignore[arg-type]
        return write_all(self._handle, records, length=length, separator=separator)  # type: ignore[arg-type]

    def flush(self) -> None:
        """Switch to the next sub-buffers, so that readers of whole sub-buffers get all data written so far."""
        self._handle.flush()

    def reset(self) -> None:
        """Bring the channel to its initial state; unread data is discarded."""
        self._handle.reset()

    def subbufs_consumed(self, cpu: int, n: int) -> None:
        """Mark the next n sub-buffers of a CPU's buffer as consumed, for a program that maps the memory.

        n: above the number of finished sub-buffers, all of these; above n_subbufs, the call is ignored
        """
        self._handle.subbufs_consumed(cpu, n)

    def close(self) -> None:
        """Close the channel; no thread may be writing through it."""
        self._pointer = library.NULL
        self._handle.close()
