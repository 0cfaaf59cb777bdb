"""Writing to a channel what is read from a pipe or a file, cut into records."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.cli.common import say
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.split import LINES

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native.split import Split

_BLOCK_BYTES = 1 << 20
# How often to try again to write to a full channel, and after how long to say that it is full.
_PAUSE_S = 0.001
_PATIENCE_S = 1.0
# Only so many records that were refused are named; all are counted.
_NAMED = 10
_REASONS = {
    errno.ECANCELED: "the channel is disabled",
    errno.EPIPE: "the channel was removed",
    errno.EINVAL: "a channel of relay buffers has no empty records",
}


class Feed:
    """A stream of bytes, and the channel that its records go to.

    name: of the channel, for messages
    split: what writes to it
    goes_on: whether to go on after an error that the next records will meet, too
    pause: is called with seconds while the channel is full; what it raises leaves the record unwritten
    """

    def __init__(
        self, name: str, split: Split, *, goes_on: bool = False, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._name = name
        self._split = split
        self._word = "line" if split.by == LINES else "record"
        self._goes_on = goes_on
        self._pause = pause
        self._room = bytearray(_BLOCK_BYTES)
        # The bytes in `room`, and how many of them were passed.
        self._n_read = self._at = 0
        # Of a refused record: the bytes that are not there yet, or None: up to the next newline; and its length so far.
        self._to_skip: int | None = 0
        self._length = 0
        self._n_long = 0
        self._failed: Counter[int] = Counter()
        self._waited_since: float | None = None
        self._has_said_full = False

    def take(self, descriptor: int) -> bool:
        """Read once, and write the records that are complete then; False: the stream has ended."""
        if len(self._room) - self._n_read < _BLOCK_BYTES // 2:
            self._room.extend(bytes(len(self._room)))
        try:
            with memoryview(self._room) as room:
                got = os.readv(descriptor, [room[self._n_read :]])
        except OSError as error:
            raise OSError(
                error.errno, error.strerror, "the standard input" if descriptor == 0 else "the pipe"
            ) from error
        self._n_read += got
        self._write(ends=not got)
        return got > 0

    def finish(self) -> bool:
        """Let readers of whole sub-buffers have the last records, and say what was not written; False: something."""
        with suppress(*[OSError] * self._goes_on):
            self._split.flush()
        lost = []
        if self._split.full:
            lost.append(f"{self._split.full} because it was full")
        if self._n_long:
            lost.append(f"{self._n_long} longer than {self._split.largest} bytes")
        lost += [f"{n}: {_REASONS.get(code) or os.strerror(code)}" for code, n in self._failed.items()]
        if self._n_read > self._at:
            lost.append(f"{self._n_read - self._at} bytes that were read before a signal or an error came")
        if lost:
            say(f"{self._name}: {self._word}s that were not written: {'; '.join(lost)}")
        return not lost

    def _write(self, *, ends: bool) -> None:
        while True:
            self._skip(ends=ends)
            passed = self._split.write(self._room, self._at, self._n_read, ends=ends)
            self._at += passed
            if not self._split.error:
                break
            if passed:
                self._waited_since = None
            self._refused()
        left = self._n_read - self._at
        self._room[:left] = self._room[self._at : self._n_read]
        self._n_read, self._at = left, 0
        if ends and left:
            self._n_read = 0
            raise RelayError(f"the input ends within {self._next()}; its {left} bytes are not written")

    def _next(self) -> str:
        return f"{self._word} {self._split.records + self._split.full + self._n_long + self._failed.total() + 1}"

    def _refused(self) -> None:
        """Wait for room, or have the refused record skipped."""
        split = self._split
        if split.error == errno.ENOSPC:
            self._wait()
        elif split.error == errno.EMSGSIZE and not split.extent:
            self._to_skip, self._length = None, 0
        elif split.error == errno.EMSGSIZE:
            self._to_skip, self._length = split.extent, split.length
            self._name_long()
        elif self._goes_on or split.error == errno.EINVAL:
            self._failed[split.error] += 1
            self._to_skip = split.extent
        else:
            why = _REASONS.get(split.error) or os.strerror(split.error)
            self._n_read = self._at = 0
            raise RelayError(f"{self._name}: {self._next()} and what follows are not written: {why}")

    def _wait(self) -> None:
        now = time.monotonic()
        self._waited_since = self._waited_since or now
        if now - self._waited_since >= _PATIENCE_S and not self._has_said_full:
            self._has_said_full = True
            say(f"{self._name} is full; waiting for a reader (--drop does not wait)")
        self._pause(_PAUSE_S)

    def _name_long(self) -> None:
        if self._n_long < _NAMED:
            say(
                f"{self._name}: {self._next()} has {self._length} bytes, and is not written: a record has at most "
                f"{self._split.largest}"
            )
        self._n_long += 1

    def _skip(self, *, ends: bool) -> None:
        """Skip what is there of a refused record."""
        if self._to_skip is not None:
            n = min(self._to_skip, self._n_read - self._at)
            self._to_skip -= n
            self._at += n
            return
        newline = self._room.find(b"\n", self._at, self._n_read)
        end = newline + 1 if newline >= 0 else self._n_read
        self._length += end - self._at
        if newline >= 0 or ends:
            self._to_skip = 0
            self._name_long()
        self._at = end
