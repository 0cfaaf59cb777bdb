"""Everything at once for a long time, while servers die and are upgraded: what the mount takes does not grow.

The server dies in the first and the last third of the time; in between one server lives. ./dev stress has it go on for
half an hour. RELAYFS_SOAK=FILE: the samples are written there, as CSV; docs/reliability_plot.py draws them.
"""

import csv
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest
from forking import RELAYFS
from making import Maker
from mounts import Mount, wait_until
from noted import notes_kb
from stress import is_long
from traced import start_trace, traced
from traffic import append, drain, lines
from triggering import lines_of
from versions import other_version, served_by, upgrade
from workload import command, look, piped, poll, working

from relayfs_fuse import Channel
from relayfs_fuse.counters import Counters
from relayfs_fuse.fs.kinds.queues import KEPT_MAX

THIRD_S, SAMPLE_S, UPGRADE_S = (600.0, 10.0, 60.0) if is_long() else (4.5, 0.5, 4.0)
LIFE_S = (0.3, 3.0 if is_long() else 1.2)  # of a server, in the first and the last third
PAUSE_S = 0.02  # of each program, between two steps
# Of stat(2) for a sample, if they take no longer than this; and of samples in a third, however busy the machine is.
N_STATS, STATS_S, LEAST_SAMPLES = 200, 0.5, 4
PIECE = 64 << 10  # of what is read to begin with
DIED = "WARNING: the server before, process .* has died"


@dataclass
class Sample:
    """What a mount takes at some time, in kB, and how long stat(2) of `control` takes.

    n_died: the servers that were killed so far
    anon: memory of the process's own: neither buffers nor notes
    stat_us: the shortest of up to N_STATS; stat_median_us, their median
    stat_ratio: stat_us over the shortest, at the same time, of a mount that nobody else uses
    pause_ms: the longest stat(2) of another thread since the sample before
    """

    at_s: float
    n_died: int
    n_upgraded: int
    supervisor_anon_kb: int
    server_anon_kb: int
    supervisor_descriptors: int
    server_descriptors: int
    notes_kb: int
    store_kb: int
    stat_us: float
    stat_median_us: float
    stat_ratio: float
    pause_ms: float


class Prober:
    """A program that notices how long the mount does not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._longest_s = 0.0

    def work(self, stop: threading.Event) -> None:
        while not stop.wait(PAUSE_S):
            begun = time.perf_counter()
            self._path.stat()
            self._longest_s = max(self._longest_s, time.perf_counter() - begun)

    def longest_ms(self) -> float:
        """Return the longest pause since the last call."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return round(1000 * longest_s, 1)


