"""Exceptions of relayfs besides OSError.

RelayError
├── CommandError    a line written to `control` was refused
├── MountError      a file of a mount has what no server of relayfs writes
├── OptionError     a mount option is wrong
└── StoreError      the store cannot be used, or a part of it
"""

from __future__ import annotations

import errno
import os


class RelayError(Exception):
    """The base of relayfs's own exceptions."""


class CommandError(RelayError):
    """A control command is refused.

    code: the errno with which the write(2) of the command fails
    message: the value that was given, and what is allowed
    column: where the wrong word begins in the line, from 0
    """

    def __init__(self, code: int, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.errno = code
        self.message = message
        self.column = column

    def __str__(self) -> str:
        return f"{self.message} [{errno.errorcode.get(self.errno, os.strerror(self.errno))}]"


class MountError(RelayError):
    """A file of a mount has what no server of relayfs writes, because another program is behind the mount."""


class OptionError(RelayError):
    """A mount option is wrong."""


class StoreError(RelayError):
    """A store, or a channel in it, cannot be used."""


def failure(code: int, path: str | None = None) -> OSError:
    """Return the OSError with this errno and the system's text for it; path: of the file that it is about."""
    return OSError(code, os.strerror(code), path)
