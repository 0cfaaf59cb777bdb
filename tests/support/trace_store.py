"""Traces in a store that nobody serves, for tests of programs that write to them.

with tracing() as store:
    store.start("t")
    store.run(program)
    assert store.events("t") == ["server:request: { id = 7 }"]
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from build import compile_c
from mounts import DEADLINE_S, tmpfs_directory

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.trace import Trace, Traces
from relayfs_fuse.tracefiles import ctf

COPY = Path(__file__).parent / "programs/copy_trace.c"
LINE = re.compile(r"\[[^]]*\] \(\+[^)]*\) \S+ (?P<name>[\w.]+:\w+): \{ cpu_id = \d+, pid = \d+ \}, (?P<fields>\{.*\})")


class TraceStore:
    """A store with a control file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces = Traces(str(path), serves=True)
        self.environment = {"RELAYFS_STORE": str(path), "RELAYFS": str(path / "nowhere")}

    def start(self, name: str, slot: int = 0, **options: object) -> None:
        """Make a trace and start it."""
        clocks = native_trace.read_clocks()
        (self.path / name).mkdir()
        trace = Trace(
            id=self.traces.new_id(), name=name, is_started=True, clock=native_trace.CLOCK_MONO, buffers=0,
            mode=native.MODE_NO_OVERWRITE, subbuf_size=65536, n_subbufs=8, boot=native_trace.boot_id(),
            made=clocks, latest=clocks,
        )  # fmt: skip
        self.traces.set(slot, replace(trace, **options))  # type: ignore[arg-type]

    def run(self, *command: object, **environment: str) -> str:
        """Run a program that traces; return what it printed."""
        done = subprocess.run(
            list(map(str, command)), env={**os.environ, **self.environment, **environment}, capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def processes(self, name: str) -> list[Path]:
        """Return the directories of those that wrote to a trace."""
        return sorted(path for path in (self.path / name).iterdir() if not path.name.startswith("."))

    @staticmethod
    def written(process: Path) -> int:
        """Count the events that a process wrote."""
        return sum(stats.records for stats in _stats(process))

    @staticmethod
    def lost(process: Path) -> int:
        """Count those that it could not write."""
        return sum(stats.lost_full_records + stats.lost_too_large_records for stats in _stats(process))

    def events(self, name: str) -> list[str]:
        """Have babeltrace2 read a trace, without a complaint: its events, as it shows them, without their times."""
        with tempfile.TemporaryDirectory() as scratch:
            for process in self.processes(name):
                out = Path(scratch) / process.name
                out.mkdir()
                metadata = ctf.metadata((process / ".events").read_bytes(), native_trace.read_clocks())
                (out / "metadata").write_bytes(metadata)
                subprocess.run([compile_c([COPY]), process, out], check=True)
            if not os.listdir(scratch):
                return []
            return babeltrace(Path(scratch))


def babeltrace(directory: Path) -> list[str]:
    """Return the events that babeltrace2 finds in a directory, without a complaint."""
    done = subprocess.run(["babeltrace2", directory], capture_output=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    return [_event(line) for line in done.stdout.decode().splitlines()]


def _event(line: str) -> str:
    found = LINE.fullmatch(line)
    assert found, line
    return f"{found['name']}: {found['fields']}"


def _stats(process: Path) -> Iterator[native.Stats]:
    for cpu in range(native.n_possible_cpus()):
        buffer = native.Buffer(str(process / f"cpu/mem{cpu}"))
        yield buffer.stats()
        buffer.close()


@contextmanager
def tracing() -> Iterator[TraceStore]:
    """Make a store of one's own."""
    with tmpfs_directory() as path:
        yield TraceStore(path)
