"""The recorder notes what the clocks of its machine show."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from babeltrace import read
from mounts import wait_until
from other_clock import OtherClock
from tracing import RELAYCTL, finish

from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import read_clocks
from relayfs_fuse.tracefiles.clock_pairs import Pair, unpack

HOUR_NS = 3600 * 10**9
MONO, TSC = CLOCKS["mono"].number, CLOCKS["tsc"].number
STALL_NS = 50 * 10**6


def pairs_in(out: Path) -> list[Pair]:
    path = out / ".clocks"
    return unpack(path.read_bytes()) if path.exists() else []


def steps_in(out: Path) -> list[tuple[Pair, Pair]]:
    return [(before, after) for before, after in pairwise(pairs_in(out)) if after.is_set_since(before)]


def test_a_recording_has_the_clocks_of_its_begin_and_end(store, run, record, out):
    app = run(store.create("t", clock=TSC), "app")
    before = read_clocks(TSC)
    with record() as process:
        wait_until(lambda: pairs_in(out), "the first line")
        app.write_patiently(100)
        finish(process)
    after = read_clocks(TSC)
    first, last = pairs_in(out)
    assert before.real_ns < first.real < last.real < after.real_ns
    assert before.mono_ns < first.mono < last.mono < after.mono_ns
    assert before.ticks < first.ticks < last.ticks < after.ticks
    assert not last.is_set_since(first)
    assert first.max_error is not None
    # Viewers find no trace in it.
    assert read(out).events == {"app": list(range(100))}


def test_a_recorder_that_goes_on_changes_no_line(store, run, record, out):
    run(store.create("t"), "app").write(10)
    with record() as process:
        finish(process)
    whole = (out / ".clocks").read_bytes()
    # As a recorder leaves it whose disk was full.
    (out / ".clocks").write_bytes(whole + b"real=17641850001234")
    with record() as process:
        finish(process)
    now = (out / ".clocks").read_bytes()
    assert now.startswith(whole + b"real=17641850001234\n")
    assert len(pairs_in(out)) == 4


def test_a_clock_that_is_set_is_noted_at_once(store, run, record, out, tmp_path):
    run(store.create("t"), "app").write(10)
    clock = OtherClock(tmp_path, max_error_us=7, est_error_us=3)
    with record(is_forked=False, env={**os.environ, **clock.environment}) as process:
        wait_until(lambda: pairs_in(out), "the first line")
        clock.set(HOUR_NS, max_error_us=None)
        wait_until(lambda: len(steps_in(out)) == 1, "the step")
        clock.set(0, max_error_us=9)
        wait_until(lambda: len(steps_in(out)) == 2, "the step back")
        finish(process)
    (before, ahead), (_, back) = steps_in(out)
    assert (before.max_error, before.est_error, before.is_synchronised) == (7000, 3000, True)
    assert abs(ahead.step_since(before) - HOUR_NS) < 10**6
    assert not ahead.is_synchronised
    # Not with the note of the next minute.
    assert ahead.mono - before.mono < 30 * 10**9
    assert abs(back.step_since(ahead) + HOUR_NS) < 10**6
    assert (back.max_error, back.is_synchronised) == (9000, True)


def test_an_archive_has_them_too(store, run, tmp_path):
    run(store.create("t"), "app").write(10)
    with (tmp_path / "t.tar").open("wb") as file:
        command = [RELAYCTL, "record", "t", "--store", store.path, "-o", "-", "--duration", "0"]
        subprocess.run(command, stdout=file, check=True)
    subprocess.run(["tar", "xf", tmp_path / "t.tar", "-C", tmp_path], check=True)
    assert len(pairs_in(tmp_path)) == 2


def test_a_reading_in_whose_middle_the_recorder_had_to_wait_is_not_noted(tmp_path):
    """How far a clock may be off contains how long it took to read it."""
    clock = OtherClock(tmp_path)
    clock.set(0, stall_ns=STALL_NS)
    program = (
        f"from relayfs_fuse.record.clock_watch import read_pair\nprint(*(read_pair({MONO}).width for _ in range(8)))"
    )
    run = [sys.executable, "-c", program]
    widths = subprocess.check_output(run, env={**os.environ, **clock.environment}, text=True).split()
    assert len(widths) == 8
    assert max(map(int, widths)) < STALL_NS
