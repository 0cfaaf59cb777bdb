"""Measure what an event costs, next to LTTng-UST with the same event, and what the recorder keeps up with.

    ./dev bench trace [ROUNDS]

One pinned thread, through the shared library; nanoseconds an event, medians over the rounds. Both tracers overwrite,
and nobody reads. The status is 1 if a promise is missed twice.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import TMPFS, Limit, Mount, Samples, asked, compiled, judge, mounted

ROUNDS = 15
EVENTS = 1_000_000
GEOMETRY = "subbuf_size=64K n_subbufs=8"
RECORDED_BYTES = 3 << 30
# Of what dd writes: what the recorder is given.
PACE = 0.97
# Without, and with compression of complete files beside it, for which it may use all CPUs; and of channels.
RECORDERS = {"recorder": [], "recorder-zstd": ["--rotate-size", "256M", "--compress"]}
CHANNELS = {"recorder-channel": "", "recorder-times": "times=mono"}
NOBODY = 65534

TRACES = {
    "relayfs-tsc": "clock=tsc mode=overwrite",
    "relayfs-mono": "clock=mono mode=overwrite",
    "relayfs-peruser": "clock=mono mode=overwrite buffers=peruser",
    "full-tsc": "clock=tsc mode=no-overwrite",
    "full-mono": "clock=mono mode=no-overwrite",
}
# Of the program that includes <relayfs/producer.h>.
INLINE = {"inline-tsc": TRACES["relayfs-tsc"], "inline-mono": TRACES["relayfs-mono"]}
# Of traces like relayfs-tsc.
CONDITIONS = {"condition-false": "h == 18446744073709551615", "condition-true": "h != 18446744073709551615"}
SESSIONS = {"lttng-peruser": "--buffers-uid", "lttng-perprocess": "--buffers-pid"}


@dataclass(frozen=True)
class Within(Limit):
    """A promise about a difference of two medians."""

    def ratio(self, samples: Samples) -> float:
        """Return the difference."""
        return samples.median(self.value) - samples.median(self.base)


LIMITS = [
    Limit("clock=mono: times LTTng-UST, buffers of the user", "relayfs-mono", "lttng-peruser", most=1 / 3),
    Limit("clock=mono: times LTTng-UST, of the process", "relayfs-mono", "lttng-perprocess", most=1 / 3),
    Limit("clock=tsc: times LTTng-UST, buffers of the user", "relayfs-tsc", "lttng-peruser", most=1 / 3),
    Limit("clock=tsc: times LTTng-UST, of the process", "relayfs-tsc", "lttng-perprocess", most=1 / 3),
    Limit("clock=mono, inline: times LTTng-UST, of the process", "inline-mono", "lttng-perprocess", most=1 / 3),
    Limit("clock=mono, inline: times called", "inline-mono", "relayfs-mono", most=1.05),
    Limit("clock=tsc, inline: times called", "inline-tsc", "relayfs-tsc", most=1.05),
    Limit("that clock alone: times LTTng-UST, of the process", "clock", "lttng-perprocess"),
    Within("clock=mono: ns above that clock alone", "relayfs-mono", "clock"),
    Within("no trace: ns above an empty loop", "off", "empty", most=0.5),
    Limit("clock=mono, refused because full: times one that is taken", "full-mono", "relayfs-mono", most=1),
    Limit("clock=tsc, refused because full: times one that is taken", "full-tsc", "relayfs-tsc", most=1),
    Limit("clock=tsc, its condition is false: times one that is taken", "condition-false", "relayfs-tsc", most=0.5),
    Limit("clock=tsc, its condition is true: times one without", "condition-true", "relayfs-tsc"),
    Limit("recorder, nothing lost: times dd", "recorder", "dd before recorder", least=0.9),
    Limit("recorder: events lost", "recorder-lost", most=0),
    Limit("recorder that compresses, nothing lost: times dd", "recorder-zstd", "dd before recorder-zstd"),
    # The compressor reads from the same disk what the recorder has written.
    Limit("recorder that compresses: events lost", "recorder-zstd-lost"),
    Limit("recorder of a channel: times dd", "recorder-channel", "dd before recorder-channel", least=0.85),
    Limit("recorder of a channel: records lost", "recorder-channel-lost", most=0),
    Limit("recorder of a channel with times: times dd", "recorder-times", "dd before recorder-times", least=0.85),
    Limit("recorder of a channel with times: records lost", "recorder-times-lost", most=0),
]


class Program:
    """One that takes samples when it is told to."""

    def __init__(self, path: Path, cpu: int, **environment: str) -> None:
        self.process = subprocess.Popen(
            [path, str(cpu)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", **as_user(environment)
        )

    def sample(self, kind: str) -> float:
        """Return what an event costs now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind} {EVENTS}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> "Program":
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self.process.communicate()


# --- LTTng ---


