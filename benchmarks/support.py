"""What the benchmarks share: a mount of their own, C programs, samples, limits."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "native"
TMPFS = Path("/dev/shm")


@dataclass(frozen=True)
class Mount:
    """A store and where it is mounted."""

    path: Path
    store: Path

    def create(self, channel: str, options: str) -> Path:
        """Make a channel; return the path of its relay files without the number."""
        self.command(f"create {channel} {options}")
        return self.path / channel

    def command(self, line: str) -> None:
        """Write a line to the control file."""
        (self.path / "control").write_text(line + "\n")

    def statistic(self, channel: str, name: str) -> int:
        """Return one of the channel's counts."""
        return int((self.path / ".channels" / channel / name).read_text())


@contextmanager
def mounted() -> Iterator[Mount]:
    """Mount a new store on tmpfs, and leave nothing behind."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir=TMPFS) as store:
        mount = Mount(Path(directory), Path(store) / "store")
        relayfs = Path(sys.executable).with_name("relayfs")
        subprocess.run([relayfs, mount.path, "-o", f"store={mount.store}"], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["fusermount3", "-u", "-z", directory], check=True)


def server_of(mount: Mount) -> int:
    """Return the process that serves a mount, a child of the one that the store's lock names."""
    supervisor = int((mount.store / ".lock").read_text().split()[1].rstrip(","))
    return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[-1])


@contextmanager
def compiled(source: str, library: str = "relayfs", parts: Sequence[str] = ()) -> Iterator[Path]:
    """Compile a program as a user of the installed library does; other users can run it, too.

    library: its name for pkg-config; empty: none
    parts: files of native/ that are compiled into it, for what the library does not export
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        program = Path(directory) / Path(source).stem
        flags = _pkg_config(library, "--cflags", "--libs") if library else []
        libdirs = _pkg_config(library, "--variable=libdir") if library else []
        command: list[str | Path] = [
            *(
                ["g++", "-std=gnu++23", "-Wno-missing-field-initializers"]
                if source.endswith(".cc")
                else ["gcc", "-std=gnu11"]
            ),
            "-O2",
            "-Wall",
            "-Wextra",
            f"-I{HERE}",
            "-o",
            program,
            HERE / source,
            *([f"-I{NATIVE / 'bench'}", f"-I{NATIVE / 'src'}"] if parts else []),
            *(NATIVE / part for part in parts),
            *flags,
            "-pthread",
            # And not -Wl: a comma in the path would end the option.
            *(word for libdir in libdirs for word in ("-Xlinker", "-rpath", "-Xlinker", libdir)),
        ]
        subprocess.run(command, check=True)
        yield program


def _pkg_config(library: str, *query: str) -> list[str]:
    done = subprocess.run(["pkg-config", *query, library], check=True, capture_output=True, text=True)
    # One option a word; a path may hold spaces, which pkg-config escapes.
    return [word.replace("\0", " ") for word in done.stdout.replace("\\ ", "\0").split()]


def ns_each(call: Callable[[], object], n: int, records: int = 1) -> float:
    """Return what a record takes of this thread's CPU time, if each of n calls writes so many."""
    times = range(n)
    begin = time.thread_time_ns()
    for _ in times:
        call()
    return (time.thread_time_ns() - begin) / n / records


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Wait for a program to succeed; return its CPU time, in seconds."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return used.ru_utime + used.ru_stime


@dataclass
class Samples:
    """Measurements by name: several rounds, of which the median counts."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))

    def add(self, name: str, value: float, **counts: int) -> None:
        """Note one round's value, and add to what is counted over all rounds."""
        self.values[name].append(value)
        for what, count in counts.items():
            self.counts[name][what] += count

    def median(self, name: str) -> float:
        """Return the value that counts."""
        return statistics.median(self.values[name])


@dataclass(frozen=True)
class Limit:
    """One promise: a ratio of two medians, or a median, and what it must not pass; with no bound it is only told."""

    what: str
    value: str
    base: str = ""
    most: float | None = None
    least: float | None = None

    def ratio(self, samples: Samples) -> float:
        """Return what was reached."""
        return samples.median(self.value) / (samples.median(self.base) if self.base else 1)

    def kept(self, samples: Samples) -> bool:
        """Tell whether the promise holds."""
        ratio = self.ratio(samples)
        return (self.most is None or ratio <= self.most) and (self.least is None or ratio >= self.least)

    def line(self, samples: Samples) -> str:
        """Return the table's line."""
        bound = "" if self.most is None else f"at most {self.most:.3g}"
        bound = bound if self.least is None else f"at least {self.least:.3g}"
        verdict = "" if self.kept(samples) else "   MISSED"
        return f"{self.what:<58} {self.ratio(samples):6.2f}   {bound}{verdict}".rstrip()


def table(samples: Samples, unit: str) -> None:
    """Print every median, its spread and what was counted."""
    print(f"{'':<28} {'median':>9} {'best':>9} {'worst':>9}  {unit}")
    for name, values in samples.values.items():
        counts = "  ".join(f"{what} {count:,}" for what, count in samples.counts[name].items())
        print(f"{name:<28} {samples.median(name):9.2f} {min(values):9.2f} {max(values):9.2f}  {counts}")


def asked(rounds: int) -> int:
    """Return the first argument of the command line; without one, `rounds`."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else rounds


def judge(measure: Callable[[], Samples], limits: list[Limit], unit: str) -> int:
    """Measure; once more if a limit is missed, since machines are noisy. Return the exit status."""
    for attempt in ("first", "second"):
        samples = measure()
        table(samples, unit)
        print()
        for limit in limits:
            print(limit.line(samples))
        missed = [limit for limit in limits if not limit.kept(samples)]
        if not missed:
            return 0
        print(f"\n{attempt} run: {len(missed)} missed: {'; '.join(limit.what for limit in missed)}\n", flush=True)
    return 1


def judge_program(
    source: str, measure: Callable[[Path, int], Samples], rounds: int, limits: list[Limit], unit: str
) -> int:
    """Judge what measure(program, rounds) finds with a compiled program."""
    with compiled(source) as program:
        return judge(lambda: measure(program, asked(rounds)), limits, unit)
