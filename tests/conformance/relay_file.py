"""A buffer behind a mount: write(2), read(2) and poll(2) on the relay file, commands, and the files that count."""

import errno
import os
import select
from pathlib import Path

from conformance.model import READABLE, Counters, Geometry, Overwritten
from conftest import Mount

REFUSED = (errno.ENOSPC, errno.EMSGSIZE)
COUNTERS = ("produced", "consumed", "lost_full", "lost_too_large", "padding")
OVERWRITTEN = ("lost_overwritten", "lost_overwritten_bytes")


class RelayFile:
    """One relay file of a channel that is made for it and removed at the end.

    The buffer of one CPU is used, whichever this process may run on.
    """

    def __init__(self, mount: Mount, path: str, geometry: Geometry, scheme: str) -> None:
        self._mount = mount
        self._channel = path
        self._cpu = min(os.sched_getaffinity(0))
        sizes = f"subbuf_size={geometry.subbuf_size} n_subbufs={geometry.n_subbufs}"
        files = mount.create(path, f"{sizes} mode={geometry.mode} scheme={scheme}")
        self.path = Path(f"{files}{self._cpu}")
        self.reader = os.open(self.path, os.O_RDONLY)
        self._writer = os.open(self.path, os.O_WRONLY)
        facts = mount.path / ".channels" / path / f"buffer{self._cpu}"
        self._facts = {name: os.open(facts / name, os.O_RDONLY) for name in (*COUNTERS, *OVERWRITTEN)}
        for name in self._facts:
            self._fact(name)  # the first read says what held at the time of opening
        self._poll = select.poll()
        self._poll.register(self.reader, READABLE)

    def close(self) -> None:
        """Remove the channel."""
        for descriptor in (self.reader, self._writer, *self._facts.values()):
            os.close(descriptor)
        self._mount.command(f"remove {self._channel}")

    def write(self, data: bytes) -> bool:
        """Write a record; False: it was refused."""
        try:
            return os.write(self._writer, data) == len(data)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            return False

    def read(self, max_bytes: int) -> bytes:
        """Consume bytes with one read(2)."""
        return os.read(self.reader, max_bytes)

    def flush(self) -> None:
        """Finish the current sub-buffer of each buffer."""
        self._mount.command(f"flush {self._channel}")

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self._mount.command(f"consumed {self._channel} {self._cpu} {n}")

    def reset(self) -> None:
        """Bring all buffers to their initial state."""
        self._mount.command(f"reset {self._channel}")

    def poll(self) -> int:
        """Return which of the events for readers hold now."""
        return next((events for _, events in self._poll.poll(0)), 0)

    def size(self) -> int:
        """Return st_size."""
        return os.fstat(self.reader).st_size

    def counters(self) -> Counters:
        """Read the files that count."""
        return Counters(**{name: self._fact(name) for name in COUNTERS}, poll=self.poll())

    def overwritten(self) -> Overwritten:
        """Read what is lost to readers."""
        return Overwritten(*(self._fact(name) for name in OVERWRITTEN))

    def _fact(self, name: str) -> int:
        # From the beginning: the file says what holds now.
        return int(os.pread(self._facts[name], 32, 0))
