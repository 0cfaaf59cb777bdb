"""The file server, which packages for clients lack: what it needs, and how it is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse.errors import OptionError

if TYPE_CHECKING:
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
