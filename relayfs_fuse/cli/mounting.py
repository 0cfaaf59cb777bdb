"""What mounting needs: the file server, and its libraries; and what is missing when it fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from relayfs_fuse.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.fs.server import Server


def import_server() -> type[Server]:
    """Import the file server, whose libraries a package for clients lacks. OptionError: one of them is not there."""
    try:
        from relayfs_fuse.fs.server import Server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "pyfuse3":
            raise
        raise OptionError("the file server needs pyfuse3; `pip install 'relayfs[server]'` installs it") from error
    except OSError as error:
        if "libfuse3" not in str(error):
            raise
        raise OptionError(f"the file server needs libfuse 3, which is in Debian's package fuse3: {error}") from error
    return Server


@contextmanager
def saying_why(place: str) -> Iterator[None]:
    """Mount in the body. OptionError: it has failed, and what is missing; libfuse knows only that it has."""
    try:
        yield
    except RuntimeError as error:
        from relayfs_fuse.cli.machine import mounting_needs  # noqa: PLC0415  # mounting needs none of it

        missing = mounting_needs(place) or f"{error}; see what libfuse has said"
        raise OptionError(
            f"cannot mount at {place}: {missing}. `relayctl doctor` checks what this machine has"
        ) from error