class Lttng:
    """A session daemon of our own, that nobody else sees: as an unprivileged user it works below LTTNG_HOME."""

    def __init__(self, home: Path) -> None:
        self.environment = {"LTTNG_HOME": str(home), "LTTNG_UST_REGISTER_TIMEOUT": "-1"}
        self.daemon = subprocess.Popen(
            ["lttng-sessiond", "--no-kernel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **as_user(self.environment),
        )  # fmt: skip

    def __call__(self, *words: str | Path) -> None:
        """Run a command of lttng(1)."""
        subprocess.run(["lttng", "-n", *words], check=True, stdout=subprocess.DEVNULL, **as_user(self.environment))

    def wait(self) -> None:
        """Wait until the daemon answers."""
        socket = Path(self.environment["LTTNG_HOME"]) / ".lttng/client-lttng-sessiond"
        for _ in range(1000):
            if socket.exists() or self.daemon.poll() is not None:
                return
            time.sleep(0.01)

    def create(self, session: str, buffers: str) -> None:
        """Make a flight recorder of the same geometry as ours."""
        home = self.environment["LTTNG_HOME"]
        self("create", session, "--snapshot", f"--output={home}/{session}")
        geometry = ["--overwrite", buffers, "--subbuf-size=64k", "--num-subbuf=8"]
        self("enable-channel", "-u", "-s", session, *geometry, "channel")
        self("enable-event", "-u", "-s", session, "-c", "channel", "bench:payload")

    @contextmanager
    def started(self, session: str) -> Iterator[None]:
        """Trace into one session."""
        self("start", session)
        yield
        self("stop", "--no-wait", session)

    def check(self, session: str) -> None:
        """Fail if the buffers hold no events: nothing would have been measured."""
        self("snapshot", "record", "-s", session)
        home = Path(self.environment["LTTNG_HOME"])
        if sum(path.stat().st_size for path in (home / session).rglob("channel_*")) < 7 * 65536:
            raise RuntimeError(f"LTTng recorded nothing in {session}")

    def __enter__(self) -> "Lttng":
        """Return it, ready."""
        self.wait()
        return self

    def __exit__(self, *error: object) -> None:
        """End the daemon; it ends its consumer."""
        self.daemon.terminate()
        self.daemon.wait()


def as_user(environment: dict[str, str]) -> dict[str, object]:
    """Return arguments of Popen: nobody where we are root, for LTTng's root would be one for the whole machine."""
    is_root = os.geteuid() == 0
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root and "LTTNG_HOME" in environment else {}
    return {"env": {**os.environ, **environment}, **user}


@contextmanager
def lttng_home() -> Iterator[Path]:
    """Give a directory that the unprivileged user owns; take away what LTTng leaves elsewhere."""
    there = set(TMPFS.glob("lttng-ust-wait-*"))
    with tempfile.TemporaryDirectory() as directory:
        if os.geteuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
        yield Path(directory)
    for path in set(TMPFS.glob("lttng-ust-wait-*")) - there:
        path.unlink()


# --- relayfs ---


@contextmanager
def started(mount: Mount, trace: str) -> Iterator[None]:
    """Trace into one trace."""
    mount.command(f"trace start {trace}")
    yield
    mount.command(f"trace stop {trace}")


def counts(mount: Mount, trace: str) -> dict[str, int]:
    """Return how many events a trace has taken and refused in its only directory, if it has one yet."""
    directories = list((mount.path / ".channels").glob(f"{trace}/*"))
    stats = {
        name: sum(int((path / "cpu" / name).read_text()) for path in directories) for name in ("records", "lost_full")
    }
    return {"hits": stats["records"], "drops": stats["lost_full"]}


# --- the recorder ---


def dd(directory: Path) -> float:
    """Return how fast dd writes zeros to the disk there, in GB/s."""
    target = directory / "dd"
    begin = time.monotonic()
    count = f"count={RECORDED_BYTES >> 20}"
    subprocess.run(["dd", "if=/dev/zero", f"of={target}", "bs=1M", count, "conv=fsync", "status=none"], check=True)
    seconds = time.monotonic() - begin
    target.unlink()
    return RECORDED_BYTES / seconds / 1e9


@dataclass(frozen=True)
class Recorder:
    """One that writes to a directory, with some options of relayctl record.

    channel: options of a channel that it is to record; None: it records a trace
    """

    directory: Path
    options: Sequence[str] = ()
    channel: str | None = None


@dataclass(frozen=True)
class Recorded:
    """What a recorder did.

    rate: GB/s, from the first event until everything was on the disk
    lost: events
    cpu_rate: GB for each second of the recorder's CPU time
    """

    rate: float
    lost: int
    cpu_rate: float


def record(mount: Mount, program: Path, cpus: Sequence[int], recorder: Recorder, bytes_a_s: float) -> Recorded:
    """Record what a program writes at this rate."""
    out = recorder.directory / "trace"
    geometry = "subbuf_size=1M n_subbufs=128"
    if recorder.channel is None:
        mount.command(f"trace create recorded {geometry} buffers=shared\ntrace start recorded\n")
    else:
        mount.command(f"create recorded {geometry} buffers=single delivery=bulk {recorder.channel}")
    relayctl = Path(sys.executable).with_name("relayctl")
    where = [] if recorder.options else ["taskset", "-c", str(cpus[-1])]
    recording = subprocess.Popen(
        [*where, relayctl, "record", "recorded", "-o", out, "--json", *recorder.options],
        stdout=subprocess.PIPE, env={**os.environ, "RELAYFS": str(mount.path)},
    )  # fmt: skip
    while not out.exists() and recording.poll() is None:
        time.sleep(0.01)
    to = [] if recorder.channel is None else [mount.path / "recorded"]
    begin = time.monotonic()
    subprocess.run(
        [program, str(cpus[0]), str(bytes_a_s), str(RECORDED_BYTES), *to], check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "RELAYFS": str(mount.path)},
    )  # fmt: skip
    recording.send_signal(signal.SIGINT)
    cpu_s = _children_cpu_s()
    summary = json.loads(recording.communicate()[0])
    cpu_s = _children_cpu_s() - cpu_s
    subprocess.run(["sync", "-f", out], check=True)
    seconds = time.monotonic() - begin
    mount.command("trace remove recorded" if recorder.channel is None else "remove recorded")
    shutil.rmtree(out)
    gigabytes = summary["bytes"] / 1e9
    return Recorded(gigabytes / seconds, summary["lost"], gigabytes / cpu_s)


