"""Measure what others have for what relayfs does, next to it, in one run.

    ./dev bench peers [ROUNDS [CSV]]

What flows from a process on one CPU to a process on another, as in `./dev bench flow`: megabytes a second of records
of 64 and 4096 bytes, with what was lost, and beside each what a cache line took from one CPU to the other and back.
Then, on one CPU, what costs a program an event in LTTng-UST, a message of Python's logging, and a line of logger(1).
Peers that are not installed are named with their Debian packages. CSV: for docs/benchmarks_plot.py.

What flows is the rate of the best 2 ms of a round in which neither process was interrupted, and the best round counts:
other programs only take away. Costs are medians. The status is 1 if a promised ratio is missed twice.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from logging import FileHandler, Handler
from logging.handlers import SysLogHandler
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket

from bench_flow import CHANNELS as FLOW_CHANNELS
from bench_flow import Flowed
from bench_logging import ARGUMENTS, MESSAGES, TEXT, logger_of
from bench_trace import GEOMETRY, Lttng, Program, lttng_home, started
from support import TMPFS, Limit, Mount, Samples, asked, compiled, cpu_s, judge, mounted, ns_each

from relayfs_fuse import RelayHandler

ROUNDS = 15
SECONDS = 0.3
FILE_BYTES = 256 << 20
LINES = 200_000
LENGTHS = (64, 4096)
UNIT = "MB/s; *-line: ns of a cache line, there and back; event-*, logging-*, lines-*: ns"


@dataclass(frozen=True)
class Peer:
    """A program that measures what flows, and prints the lines of bench_flow.h.

    library: that it needs, for pkg-config; header: for the compiler
    names: of what it measures
    """

    source: str
    names: tuple[str, ...]
    package: str = ""
    library: str = ""
    header: str = ""

    def is_there(self) -> bool:
        """Return whether it can be compiled."""
        if self.header:
            return compiles(self.header)
        return not self.library or subprocess.run(["pkg-config", "--exists", self.library], check=False).returncode == 0


OURS = ("spins", "sleeps", "ring-spins", "ring-sleeps", "percpu-spins", "percpu-ring-spins")
PEERS = (
    Peer("bench_flow.c", (*OURS, "bare", "pipe"), library="relayfs"),
    Peer("bench_peers.c", ("fifo", "stream", "datagram", "file", "mq")),
    Peer("bench_peers_bpf.c", ("bpf-ring",), "libbpf-dev", "libbpf"),
    Peer("bench_peers_zeromq.c", ("zeromq",), "libzmq3-dev", "libzmq"),
    Peer(
        "bench_peers_boost.cc", ("boost-spsc", "boost-queue"), "g++ libboost-dev", "", "boost/lockfree/spsc_queue.hpp"
    ),
)
CHANNELS = {**FLOW_CHANNELS, "bench/log": "mode=overwrite subbuf_size=256K n_subbufs=8"}
# Both sides of these spin, without system calls, and one thread alone writes: as with a buffer of one CPU.
SPINNING = {"bare", "boost-spsc"}
# Of those that take system calls for each record; how many times as much flows through a channel at least.
LEAST = {64: 5.0, 4096: 1.0}
PROMISED = ("pipe", "fifo", "stream", "datagram", "file", "mq", "zeromq")


class Best(Limit):
    """A promise about a ratio of the best rounds."""

    def ratio(self, samples: Samples) -> float:
        """Return the ratio."""
        return max(samples.values[self.value]) / max(samples.values[self.base])


def compiles(header: str) -> bool:
    """Return whether there are a compiler of C++ and a header."""
    command = ["g++", "-std=gnu++23", "-fsyntax-only", "-x", "c++", "-"]
    text = f"#include <{header}>\n"
    return (
        bool(shutil.which("g++"))
        and not subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode
    )


def limits_of(peers: Sequence[Peer]) -> list[Limit]:
    """Compare each with ours."""
    limits = []
    for length in LENGTHS:
        for name in (name for peer in peers for name in peer.names if name not in OURS):
            ours = "percpu-spins" if name in SPINNING else "sleeps"
            least = LEAST[length] if name in PROMISED else None
            limits.append(
                Best(f"{length} bytes, {ours}: times {name}", f"{ours}-{length}", f"{name}-{length}", least=least)
            )
    return limits


LOCAL_LIMITS = [
    Limit("a message of logging: times to a file", "logging-relay", "logging-file"),
    Limit("a message of logging: times to a syslog socket", "logging-relay", "logging-syslog", most=0.8),
    Limit("a line of relayctl write: times logger", "lines-relayctl", "lines-logger", most=0.5),
]
LTTNG_LIMITS = [Limit("an event, clock=mono: times LTTng-UST", "event-relayfs", "event-lttng", most=0.5)]


# --- one process to another ---


def sample_flow(samples: Samples, command: Sequence[str | Path]) -> bool:
    """Run a program once; False: the kernel does not let it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 3:
        return False
    done.check_returncode()
    for line in done.stdout.splitlines():
        flowed = Flowed(*line.split())
        samples.add(flowed.name, float(flowed.value), records=int(flowed.records), lost=int(flowed.lost))
        samples.add(f"{flowed.name}-line", float(flowed.line_ns))
    return True


