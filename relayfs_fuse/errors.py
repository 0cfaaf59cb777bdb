"""What can go wrong, besides OSError.

RelayError
├── CommandError    a line written to `control` was refused
├── OptionError     a mount option is wrong
└── StoreError      the store cannot be used, or a part of it
"""

from __future__ import annotations

import errno
import os


class RelayError(Exception):
    """The base of relayfs's own exceptions."""


class CommandError(RelayError):
    """Refuse a control command.

    code: the errno that the write(2) of the command fails with
    message: what was given, what is allowed
    column: where in the line the offending word begins
    """

    def __init__(self, code: int, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.errno = code
        self.message = message
        self.column = column

    def __str__(self) -> str:
        return f"{self.message} [{errno.errorcode.get(self.errno, os.strerror(self.errno))}]"


class OptionError(RelayError):
    """Refuse a mount option."""


class StoreError(RelayError):
    """Say why a store, or a channel in it, cannot be used."""
