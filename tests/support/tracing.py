"""Traces in a store that nobody serves, or in a mount's: programs that write to them, and relayctl record.

>>> store = Store(path)
>>> trace = store.create("t")
>>> with Program(store, trace, "app") as app:
...     app.write(100)
"""

import os
import random
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import forking
import pytest
from babeltrace import babeltrace, n_bytes_of_events
from build import PROGRAMS, compile_c
from forking import RELAYCTL
from mounts import DEADLINE_S, Mount, wait_until

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import Trace, Traces
from relayfs_fuse.tracefiles import ctf

PIPE_BYTES = 1 << 20  # what start_flat_out() tells fits, however long a test takes
EVENT_BYTES = 28  # of event_writer.c's events
SOURCE, COPY = PROGRAMS / "event_writer.c", PROGRAMS / "copy_trace.c"


class Store:
    """A store with traces, without a server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.default_mount = path  # none: so programs take RELAYFS_STORE
        path.mkdir(exist_ok=True)
        self.traces = Traces(str(path), serves=True)

    def create(self, name: str, **options: object) -> Trace:
        clocks = native_trace.read_clocks(int(options.get("clock", native_trace.CLOCK_MONO)))  # type: ignore[call-overload]
        trace = Trace(
            **{"id": self.traces.new_id(), "name": name, "is_started": True, "clock": native_trace.CLOCK_MONO,
               "buffers": 0, "mode": 0, "subbuf_size": 4096, "n_subbufs": 8, "boot": native_trace.boot_id(),
               "made": clocks, "latest": clocks, **options},
        )  # fmt: skip
        (self.path / name).mkdir()
        self.traces.set(len(self.traces.all()), trace)
        return trace

    def change(self, trace: Trace, **options: object) -> None:
        """Change a trace, or with id=0 take it away."""
        slot = next(slot for slot, other in self.traces.all().items() if other.id == trace.id)
        self.traces.set(slot, None if options.get("id") == 0 else replace(trace, **options))

    def processes(self, name: str) -> list[Path]:
        """Return the directories of those that write to a trace."""
        return sorted(path for path in (self.path / name).iterdir() if not path.name.startswith("."))

    def programs(self, trace: Trace) -> list[str]:
        return [path.name for path in self.processes(trace.name)]

    @property
    def environment(self) -> dict[str, str]:
        """Make programs use this store."""
        return {"RELAYFS": str(self.default_mount), "RELAYFS_STORE": str(self.path)}

    def run(self, *command: object, **environment: str) -> str:
        """Run a program that traces; return what it printed."""
        done = forking.run(
            list(map(str, command)), env={**os.environ, **self.environment, **environment}, capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    @staticmethod
    def written(process: Path) -> int:
        """Count the events that a process wrote."""
        return sum(stats.records for stats in _stats(process))

    @staticmethod
    def lost(process: Path) -> int:
        """Count those that it could not write."""
        return sum(stats.lost_full_records + stats.lost_too_large_records for stats in _stats(process))

    def events(self, name: str, *, may_lose: bool = False) -> list[str]:
        """Have babeltrace2 read a trace, without a complaint: its events, as it shows them, without their times.

        may_lose: whether it may say that events were lost
        """
        with tempfile.TemporaryDirectory() as scratch:
            for process in self.processes(name):
                out = Path(scratch) / process.name
                out.mkdir()
                events = (process / ".events").read_bytes()
                clocks = native_trace.read_clocks(CLOCKS[ctf.Origin.of(events).clock].number)
                metadata = ctf.metadata(events, clocks)
                (out / "metadata").write_bytes(metadata)
                subprocess.run([compile_c([COPY]), process, out], check=True)
            return shown(Path(scratch), may_lose=may_lose) if os.listdir(scratch) else []


def shown(directory: Path, *, may_lose: bool = False) -> list[str]:
    """Return the events that babeltrace2 finds in a directory, without a complaint."""
    trace = babeltrace(directory)
    assert may_lose or not trace.losses
    return list(map(str, trace.events))


def _stats(process: Path) -> Iterator[native.Stats]:
    for cpu in range(native.n_possible_cpus()):
        buffer = native.Buffer(str(process / f"cpu/mem{cpu}"))
        yield buffer.stats()
        buffer.close()


@dataclass
class Served:
    """A mount's store."""

    path: Path
    default_mount: Path
    name: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Make programs use this mount."""
        return {"RELAYFS": str(self.default_mount), "RELAYFS_STORE": str(self.path)}

    def create(self, mount: Mount, name: str, options: str = "") -> "Served":
        """Make and start a trace in its mount; what this returns stands for it."""
        mount.command(f"trace create {name} subbuf_size=4K n_subbufs=8 {options}\n")
        mount.command(f"trace start {name}\n")
        self.name = name
        return self


class Program:
    """tests/support/programs/event_writer.c, running: it is traced as a program of this name."""

    def __init__(
        self, store: Store | Served, trace: Trace | Served, name: str, cpu: int = 0, user: int | None = None
    ) -> None:
        environment = {**os.environ, **store.environment}
        self.process = subprocess.Popen(
            [name], executable=compile_c([SOURCE]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1, env=environment, user=user, group=user, extra_groups=None if user is None else [], cwd="/",
            pipesize=PIPE_BYTES,
        )  # fmt: skip
        self.name = f"{name}-{self.process.pid}"
        self.directory = store.path / trace.name / self.name
        # Another user than the store's reaches the buffers through the mount alone.
        shown = store.path if user is None else store.default_mount / ".channels"
        self._tell(f"{shown / trace.name / self.name} {cpu}")
        assert self._answer() == "ready"

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self, n: int) -> int:
        """Write so many events; return how many were lost."""
        self._tell(str(n))
        return int(self._answer())

    def write_patiently(self, n: int) -> int:
        """Write so many events, each as soon as there is room; return how often there was none."""
        self._tell(f"patient {n}")
        return int(self._answer())

    def start_patiently(self, n: int) -> None:
        """Begin to do so."""
        self._tell(f"patient {n}")

    def done(self) -> int:
        """Wait until it has."""
        return int(self._answer())

    def start_flat_out(self) -> None:
        """Write until it is killed; counted() tells how much."""
        self._tell("flat")

    def counted(self) -> int:
        """After a kill: so many events were written at least, and less than a hundred more."""
        assert self.process.stdout is not None
        return int((["0", *self.process.stdout.read().split()])[-1])

    def declare(self, name: str) -> None:
        self._tell(f"declare {name}")
        self._answer()

    def flush(self) -> None:
        self._tell("flush")
        self._answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def store(scratch_store: Path) -> Iterator[Store]:
    """A store that nobody serves."""
    store = Store(scratch_store)
    yield store
    store.traces.close()


@pytest.fixture
def run(store: Store) -> Iterator[Callable[..., Program]]:
    """Start programs that write to a trace: run(trace, NAME, cpu=1)."""
    programs: list[Program] = []

    def run(*arguments: object, **options: object) -> Program:
        programs.append(Program(store, *arguments, **options))
        return programs[-1]

    yield run
    for program in programs:
        program.__exit__()


@pytest.fixture
def lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have buffers made in which to finish a sub-buffer takes a claim."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")


def spoil(path: Path, seed: int, start: int = 0) -> None:
    """Write rubbish over a store file, as a process can over what it has mapped."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(start)
        file.write(random.Random(seed).randbytes(size - start))


