"""The spool of a live source: recordings that its recorder writes, and that are removed when they are sent.

SPOOL/NAME-20261126T161955-203918/   what the recorder has of a trace or channel that is known by its origin. One that
                                     was made anew, as after a boot, has another origin and gets another directory.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from relayfs_fuse.forwarding.recording import Recording
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.tracefiles.streams import MARK

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIME = "%Y%m%dT%H%M%S-%f"


class Spool:
    """The recordings of one source in a spool, which may have others.

    path: the directory, which is made if it does not exist
    name: what the names of the recordings begin with
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = os.path.abspath(path)
        self._name = name
        os.makedirs(self.path, exist_ok=True)

    def recordings(self) -> Iterator[Recording]:
        """Iterate over the recordings, the earliest first."""
        pattern = re.compile(rf"{re.escape(self._name)}-\d{{8}}T\d{{6}}(-\d+)?", re.ASCII)
        for name in sorted(filter(pattern.fullmatch, os.listdir(self.path))):
            path = os.path.join(self.path, name)
            if os.path.exists(os.path.join(path, MARK)):
                yield Recording(path)

    def recording(self, origin: str) -> Recording:
        """Return the recording of a source that is known by its origin; make one if there is none."""
        for found in self.recordings():
            if found.origin == origin:
                return found
        # Never the name of one that was sent and removed: a receiver may have that.
        path = os.path.join(self.path, f"{self._name}-{datetime.now(UTC):{_TIME}}")
        os.mkdir(path)
        write_atomically(os.path.join(path, MARK), f"{origin}\n".encode())
        return Recording(path)
