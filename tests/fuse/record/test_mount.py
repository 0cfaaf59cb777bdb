"""relayctl record and snapshot of a trace in a mount, whose server lives, dies, and removes what the dead have left."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from babeltrace import read
from mounts import DEADLINE_S, Mount, User, wait_until
from traced import processes
from tracing import EVENT_BYTES, RELAYCTL, Program, Served, finish, recorded, recording, relayctl

from relayfs_fuse.reading.packet import HEAD_BYTES

pytestmark = pytest.mark.one_mount


@pytest.fixture
def served(mount: Mount) -> Served:
    """The mount's store, with a trace t."""
    served = Served(mount.store, mount.path)
    return served.create(mount, "t")


@pytest.fixture
def run(served: Served) -> Iterator[Callable[..., Program]]:
    """Start programs that write to t."""
    programs: list[Program] = []

    def run(*arguments: object, **options: object) -> Program:
        programs.append(Program(served, served, *arguments, **options))
        return programs[-1]

    yield run
    for program in programs:
        program.__exit__()


def test_what_is_recorded_of_the_dead_goes_from_the_mount(mount, run, out):
    with recording("t", "-m", mount.path, "-o", out) as process:
        one, two = run("one"), run("two")
        refused = one.write_patiently(3000) + two.write_patiently(3000)
        wait_until(lambda: processes(mount.path / "t") == [one.name, two.name], "both are shown")
        one.kill()
        wait_until(lambda: processes(mount.path / "t") == [two.name], "the removal of what the dead program has left")
        finish(process)
    seen = read(out)
    assert seen.events == {"one": list(range(3000)), "two": list(range(3000))}
    assert seen.lost == refused


def test_it_ends_with_the_trace(mount, run, out):
    program = run("app")
    with recording("t", "-o", out, "--until-stopped", env={**os.environ, "RELAYFS": str(mount.path)}) as process:
        program.write(100)
        mount.command("trace stop t\n")
        assert process.wait(DEADLINE_S) == 0
        assert read(out).events == {"app": list(range(100))}
    mount.command("trace start t\n")
    with recording("t", "-m", mount.path, "-o", out) as process:
        program.write(100)
        mount.command("trace stop t\n")
        mount.command("trace remove t\n")
        assert process.wait(DEADLINE_S) == 0
    assert read(out).events == {"app": list(range(200))}


@pytest.mark.parametrize("ends", [True, False])
def test_a_trace_is_written_to_disk_before_it_goes(mount, run, out, ends):
    """Also what a program wrote that has just ended, and whose sub-buffers are not full."""
    with recording("t", "-m", mount.path, "-o", out) as process:
        programs = [run(f"app{i}") for i in range(5)]
        for program in programs:
            program.write(170)
            if ends:
                program.end()
        mount.command("trace remove t\n")
        # It has been waited for: all is there at once.
        assert read(out).events == {f"app{i}": list(range(170)) for i in range(5)}
        said = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 0
    assert f"of 5 processes to {out}, 0 events lost\n" in said
    assert "lost" not in mount.error_log
    assert not list(mount.store.glob(".removed-*"))


# --- programs that write little ---


def streams_of(directory: Path) -> dict[str, bytes]:
    """Return the little that a process's streams hold, without the room behind it."""
    found = {}
    for path in directory.glob("cpu*"):
        with path.open("rb") as file:
            found[path.name] = file.read(1 << 16).rstrip(b"\0")
    return found


@pytest.fixture
def little(served: Served, mount: Mount) -> Callable[[str], Served]:
    """Make another trace: little(OPTIONS)."""

    def make(options: str) -> Served:
        return Served(served.path, served.default_mount).create(mount, "little", options)

    return make


def test_a_program_that_writes_little_is_recorded_soon(mount, run, out):
    program = run("app")
    with recording("t", "-m", mount.path, "-o", out) as process:
        for n in (5, 10):
            program.write(5)
            recorded(out, n, "app")
        said = finish(process)
    # Two, unless a flush happens to come between two of the events.
    packets = re.search(r"in (\d+) packets of 1 processes", said)
    assert packets
    assert 2 <= int(packets[1]) <= 10


def test_a_program_that_writes_nothing_is_not_flushed(served, mount, little, out):
    trace = little("flush_interval=20")
    with (
        Program(served, trace, "app") as program,
        Program(served, trace, "other") as other,
        recording("little", "-m", mount.path, "-o", out) as process,
    ):
        program.write(5)
        recorded(out, 5, "app")
        written = streams_of(out / program.name)
        for n in range(1, 6):
            other.write(1)
            recorded(out, n, "other")  # so there was a flush
        assert streams_of(out / program.name) == written
        finish(process)


def test_without_flush_interval_only_full_packets_are_recorded(served, mount, little, out):
    trace = little("flush_interval=0")
    with Program(served, trace, "app") as program, recording("little", "-m", mount.path, "-o", out) as process:
        program.write(5)
        time.sleep(2)  # twice as long as by default
        assert not list(out.glob("app*"))
        finish(process)
    assert read(out).events == {"app": list(range(5))}


