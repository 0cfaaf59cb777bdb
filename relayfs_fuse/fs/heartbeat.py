"""The heartbeat of a server: memory by which its supervisor sees whether the server's loop turns.

0      how often it has turned: the server adds one each second
4096   the stacks of the server's threads, once the supervisor has asked for them
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal

# How often a server's loop says that it turns, in seconds.
BEAT_S = 1.0
_SIGNAL = signal.SIGUSR1
_STACKS_AT = mmap.PAGESIZE
_STACKS_MAX = 64 << 10


class Heartbeat:
    """The memory.

    descriptor: of the memory file; None: a new one
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("relayfs-heartbeat", os.MFD_CLOEXEC) if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, _STACKS_AT)
        self._words = memoryview(mmap.mmap(self.descriptor, _STACKS_AT)).cast("Q")

    @property
    def turns(self) -> int:
        """How often the loop has turned."""
        return self._words[0]

    def beat(self) -> None:
        """Say that the loop turns."""
        self._words[0] = self._words[0] + 1 & 0xFFFFFFFF

    def prepare(self) -> None:
        """Have this process write its stacks when ask() is called for it."""
        faulthandler.register(_SIGNAL, file=self.descriptor, all_threads=True)

    def ask(self, process: int) -> None:
        """Ask a process for its stacks; ProcessLookupError."""
        # Both processes have one file offset.
        os.ftruncate(self.descriptor, _STACKS_AT)
        os.lseek(self.descriptor, _STACKS_AT, os.SEEK_SET)
        os.kill(process, _SIGNAL)

    def stacks(self) -> str:
        """Return what a process has written that was asked."""
        return os.pread(self.descriptor, _STACKS_MAX, _STACKS_AT).decode(errors="replace")
