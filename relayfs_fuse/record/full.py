"""Errors of an output that cannot be written for now (disk full, no free descriptors): the recorder waits."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What other programs do in a directory with a limit is looked at so often.
_MEASURE_S = 1.0
_BLOCK_BYTES = 512
# These errors pass when other programs delete or close files.
TEMPORARY_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class OutputFullError(OSError):
    """A file of the output cannot be written now; the data that was to be written last is not in it."""


class LimitError(OutputFullError):
    """It could be written, but for the limit."""


class Limit:
    """How many bytes all files in a directory may take on the disk, whoever writes them.

    What is written last may go beyond it.
    """

    def __init__(self, directory: str, most: int) -> None:
        self._directory = directory
        self._most = most
        self._left = 0
        self._measured_s = 0.0

    def take(self, n: int, path: str) -> None:
        """Count n bytes that are to be written. LimitError: the files take as many bytes as they may.

        path: of the file, for messages
        """
        if self._left <= 0 or time.monotonic() - self._measured_s > _MEASURE_S:
            self.has_room()
        if self._left <= 0:
            why = f"the files in {self._directory} take {self._most - self._left} bytes; --max permits {self._most}"
            raise LimitError(errno.EDQUOT, why, path)
        self._left -= n

    def has_room(self) -> bool:
        """Return whether the files take less now."""
        self._left, self._measured_s = self._most - size_of(self._directory), time.monotonic()
        return self._left > 0


def size_of(directory: str) -> int:
    """Return how many bytes the files in a directory take on the disk; others may delete some meanwhile."""
    size = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                size += _BLOCK_BYTES * os.lstat(os.path.join(path, name)).st_blocks
    return size


@contextmanager
def temporary_errors_mean_full(path: str) -> Iterator[None]:
    """Convert temporary errors to OutputFullError.

    path: the file that is written
    """
    try:
        yield
    except OutputFullError:
        raise
    except OSError as error:
        if error.errno not in TEMPORARY_ERRNOS:
            raise
        raise OutputFullError(error.errno, error.strerror, path) from error
