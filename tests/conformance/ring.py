"""A buffer of the ring library: replay.c in a process of its own, with or without a mount."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build import compile_c, run_command, run_environment
from conformance.model import READABLE, Counters, Geometry, Unseen

SOURCE = Path(__file__).with_name("replay.c")
# The first one that this process, and its children, may run on.
CPU = min(os.sched_getaffinity(0))
SCHEMES = ["rseq", "lockless", "locking"]
REFUSED = (-errno.ENOSPC, -errno.EMSGSIZE)


class Ring:
    """Drive buffers, one after the other.

    process: runs replay.c
    directory: where channels are made that nobody else shows
    """

    def __init__(self, process: subprocess.Popen[str], directory: Path, scheme: str) -> None:
        self._process = process
        self._directory = directory
        self._n_made = 0
        self._numbers: list[int] = []
        self.scheme = scheme
        self.n_reserved = 0

    def make(self, geometry: Geometry) -> None:
        """Make a channel; everything else acts on the buffer of one CPU."""
        self._n_made += 1
        path = self._directory / f"{self.scheme}{self._process.pid}.{self._n_made}"
        words = [path, geometry.subbuf_size, geometry.n_subbufs, geometry.mode, self.scheme, reserve_mode(geometry)]
        self._ask(" ".join(map(str, ("make", *words))))
        self.open(path / f"mem{CPU}", geometry)
        # The mapping is all that the process needs.
        for file in path.iterdir():
            file.unlink()

    def open(self, file: Path, geometry: Geometry) -> None:
        """Take the memory of a buffer."""
        self.n_reserved = 0
        mode = "overwrite" if geometry.overwrite else "no-overwrite"
        self._ask(f"open {file} {mode if geometry.callbacks else 'default'} {geometry.header} {reserve_mode(geometry)}")

    def close(self) -> None:
        """Let go of it."""
        self._ask("close")

    def write(self, data: bytes) -> bool:
        """Write a record; False: it was refused."""
        return self._try(f"write {data.hex()}")

    def reserve(self, data: bytes) -> bool:
        """Reserve a record that is to hold so much; False: it was refused."""
        taken = self._try(f"reserve {data.hex()}")
        self.n_reserved += taken and bool(data)
        return taken

    def commit(self, number: int) -> None:
        """Fill a reserved record and let readers have it."""
        self.n_reserved -= 1
        self._ask(f"commit {number}")

    def discard(self, number: int) -> None:
        """Let readers pass a reserved record."""
        self.n_reserved -= 1
        self._ask(f"discard {number}")

    def read(self, max_bytes: int) -> bytes:
        """Consume bytes."""
        return self._ask(f"read {max_bytes}")

    def flush(self) -> None:
        """Finish the current sub-buffer; it cannot be left where a reservation holds the memory of the next."""
        result, _ = self._send("flush")
        assert result == 0 or (result == -errno.EBUSY and self.n_reserved), os.strerror(-result)

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self._ask(f"consumed {n}")

    def reset(self) -> bool:
        """Bring the buffer to its initial state; False: a reservation is open, for too long."""
        result, _ = self._send("reset")
        assert result == 0 or (result == -errno.EBUSY and self.n_reserved), os.strerror(-result)
        return result == 0

    def counters(self) -> Counters:
        """Return what the last answer told."""
        produced, consumed, full, too_large, padding, finished = self._numbers[:6]
        return Counters(produced, consumed, full, too_large, padding, READABLE if finished else 0)

    def unseen(self) -> Unseen:
        """Return what the last answer told of data that nobody will read."""
        return Unseen(*self._numbers[6:10])

    def _try(self, line: str) -> bool:
        result, _ = self._send(line)
        assert result == 0 or result in REFUSED, os.strerror(-result)
        return result == 0

    def _ask(self, line: str) -> bytes:
        result, data = self._send(line)
        assert result == 0, f"{line}: {os.strerror(-result)}"
        return data

    def _send(self, line: str) -> tuple[int, bytes]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"replay ended: {self._process.stderr.read()}"
        result, data, *numbers = answer.split()
        self._numbers = [int(number) for number in numbers]
        return int(result), b"" if data == "-" else bytes.fromhex(data)


def reserve_mode(geometry: Geometry) -> str:
    """Return the word for it."""
    return "visible" if geometry.visible else "commit"


@contextmanager
def ring(scheme: str, sanitize: str, directory: Path) -> Iterator[Ring]:
    """Start the process; at the end it must find nothing wrong with itself."""
    program = compile_c([SOURCE], sanitize=sanitize)
    with subprocess.Popen(
        run_command(program, sanitize=sanitize), env=run_environment(sanitize), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield Ring(process, directory, scheme)
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-4000:]
