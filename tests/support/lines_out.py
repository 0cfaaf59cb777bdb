"""Programs that print lines as they come: whoever waits for one in vain fails, and the program ends."""

import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import forking
from mounts import DEADLINE_S


@dataclass
class Printer:
    """A program, running."""

    process: subprocess.Popen[bytes]

    def line(self) -> bytes:
        """Wait for the next line."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, f"{self.process.args!r} prints nothing"
        return self.process.stdout.readline()


@contextmanager
def printing(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> Iterator[Printer]:
    """Start a program; it is killed in the end."""
    process = forking.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment)
    try:
        yield Printer(process)
    finally:
        process.kill()
        process.communicate()
