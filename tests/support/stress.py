"""Start and stop the stress programs: producers, verifiers, those who control, and the ledger they share."""

import functools
import itertools
import json
import mmap
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build import ROOT, compile_c, run_command, run_environment

HERE = ROOT / "tests/native/channel"
DEADLINE = 1800.0
STREAM_BYTES = 128  # sizeof(struct stress_slot)
N_STREAMS = 1024
CALLS_AT = N_STREAMS * (STREAM_BYTES + 32) + 8  # offsetof(struct stress_ledger, n_calls)
STREAMS_PER_PRODUCER = 4  # two threads and their signal handlers
OVERRUN = 5000  # records: more than the buffers under test hold
FORK_STREAMS = range(N_STREAMS - 66, N_STREAMS - 2, 2)  # the last one is that of headers


def combined(longest: Sequence[Any], shorter: Sequence[Any], shortest: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Return all combinations of three parameters; in the short form so many that each two values meet once."""
    if is_long():
        return list(itertools.product(longest, shorter, shortest))
    assert len(longest) >= len(shorter) >= len(shortest)
    return [(a, b, shortest[(i + j) % len(shortest)]) for i, a in enumerate(longest) for j, b in enumerate(shorter)]


@functools.cache
def program(name: str, sanitize: str) -> Path:
    others = {
        "stress_producer": ["stress_stream.c", "stress_callback.c"],
        "stress_verify": ["stress_verify_memory.c", "../support/stress_account.c", "stress_callback.c"],
        "stress_control": ["stress_callback.c"],
        "stress_threads": ["stress_stream.c"],
    }
    sources = [f"{name}.c", *others.get(name, [])]
    # Optimized, as it runs for long.
    return compile_c([HERE / source for source in sources], None, sanitize, "-O2")


def wait_for(condition: Callable[[], object], what: str, deadline: float = 600.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited {deadline} s in vain: {what}"
        time.sleep(0.002)


@dataclass
class Channel:
    """A channel under stress: how to write it, where to read it, what it was made as.

    mode    no-overwrite, overwrite; or keep, replace: what subbuf_start says in a channel with callbacks
    """

    writer: list[str]
    relay_files: list[Path]
    mem_files: list[Path]
    mode: str

    @property
    def overwrites(self) -> bool:
        return self.mode in ("overwrite", "replace")

    @property
    def callback_options(self) -> list[str]:
        return ["--callback", self.mode] if self.mode in ("keep", "replace") else []

    @classmethod
    def in_store(cls, directory: Path, mode: str) -> "Channel":
        files = [directory / f"mem{i}" for i in range(len(list(directory.iterdir())))]
        return cls(["--store", str(directory)], files, files, mode)

    @classmethod
    def in_mount(cls, path: Path, store_directory: Path, mode: str) -> "Channel":
        n = len(list(store_directory.glob("mem*")))
        relay_files = [path.with_name(f"{path.name}{i}") for i in range(n)]
        mem_files = [store_directory / f"mem{i}" for i in range(n)]
        return cls(["--channel", str(path)], relay_files, mem_files, mode)


@dataclass
class Stress:
    """Producers and one verifier on one channel."""

    channel: Channel
    ledger_file: Path
    reader: str
    sanitize: str = ""
    killed: bool = False
    reopen: bool = False
    passed: bool = False
    resets: bool = False
    reserves: bool = False
    unplugged: bool = False
    signals_us: int = 300
    controllers: list[subprocess.Popen[str]] = field(default_factory=list)
    producers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    victims: list[subprocess.Popen[bytes]] = field(default_factory=list)
    n_started: int = 0
    before: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.ledger_file.exists():
            self.ledger_file.write_bytes(bytes(CALLS_AT + 8))
        with self.ledger_file.open("rb") as file:
            self.ledger = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        # Who dies in a callback may have stored to the sub-buffer it was about to begin, kept or not.
        overwrites = self.channel.overwrites or (self.killed and self.channel.callback_options)
        options = ["--overwrite"] * bool(overwrites) + self.channel.callback_options
        options += ["--killed"] * self.killed + ["--reopen"] * self.reopen + ["--passed"] * self.passed
        options += ["--resets"] * self.resets
        pairs = zip(self.channel.relay_files, self.channel.mem_files, strict=True)
        files = [str(path) for pair in pairs for path in pair]
        command = ["--ledger", self.ledger_file, "--reader", self.reader, *options, *files]
        self.verifier = subprocess.Popen(
            run_command(program("stress_verify", self.sanitize), *command, sanitize=self.sanitize),
            env=run_environment(self.sanitize), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.verifier.stdout is not None
        assert self.verifier.stdout.readline() == "reading\n"

    def start_producer(self, records: int = 0, *, fork: bool = False) -> int:
        """Start one of two threads; without `records` it writes until stop(). Return its first stream."""
        stream = STREAMS_PER_PRODUCER * self.n_started
        assert stream < FORK_STREAMS[0], "out of streams"
        options: list[object] = ["--ledger", self.ledger_file, "--stream", stream, "--records", records]
        options += ["--threads", 2, "--signals", self.signals_us, "--migrate", 2000, "--seed", self.n_started]
        options += ["--reserve"] * self.reserves + ["--unplugged"] * self.unplugged + self.channel.callback_options
        if fork:
            options += ["--fork", FORK_STREAMS[self.n_started]]
        self.n_started += 1
        command = run_command(
            program("stress_producer", self.sanitize), *self.channel.writer, *options, sanitize=self.sanitize
        )
        # Producers that spin must not keep the server from the CPU: a new one could not even attach.
        self.producers.append(subprocess.Popen(["nice", *command], env=run_environment(self.sanitize)))
        return stream

    def start_controller(self, *calls: str) -> None:
        """Start one that calls them at random, the producers started so far being the threads to move."""
        options: list[object] = ["--ledger", self.ledger_file, *self.channel.writer, *self.channel.callback_options]
        options += ["--seed", len(self.controllers)]
        for producer in self.producers:
            options += ["--pid", producer.pid]
        command = run_command(program("stress_control", self.sanitize), *options, *calls, sanitize=self.sanitize)
        controller = subprocess.Popen(command, env=run_environment(self.sanitize), stdout=subprocess.PIPE, text=True)
        self.controllers.append(controller)
        assert controller.stdout is not None
        assert controller.stdout.readline() == "controlling\n"

    def calls(self) -> int:
        """Return how often controllers have called anything."""
        return int.from_bytes(self.ledger[CALLS_AT : CALLS_AT + 8], "little")

    def stop_controllers(self) -> Counter[str]:
        """End them and return how often they made each call."""
        counts: Counter[str] = Counter()
        for controller in self.controllers:
            controller.terminate()
            out, _ = controller.communicate(timeout=DEADLINE)
            assert controller.returncode == 0
            counts.update(json.loads(out))
        self.controllers.clear()
        return counts

    def _ledger_sum(self, word: int, streams: range) -> int:
        first, end, step = (STREAM_BYTES // 8 * n for n in (streams.start, streams.stop, streams.step))
        with memoryview(self.ledger)[: N_STREAMS * STREAM_BYTES].cast("Q") as words:
            return sum(words[first + word : end : step])

    def written(self, streams: range = range(N_STREAMS)) -> int:
        """Return how many records are surely written."""
        return self._ledger_sum(1, streams)

    def each_has_written(self, n: int) -> bool:
        """Whether each producer that was started has surely written so many records."""
        first = range(0, STREAMS_PER_PRODUCER * self.n_started, STREAMS_PER_PRODUCER)
        return all(self.written(range(stream, stream + STREAMS_PER_PRODUCER)) >= n for stream in first)

    def refused(self) -> int:
        """Return how often a full buffer refused a record."""
        return self._ledger_sum(2, range(N_STREAMS))

    def stop_reader(self) -> None:
        """Stop the verifier until overrun_reader()."""
        self.verifier.send_signal(signal.SIGSTOP)
        self.before = self.refused(), self.written()

    def overrun_reader(self) -> None:
        """Keep the verifier stopped until producers have met a full buffer, or have written over much."""
        assert self.before, "stop_reader() comes first, before producers are started: they may be done with all soon"
        refused, written = self.before
        if self.channel.overwrites:
            wait_for(lambda: self.written() >= written + OVERRUN, "producers write on")
        else:
            wait_for(lambda: self.refused() > refused, "producers meet a full buffer")
        self.before = None
        self.verifier.send_signal(signal.SIGCONT)

    def kill_producer(self, index: int, signum: int = signal.SIGKILL) -> None:
        """SIGKILL one, or let it do so; it is reaped at the end: that can take the kernel seconds while others spin."""
        victim = self.producers.pop(index)
        victim.send_signal(signum)
        self.victims.append(victim)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all producers for a while."""
        producers = list(self.producers)
        for producer in producers:
            producer.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for producer in producers:
                producer.send_signal(signal.SIGCONT)

    def join_producers(self, *also: int) -> None:
        """Wait until they have ended well, or with a status of `also`."""
        for producer in self.producers:
            assert producer.wait(DEADLINE) in (0, *also)
        for victim in self.victims:
            assert victim.wait(DEADLINE) == -signal.SIGKILL
        self.producers.clear()
        self.victims.clear()

    def stop_producers(self) -> None:
        for producer in self.producers:
            producer.terminate()
        # One that was just started does not know the signal yet, and has not written either.
        self.join_producers(-signal.SIGTERM)

    def finish(self) -> dict[str, Any]:
        """All producers are gone: let the verifier drain, and return its account, which must be right."""
        assert not self.producers
        out, err = self.verifier.communicate(timeout=DEADLINE)
        assert self.verifier.returncode == 0, f"{err}\n{out}"
        account: dict[str, Any] = json.loads(out)
        return account

    def abandon(self) -> None:
        processes: list[subprocess.Popen[Any]] = [*self.producers, *self.victims, *self.controllers, self.verifier]
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.ledger.close()


def start_late_producer(
    path: Path, ledger_file: Path, scheme: str, records: int, *more: str
) -> subprocess.Popen[bytes]:
    """Start one that gives its channel the files `path`0 ... only while it writes, and removes it at the end."""
    options: list[object] = ["--ledger", ledger_file, "--stream", 0, "--late", path, "--scheme", scheme]
    options += ["--records", records, "--threads", 4, "--signals", 300, *more]
    return subprocess.Popen(["nice", *run_command(program("stress_producer", ""), *options)])


@contextmanager
def stresses(*stress: Callable[[], Stress]) -> Iterator[list[Stress]]:
    """Make them, and leave no process behind, whatever happens."""
    made: list[Stress] = []
    try:
        for make in stress:
            made.append(make())
        yield made
    finally:
        for one in made:
            one.abandon()


def kill_and_replace(stress: Stress, n_kills: int, seed: int) -> None:
    """Let producers die, each when it has written a random number of records, and start others.

    Where there are callbacks, every other one dies in a callback.
    """
    chance = random.Random(seed)
    first_stream = {process.pid: STREAMS_PER_PRODUCER * i for i, process in enumerate(stress.producers)}
    for _ in range(n_kills):
        victim = chance.randrange(len(stress.producers))
        process = stress.producers[victim]
        streams = range(first_stream[process.pid], first_stream[process.pid] + STREAMS_PER_PRODUCER)
        enough = chance.randrange(1, 2000)
        wait_for(lambda s=streams, n=enough: stress.written(s) >= n, "the victim writes")  # type: ignore[misc]
        in_callback = stress.channel.callback_options and chance.randrange(2)
        stress.kill_producer(victim, signal.SIGUSR1 if in_callback else signal.SIGKILL)
        stream = stress.start_producer()
        first_stream[stress.producers[-1].pid] = stream


def is_long() -> bool:
    return os.environ.get("RELAYFS_STRESS") == "long"