class Sampler:
    """Takes samples, and has the server die and be upgraded."""

    def __init__(self, mount: Mount, prober: Prober, idle: Mount, other: Path, out: Path) -> None:
        self.samples: list[Sample] = []
        self._out, self._idle = out, idle
        self._mount, self._prober = mount, prober
        self._programs = [other, RELAYFS]
        self._n_died = self._n_upgraded = 0
        self._begun = time.monotonic()

    def quiet(self, for_s: float) -> None:
        """Take samples for some time."""
        end, n_before = time.monotonic() + for_s, len(self.samples)
        while time.monotonic() < end or len(self.samples) < n_before + LEAST_SAMPLES:
            time.sleep(SAMPLE_S)
            self._sample()

    def deadly(self, for_s: float) -> None:
        """Take samples for some time, in which servers die."""
        chance = random.Random(os.urandom(8))
        begun, n_before = time.monotonic(), len(self.samples)
        sampled = upgraded = begun
        while (now := time.monotonic()) < begun + for_s or len(self.samples) < n_before + LEAST_SAMPLES:
            self._mount.control.stat()  # there is a server: ten that die before they serve would be too many
            time.sleep(chance.uniform(*LIFE_S))
            if now - sampled >= SAMPLE_S:
                sampled = now
                self._sample()
            if now - upgraded >= UPGRADE_S:
                upgraded = now
                self._upgrade()
            self._mount.kill_server()
            self._n_died += 1

    def _upgrade(self) -> None:
        before = served_by(self._mount.path)
        done = upgrade(self._mount.path, self._programs[self._n_upgraded % 2])
        assert done.returncode == 0, done.stderr
        assert served_by(self._mount.path) != before
        self._n_upgraded += 1

    def _sample(self) -> None:
        mount = self._mount
        assert mount.process is not None
        took, idle = zip(*self._stats_us(), strict=True)  # first, so that there is a server
        supervisor, server = mount.process.pid, mount.server
        self.samples.append(Sample(
            round(time.monotonic() - self._begun, 1), self._n_died, self._n_upgraded,
            anon_kb(supervisor), anon_kb(server), *(len(os.listdir(f"/proc/{one}/fd")) for one in (supervisor, server)),
            notes_kb(mount), store_kb(mount.store),
            round(min(took), 1), round(statistics.median(took), 1), round(min(took) / min(idle), 2),
            self._prober.longest_ms(),
        ))  # fmt: skip
        write_csv(self.samples, self._out)

    def _stats_us(self) -> list[tuple[float, float]]:
        """Return how long some stat(2) take, of this mount and of the idle one, in turns."""
        took: list[tuple[float, float]] = []
        end = time.perf_counter() + STATS_S
        while not took or (len(took) < N_STATS and time.perf_counter() < end):
            took.append((stat_us(self._mount.control), stat_us(self._idle.control)))
        return took


def stat_us(path: Path) -> float:
    begun = time.perf_counter()
    path.stat()
    return 1e6 * (time.perf_counter() - begun)


def anon_kb(process: int) -> int:
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])


def store_kb(store: Path) -> int:
    """Return what a store takes; files come and go meanwhile."""
    blocks = 0
    for above, _, names in os.walk(store):
        for name in names:
            try:
                blocks += os.lstat(os.path.join(above, name)).st_blocks
            except FileNotFoundError:
                continue
    return blocks // 2


# ---------------------------------------------------------------- programs


def trace(mount: Mount, program: Maker) -> Callable[[threading.Event], None]:
    """Make a trace, have a program write events to it, read them, and remove it."""

    def work(stop: threading.Event) -> None:
        n = 0
        while not stop.wait(5 * PAUSE_S):
            path = start_trace(mount, f"short{n}", "subbuf_size=4K n_subbufs=4")
            program.ask("emit 5")
            wait_until(lambda: b"step" in (path / "merged").read_bytes(), "its events are shown")  # noqa: B023
            mount.command(f"trace remove short{n}")
            n += 1
        assert n > 0

    return work


def produce(mount: Mount) -> Callable[[threading.Event], None]:
    """Write records through a mapping, and read them from a file that stays open."""
    path = mount.create("mapped", "buffers=single")

    def work(stop: threading.Event) -> None:
        n = 0
        with Channel(path) as channel, path.open("rb", buffering=0) as file:
            # So much of what was read is kept, and noted in twice the room, as long as a file is open: all from now on.
            for _ in range(0, 2 * KEPT_MAX, PIECE):
                channel.write(bytes(PIECE))
                assert file.read(PIECE) == bytes(PIECE)
            while not stop.wait(PAUSE_S):
                channel.write(lines(1, n))
                assert file.read(4096) == lines(1, n)
                n += 1
        assert n > 0

    return work


def merge(mount: Mount) -> Callable[[threading.Event], None]:
    """Write a record with a time, look at it, read what is merged, and consume it."""
    path = mount.create("timed", "buffers=single times=mono")

    def work(stop: threading.Event) -> None:
        n = 0
        while not stop.wait(PAUSE_S):
            append(path, lines(1, n))
            assert (mount.path / ".channels/timed/peek0").read_bytes() == lines(1, n)
            assert lines(1, n).strip() in (mount.path / ".channels/timed/merged").read_bytes()
            assert drain(path) == lines(1, n)
            n += 1
        assert n > 0

    return work


