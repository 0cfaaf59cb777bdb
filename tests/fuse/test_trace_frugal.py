"""Programs that may do little are traced all the same, and come to no harm: small stacks, limits, seccomp."""

import subprocess
from pathlib import Path

import pytest
from conftest import DEADLINE_S, NOBODY, Mount, User
from traced import environment_of, program, record_stopped, start_trace

ROOM = "subbuf_size=128K n_subbufs=4"
STACK_MAX = 4096
BUFFERS = ["perprocess", "shared"]


def run(mount: Mount, *words: str, user: int | None = None) -> list[list[int]]:
    """Run trace_frugal.c; return the numbers of the lines it says."""
    done = subprocess.run(
        [program("trace_frugal"), *words], env=environment_of(mount), user=user, group=user,
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
