"""Files that appear or change as a whole."""

from __future__ import annotations

import os
from contextlib import suppress

# Prefix of a name until the file is complete.
NEW = ".new-"


def write_atomically(path: str, data: bytes, *, is_durable: bool = False) -> None:
    """Write a file so that it appears or changes as a whole. OSError: it is unchanged.

    is_durable: the disk holds the data before the name stands for it
    """
    directory, name = os.path.split(path)
    hidden = os.path.join(directory, f"{NEW}{name.removeprefix('.')}")
    try:
        with open(hidden, "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(hidden, path)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(hidden)
        raise
