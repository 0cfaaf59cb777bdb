"""Streaming a channel of relay buffers to files; see <relayfs/relay_app.h>."""

from __future__ import annotations

import os

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.library import check


class App(library.Handle):
    """Stream a channel to the files OUTPUT0, OUTPUT1 ..., one for each buffer, to which it appends.

    path: the path of its relay files without the number
    output: what the paths of the files begin with
    """

    def __init__(self, path: str, output: str) -> None:
        self._output = ffi.new("char[]", os.fsencode(output))
        options = ffi.new(
            "struct relay_app_options *",
            {"output": self._output, "append": 1, "keep_enabled": 1, "size": ffi.sizeof("struct relay_app_options")},
        )
        super().__init__(library.opened(lib.relay_app_open(os.fsencode(path), options), path))

    def close(self) -> None:
        """Stop it if it runs."""
        lib.relay_app_close(self._disown())

    def limit(self, most: int) -> None:
        """Limit by how many bytes, in blocks of 4096, the files may grow from the next start() to stop(); see there."""
        check(lib.relay_app_limit(self._open, max(0, most)))

    def start(self) -> None:
        """Start to write what is in the channel, and what comes."""
        check(lib.relay_app_start(self._open))

    def stop(self) -> None:
        """Write what the channel has now, and end; OSError: why a buffer could not be read or written to its end.

        EDQUOT: the files would have grown by more than limit() permits
        """
        check(lib.relay_app_stop(self._open))

    def fileno(self) -> int:
        """Return a descriptor that is readable when the channel was removed and all is written, or after an error."""
        return int(lib.relay_app_fd(self._open))

    @property
    def n_buffers(self) -> int:
        """The number of buffers, and so of files."""
        return int(lib.relay_app_n_buffers(self._open))

    def stats(self) -> tuple[int, int]:
        """Return how many bytes were written, and how many records were lost."""
        stats = ffi.new("struct relay_app_stats *")
        n_bytes = n_lost = 0
        for cpu in range(self.n_buffers):
            check(lib.relay_app_stats(self._open, cpu, stats))
            n_bytes += int(stats.bytes)
            n_lost += int(stats.lost_records)
        return n_bytes, n_lost
