"""Programs that may do little are traced all the same, and come to no harm: small stacks, limits, seccomp."""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from babeltrace import babeltrace
from build import compile_c
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from traced import environment_of, record_stopped, start_trace
from tracing import finish, recording

pytestmark = pytest.mark.one_mount

PROGRAM = Path(__file__).with_name("trace_frugal.c")
ROOM = "subbuf_size=128K n_subbufs=4"
STACK_MAX = 4096
BUFFERS = ["perprocess", "shared"]


def run(mount: Mount, *words: str, user: int | None = None) -> list[list[int]]:
    """Run trace_frugal.c; return the numbers of the lines it says."""
    done = subprocess.run(
        [compile_c([PROGRAM]), *words], env=environment_of(mount), user=user, group=user,
        extra_groups=None if user is None else [], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("buffers", BUFFERS)
def test_the_first_event_takes_little_of_a_threads_stack(mount: Mount, tmp_path: Path, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    (used,), (pid, n) = run(mount, "small")
    assert used <= STACK_MAX
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert (trace.numbers("frugal:step", vpid=pid) if buffers == "shared" else trace.numbers("frugal:step")) == list(
        range(n)
    )


@pytest.mark.parametrize("buffers", BUFFERS)
def test_a_long_event_takes_no_stack(mount: Mount, tmp_path: Path, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    ((_, n),) = run(mount, "long")
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers("frugal:text") == list(range(n))
    assert trace.events[0].fields["text"] == '"' + 60_000 * "x" + '"'
    assert trace.lost == 0


@pytest.mark.parametrize("buffers", BUFFERS)
def test_an_event_that_needs_memory_of_its_own_takes_no_stack_and_is_lost_where_none_can_be_had(
    mount: Mount, tmp_path: Path, buffers: str
) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    ((used,),) = run(mount, "huge")
    assert used <= STACK_MAX
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert (trace.numbers("frugal:text"), trace.numbers("frugal:step"), trace.lost) == ([0, 1], [3], 1)


@pytest.mark.parametrize("user", [None, NOBODY])
@pytest.mark.parametrize("buffers", BUFFERS)
def test_a_program_that_may_write_no_files_is_traced_by_the_servers_hand(
    mount: Mount, unprivileged: User, tmp_path: Path, buffers: str, user: int | None
) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    ((_, n),) = run(mount, "fsize", user=user)
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers("frugal:step") == trace.numbers("frugal:text") == list(range(n))
    assert trace.lost == 0


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_program_that_may_open_no_files_runs_on(mount: Mount, unprivileged: User, user: int | None) -> None:
    start_trace(mount, "t", ROOM)
    ((_, n),) = run(mount, "nofile", user=user)
    assert n == 3


@contextmanager
def restricted(mount: Mount, user: int | None) -> Iterator[Callable[[], None]]:
    """Run a program in strict mode; what is yielded has it write 101 events, on another CPU each time."""
    with subprocess.Popen(
        [compile_c([PROGRAM]), "strict"], env=environment_of(mount), user=user, group=user,
        extra_groups=None if user is None else [], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        cpus = itertools.cycle(os.sched_getaffinity(0))

        def emit() -> None:
            os.sched_setaffinity(process.pid, {next(cpus)})
            stdin.write(b"e")
            stdin.flush()
            assert stdout.readline() == b"0\n", process.wait()

        yield emit
        stdin.write(b"q")
        stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_a_prepared_program_obeys_conditions_in_seccomps_strict_mode(mount: Mount, tmp_path: Path) -> None:
    mount.command(f"trace create t {ROOM}\ntrace enable t frugal:* if seq >= 50 && seq < 250\ntrace start t\n")
    with restricted(mount, None) as emit:
        emit()
        # The program cannot look what has changed, and evaluates what it knows.
        start_trace(mount, "other", ROOM)
        mount.command("trace enable t frugal:* if seq < 0")
        for _ in range(3):
            emit()
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert sorted(event["seq"] for event in trace.events) == list(range(50, 250))


@pytest.mark.parametrize("user", [None, NOBODY])
@pytest.mark.parametrize("buffers", BUFFERS)
def test_a_prepared_program_is_traced_in_seccomps_strict_mode(
    mount: Mount, unprivileged: User, tmp_path: Path, buffers: str, user: int | None
) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers} mode=overwrite")
    out = tmp_path / "out"
    with recording("t", "-m", mount.path, "-o", out) as recorder, restricted(mount, user) as emit:
        for _ in range(20):
            emit()
        wait_until(lambda: list(out.rglob("cpu*")), "it is recorded")
        # What changes for others does not change it.
        start_trace(mount, "other", ROOM)
        emit()
        mount.command("trace remove other")
        emit()
        mount.command("trace stop t")
        emit()
        finish(recorder)
    trace = babeltrace(out)
    # Time is that of the last clock tick, and nothing says which of two CPUs' events came first in one tick.
    steps = [seq for _, seq in sorted((event.ns, event["seq"]) for event in trace.named("frugal:step"))]
    assert steps == sorted(set(steps))
    assert len(trace.events) + trace.lost >= 22 * 101
    assert max(steps) == 22 * 100 - 1
    assert len(steps) > 100
