"""Traced programs and recorders that are killed: what was written is there, nobody else is harmed."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from babeltrace import Trace, babeltrace
from build import compile_c, run_environment
from mounts import Mount, wait_until
from stress import is_long
from traced import Ledger, check_summary, environment_of, record_stopped, relayctl, start_trace, traced, wait_gone
from tracing import finish, recording
from traffic import some_cpu

pytestmark = pytest.mark.one_mount

KILLED, STUCK = (Path(__file__).with_name(name) for name in ("trace_kill.c", "trace_stuck.c"))
KILL_DEADLINE_S = 900.0
N_KILLS = 60 if is_long() else 6
CLOCKS = ["mono", "tsc"]


# --- at every instruction ---


def kill_everywhere(mount: Mount, name: str, test: str) -> list[tuple[int, int, int]]:
    """Run trace_kill.c; return of each child its pid, what it has surely written, and whether one more was begun."""
    done = subprocess.run(
        [compile_c([KILLED]), test, mount.store / name],
        env={**run_environment(), **environment_of(mount)},
        capture_output=True, text=True, timeout=KILL_DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert sum(inside for _, _, inside in killed) >= 10
    return [(pid, written, inside) for pid, written, inside in killed]


def check_killed(trace: Trace, killed: list[tuple[int, int, int]]) -> None:
    """All events up to the kill are there; at most the one in progress is missing, and then it may be said."""
    seen = trace.by_pid()
    for pid, written, inside in killed:
        assert seen[pid] in [list(range(written + more)) for more in range(inside + 1)], (pid, written, inside)
    assert trace.lost <= sum(inside for _, _, inside in killed)
    assert sum(map(len, seen.values())) + trace.lost <= sum(written + inside for _, written, inside in killed)


@pytest.mark.stress
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("place", ["in_a_sub_buffer", "at_the_end_of_a_sub_buffer"])
def test_a_program_is_killed_at_every_instruction(mount: Mount, tmp_path: Path, place: str, clock: str) -> None:
    start_trace(mount, "t", f"subbuf_size=4K n_subbufs=4 clock={clock}")
    killed = kill_everywhere(mount, "t", place)
    check_killed(record_stopped(mount, "t", tmp_path / "out"), killed)


@pytest.mark.stress
def test_a_flight_recorder_is_killed_at_every_instruction(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=4 mode=overwrite")
    killed = kill_everywhere(mount, "t", "over_the_oldest_sub_buffer")
    trace = record_stopped(mount, "t", tmp_path / "out")
    seen = trace.by_pid()
    for pid, written, inside in killed:
        assert seen[pid], (pid, written, inside)
        last = seen[pid][-1] + 1
        assert seen[pid] == list(range(seen[pid][0], last))
        assert written <= last <= written + inside
        # A sub-buffer is given up for the next, and for each that a stop and a recorder finish.
        assert seen[pid][0] <= 3 * 54


@pytest.mark.stress
@pytest.mark.parametrize("buffers", ["peruser", "shared"])
def test_the_next_program_goes_on_in_the_buffer_of_one_that_was_killed(
    mount: Mount, tmp_path: Path, buffers: str
) -> None:
    start_trace(mount, "t", f"subbuf_size=16K n_subbufs=64 buffers={buffers}")
    killed = kill_everywhere(mount, "t", "among_others_of_the_user")
    trace = record_stopped(mount, "t", tmp_path / "out")
    check_killed(trace, killed)
    # Each event of the second one arrives.
    assert [event["pid"] for event in trace.named("judge:next")] == [pid for pid, _, _ in killed]


@pytest.mark.stress
def test_a_program_is_killed_while_its_buffers_are_made(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=4")
    killed = kill_everywhere(mount, "t", "while_buffers_are_made")
    with traced(mount) as other:
        other.ask("emit 5")
        pid = other.process.pid
    trace = record_stopped(mount, "t", tmp_path / "out")
    seen = trace.by_pid()
    assert seen.pop(pid) == list(range(5))
    for killed_pid, written, inside in killed:
        assert seen.get(killed_pid, []) in [list(range(written + more)) for more in range(inside + 1)]
    mount.command("trace remove t")
    assert not (mount.store / "t").exists()


# --- at random ---


@pytest.mark.parametrize("buffers", ["perprocess", "peruser"])
@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
def test_programs_are_killed_at_full_speed(mount: Mount, tmp_path: Path, mode: str, buffers: str) -> None:
    chance = random.Random(1)
    written: dict[int, int] = {}
    start_trace(mount, "t", f"subbuf_size=16K n_subbufs=8 mode={mode} buffers={buffers}")
    for number in range(N_KILLS):
        ledger = Ledger(tmp_path / f"ledger{number}")
        with traced(mount, ledger.path) as victim:
            victim.start("flood 1000 0")
            ledger.wait(chance.randrange(1, 20000))
            pid = victim.process.pid
            victim.kill()
        written[pid] = ledger.written
    trace = record_stopped(mount, "t", tmp_path / "out")
    seen = trace.by_pid()
    assert set(seen) <= set(written)
    for pid, numbers in seen.items():
        assert numbers == sorted(set(numbers))
        assert numbers[-1] <= written[pid]
        if mode == "overwrite" and (buffers == "perprocess" or pid == list(written)[-1]):
            # The unfinished sub-buffer arrives, too: up to the one that was being written.
            assert numbers[-1] >= written[pid] - 1
    total, found = sum(written.values()), sum(map(len, seen.values()))
    assert total <= found + trace.lost <= total + N_KILLS, (total, found, trace.lost)


def test_what_a_killed_program_wrote_is_read_at_once_and_its_directory_goes(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t")
    ledger = Ledger(tmp_path / "ledger")
    with recording("t", "-m", mount.path, "-o", tmp_path / "out") as recorder:
        with traced(mount, ledger.path) as victim:
            victim.ask("emit 500")
            directory = mount.path / "t" / f"traced-{victim.process.pid}"
            wait_until(directory.exists, "the directory is there")
            victim.kill()
        wait_gone(directory)
        trace = babeltrace(tmp_path / "out")
        assert (trace.numbers(), trace.lost) == (list(range(500)), 0)
        check_summary(finish(recorder))
    assert babeltrace(tmp_path / "out").numbers() == list(range(500))


def test_stopping_and_removing_never_wait_for_a_program(mount: Mount) -> None:
    start_trace(mount, "t")
    with traced(mount) as program, traced(mount) as dead:
        program.ask("emit 10")
        dead.ask("emit 10")
        dead.kill()
        program.process.send_signal(signal.SIGSTOP)
        mount.command("trace stop t")
        mount.command("trace remove t")
        assert "t" not in os.listdir(mount.path)
        program.process.send_signal(signal.SIGCONT)
        program.ask("emit 10")


@pytest.mark.one_mount(False)
def test_a_server_ends_while_directories_come_and_go(mount: Mount) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=4")
    with subprocess.Popen(
        [compile_c([KILLED]), "in_a_sub_buffer", mount.store / "t"],
        env={**run_environment(), **environment_of(mount)}, stdout=subprocess.PIPE, text=True,
    ) as killer:  # fmt: skip
        assert killer.stdout is not None
        # As soon as there are many: showing them takes longer than making them.
        for _ in range(20):
            killer.stdout.readline()
        assert mount.stop() == 0
        killer.stdout.read()
    assert killer.returncode == 0


# --- recorders ---


@pytest.fixture
def flooded(mount: Mount, tmp_path: Path) -> Iterator[Ledger]:
    """A trace that is written to, slowly enough to lose nothing while nobody records for a while."""
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=512")
    ledger = Ledger(tmp_path / "ledger")
    # On one CPU: what it wrote on another one is seen when that one's sub-buffer is finished.
    with traced(mount, ledger.path, cpus=[some_cpu()]) as program:
        program.start("flood 5 1000")
        ledger.wait(100)
        yield ledger


def test_a_recorder_that_is_killed_and_started_again_neither_loses_nor_repeats(
    mount: Mount, tmp_path: Path, flooded: Ledger
) -> None:
    chance = random.Random(2)
    out = tmp_path / "out"
    for _ in range(N_KILLS):
        with recording("t", "-m", mount.path, "-o", out):
            flooded.wait(flooded.written + chance.randrange(500, 5000))
    trace = record_stopped(mount, "t", out)
    written = flooded.written
    seen = trace.numbers()
    assert trace.lost == 0
    assert seen == list(range(len(seen)))
    assert written > 1000
    assert len(seen) > 1000


def test_babeltrace_reads_a_recording_at_every_moment(mount: Mount, tmp_path: Path, flooded: Ledger) -> None:
    out = tmp_path / "out"
    seen = 0
    with recording("t", "-m", mount.path, "-o", out) as recorder:
        wait_until(lambda: list(out.rglob("metadata")), "the recorder has begun")
        for _ in range(N_KILLS):
            flooded.wait(flooded.written + 500)
            numbers = babeltrace(out).numbers()
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= seen
            seen = len(numbers)
        check_summary(finish(recorder))
    numbers = babeltrace(out).numbers()
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= seen > 0


def test_a_snapshot_is_taken_while_programs_write(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4 mode=overwrite")
    ledger = Ledger(tmp_path / "ledger")
    with traced(mount, ledger.path) as program:
        program.start("flood 100 10")
        for number in range(10):
            ledger.wait(ledger.written + 2000)
            before = ledger.written
            done = relayctl(mount, "snapshot", "t", "-o", tmp_path / f"out{number}")
            assert done.returncode == 0, done.stderr
            check_summary(done.stderr)
            trace = babeltrace(tmp_path / f"out{number}")
            seen = trace.numbers()
            assert seen == sorted(set(seen))
            assert seen[-1] >= before - 1


# --- stopped, not killed ---


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize("buffers", ["peruser", "shared"])
def test_a_program_that_is_stopped_while_it_begins_a_sub_buffer_delays_nobody(
    mount: Mount, tmp_path: Path, buffers: str, mode: str
) -> None:
    start_trace(mount, "t", f"subbuf_size=4K n_subbufs=8 buffers={buffers} mode={mode}")
    done = subprocess.run(
        [compile_c([STUCK]), "while_it_begins_a_sub_buffer", mount.store / "t"],
        env={**run_environment(), **environment_of(mount)},
        capture_output=True, text=True, timeout=KILL_DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pid, tried = map(int, done.stdout.split())
    trace = record_stopped(mount, "t", tmp_path / "out")
    seen = trace.by_pid()[pid]
    assert seen[-9:] == list(range(tried - 9, tried))
    assert trace.lost == tried - len(seen)
