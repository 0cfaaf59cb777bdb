"""States, the last values of events of RELAY_TRACE_STATE(): in snapshots, recordings and crash cards.

babeltrace2 is the judge.
"""

import json
import os
import stat
import subprocess
import sys
import time
import zlib
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import forking
import pytest
from babeltrace import Event, babeltrace
from build import compile_c
from making import Maker, making
from mounts import NOBODY, Mount, User, wait_until
from traced import Ledger, environment_of, relayctl, start_trace
from tracing import finish, recording
from traffic import some_cpu

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.reading.packet import Packet
from relayfs_fuse.reading.source import Source
from relayfs_fuse.reading.states import read_states
from relayfs_fuse.record import output
from relayfs_fuse.record import recording as recording_module
from relayfs_fuse.record.recorder import Options, Recorder
from relayfs_fuse.trace import State

pytestmark = pytest.mark.one_mount

SOURCE = Path(__file__).with_name("trace_states.c")
ROOM = "mode=overwrite subbuf_size=4K n_subbufs=2"
STATE_CPU = 0x7FFFFFFF
# So many events overwrite all that was before.
MANY = 10_000
N_KILLS = 5
# How exactly the time of a state is converted to that of a clock that counts ticks.
SKEW_NS = 10_000_000


def running(
    mount: Mount, *arguments: Path, user: int | None = None, **environment: str
) -> AbstractContextManager[Maker]:
    """Run trace_states.c, on one CPU, whose buffer then has all its events."""
    command = ["taskset", "-c", str(some_cpu()), compile_c([SOURCE]), *arguments]
    return making({**environment_of(mount), **environment}, user, command)


def directory_of(mount: Mount, program: Maker) -> Path:
    return mount.store / "t" / f"trace_states-{program.process.pid}"


def is_state(event: Event) -> bool:
    return event["cpu_id"] == STATE_CPU


def states_in(directory: Path) -> dict[int, str]:
    """Return the peer of each FD that the stream of states has."""
    found = list(filter(is_state, babeltrace(directory).named("states:connection")))
    assert len({event["fd"] for event in found}) == len(found)
    return {event["fd"]: event.fields["peer"].strip('"') for event in found}


def snapshot(mount: Mount, out: Path) -> dict[int, str]:
    done = relayctl(mount, "snapshot", "t", "-o", out)
    assert done.returncode == 0, done.stderr
    return states_in(out)