def arguments_of(peer: Peer, mount: Mount, directory: Path) -> list[str | Path]:
    """Return what follows the seconds and the CPUs on its command line."""
    return {
        "bench_flow.c": [mount.path / "bench", mount.store / "bench/flow/mem0"],
        "bench_peers.c": [directory, str(FILE_BYTES)],
        "bench_peers_zeromq.c": [directory],
    }.get(peer.source, [])


# --- lines and messages ---


COUNT_DATAGRAMS = """
import socket, sys
heard, n = socket.socket(fileno=int(sys.argv[1])), 0
while heard.recv(65536) != b"end":
    n += 1
print(n)
"""


class Syslog:
    """A socket as /dev/log is, and a process that counts what it gets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with socket(AF_UNIX, SOCK_DGRAM) as heard:
            heard.bind(str(path))
            self._process = subprocess.Popen(
                [sys.executable, "-c", COUNT_DATAGRAMS, str(heard.fileno())],
                pass_fds=[heard.fileno()],
                stdout=subprocess.PIPE,
            )

    def end(self) -> int:
        """Return how many messages have come."""
        with socket(AF_UNIX, SOCK_DGRAM) as last:
            last.connect(str(self.path))
            last.send(b"end")
        self.path.unlink()
        return int(self._process.communicate()[0])


@contextmanager
def listening(directory: Path, samples: Samples, name: str, sent: int) -> Iterator[Path]:
    """Make the socket, and count what is lost of so many messages."""
    syslog = Syslog(directory / "syslog")
    try:
        yield syslog.path
    finally:
        came = syslog.end()
    samples.counts[name]["records"] += came
    samples.counts[name]["lost"] += sent - came


def sample_logging(samples: Samples, name: str, handler: Handler) -> None:
    """Log messages."""
    logger = logger_of(name, handler)
    samples.add(f"logging-{name}", ns_each(lambda: logger.info(TEXT, *ARGUMENTS), MESSAGES))
    handler.close()


def sample_lines(samples: Samples, mount: Mount, directory: Path) -> None:
    """Log messages, and have programs log lines."""
    sample_logging(samples, "relay", RelayHandler(mount.path / "bench/log"))
    sample_logging(samples, "file", FileHandler(directory / "log"))
    (directory / "log").unlink()
    with listening(directory, samples, "logging-syslog", MESSAGES) as path:
        sample_logging(samples, "syslog", SysLogHandler(str(path), socktype=SOCK_DGRAM))
    lines = directory / "lines"
    lines.write_bytes((b"l" * 63 + b"\n") * LINES)
    if shutil.which("logger"):
        with listening(directory, samples, "lines-logger", LINES) as path:
            add_lines(samples, "logger", lines, ["logger", "--socket", path])
    relayctl = Path(sys.executable).with_name("relayctl")
    add_lines(samples, "relayctl", lines, [relayctl, "write", mount.path / "bench/log"])
    lines.unlink()


def add_lines(samples: Samples, name: str, lines: Path, command: Sequence[str | Path]) -> None:
    """Give lines to a program."""
    with lines.open("rb") as file, subprocess.Popen(command, stdin=file) as process:
        samples.add(f"lines-{name}", cpu_s(process) * 1e9 / LINES)


# --- events ---


def prepare_events(stack: ExitStack, mount: Mount, cpu: int) -> Callable[[Samples], None]:
    """Start two programs that trace, until the end of the stack; return what takes a sample of each."""
    lttng = stack.enter_context(Lttng(stack.enter_context(lttng_home())))
    lttng.create("session", "--buffers-pid")
    mount.command(f"trace create t {GEOMETRY} clock=mono mode=overwrite")
    program = stack.enter_context(compiled("bench_trace_lttng.c", "lttng-ust"))
    theirs = stack.enter_context(Program(program, cpu, **lttng.environment))
    ours = stack.enter_context(Program(stack.enter_context(compiled("bench_trace.c")), cpu, RELAYFS=str(mount.path)))

    def sample(samples: Samples) -> None:
        with lttng.started("session"):
            samples.add("event-lttng", theirs.sample("events"))
        with started(mount, "t"):
            samples.add("event-relayfs", ours.sample("events"))

    return sample


# --- all ---


def machine() -> str:
    """Name the CPU and the kernel."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    has = {name.strip(): value.strip() for name, _, value in lines}
    cpu = has.get("model name", os.uname().machine)
    numbers = f", family {has['cpu family']}, model {has['model']}" if "cpu family" in has else ""
    return f"{cpu}{numbers}, {os.cpu_count()} CPUs, Linux {os.uname().release.partition('-')[0]}"


