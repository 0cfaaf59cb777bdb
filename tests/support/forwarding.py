"""Recordings that are forwarded through a NATS server, and what arrives."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from babeltrace import packets_in
from forking import RELAYCTL, start
from mounts import wait_until
from nats_server import NatsServer
from tracing import Program, Store, catches, relayctl


def make_recording(
    store: Store, run: Callable[..., Program], out: Path, n: int = 1000, name: str = "t", n_subbufs: int = 64
) -> int:
    """Record n events of each of two programs, which end then; return how many were lost."""
    trace = store.create(name, n_subbufs=n_subbufs)
    lost = 0
    for program in (run(trace, "one"), run(trace, "two")):
        lost += program.write(n)
        program.end()
    done = relayctl("record", name, "--store", store.path, "-o", out, "--duration", "0")
    assert done.returncode == 0, done.stderr
    return lost


def files_in(directory: Path) -> list[str]:
    """Return the files of a recording, relative to it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def recorded_packets(out: Path) -> dict[str, int]:
    """Return how many packets each file of a recording has that is complete."""
    return {
        path: len(packets_in((out / path).read_bytes())) for path in files_in(out) if Path(path).name.startswith("cpu")
    }


def forward(directory: Path, nats: NatsServer, *more: object) -> str:
    """Send all that a directory has; return what was said."""
    done = relayctl("forward", directory, "--to", nats.url, "--once", *more)
    assert done.returncode == 0, done.stderr
    return done.stderr


def receive(directory: Path, nats: NatsServer, *more: object) -> str:
    """Receive all that a stream has; return what was said."""
    done = relayctl("receive", "--from", nats.url, "-o", directory, "--once", *more)
    assert done.returncode == 0, done.stderr
    return done.stderr


@contextmanager
def running(*words: object, waits: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run relayctl until this ends; waits: until it can be interrupted."""
    with start([RELAYCTL, *map(str, words)], stderr=subprocess.PIPE, text=True) as process:
        try:
            if waits:
                wait_until(lambda: catches(process, signal.SIGTERM), "the command")
            yield process
        finally:
            process.kill()


@contextmanager
def forwarding(
    directory: Path, nats: NatsServer, *more: object, wait_for: Path | None = None, waits: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Forward a directory, when there is a certain file in it."""
    if wait_for:
        wait_until(wait_for.exists, str(wait_for))
    with running("forward", directory, "--to", nats.url, *more, waits=waits) as process:
        yield process


@contextmanager
def receiving(directory: Path, nats: NatsServer, *more: object) -> Iterator[subprocess.Popen[str]]:
    with running("receive", "--from", nats.url, "-o", directory, *more) as process:
        yield process


def same(one: Path, other: Path) -> bool:
    """Whether `diff -r` finds no difference."""
    return subprocess.run(["diff", "-r", one, other], capture_output=True, check=False).returncode == 0
