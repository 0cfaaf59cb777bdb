"""The order of merged events: four programs of four threads, each of whose events carries the next ticket of all."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, Mount, wait_until
from stress import is_long
from traced import environment_of, relayctl, start_trace, traced

N_THREADS = 4
# How many programs run, one after another in each of four places, and the tickets that each of their threads takes.
N_PROGRAMS, N_TICKETS = (20, 125_000) if is_long() else (12, 500)
# In which each CPU's buffer holds all events of a program.
ROOM = "subbuf_size=1M n_subbufs=32 memory=2G" if is_long() else "subbuf_size=32K n_subbufs=8"
READ_DEADLINE_S = 10 * DEADLINE_S if is_long() else DEADLINE_S

MERGED = re.compile(
    rb'\{"ns":(\d+),"process":"tickets[^"]*","pid":(\d+),"tid":(\d+),"cpu":\d+,"event":"tickets:taken",'
    rb'"fields":\{"ticket":(\d+),"thread":\d+\}\}\n'
)
RECORDED = re.compile(
    rb"\[(\d+)\.(\d{9})\] \S+ tickets:taken: \{ cpu_id = \d+, pid = (\d+) \}, \{ vtid = (\d+) \}, "
    rb"\{ ticket = (\d+), thread = \d+ \}\n"
)


class Found:
    """Events in the order in which they were read."""

    def __init__(self) -> None:
        self.times, self.tickets = array("Q"), array("Q")
        self.last_of_thread: dict[tuple[int, int], int] = {}

    def add(self, ns: int, pid: int, tid: int, ticket: int) -> None:
        """Add an event; those of a thread come in its order."""
        assert self.last_of_thread.get((pid, tid), -1) < ticket, f"ticket {ticket} of thread {tid} of process {pid}"
        self.last_of_thread[pid, tid] = ticket
        self.times.append(ns)
        self.tickets.append(ticket)

    def check_order(self, n: int, n_missing: int) -> None:
        """Fail unless events of different times are in the order of tickets, and all are there but n_missing of n."""
        latest, latest_ns, before = -1, -1, -1
        for ns, ticket in zip(self.times, self.tickets, strict=True):
            assert ns >= latest_ns, f"ticket {ticket} is of {ns} and comes after an event of {latest_ns}"
            if ns > latest_ns:
                before, latest_ns = latest, ns
            assert ticket > before, f"ticket {ticket} of {ns} comes after ticket {before}, which is of an earlier time"
            latest = max(latest, ticket)
        assert len(set(self.tickets)) == len(self.tickets), "an event came twice"
        assert max(self.tickets) < n
        assert len(self.tickets) >= n - n_missing

    def events(self) -> list[tuple[int, int]]:
        """Return times and tickets, in one order, whatever that of equal times was."""
        return sorted(zip(self.times, self.tickets, strict=True))


def lines_of(*command: str | Path) -> Iterator[bytes]:
    """Yield the lines that a program writes, which then ends well."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        assert (process.stderr.read(), process.wait(DEADLINE_S)) == (b"", 0)


def merged(lines: Iterable[bytes]) -> Found:
    found = Found()
    for line in lines:
        match = MERGED.fullmatch(line)
        assert match, line
        found.add(*map(int, match.groups()))
    return found


def recorded(lines: Iterable[bytes]) -> Found:
    found = Found()
    for line in lines:
        match = RECORDED.fullmatch(line)
        assert match, line
        seconds, ns, *rest = map(int, match.groups())
        found.add(seconds * 1_000_000_000 + ns, *rest)
    return found