def test_a_program_that_writes_little_is_seen_through_the_mount(served, mount, run):
    program = run("app")
    program.write(5)
    wait_until(lambda: processes(mount.path / "t") == [program.name], "it is shown")
    with (served.default_mount / "t" / program.name / "cpu0").open("rb") as file:
        n_bytes = len(file.read())
        assert n_bytes == HEAD_BYTES + 5 * EVENT_BYTES  # to open it was enough
        program.write(7)
        follower = subprocess.Popen(["tail", "-c", "+1", "-f", file.name], stdout=subprocess.PIPE)
        try:
            assert follower.stdout is not None
            assert len(follower.stdout.read(HEAD_BYTES + 7 * EVENT_BYTES)) == HEAD_BYTES + 7 * EVENT_BYTES
        finally:
            follower.kill()
            follower.communicate()


@pytest.mark.one_mount(False)
def test_what_a_recorder_does_not_write_of_a_removed_trace_is_said(mount, run, out):
    with recording("t", "-m", mount.path, "-o", out) as process:
        mount.expect("may be lost")
        program = run("app")
        program.write(300)
        recorded(out, 300, "app")
        # The recorder consumes what it has written.
        wait_until(lambda: mount.shown(f"t/{program.name}/cpu", "read_records") == "300", "all events are consumed")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T", "the recorder has stopped")
        program.write(100)
        mount.command("trace remove t\n")
        said = mount.error_log
        assert f"its recorder (pid {process.pid} of " in said
        assert f"did not end within 10 s; 100 events of {program.name} were unread, and may be lost" in said
        process.send_signal(signal.SIGCONT)
        summary = process.communicate(timeout=DEADLINE_S)[1]
        assert process.returncode == 0
    # It goes on with what it has mapped, as far as sub-buffers were finished.
    seen = read(out)
    events = seen.events["app"]
    assert events == list(range(len(events)))
    assert 300 <= len(events) < 400
    assert seen.lost == 400 - len(events)
    assert f"{seen.lost} events in cpu0 are lost: it was removed before they could be read\n" in summary
    assert f", {seen.lost} events lost\n" in summary


def test_a_dead_recorder_is_not_waited_for(mount, run, out):
    with recording("t", "-m", mount.path, "-o", out) as process:
        run("app").write(100)
        process.kill()
        process.wait()
    mount.command("trace remove t\n")
    assert "recorder" not in mount.error_log


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.one_mount(False)
def test_a_server_that_dies_is_not_missed(mount, run, out):
    with recording("t", "-m", mount.path, "-o", out) as process:
        program = run("app")
        program.write_patiently(1000)
        mount.kill()
        program.write_patiently(1000)
        later = run("later")
        later.write_patiently(1000)
        recorded(out, 1800, "app")
        mount.start()
        wait_until(lambda: processes(mount.path / "t") == sorted([program.name, later.name]), "the same programs")
        program.write_patiently(1000)
        finish(process)
    assert read(out).events == {"app": list(range(3000)), "later": list(range(1000))}


def test_programs_of_other_users_are_recorded_by_root(mount, run, out, unprivileged):
    with recording("t", "-m", mount.path, "-o", out) as process:
        program, ours = run("theirs", user=unprivileged.uid), run("ours")
        refused = program.write_patiently(2000) + ours.write_patiently(2000)
        finish(process)
    seen = read(out)
    assert seen.events == {"theirs": list(range(2000)), "ours": list(range(2000))}
    assert seen.lost == refused


def test_who_may_not_read_the_buffers_is_told(mount, run, unprivileged: User):
    run("ours").write(10)
    done = unprivileged.run(RELAYCTL, "snapshot", "t", "-m", mount.path, "-o", "/nowhere")
    assert (done.returncode, done.stderr) == (1, f"relayctl: {mount.store}/.traces: Permission denied\n")


@pytest.mark.stress
@pytest.mark.one_mount(False)
def test_many_short_programs_are_recorded(mount, run, out):
    """Each is a process, makes its buffers, writes a little, and is gone."""
    n = 2000 if os.environ.get("RELAYFS_STRESS") == "long" else 150
    descriptors = len(os.listdir(f"/proc/{mount.server}/fd"))
    with recording("t", "-m", mount.path, "-o", out) as process:
        for i in range(n):
            program = run("brief")
            program.write(i % 100)
            program.end()
        wait_until(lambda: processes(mount.path / "t") == [], "the removal of what they have left")
        finish(process)
    seen = read(out).events["brief"]
    assert len(seen) == sum(i % 100 for i in range(n))
    assert len(os.listdir(f"/proc/{mount.server}/fd")) <= descriptors + 2


def test_traces_of_the_mount_are_listed(mount, run):
    run("app").write(10)
    done = relayctl("stat", "t", "-m", mount.path)
    assert (done.returncode, done.stderr) == (0, "")
    name, kind, *_, state = done.stdout.split()
    assert (name, kind, done.stdout.split()[5], state) == ("t", "trace", "10", "started")