def _children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def sample_recorder(samples: Samples, mount: Mount, program: Path, cpus: Sequence[int]) -> None:
    """Let dd write, then each recorder, into the same directory."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("RELAYFS_BENCH_DIR", "/var/tmp")) as directory:
        recorders = {name: Recorder(Path(directory), options) for name, options in RECORDERS.items()}
        recorders |= {name: Recorder(Path(directory), channel=options) for name, options in CHANNELS.items()}
        for name, recorder in recorders.items():
            samples.add(f"dd before {name}", dd(Path(directory)))
            os.sync()
            pace = PACE * samples.values[f"dd before {name}"][-1] * 1e9
            recorded = record(mount, program, cpus, recorder, pace)
            samples.add(name, recorded.rate)
            samples.add(f"{name}-cpu", recorded.cpu_rate)
            samples.add(f"{name}-lost", recorded.lost)
            os.sync()


# --- all ---


def sample_round(samples: Samples, mount: Mount, programs: dict[str, Program], lttng: Lttng) -> None:
    """Measure everything that takes one thread once.

    programs: ours, inline, lttng
    """
    ours = programs["ours"]
    for name in ("empty", "clock", "off"):
        samples.add(name, ours.sample("events" if name == "off" else name))
    with started(mount, "unwanted"):
        samples.add("unwanted", ours.sample("events"))
    for session in SESSIONS:
        with lttng.started(session):
            samples.add(session, programs["lttng"].sample("events"))
    for trace in (*TRACES, *INLINE, *CONDITIONS):
        with started(mount, trace):
            samples.add(trace, programs["inline" if trace in INLINE else "ours"].sample("events"))


def measure(rounds: int, cpus: Sequence[int]) -> Samples:
    """Run both programs side by side, each sample in turn."""
    samples = Samples()
    with ExitStack() as stack:
        enter = stack.enter_context
        mount = enter(mounted())
        program = enter(compiled("bench_trace.c"))
        lttng = enter(Lttng(enter(lttng_home())))
        for name, options in [*TRACES.items(), *INLINE.items(), ("unwanted", "")]:
            mount.command(f"trace create {name} {GEOMETRY} {options}")
        mount.command("trace enable unwanted other:*")
        for name, condition in CONDITIONS.items():
            mount.command(f"trace create {name} {GEOMETRY} {TRACES['relayfs-tsc']}")
            mount.command(f"trace enable {name} bench:payload if {condition}")
        for session, buffers in SESSIONS.items():
            lttng.create(session, buffers)
        theirs, inline = enter(compiled("bench_trace_lttng.c", "lttng-ust")), enter(compiled("bench_trace_inline.c"))
        programs = {
            "lttng": enter(Program(theirs, cpus[0], **lttng.environment)),
            "ours": enter(Program(program, cpus[0], RELAYFS=str(mount.path))),
            "inline": enter(Program(inline, cpus[0], RELAYFS=str(mount.path))),
        }
        for _ in range(rounds):
            sample_round(samples, mount, programs, lttng)
        for trace in (*TRACES, *INLINE, *CONDITIONS):
            for what, count in counts(mount, trace).items():
                samples.counts[trace][what] = count
        for session in SESSIONS:
            lttng.check(session)
        # A virtual machine's memory is slow at its first use, also for dd's.
        sample_recorder(Samples(), mount, program, cpus)
        for _ in range((rounds + 2) // 3):
            sample_recorder(samples, mount, program, cpus)
    return samples


def main() -> int:
    """Measure, judge."""
    rounds = asked(ROUNDS)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    unit = "ns/event; dd, recorder: GB/s; ...-cpu: GB per second of CPU time; recorder...-lost: events"
    return judge(lambda: measure(rounds, cpus), LIMITS, unit)


if __name__ == "__main__":
    sys.exit(main())
