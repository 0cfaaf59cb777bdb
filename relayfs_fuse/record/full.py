"""An output that takes nothing more for now, as its disk is full or there are no descriptors: the recorder waits."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What passes when others delete files, or close them.
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class OutputFullError(OSError):
    """Say which file of an output cannot be written now, and why; nothing of what was to be written last is in it."""


@contextmanager
def waiting_for(path: str) -> Iterator[None]:
    """Take errors that pass for a full output.

    path: the file that is written
    """
    try:
        yield
    except OutputFullError:
        raise
    except OSError as error:
        if error.errno not in PASSING:
            raise
        raise OutputFullError(error.errno, error.strerror, path) from error
