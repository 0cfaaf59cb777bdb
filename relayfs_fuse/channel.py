"""Write records from Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relayfs_fuse.native import ChannelHandle, library

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self.path = os.fspath(path)
        self._handle = ChannelHandle(self.path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], **options: str | int) -> Channel:
        """Make a channel and open it; the channel remains after close().

        options: the keys of the control file's `create`, such as subbuf_size="64K", mode="overwrite"
        """
        words = " ".join(f"{key}={value}" for key, value in options.items())
        channel = cls.__new__(cls)
        channel.path = os.fspath(path)
        channel._handle = ChannelHandle(channel.path, words)
        return channel

    def write(self, data: AnyBuffer, *, will_retry: bool = False) -> None:
        """Write one record into the current CPU's buffer.

        data: bytes, or another object with a contiguous buffer
        will_retry: do not count the record as lost if there is no room (ENOSPC), because the caller will try again
        """
        self._handle.write(data, will_retry)

    def write_many(self, records: Sequence[AnyBuffer]) -> int:
        """Write records in order with one call; return the number written.

        The first record that is refused ends the batch; if it is the very first, its error is raised.
        """
        return self._handle.write_many(records)

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
        self._handle.close()
