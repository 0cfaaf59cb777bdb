"""relayctl record and snapshot where sub-buffers that are being filled cannot be finished: nothing is lost unsaid."""

import re
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from babeltrace import read, read_if_any
from build import compile_c
from mounts import DEADLINE_S, wait_until
from reserving import N_RESERVATIONS, keep_all_claims, reserving
from tracing import RELAYCTL, Program, Served, Store, finish, recording, relayctl

from relayfs_fuse import native
from relayfs_fuse.reading.process import Process

CONFINED = Path(__file__).with_name("confined.c")
LAST = native.n_possible_cpus() - 1
FORBIDDEN = "this program may not run on that CPU"
RESERVED = "somebody keeps a part of it reserved"
HELD = "another program keeps its last sub-buffer from being finished"


def confined(*arguments: object) -> str:
    """Run relayctl where it may use CPU 0 alone; return what it said."""
    command = [compile_c([CONFINED]), "0", RELAYCTL, *arguments]
    done = subprocess.run(
        list(map(str, command)), stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def whose(app: Program) -> str:
    return f"relayctl: {app.name} (uid 0, pid {app.process.pid})"


def record_again(store: Store, out: Path) -> None:
    """Take what there is, without restraint."""
    with recording("t", "--store", store.path, "-o", out) as process:
        finish(process)


@pytest.mark.parametrize("lives", [True, False])
def test_events_of_a_cpu_where_the_recorder_may_not_run_are_left_for_another(store, run, out, lives):
    trace = store.create("t")
    app, near = run(trace, "app", cpu=LAST), run(trace, "near", cpu=0)
    app.write(100)
    near.write(100)
    if not lives:
        app.kill()
        near.kill()
    store.change(trace, is_started=False)
    said = confined("record", "t", "--store", store.path, "-o", out, "--until-stopped")
    left = 100 - len(read(out).events.get("app", []))
    assert left > 0
    assert f"{whose(app)}: {left} events in cpu{LAST} are not recorded, and are left there: {FORBIDDEN}\n" in said
    assert f", 0 events lost, {left} events not written\n" in said
    assert store.programs(trace) == sorted([app.name, near.name] if lives else [app.name])
    record_again(store, out)
    seen = read(out)
    assert (seen.events, seen.lost) == ({"app": list(range(100)), "near": list(range(100))}, 0)
    assert store.programs(trace) == (sorted([app.name, near.name]) if lives else [])


def test_all_that_was_written_is_recorded_however_much_it_is(store, run, out):
    """Also if its packets are checked, which is done in pieces."""
    trace = store.create("t", subbuf_size=1 << 20, n_subbufs=64)
    app, n = run(trace, "app"), 1_200_000
    assert app.write(n) == 0
    said = relayctl("record", "t", "--store", store.path, "-o", out, "--check", "all", "--duration", "0").stderr
    assert "not written" not in said
    count = ["babeltrace2", out, "--component=sink.utils.counter"]
    counted = subprocess.run(count, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
    assert re.search(rf"^ *{n} Event messages$", counted, re.MULTILINE), counted


def test_a_snapshot_says_what_it_cannot_finish(store, run, out):
    app = run(store.create("t"), "app", cpu=LAST)
    app.write(100)
    said = confined("snapshot", "t", "--store", store.path, "-o", out)
    assert f"relayctl: {app.name}: the last events in cpu{LAST} are not in it: {FORBIDDEN}\n" in said


def test_what_is_behind_somebodys_reservation_is_left_for_later(store, run, out):
    """Also if its program has ended: the buffer is not removed."""
    trace = store.create("t")
    app = run(trace, "app")
    app.write(10)
    with reserving(app):
        app.write(10)
        app.kill()
        with recording("t", "--store", store.path, "-o", out) as process:
            said = finish(process)
        left = 21 - len(read_if_any(out).events.get("app", []))
        assert f"{whose(app)}: {left} events in cpu0 are not recorded, and are left there: {RESERVED}\n" in said
        assert f", 0 events lost, {left} events not written\n" in said
    assert store.programs(trace) == [app.name]
    record_again(store, out)
    seen = read(out)
    # The reservation of who has died is an event that nobody will ever write.
    assert (seen.events, seen.lost) == ({"app": list(range(20))}, 1)
    assert store.programs(trace) == []


def test_what_somebody_reserves_of_a_living_programs_events_is_left_for_later(store, run, out):
    app = run(store.create("t"), "app")
    app.write(10)
    with reserving(app) as (_, n):
        with recording("t", "--store", store.path, "-o", out) as process:
            said = finish(process)
        left = n + 10 - len(read_if_any(out).events.get("app", []))
        assert f"{whose(app)}: {left} events in cpu0 are not recorded, and are left there: {RESERVED}\n" in said
    record_again(store, out)
    seen = read(out)
    # Whoever reserved it was killed.
    assert (seen.events, seen.lost) == ({"app": list(range(10))}, 1)


@pytest.mark.usefixtures("lockless")
def test_it_is_tried_for_a_while_where_somebody_is_at_work(store, run, out):
    app = run(store.create("t", subbuf_size=1 << 16), "app")
    app.write(10)
    with reserving(app, 1000) as (ends, n):
        assert N_RESERVATIONS - 2 <= n <= N_RESERVATIONS  # the program may keep one or two
        keep_all_claims(app)
        with recording("t", "--store", store.path, "-o", out) as process:
            said = finish(process)
        assert f"{whose(app)}: {n + 10} events in cpu0 are not recorded, and are left there: {RESERVED}\n" in said
        with closing(Process(str(app.directory))) as buffers:
            buffers.flush()
            assert buffers.unfinished == {0: RESERVED}
            timer = threading.Timer(0.3, ends.close)
            timer.start()
            buffers.flush(time.monotonic() + DEADLINE_S)
            timer.join()
            assert buffers.unfinished == {}


@pytest.mark.usefixtures("lockless")
def test_a_server_says_once_what_of_a_dead_program_it_cannot_finish(mount):
    """Nobody records: the events go, and it is said why."""
    mount.expect("cannot be read")
    mount.command("trace create t subbuf_size=64K\ntrace start t\n")
    served = Served(mount.store, mount.path, "t")
    with Program(served, served, "app") as app:
        app.write(10)
        with reserving(app, 1000) as (_, n):
            keep_all_claims(app)
            app.kill()
            wait_until(lambda: not app.directory.exists(), "what the dead program has left is removed")
            said = f"{app.name} has ended, and what it wrote last cannot be read: cpu0, with {n + 10} unread events"
            wait_until(lambda: f"{said}: {HELD}" in mount.error_log, lambda: f"{said}\n{mount.error_log}")
            assert mount.error_log.count("cannot be read") == 1
