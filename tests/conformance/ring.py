"""A buffer of the ring library, without a mount: replay.c in a process of its own."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build import compile_c, run_command, run_environment
from conformance.model import READABLE, Counters, Geometry, Overwritten

SOURCE = Path(__file__).with_name("replay.c")
REFUSED = (-errno.ENOSPC, -errno.EMSGSIZE)


class Ring:
    """Drive buffers, one after the other.

    process: runs replay.c
    directory: where channels are made
    """

    def __init__(self, process: subprocess.Popen[str], directory: Path, scheme: str) -> None:
        self._process = process
        self._directory = directory
        self._scheme = scheme
        self._n_opened = 0
        self._numbers: list[int] = []

    def open(self, geometry: Geometry) -> None:
        """Make a channel; everything else acts on its buffer."""
        self._n_opened += 1
        path = self._directory / f"channel{self._n_opened}"
        self._ask(f"open {path} {geometry.subbuf_size} {geometry.n_subbufs} {geometry.mode} {self._scheme}")
        # The mapping is all that the process needs.
        for file in path.iterdir():
            file.unlink()

    def write(self, data: bytes) -> bool:
        """Write a record; False: it was refused."""
        result, _ = self._send(f"write {data.hex()}")
        assert result == 0 or result in REFUSED, os.strerror(-result)
        return result == 0

    def read(self, max_bytes: int) -> bytes:
        """Consume bytes."""
        return self._ask(f"read {max_bytes}")

    def flush(self) -> None:
        """Finish the current sub-buffer."""
        self._ask("flush")

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self._ask(f"consumed {n}")

    def reset(self) -> None:
        """Bring the buffer to its initial state."""
        self._ask("reset")

    def counters(self) -> Counters:
        """Return what the last answer told."""
        produced, consumed, full, too_large, padding, finished = self._numbers[:6]
        return Counters(produced, consumed, full, too_large, padding, READABLE if finished else 0)

    def overwritten(self) -> Overwritten:
        """Return what the last answer told of lost data."""
        return Overwritten(*self._numbers[6:8])

    def _ask(self, line: str) -> bytes:
        result, data = self._send(line)
        assert result == 0, os.strerror(-result)
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