def relayctl(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [RELAYCTL, *map(str, arguments)]
    return forking.run(command, capture_output=True, text=True, timeout=DEADLINE_S, **options)


@contextmanager
def recording(*arguments: object, is_forked: bool = True, **options: object) -> Iterator[subprocess.Popen[str]]:
    """Run relayctl record; is_forked: as in forking.py, whose start() takes the options, and not as a program."""
    command = [RELAYCTL, "record", *map(str, arguments)]
    start = forking.start if is_forked else subprocess.Popen
    with start(command, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            wait_until(lambda: catches(process, signal.SIGTERM), "the recorder")
            yield process
        finally:
            process.kill()


def catches(process: subprocess.Popen[str], signum: int) -> bool:
    """Whether a program has got so far, or has ended."""
    if process.poll() is not None:
        return True
    mask = re.search(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (signum - 1) & 1)


def anonymous_kib(pid: int) -> int:
    """How much memory a process has that is no file's."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def finish(process: subprocess.Popen[str], signum: int = 2) -> str:
    """End a recording in order; return what it said."""
    process.send_signal(signum)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return said


def recorded(directory: Path, n: int, process: str) -> None:
    """Wait until so many events of event_writer.c, run as a program of this name, are in a directory."""

    def count() -> int:
        return sum(map(n_bytes_of_events, directory.rglob(f"{process}-*/cpu*"))) // EVENT_BYTES

    wait_until(lambda: count() >= n, f"{n} events in {directory}")
