"""Errors of an output that cannot be written for now (disk full, no free descriptors): the recorder waits."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# These errors pass when other programs delete or close files.
TEMPORARY_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class OutputFullError(OSError):
    """A file of the output cannot be written now; the data that was to be written last is not in it."""


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
