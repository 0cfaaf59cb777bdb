"""Measure what it costs to watch a program that writes 100,000 events a second, and how soon its lines are there.

    ./dev bench view [ROUNDS]

The program's events are read with `relayctl view --follow`, and from the file `merged` of the trace. Medians over the
rounds. The status is 1 if a promise is missed twice.
"""

import os
import re
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import Limit, Mount, Samples, judge_program, mounted

ROUNDS = 3
EVENTS_A_SECOND = 100_000
EVENTS = 5 * EVENTS_A_SECOND
# In each buffer there is room for more than two seconds.
GEOMETRY = "subbuf_size=256K n_subbufs=32"
DEADLINE_S = 60
PIPE_BYTES = 1 << 20
WRITTEN = re.compile(rb"ns = (\d+)")

WAYS = ("view", "tail", "poll")
UNIT = "-cpu: s/s; -delay, -longest: ms; -lost: events; cat: million events/s of CPU time"
LIMITS = [
    *(Limit(f"{way}: events lost", f"{way}-lost", most=0) for way in WAYS),
    Limit("view: ms from an event to its line", "view-delay", most=250),
    Limit("poll: ms from an event to its line", "poll-delay", most=300),
]


class Lines:
    """What comes from a descriptor, and when: read in a thread, until its end."""

    def __init__(self, descriptor: int, polls: bool = False) -> None:
        self.n = 0
        self._pieces: list[tuple[int, bytes]] = []
        self._thread = threading.Thread(target=self._read, args=(descriptor, polls), daemon=True)
        self._thread.start()

    def _read(self, descriptor: int, polls: bool) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not polls or poll.poll():
            piece = os.read(descriptor, PIPE_BYTES)
            if not piece:
                break
            self._pieces.append((time.time_ns(), piece))
            self.n += piece.count(b"\n")

    def wait_for(self, n: int) -> None:
        """Wait for so many lines; not for ever, as some may be lost."""
        end = time.monotonic() + DEADLINE_S
        while self.n < n and time.monotonic() < end:
            time.sleep(0.01)

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def delays_ms(self) -> list[float]:
        """Return how long after each event its line came."""
        delays, rest = [], b""
        for came, piece in self._pieces:
            whole, _, rest = (rest + piece).rpartition(b"\n")
            delays += [(came - int(written)) / 1e6 for written in WRITTEN.findall(whole)]
        return delays


# --- ways to read ---


@dataclass(frozen=True)
class Reader:
    """One who reads a trace.

    pid: of the process whose CPU time is counted
    """

    lines: Lines
    pid: int


@contextmanager
def by_command(*command: str | Path, pid: int = 0) -> Iterator[Reader]:
    """Read what a command prints, and end it after that; without a pid its own CPU time is counted."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pipesize=PIPE_BYTES) as process:
        assert process.stdout is not None
        lines = Lines(process.stdout.fileno())
        try:
            yield Reader(lines, pid or process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            lines.join()


@contextmanager
def by_poll(path: Path, pid: int) -> Iterator[Reader]:
    """Read a file as programs do that wait in poll(2), until the trace is removed."""
    descriptor = os.open(path, os.O_RDONLY)
    lines = Lines(descriptor, polls=True)
    yield Reader(lines, pid)
    lines.join()
    os.close(descriptor)


def reading(way: str, mount: Mount, server: int) -> AbstractContextManager[Reader]:
    """Read the trace that is named like the way."""
    merged = mount.path / way / "merged"
    if way == "view":
        relayctl = Path(sys.executable).with_name("relayctl")
        return by_command(relayctl, "view", way, "--follow", "--mount", mount.path)
    return by_command("tail", "-n", "+1", "-f", merged, pid=server) if way == "tail" else by_poll(merged, server)


# --- samples ---


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def server_of(mount: Mount) -> int:
    """Return the process that serves a mount, the newest one that has been told its path; its supervisor is older."""
    return int(subprocess.run(["pgrep", "--newest", "-f", mount.path], check=True, stdout=subprocess.PIPE).stdout)


def cat(samples: Samples, merged: Path, server: int) -> None:
    """Note how many events the server gives `cat` for each second of its CPU time."""
    before = cpu_s(server)
    lines = subprocess.run(["cat", merged], check=True, stdout=subprocess.PIPE).stdout
    samples.add("cat", len(WRITTEN.findall(lines)) / (cpu_s(server) - before) / 1e6)


def writing(program: Path, mount: Mount) -> subprocess.Popen[bytes]:
    """Start the program that writes."""
    return subprocess.Popen(
        [program, str(EVENTS_A_SECOND), str(EVENTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        env={**os.environ, "RELAYFS": str(mount.path)},
    )  # fmt: skip


def sample(samples: Samples, mount: Mount, program: Path, server: int, way: str) -> None:
    """Have a program write, and read its events in one way."""
    mode = "no-overwrite" if way == "view" else "overwrite"  # what is read from `merged` is not consumed
    mount.command(f"trace create {way} {GEOMETRY} mode={mode}\ntrace start {way}")
    with reading(way, mount, server) as reader, writing(program, mount) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        reader.lines.wait_for(1)
        began, cpu_before = time.monotonic(), cpu_s(reader.pid)
        writer.stdin.write(b"\n")
        writer.stdout.readline()
        samples.add(f"{way}-cpu", (cpu_s(reader.pid) - cpu_before) / (time.monotonic() - began))
        reader.lines.wait_for(EVENTS)
        if way == "poll":
            cat(samples, mount.path / way / "merged", server)
        mount.command(f"trace remove {way}")
    # The first event may have been written before anybody read.
    delays = reader.lines.delays_ms()[1:]
    samples.add(f"{way}-delay", statistics.median(delays))
    samples.add(f"{way}-longest", max(delays))
    samples.add(f"{way}-lost", EVENTS - 1 - len(delays), events=EVENTS)


def measure(program: Path, rounds: int) -> Samples:
    """Read in every way in each round."""
    samples = Samples()
    with mounted() as mount:
        server = server_of(mount)
        for _ in range(rounds):
            for way in WAYS:
                sample(samples, mount, program, server, way)
    return samples


def main() -> int:
    """Measure, judge."""
    return judge_program("bench_view.c", measure, ROUNDS, LIMITS, UNIT)


if __name__ == "__main__":
    sys.exit(main())
