"""DamagedError, which reading the memory of a process raises, and the texts of errors for users."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class DamagedError(Exception):
    """The memory of a process is damaged."""


def reason(error: OSError) -> str:
    """Return the text of an error for users."""
    return error.strerror or os.strerror(error.errno or errno.EIO)


@contextmanager
def errors_mean_damage(where: str = "") -> Iterator[None]:
    """Convert errors to DamagedError, in code that reads a process's memory.

    where: named in the message
    """
    before = f"{where}: " if where else ""
    try:
        yield
    except OSError as error:
        raise DamagedError(f"{before}{reason(error)}") from error
    except (ValueError, ArithmeticError, LookupError) as error:
        raise DamagedError(f"{before}{error}") from error