def write_csv(path: str, samples: Samples) -> None:
    """Write what was found; line_ns: in the round in which most has flowed."""
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["name", "median", "least", "most", "records", "lost", "line_ns", "machine"])
        for name, values in samples.values.items():
            if name.endswith("-line"):
                continue
            counts = samples.counts[name]
            lines = samples.values.get(f"{name}-line")
            line = f"{lines[values.index(max(values))]:.0f}" if lines else ""
            numbers = [f"{number:.4g}" for number in (samples.median(name), min(values), max(values))]
            rows.writerow([name, *numbers, counts["records"], counts["lost"], line, machine()])


def measure(rounds: int, peers: Sequence[Peer], has_lttng: bool, limits: list[Limit]) -> Samples:
    """Take all samples; leave the limits of which there are samples."""
    samples = Samples()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=TMPFS)))
        mount = stack.enter_context(mounted())
        for name, options in CHANNELS.items():
            mount.create(name, options)
        commands = {}
        for peer in peers:
            program = stack.enter_context(compiled(peer.source, peer.library))
            commands[peer] = [program, str(SECONDS), *map(str, cpus), *arguments_of(peer, mount, directory)]
        sample_events = prepare_events(stack, mount, cpus[0]) if has_lttng else None
        for number in range(rounds):
            for peer in [peer for peer, command in commands.items() if not sample_flow(samples, command)]:
                print(f"{', '.join(peer.names)}: the kernel does not permit it here")
                del commands[peer]
            if number % 3 == 0:
                sample_lines(samples, mount, directory)
            if sample_events:
                sample_events(samples)
    limits[:] = [limit for limit in limits if {limit.value, limit.base} <= samples.values.keys()]
    return samples


def main() -> int:
    """Say who is missing, measure, judge."""
    peers = [peer for peer in PEERS if peer.is_there()]
    has_lttng = bool(shutil.which("lttng-sessiond")) and Peer("", (), "", "lttng-ust").is_there()
    missing = [(", ".join(peer.names), peer.package) for peer in PEERS if peer not in peers]
    missing += [("event-lttng", "liblttng-ust-dev lttng-tools")] * (not has_lttng)
    missing += [("lines-logger", "bsdutils")] * (not shutil.which("logger"))
    if len(os.sched_getaffinity(0)) < 2:
        print("one CPU only: nothing flows from one to another")
        peers = []
    limits = limits_of(peers) + LOCAL_LIMITS + LTTNG_LIMITS
    found: list[Samples] = []

    def measure_and_keep() -> Samples:
        found[:] = [measure(asked(ROUNDS), peers, has_lttng, limits)]
        return found[0]

    status = judge(measure_and_keep, limits, UNIT)
    for names, package in missing:
        print(f"{names}: not measured, it is not installed; Debian has it in {package}")
    if len(sys.argv) > 2:
        write_csv(sys.argv[2], found[0])
    return status


if __name__ == "__main__":
    sys.exit(main())