@pytest.fixture
def traced_mount(mount: Mount) -> Mount:
    """A mount in which other users' programs reach no file of the store, with the trace t."""
    mount.store.chmod(0o700)
    start_trace(mount, "t", ROOM)
    return mount


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_snapshot_begins_with_the_last_value_of_each_key(
    traced_mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    with running(traced_mount, user=user) as program:
        for line in ("set 1 a", "set 2 b", "set 1 c", "set 3 d", "clear 2", f"emit {MANY}"):
            program.ask(line)
        assert snapshot(traced_mount, tmp_path / "one") == {1: "c", 3: "d"}
        kept = traced_mount.path / ".traces/t/snapshots/one"
        kept.mkdir()
        assert states_in(kept) == {1: "c", 3: "d"}
        assert " state states:connection: " in relayctl(traced_mount, "view", kept).stdout.splitlines()[0]
        pid = program.process.pid
        seen = babeltrace(tmp_path / "one")
        assert {(event.pid, event["vtid"]) for event in seen.named("states:step")} == {(pid, pid)}
        assert [event["vtid"] for event in seen.named("states:connection")] == [pid, pid]
        status = (directory_of(traced_mount, program) / ".state").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (PERMS["OWN"], os.geteuid())
        program.ask("set 2 e")
        assert snapshot(traced_mount, tmp_path / "two") == {1: "c", 3: "d", 2: "e"}
        lines = relayctl(traced_mount, "view", tmp_path / "two").stdout.splitlines()
        assert [line.split(" ", 2)[2] for line in lines[:2]] == [
            'state states:connection: { fd = 1, peer = "c" }', 'state states:connection: { fd = 3, peer = "d" }'
        ]  # fmt: skip
        lines = relayctl(traced_mount, "export", tmp_path / "two", "--json").stdout.splitlines()
        assert json.loads(lines[0])["state"] is True
        assert "cpu" not in json.loads(lines[0])


def test_states_from_before_the_trace_are_in_it(mount: Mount, tmp_path: Path) -> None:
    with running(mount) as program:
        begin = time.time_ns()
        program.ask("set 1 before")
        end = time.time_ns()
        program.ask("set 2 before")
        start_trace(mount, "t", f"{ROOM} clock=tsc")
        program.ask("set 2 after")
        program.ask(f"emit {MANY}")
        assert snapshot(mount, tmp_path / "one") == {1: "before", 2: "after"}
        first, second = babeltrace(tmp_path / "one").named("states:connection")
        assert begin - SKEW_NS <= first.ns <= end + SKEW_NS
        assert first.ns < second.ns <= babeltrace(tmp_path / "one").named("states:step")[0].ns
        # What the rules leave out is not kept in the trace.
        mount.command("trace disable t states:connection")
        program.ask("set 3 left-out")
        assert snapshot(mount, tmp_path / "two") == {}
        mount.command("trace enable t states:connection")
        program.ask("emit 1")
        assert snapshot(mount, tmp_path / "three") == {1: "before", 2: "after", 3: "left-out"}


def test_early_events_have_their_states(mount: Mount, tmp_path: Path) -> None:
    with running(mount, RELAYFS_TRACE_EARLY="t", RELAYFS_STORE=str(mount.store)) as program:
        program.ask("set 1 early")
        program.ask("emit 3")
        start_trace(mount, "t", ROOM)
        wait_until(lambda: directory_of(mount, program).exists(), "the early events are in the trace")
        assert snapshot(mount, tmp_path / "one") == {1: "early"}
        program.ask("set 2 late")
        assert snapshot(mount, tmp_path / "two") == {1: "early", 2: "late"}


def test_more_states_than_there_are_places_are_counted_as_dropped(traced_mount: Mount, tmp_path: Path) -> None:
    n = native_trace.STATES
    with running(traced_mount) as program:
        for fd in range(n + 3):
            program.ask(f"set {fd} x")
        program.ask("set 3 again")
        program.ask(f"emit {MANY}")
        done = relayctl(traced_mount, "snapshot", "t", "-o", tmp_path / "one")
        assert done.returncode == 0, done.stderr
        assert states_in(tmp_path / "one") == {fd: "again" if fd == 3 else "x" for fd in range(3, n + 3)}
        lines = relayctl(traced_mount, "view", tmp_path / "one").stdout
        assert " state lost 3 events " in lines
        program.ask("long 3 2000")
        assert 3 not in snapshot(traced_mount, tmp_path / "two")
        assert directory_of(traced_mount, program).joinpath(".state").stat().st_size <= 2 * n * native_trace.STATE_BYTES


def test_a_child_of_fork_begins_with_the_states_of_its_parent(traced_mount: Mount, tmp_path: Path) -> None:
    with running(traced_mount) as program:
        program.ask("set 1 a")
        program.ask("fork")
        done = relayctl(traced_mount, "snapshot", "t", "-o", tmp_path / "one")
        assert done.returncode == 0, done.stderr
        named = babeltrace(tmp_path / "one").named("states:connection")
        found = {event.pid: event["fd"] for event in named if is_state(event)}
        assert len(found) == 2
        assert set(found.values()) == {1}


def test_each_directory_of_a_recording_begins_with_the_states(traced_mount: Mount, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(traced_mount) as program:
        program.ask("set 1 a")
        program.ask("set 2 b")
        program.ask(f"emit {MANY}")
        with recording("t", "-o", out, "--rotate-size", "1M", env=environment_of(traced_mount)) as process:
            wait_until((out / "0001").exists, "the first directory")
            program.ask("clear 1")
            program.ask("set 3 c")
            wait_until(lambda: program.ask("emit 2000") == [] and (out / "0002").exists(), "the second directory")
            program.ask("emit 1000")
            finish(process)
    assert states_in(out / "0001")[2] == "b"
    assert states_in(out / "0002") == {2: "b", 3: "c"}


LATE = """
import sys
from relayfs_fuse.trace import Event, State
step = Event("states", "step", {"seq": "u64"})
for seq in range(1000):
    step(seq)
print("written", flush=True)
input()
State("states", "late", {"key": "u32"})(7)
print("set", flush=True)
input()
"""


def test_metadata_has_the_events_of_states_whenever_the_recorder_dies(
    traced_mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state of a new event is set when the recorder is about to read the states; it ends when it has written them."""
    command = [sys.executable, "-c", LATE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with forking.start(command, env=environment_of(traced_mount), **pipes) as program:
        assert (program.stdin and program.stdout and program.stdout.readline()) == "written\n"

        def read_late(*arguments: Any) -> Packet | None:
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "set\n"
            return read_states(*arguments)

        def append(process: Any, cpu: int, *arguments: Any) -> bool:
            is_appended = whole_append(process, cpu, *arguments)
            if cpu == STATE_CPU:
                raise KeyboardInterrupt
            return is_appended

        whole_append = output._Process.append
        monkeypatch.setattr(recording_module, "read_states", read_late)
        monkeypatch.setattr(output._Process, "append", append)
        with closing(Source("t", str(traced_mount.store))) as source:
            to = output.DirectoryOutput(str(tmp_path / "out"), source.identity)
            with pytest.raises(KeyboardInterrupt):
                Recorder(source, to, Options(duration_s=0), print, lambda: None).run()
        program.kill()
    (event,) = filter(is_state, babeltrace(tmp_path / "out").named("states:late"))
    assert event["key"] == 7


@pytest.mark.one_mount(False)
def test_a_crash_card_has_the_states(traced_mount: Mount, tmp_path: Path) -> None:
    with running(traced_mount) as program:
        program.ask("set 7 db.example")
        program.ask(f"emit {MANY}")
        program.start("kill")
        program.process.wait()
    crashed = traced_mount.path / ".crashed"
    wait_until(lambda: list(crashed.iterdir()) != [], lambda: f"there is a card: {traced_mount.error_log}")
    (card,) = crashed.iterdir()
    assert states_in(card) == {7: "db.example"}
    assert 'state states:connection: { fd = 7, peer = "db.example" }' in (card / "events").read_text().splitlines()[0]


def test_a_process_that_is_killed_while_it_sets_a_state_leaves_the_last_one(
    traced_mount: Mount, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for n in range(N_KILLS):
        ledger.path.write_bytes(bytes(8))
        with running(traced_mount, ledger.path) as program:
            program.start("flat")
            ledger.wait(1000)
            directory = directory_of(traced_mount, program)
            program.kill()
        found = snapshot(traced_mount, tmp_path / f"out{n}")
        assert ledger.written <= int(found[1]) <= ledger.written + 1
        assert native_trace.trace_is_alive(str(directory)) is False
        native_trace.trace_remove(str(directory))


@pytest.mark.parametrize("what", ["noise", "torn", "torn-newer", "undeclared", "fields", "fifo", "truncated"])
def test_what_a_process_writes_in_the_place_of_states_harms_no_snapshot(
    traced_mount: Mount, tmp_path: Path, what: str
) -> None:
    with running(traced_mount) as program:
        for fd in range(3):
            program.ask(f"set {fd} x")
        if what == "torn-newer":
            program.ask("set 1 newer")
        path = directory_of(traced_mount, program) / ".state"
        data = bytearray(path.read_bytes())
        at = 2 * native_trace.STATE_BYTES
        expected = {0: "x", 2: "x"}
        if what == "noise":
            data[at : 2 * at] = os.urandom(at)
        elif what == "torn":
            data[at + 44] ^= 1
        elif what == "torn-newer":
            data[at + native_trace.STATE_BYTES + 44] ^= 1
            expected = dict.fromkeys(range(3), "x")
        elif what == "undeclared":
            data[at + 32 : at + 34] = (77).to_bytes(2, "little")
            seal(data, at)
        elif what == "fields":
            data[at + 34 : at + 36] = (5).to_bytes(2, "little")
            seal(data, at)
        elif what == "truncated":
            del data[at + 20 :]
            expected = {0: "x"}
        path.write_bytes(data)
        if what == "fifo":
            path.unlink()
            os.mkfifo(path)
            expected = {}
        assert snapshot(traced_mount, tmp_path / "one") == expected


def seal(data: bytearray, at: int) -> None:
    """Set the sum of a state's value."""
    length = int.from_bytes(data[at + 34 : at + 36], "little")
    data[at + 4 : at + 8] = zlib.adler32(data[at + 8 : at + 40 + length]).to_bytes(4, "little")


PYTHON = """
from relayfs_fuse.trace import Event, State, state
connection = State("states", "connection", {"fd": "u32", "peer": "string"})
connection(1, "a")
connection(2, peer="b")
connection.clear(1)
state("workers", 4)
state("workers", 5)
step = Event("states", "step", {"seq": "u64"})
for seq in range(10000):
    step(seq)
"""


def test_python_sets_states(traced_mount: Mount, tmp_path: Path) -> None:
    forking.run([sys.executable, "-c", PYTHON], env=environment_of(traced_mount), check=True)
    assert snapshot(traced_mount, tmp_path / "one") == {2: "b"}
    named = babeltrace(tmp_path / "one").named("python:state")
    (fields,) = [event.fields for event in named if is_state(event)]
    assert (fields["name"], fields["value"]) == ('"workers"', '"5"')


def test_a_state_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one field, its key"):
        State("states", "none", {})
    with pytest.raises(ValueError, match="fd=-1"):
        State("states", "checked", {"fd": "u32"})(-1)
