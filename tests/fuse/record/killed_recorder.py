"""Record a trace again and again, killed at a later system call each time, until one recorder comes to an end.

    python killed_recorder.py TRACE STORE DIRECTORY FIRST STEP [NAME]

The first one is killed at the call FIRST that writes to the recording or changes it, or at the following step, which
consumes what was written; the next one STEP calls later, and so on. With a NAME, only calls of this function count.
Prints how many were killed.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Callable

from relayfs_fuse.native.packets import Consumer
from relayfs_fuse.reading.source import Source
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.record.recorder import Options, Recorder


class Killer:
    """Kill this process at one of the calls."""

    def __init__(self, n: int) -> None:
        self._left = n

    def watch(self, where: object, name: str) -> None:
        """Count the calls of this function."""
        called: Callable[..., object] = getattr(where, name)

        def counted(*arguments: object, **options: object) -> object:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return called(*arguments, **options)

        setattr(where, name, counted)


def record(trace: str, store: str, directory: str, n: int, only: str) -> None:
    """Record what there is; killed at call n."""
    killer = Killer(n)
    for where, name in (
        (os, "pwritev"), (os, "ftruncate"), (os, "rename"), (os, "unlink"), (fcntl, "fcntl"), (Consumer, "end"),
    ):  # fmt: skip
        if only in {"", name}:
            killer.watch(where, name)
    source = Source(trace, store)
    options = Options(duration_s=0, check="none")
    Recorder(source, DirectoryOutput(directory, source.identity), options, print, lambda: None).run()


def main() -> None:
    """Fork recorders until one is not killed."""
    trace, store, directory, first, step = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    n_killed = 0
    while True:
        pid = os.fork()
        if not pid:
            record(trace, store, directory, first + step * n_killed, "".join(sys.argv[6:]))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            break
        n_killed += 1
    print(n_killed)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