class Scene:
    """Programs that take tickets, and programs that read what they write meanwhile.

    n_killed: programs that were killed, each of whose threads may have taken a ticket in vain
    """

    def __init__(self, mount: Mount, stack: ExitStack, tickets: Path) -> None:
        self.mount, self.stack, self.tickets = mount, stack, tickets
        self.n_started = self.n_killed = 0
        self.directories: set[Path] = set()
        self.programs: list[subprocess.Popen[bytes]] = []
        self.readers: list[subprocess.Popen[bytes]] = []

    def _start(self, among: list[subprocess.Popen[bytes]], *command: str | Path) -> None:
        process = subprocess.Popen(
            command, env=environment_of(self.mount), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        among.append(process)

    def start_program(self) -> None:
        command = [compile_c([PROGRAMS / "tickets.c"]), "1", str(N_THREADS), str(N_TICKETS), self.tickets]
        self._start(self.programs, *command)
        self.n_started += 1
        # One that looks for the mount while there is no server is not traced.
        wait_until(self._all_are_traced, "it is traced")

    def _all_are_traced(self) -> bool:
        # The server removes the directory of one that was killed before its first event.
        self.directories |= set((self.mount.store / "t").glob("tickets-*"))
        return len(self.directories) == self.n_started

    def start_reader(self) -> None:
        self._start(self.readers, "cat", self.mount.path / "t/merged.json")

    def kill_program(self) -> None:
        process = random.choice(self.programs)
        os.killpg(process.pid, signal.SIGKILL)
        self.n_killed += 1

    def kill_reader(self) -> None:
        process = random.choice(self.readers)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        self.readers.remove(process)

    def kill_server(self) -> None:
        self.mount.kill()
        self.mount.start()
        for process in self.readers:
            process.wait(DEADLINE_S)
        self.readers.clear()

    def drop_ended(self) -> None:
        ended = [process for process in self.programs if process.poll() is not None]
        assert sum(process.returncode != 0 for process in ended) <= self.n_killed
        self.programs = [process for process in self.programs if process not in ended]


def play(scene: Scene, kills: list[str]) -> None:
    """Run N_PROGRAMS, four at a time, and meanwhile kill what kills says."""
    deadline = time.monotonic() + READ_DEADLINE_S
    while scene.n_started < N_PROGRAMS or scene.programs:
        assert time.monotonic() < deadline
        while len(scene.programs) < 4 and scene.n_started < N_PROGRAMS:
            scene.start_program()
        while len(scene.readers) < 2:
            scene.start_reader()
        if kills and scene.n_started > N_PROGRAMS * (1 - len(kills) / (len(kills) + 1)) / 2:
            getattr(scene, f"kill_{kills.pop()}")()
        time.sleep(random.uniform(0, 0.01))  # any moment will do for what follows
        scene.drop_ended()
        scene.readers[:] = [process for process in scene.readers if process.poll() is None]


def test_what_a_flight_recorder_still_has_is_in_the_order_of_its_times(mount: Mount) -> None:
    start_trace(mount, "t", "mode=overwrite subbuf_size=4K n_subbufs=4")
    with traced(mount) as program:
        # Both buffers are overwritten several times.
        for cpu in 2 * sorted(os.sched_getaffinity(0))[:2]:
            os.sched_setaffinity(program.process.pid, {cpu})
            program.ask("emit 2000")
        lines = relayctl(mount, "view", "t").stdout.splitlines()
    assert [line for line in lines if line.endswith(" late")] == []
    numbers = [int(found[1]) for line in lines if (found := re.search(r" judge:step: { seq = (\d+),", line))]
    assert numbers
    assert numbers == sorted(numbers)


@pytest.mark.stress
@pytest.mark.parametrize("kills", [[], ["program", "reader", "server"] * 3], ids=["undisturbed", "killed"])
def test_events_are_in_the_order_of_their_times(mount: Mount, tmp_path: Path, kills: list[str]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    random.seed(seed)
    trace = start_trace(mount, "t", ROOM)
    with ExitStack() as stack:
        scene = Scene(mount, stack, tmp_path / "tickets")
        play(scene, random.sample(kills, len(kills)))
    n = int.from_bytes((tmp_path / "tickets").read_bytes()[:8], "little")
    found = merged(lines_of("cat", trace / "merged.json"))
    found.check_order(n, N_THREADS * scene.n_killed)
    assert n >= N_THREADS * N_TICKETS * (N_PROGRAMS - scene.n_killed)
    mount.command("trace stop t")
    done = relayctl(mount, "snapshot", "t", "-o", tmp_path / "recorded")
    assert done.returncode == 0, done.stderr
    judged = recorded(lines_of("babeltrace2", "--clock-seconds", "--no-delta", tmp_path / "recorded"))
    assert judged.events() == found.events()
    shutil.rmtree(tmp_path / "recorded")
