"""A buffer behind a mount: read(2) and poll(2) on the relay file, the files that count, and those who write."""

import errno
import os
import select
from collections.abc import Iterable
from pathlib import Path

from conformance.model import READABLE, Counters, Geometry, Unseen
from conformance.ring import CPU, Ring, reserve_mode
from mounts import Mount

from relayfs_fuse import native
from relayfs_fuse.native.tables import STATISTICS

REFUSED = (errno.ENOSPC, errno.EMSGSIZE)
COUNTERS = ("produced", "consumed", "lost_full", "lost_too_large", "padding")
UNSEEN = ("lost_overwritten", "lost_overwritten_bytes", "discarded", "discarded_bytes")
FIELDS = {statistic.name: statistic.field for statistic in STATISTICS["relay"]}
# The buffer itself is asked after each operation, and the files that count, which are nine requests, after so many.
FILES_EACH = 16


class RelayFile:
    """One relay file of a channel that is made for it and removed at the end; records come by write(2).

    The buffer of one CPU is used, whichever this process may run on. What it counts is read of its memory, and often
    enough also of the files in .channels, which have to say the same.
    """

    def __init__(self, mount: Mount, path: str, geometry: Geometry, scheme: str) -> None:
        self._mount = mount
        self._channel = path
        sizes = f"subbuf_size={geometry.subbuf_size} n_subbufs={geometry.n_subbufs}"
        modes = f"mode={geometry.mode} scheme={scheme} reserve={reserve_mode(geometry)}"
        self.path = Path(f"{mount.create(path, f'{sizes} {modes} delivery=bulk')}{CPU}")
        self.reader = os.open(self.path, os.O_RDONLY)
        self._writer = os.open(self.path, os.O_WRONLY)
        stats = mount.path / ".channels" / path / f"buffer{CPU}"
        self._stats = {name: os.open(stats / name, os.O_RDONLY) for name in (*COUNTERS, *UNSEEN)}
        for name in self._stats:
            self._statistic(name)  # the first read says what held at the time of opening
        self._buffer = native.Buffer(str(mount.store / path / f"mem{CPU}"))
        self._n_counted = 0
        self._poll = select.poll()
        self._poll.register(self.reader, READABLE)

    def close(self) -> None:
        """Remove the channel."""
        self._check_files()
        self._buffer.close()
        for descriptor in (self.reader, self._writer, *self._stats.values()):
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

    @property
    def n_reserved(self) -> int:
        """None: what write(2) brings is complete."""
        return 0

    def reserve(self, data: bytes) -> bool:
        """Write a record, as there is nothing to be reserved."""
        return self.write(data)

    def commit(self, number: int) -> None:
        """Do nothing: it is there."""

    def discard(self, number: int) -> None:
        """Do nothing: it is there."""

    def flush(self) -> None:
        """Finish the current sub-buffer of each buffer."""
        self._mount.command(f"flush {self._channel}")

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self._mount.command(f"consumed {self._channel} {CPU} {n}")

    def reset(self) -> None:
        """Bring all buffers to their initial state."""
        self._mount.command(f"reset {self._channel}")

    def read(self, max_bytes: int) -> bytes:
        """Consume bytes with one read(2); when this returns, they are counted, and a producer has room for others."""
        data = os.read(self.reader, max_bytes)
        # The server notes what was read when it has been handed over, and before it answers anything else.
        self._statistic("consumed")
        return data

    def poll(self) -> int:
        """Return which of the events for readers hold now."""
        return next((events for _, events in self._poll.poll(0)), 0)

    def size(self) -> int:
        """Return st_size."""
        return os.fstat(self.reader).st_size

    def counters(self) -> Counters:
        """Return what is counted."""
        self._n_counted += 1
        if self._n_counted % FILES_EACH == 0:
            self._check_files()
        return Counters(**self._counted(COUNTERS), poll=self.poll())

    def unseen(self) -> Unseen:
        """Return what nobody will read."""
        return Unseen(*self._counted(UNSEEN).values())

    def _counted(self, names: Iterable[str]) -> dict[str, int]:
        stats = self._buffer.stats()
        return {name: getattr(stats, FIELDS[name]) for name in names}

    def _check_files(self) -> None:
        assert {name: self._statistic(name) for name in self._stats} == self._counted(self._stats)

    def _statistic(self, name: str) -> int:
        # From the beginning: the file says what holds now.
        return int(os.pread(self._stats[name], 32, 0))


class ProducedFile(RelayFile):
    """One that another process writes, flushes and resets through the library, with callbacks or without."""

    def __init__(self, mount: Mount, path: str, geometry: Geometry, producer: Ring) -> None:
        super().__init__(mount, path, geometry, producer.scheme)
        self._producer = producer
        memory = mount.path / ".channels" / path / f"mem{CPU}"
        producer.open(Path(os.fsdecode(os.getxattr(memory, "user.relayfs.backing"))), geometry)

    @property
    def n_reserved(self) -> int:
        """How many records wait to be committed or discarded."""
        return self._producer.n_reserved

    def close(self) -> None:
        """Let go of the memory, remove the channel."""
        self._producer.close()
        super().close()

    def write(self, data: bytes) -> bool:
        """Write a record; False: it was refused."""
        return self._producer.write(data)

    def reserve(self, data: bytes) -> bool:
        """Reserve a record that is to hold so much; False: it was refused."""
        return self._producer.reserve(data)

    def commit(self, number: int) -> None:
        """Fill a reserved record and let readers have it."""
        self._producer.commit(number)

    def discard(self, number: int) -> None:
        """Let readers pass a reserved record."""
        self._producer.discard(number)

    def flush(self) -> None:
        """Finish the current sub-buffer."""
        self._producer.flush()

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self._producer.consumed(n)

    def reset(self) -> None:
        """Bring the buffer to its initial state."""
        self._producer.reset()