def count(mount: Mount) -> Callable[[threading.Event], None]:
    """Adjust a counter of one's own, and another one that comes and goes."""

    def work(stop: threading.Event) -> None:
        with Counters(mount.path) as counters:
            n = 0
            mine = counters.add("soak/steps")
            while not stop.wait(PAUSE_S):
                counters.add("soak/other").adjust()
                counters.delete("soak/other")
                mine.adjust()
                n += 1
                assert f"soak/steps {n}\n" in (mount.path / "counters.txt").read_text()
            assert counters.value("soak/steps") == n > 0

    return work


@contextmanager
def all_at_once(mount: Mount, tmp_path: Path) -> Iterator[Prober]:
    """Have all programs work; at the end, each has got what it had to get."""
    bytes_, records, polled = (mount.create(name, f"buffers=single read=wait {options}") for name, options in (
        ("bytes", ""), ("records", "type=ring size=256K"), ("polled", ""),
    ))  # fmt: skip
    watched, prober = start_trace(mount, "watched", "subbuf_size=16K n_subbufs=4"), Prober(mount.control)
    mount.command("trigger add steps on watched judge:step do notify limit=10s")
    got: list[bytes] = []
    with ExitStack() as stack:
        for path in (bytes_, records):
            stack.enter_context(piped(path, tmp_path / path.name, PAUSE_S))
        program = stack.enter_context(traced(mount))
        for work in (
            poll(polled, got), command(mount, PAUSE_S), look(mount, PAUSE_S), trace(mount, program), produce(mount),
            merge(mount), count(mount), prober.work,
        ):  # fmt: skip
            stack.enter_context(working(work))
        polled.write_bytes(lines(1))
        yield prober
        polled.write_bytes(lines(1, 1))
        wait_until(lambda: b"".join(got) == lines(2), "all is read that was polled for")
        wait_until(lambda: lines_of(watched, "steps"), "the trigger has fired")


def write_csv(samples: list[Sample], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)


def check_flat(samples: list[Sample], others: list[Sample]) -> None:
    """Compare what is taken later with what was taken before.

    Times are those of whatever else the machine does, and so is stat_ratio: where there is less CPU time, requests of a
    mount that is busy wait longer than those of an idle one.
    """
    before, after = (
        {field.name: statistics.median(getattr(sample, field.name) for sample in some) for field in fields(Sample)}
        for some in (samples, others)
    )
    for name, grows in (
        ("supervisor_anon_kb", 2048), ("server_anon_kb", 4096), ("supervisor_descriptors", 2),
        ("server_descriptors", 8), ("notes_kb", 256), ("store_kb", 1024),
    ):  # fmt: skip
        assert after[name] <= before[name] + grows, (name, before, after)


@pytest.mark.stress
def test_what_a_mount_takes_does_not_grow(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    mount = make_mount(is_forked=False)
    idle = make_mount(store=mount.store.with_name("idle"))
    mount.expect(DIED)
    other = other_version(tmp_path / "other")()
    with all_at_once(mount, tmp_path) as prober:
        sampler = Sampler(mount, prober, idle, other, Path(os.environ.get("RELAYFS_SOAK", tmp_path / "soak.csv")))
        sampler.deadly(THIRD_S)
        n_first = len(sampler.samples)
        sampler.quiet(THIRD_S)
        n_quiet = len(sampler.samples)
        sampler.deadly(THIRD_S)
    assert mount.error_log == ""
    first, quiet, last = sampler.samples[1:n_first], sampler.samples[n_first:n_quiet], sampler.samples[n_quiet:]
    check_flat(first, last)
    check_flat(quiet[1 : len(quiet) // 2], quiet[len(quiet) // 2 :])
