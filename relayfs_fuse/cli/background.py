"""Descriptors that a server in the background gives up: the terminal, and the pipe to the program that was started."""

from __future__ import annotations

import os
from contextlib import suppress


def detach() -> None:
    """Give up stdin, stdout and stderr: a terminal, or a pipe whose reader waits for its end."""
    open_null(*range(3))


def open_null(*descriptors: int) -> None:
    """Have descriptors, which are open, lead to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=descriptor < 3)
    os.close(null)


def send(writing_end: int, message: bytes) -> None:
    """Write the last message to the pipe; later ones go to /dev/null."""
    with suppress(OSError):  # the reader has ended
        os.write(writing_end, message)
    open_null(writing_end)
