"""What a server in the background lets go of: the terminal, and the pipe to the program that was started."""

from __future__ import annotations

import os
from contextlib import suppress


def detach() -> None:
    """Let go of the terminal, or of who waits for the end of what this process prints."""
    open_null(*range(3))


def open_null(*descriptors: int) -> None:
    """Have descriptors, which are open, lead to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=descriptor < 3)
    os.close(null)


def send(writing_end: int, message: bytes) -> None:
    """Write to the pipe for the last time: what is said later is for nobody."""
    with suppress(OSError):  # who reads has ended
        os.write(writing_end, message)
    open_null(writing_end)
