"""The common clock: events of several processes, and the kernel's own, come in the order in which they happened."""

import itertools
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from babeltrace import babeltrace
from making import Maker, making
from mounts import Mount, wait_until
from traced import check_summary, program, record_stopped, start_trace, traced
from tracing import finish, recording

pytestmark = pytest.mark.one_mount

N_TURNS = 5000
N_MARKERS = 2000
N_CLOCKS = 8000  # more than fit into a sub-buffer, so that some are recorded at once
NEAR_NS = 1000
LATER_S = 3.0
TRACEFS = Path("/sys/kernel/tracing")
CLOCKS = ["mono", "tsc"]
ROOM = "subbuf_size=256K n_subbufs=16"
MARKER = re.compile(r"\d+ \d+ (?P<ns>\d+) # \w+ (?P<seq>\d+)")


@pytest.fixture
def players(mount: Mount, tmp_path: Path) -> Iterator[list[Maker]]:
    """Two programs, each of which reads from a pipe what the other one writes."""
    fifos = [tmp_path / "there", tmp_path / "back"]
    for fifo in fifos:
        os.mkfifo(fifo)
    with ExitStack() as stack:
        makers = []
        for read, write in (fifos, fifos[::-1]):
            command = ["bash", "-c", f'exec "$0" 3<>"{read}" 4<>"{write}"', program("traced")]
            makers.append(stack.enter_context(making({"RELAYFS": str(mount.path)}, None, command)))
        yield makers


def play(players: list[Maker], fifo: Path) -> None:
    """Let them write events in turn: each after it has got the ball from the other."""
    for maker, first in zip(players, (0, 1), strict=True):
        maker.start(f"turns {first} {N_TURNS}")
    with fifo.open("r+b", buffering=0) as there:
        there.write(b"o")
        for maker in players:
            assert maker.answer() == "0"


@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_what_follows_from_another_processes_event_comes_after_it(
    mount: Mount, players: list[Maker], tmp_path: Path, clock: str, buffers: str
) -> None:
    start_trace(mount, "t", f"{ROOM} clock={clock} buffers={buffers}")
    play(players, tmp_path / "there")
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers() == list(range(2 * N_TURNS))
    assert {event.pid for event in trace.events} == {maker.process.pid for maker in players}


def test_traces_of_both_clocks_sort_into_one_order(mount: Mount, players: list[Maker], tmp_path: Path) -> None:
    start_trace(mount, "mono", f"{ROOM} clock=mono")
    start_trace(mount, "tsc", f"{ROOM} clock=tsc")
    play(players, tmp_path / "there")
    record_stopped(mount, "mono", tmp_path / "out/mono")
    record_stopped(mount, "tsc", tmp_path / "out/tsc")
    # Each event is in both, and no event of either before one that caused it.
    numbers = babeltrace(tmp_path / "out").numbers()
    assert numbers == [number for number in range(2 * N_TURNS) for _ in ("mono", "tsc")]


def real_minus_mono(mount: Mount, name: str) -> int:
    """Return what a trace's metadata adds to CLOCK_MONOTONIC, from the line that tells about a process."""
    (events, *_) = (mount.store / name).glob("*/.events")
    line = events.read_bytes().split(b"\n")[0].decode()
    words = dict(re.findall(r"(\w+)=(\S+)", line))
    return int(words["real"]) - int(words["mono"])


@pytest.mark.parametrize("clock", CLOCKS)
def test_timestamps_are_those_of_clock_monotonic(mount: Mount, tmp_path: Path, clock: str) -> None:
    start_trace(mount, "t", f"{ROOM} clock={clock}")
    out = tmp_path / "out"
    with traced(mount) as program:
        # From the first moment on, when least is known of the counter's frequency, to some seconds later.
        program.ask(f"clocks {N_CLOCKS}")
        origin = real_minus_mono(mount, "t")
        with recording("t", "-m", mount.path, "-o", out) as recorder:
            wait_until(lambda: list(out.rglob("metadata")), "it is recorded")
            time.sleep(LATER_S)  # time itself is what is tested
            program.ask(f"clocks {N_CLOCKS}")
            mount.command("trace stop t")
            check_summary(finish(recorder))
    trace = babeltrace(out)
    assert len(trace.events) == 4 * N_CLOCKS
    near_ns = NEAR_NS if clock == "tsc" else 0
    for earlier, later in itertools.pairwise(trace.events):
        # Each event carries the time that was read just before it, and the next one that was read just after.
        assert earlier["ns"] - near_ns <= earlier.ns - origin <= later["ns"] + near_ns


# --- the kernel ---


@pytest.fixture
def tracefs(tmp_path: Path) -> Iterator[Path]:
    """The file system of the kernel's tracer, which not every machine has mounted."""
    if (TRACEFS / "instances").is_dir():
        yield TRACEFS
        return
    place = tmp_path / "tracefs"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tracefs", "tracefs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"tracefs is not mounted, and this user or kernel cannot mount it: {done.stderr}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def kernel(tracefs: Path) -> Iterator[Path]:
    """A buffer of the kernel's own tracer, with the clock `mono`, that shows times in nanoseconds."""
    instance = tracefs / f"instances/relayfs-test-{os.getpid()}"
    try:
        instance.mkdir()
    except OSError as error:
        pytest.skip(f"the kernel's tracer gives this user no instance: {error}")
    try:
        (instance / "trace_clock").write_text("mono")
        (instance / "trace_options").write_text("raw")
        yield instance
    finally:
        instance.rmdir()


def markers(instance: Path) -> dict[int, int]:
    """Return when each number was written to trace_marker."""
    lines = (instance / "trace").read_text().splitlines()
    found = [MARKER.search(line) for line in lines if not line.startswith("#")]
    assert all(found), lines[:5]
    return {int(match["seq"]): int(match["ns"]) for match in found if match}


@pytest.mark.parametrize("clock", CLOCKS)
def test_events_and_the_kernels_markers_sort_into_the_true_order(
    mount: Mount, kernel: Path, tmp_path: Path, clock: str
) -> None:
    start_trace(mount, "t", f"{ROOM} clock={clock}")
    with traced(mount) as program:
        program.ask("emit 1")
        program.ask(f"markers {kernel / 'trace_marker'} {N_MARKERS}")
        origin = real_minus_mono(mount, "t")
    trace = record_stopped(mount, "t", tmp_path / "out")
    moments = [(event.ns - origin, event["seq"]) for event in trace.events[1:]]
    moments += [(ns, seq) for seq, ns in markers(kernel).items()]
    assert len(moments) == 2 * N_MARKERS
    # Where both clocks show the same nanosecond, the numbers decide.
    assert [seq for _, seq in sorted(moments)] == list(range(2 * N_MARKERS))
