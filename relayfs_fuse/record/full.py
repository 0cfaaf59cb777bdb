"""Errors of an output that cannot be written for now (disk full, no free descriptors): the recorder waits."""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What other programs do in a directory with a limit is looked at so often.
_MEASURE_S = 1.0
_UNIT_BYTES = 512
# What most file systems allocate at least.
BLOCK_BYTES = 4096
# These errors pass when other programs delete or close files.
TEMPORARY_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class OutputFullError(OSError):
    """A file of the output cannot be written now; the data that was to be written last is not in it."""


class LimitError(OutputFullError):
    """It could be written, but for the limit."""


class Limit:
    """How many bytes all files in a directory may take on the disk, whoever writes them.

    What others write is seen within _MEASURE_S.

    largest: the most bytes that can be written at once, as the rest may be kept for other files
    """

    def __init__(self, directory: str, most: int) -> None:
        self.most = most
        self.largest = max(0, most - most // 2 - touched(0))
        self._directory = directory
        self._left = 0
        self._measured_s = 0.0

    def n_fitting(self, sizes: Sequence[int], path: str, kept: int = 0) -> int:
        """Return how many pieces can be written now, in as many blocks as they may touch.

        sizes: bytes of pieces that follow each other
        path: of the file, for messages
        kept: bytes that are to be left for what is written later

        LimitError: none
        """
        ends = list(accumulate(sizes))
        self._renew(touched(ends[-1]) + kept)
        if n := bisect_right(ends, self._left - kept, key=touched):
            return n
        raise self.error(f"{sizes[0]} bytes have no room", path)

    def take(self, n: int, path: str, kept: int = 0) -> None:
        """Count n bytes that are to be written at once; as n_fitting()."""
        self.n_fitting([n], path, kept)
        self.count(n)

    def _renew(self, n: int) -> None:
        """Measure what the files take, if n bytes seem to have no room, or it was measured long ago."""
        if n > self._left or time.monotonic() - self._measured_s > _MEASURE_S:
            self.measure()

    def room(self, n: int, path: str) -> int:
        """Return how many bytes can be written at once, n at most; LimitError: none."""
        self._renew(touched(n))
        n = min(n, self._left - touched(0))
        if n <= 0:
            raise self.error("nothing more has room", path)
        return n

    def error(self, what: str, path: str) -> LimitError:
        """Return the error that says what has no room."""
        taken = f"the files in {self._directory} take {self.most - self._left} bytes"
        return LimitError(errno.EDQUOT, f"{what}: {taken}, and --max permits {self.most}", path)

    def count(self, n: int) -> None:
        """Count bytes that are written in any case."""
        self._left -= touched(n)

    def measure(self) -> int:
        """Return how many bytes there is room for now, in blocks; negative: others have written more than that."""
        self._left, self._measured_s = self.most - size_of(self._directory), time.monotonic()
        return self._left


def touched(n: int) -> int:
    """Return the bytes of the blocks that n bytes may touch, wherever they begin."""
    return (n // BLOCK_BYTES + 2) * BLOCK_BYTES


def size_of(directory: str) -> int:
    """Return how many bytes the files in a directory take on the disk; others may delete some meanwhile."""
    size = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                size += _UNIT_BYTES * os.lstat(os.path.join(path, name)).st_blocks
    return size


@contextmanager
def temporary_errors_mean_full(path: str) -> Iterator[None]:
    """Convert temporary errors to OutputFullError; other OSErrors name the file, too.

    path: the file that is written
    """
    try:
        yield
    except OutputFullError:
        raise
    except OSError as error:
        if error.errno not in TEMPORARY_ERRNOS:
            error.filename = error.filename or path
            raise
        raise OutputFullError(error.errno, error.strerror, path) from error
