"""relayctl events: what running programs declare, whether or not a trace takes it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from build import ROOT, compile_c
from making import Maker
from mounts import DEADLINE_S, NOBODY, Mount, tmpfs_directory, wait_until
from traced import environment_of, relayctl, start_trace, traced
from traced import program as traced_program
from tracing import RELAYCTL

pytestmark = pytest.mark.one_mount

HOSTILE = Path(__file__).with_name("hostile_lists.c")
# Of the hostile programs; each has its own.
FIRST_USER = 60_100
FORMS, STRUCTS = ROOT / "tests/fuse/traces/trace_forms.c", ROOT / "tests/fuse/traces/trace_structs.c"
LIBRARY = ROOT / "tests/fuse/traces/traced_library.c"
OF_TRACED = ["judge:after", "judge:before", "judge:step", "long:text", "other:step", "test:step"]
DECLARES = """
from enum import IntEnum
from relayfs_fuse.trace import Event
class Color(IntEnum):
    RED = 1
    BLUE = -2
tick = Event("py", "tick", {"n": "u32[3]", "color": Color, "at": {"x": "i8", "to": {"y": "string"}}}, level="warning")
print("ready", flush=True)
input()
"""
# Serves files of zeros, each of which takes so many seconds to read.
SLOW = """
import os, stat, sys, pyfuse3, trio
class Slow(pyfuse3.Operations):
    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_size = inode, 4096
        entry.st_mode = (stat.S_IFDIR if inode == pyfuse3.ROOT_INODE else stat.S_IFREG) | 0o755
        return entry
    async def lookup(self, parent, name, ctx=None):
        return await self.getattr(int(name))
    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode)
    async def read(self, fh, offset, size):
        await trio.sleep(float(sys.argv[2]))
        return bytes(size)
pyfuse3.init(Slow(), sys.argv[1], {"fsname=slow", "allow_other"})
print("ready", flush=True)
trio.run(pyfuse3.main)
"""
KINDS = [
    "circle", "nulls", "endless", "unterminated", "fields", "backwards", "forms", "nowhere", "name", "magic", "dots",
    "deep", "split", "between",
]  # fmt: skip


def events(mount: Mount, *words: str) -> dict[str, dict[str, Any]]:
    done = relayctl(mount, "events", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found = listed(done)
    # Other tests run programs that nobody can read.
    assert [one for one in found["unreadable"] if one["program"] == "traced"] == []
    return {event["name"]: event for event in found["events"]}


def listed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what was printed, without the events of this process: other tests declare some, and it finds the mount."""
    found: dict[str, Any] = json.loads(done.stdout)
    for event in found["events"]:
        event["programs"] = [program for program in event["programs"] if program["pid"] != os.getpid()]
    found["events"] = [event for event in found["events"] if event["programs"]]
    return found


def pids(event: dict[str, Any]) -> list[int]:
    return [program["pid"] for program in event["programs"]]


@contextmanager
def running(mount: Mount, *command: object, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a program, wait for its first line; it ends when nobody writes to it any more."""
    with forking.start(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment_of(mount),
        user=user, group=user, extra_groups=None if user is None else [], cwd="/",
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@contextmanager
def waiting(mount: Mount, user: int | None = None) -> Iterator[Maker]:
    """Start traced.c, and wait until its tracepoints are there."""
    with traced(mount, user=user) as program:
        program.ask("emit 0")
        yield program


@contextmanager
def counting(mount: Mount, buffers: list[Path], *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start counting, until finish_counting(); wait until these directories of programs in the store are read."""
    command = [RELAYCTL, "events", "--count", "1000000", *words]
    with forking.start(
        command, env=environment_of(mount), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            maps = Path(f"/proc/{process.pid}/maps")
            wait_until(lambda: all(f"{path}/cpu/mem" in maps.read_text() for path in buffers), "buffers are read")
            yield process
        finally:
            process.kill()


def finish_counting(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, said)


def test_events_are_listed_before_a_trace_takes_them(mount):
    with waiting(mount) as one, waiting(mount) as other:
        found = events(mount)
        assert list(found) == OF_TRACED
        assert all(pids(event) == sorted([one.process.pid, other.process.pid]) for event in found.values())
        assert all(event["traces"] == [] for event in found.values())
        step = found["judge:step"]
        assert step["file"].endswith("traced.c")
        assert "RELAY_TRACE_EVENT(judge, step" in Path(step["file"]).read_text().splitlines()[step["line"] - 1]
        assert step["fields"] == [
            {"name": "seq", "type": "u64"}, {"name": "who", "type": "u32"}, {"name": "text", "type": "string"},
        ]  # fmt: skip
        assert step["programs"][0] == {"program": "traced", "pid": min(pids(step)), "uid": 0}


def test_traces_that_take_an_event_are_named(mount):
    start_trace(mount, "steps")
    mount.command("trace enable steps *:step")
    mount.command("trace disable steps other:*")
    start_trace(mount, "all")
    start_trace(mount, "foreign", "filter=uid:65534")
    mount.command("trace create stopped")
    try:
        with waiting(mount) as ours, waiting(mount, NOBODY) as theirs:
            found = events(mount)
            assert {name: event["traces"] for name, event in found.items()} == {
                name: ["all", "foreign", *(["steps"] if name in {"judge:step", "test:step"} else [])]
                for name in OF_TRACED
            }
            assert sorted(pids(found["test:step"])) == sorted([ours.process.pid, theirs.process.pid])
    finally:
        for name in ("steps", "all", "foreign", "stopped"):
            mount.command(f"trace remove {name}")


def test_events_are_counted_while_they_are_written(mount):
    """Those of before are not; those of a program that has ended are; two traces do not count one event twice."""
    for command in (
        "create most", "enable most *:step", "disable most other:step", "start most", "create some",
        "enable some test:step if seq < 100", "enable some judge:before", "start some",
    ):  # fmt: skip
        mount.command(f"trace {command}")
    try:
        with waiting(mount) as one, waiting(mount) as other:
            for program in (one, other):
                program.ask("step 7")
            buffers = [mount.store / trace / f"traced-{one.process.pid}" for trace in ("most", "some")]
            with counting(mount, [*buffers, mount.store / "most" / f"traced-{other.process.pid}"], "--json") as process:
                one.ask("step 1000")
                other.ask("step 234")
                one.ask("other 50")
                other.ask("emit 10")
                subprocess.run([traced_program("traced"), "--steps", "5"], env=environment_of(mount), check=True)
                done = finish_counting(process)
        assert (done.returncode, done.stderr) == (0, "")
        found = {event["name"]: (event["count"], event["traces"]) for event in listed(done)["events"]}
        assert found == {
            "judge:after": (None, []), "judge:before": (0, ["some"]), "judge:step": (10, ["most"]),
            "long:text": (None, []), "other:step": (None, []), "test:step": (1239, ["most", "some"]),
        }  # fmt: skip
    finally:
        for name in ("most", "some"):
            mount.command(f"trace remove {name}")


def test_what_is_lost_while_events_are_counted_is_said(mount):
    start_trace(mount, "full", "mode=no-overwrite subbuf_size=4K n_subbufs=2")
    try:
        with waiting(mount) as program:
            program.ask("step 1")
            with counting(mount, [mount.store / "full" / f"traced-{program.process.pid}"], "test:*") as process:
                program.ask("step 4000")
                program.ask("step 1000")
                done = finish_counting(process)
        said = re.fullmatch(
            r"relayctl: full: (\d+) events were lost meanwhile, so that counts may be too low\n", done.stderr
        )
        assert said, done.stderr
        assert done.stdout.split()[:4] == ["test:step", "-", "full", str(5000 - int(said[1]))]
        assert done.returncode == 0
    finally:
        mount.command("trace remove full")


def test_counting_needs_a_trace_and_seconds(mount):
    with waiting(mount):
        done = relayctl(mount, "events", "--count", "1000000", "test:*")
    assert done.stderr == "relayctl: no trace is started, so that nothing is counted\n"
    assert done.stdout.split()[:4] == ["test:step", "-", "-", "-"]
    for value, why in (("0", "0 is not in the range 1<=x<=1000000."), ("nan", "'nan' is not a valid integer range.")):
        done = relayctl(mount, "events", "--count", value)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"Invalid value for '--count': {why}\n")


def test_all_forms_of_fields_are_named_as_they_are_declared(mount, tmp_path):
    with ExitStack() as stack:
        for path in (FORMS, STRUCTS):
            source = tmp_path / path.name
            source.write_text(f"""
                #define main traced_main
                #include "{path}"
                #include <stdio.h>
                #undef main
                int main(void) {{ puts("ready"); fflush(stdout); return getchar(); }}
            """)
            stack.enter_context(running(mount, compile_c([source], source.with_suffix(""))))
        stack.enter_context(running(mount, sys.executable, "-c", DECLARES))
        found = events(mount)
    types = {name: [field["type"] for field in event["fields"]] for name, event in found.items()}
    fields = {name: [(one["name"], one["type"]) for one in event["fields"]] for name, event in found.items()}
    assert types["forms:all"][:4] == ["u8{IDLE=0,BUSY=7,int=255}", "u16[2]", "string", "i64[]"]
    assert types["forms:plain"] == ["u32"]
    assert types["py:tick"] == ["u32[3]", "i32{RED=1,BLUE=-2}", "i8", "string"]
    assert fields["py:tick"][2:] == [("at.x", "i8"), ("at.to.y", "string")]
    assert fields["structs:click"] == [("id", "u32"), ("at.x", "i32"), ("at.y", "i32"), ("last", "u8")]
    assert fields["structs:all"][:4] == [
        ("state", "i8{IDLE=-1}"), ("request.path", "string"), ("request.name", "string"),
        ("request.state", "u8{IDLE=0,BUSY=7}"),
    ]  # fmt: skip
    assert fields["structs:deepest"] == [("in.in.in.in.in.in.in.in.n", "u8"), ("n", "u8")]
    assert found["py:tick"]["level"] == "warning"


def test_events_of_a_library_are_listed_while_it_is_loaded(mount):
    library = compile_c([LIBRARY], None, "", "-shared", "-fPIC")
    code = f"""
import _ctypes, ctypes
library = ctypes.CDLL({str(library)!r})
print("ready", flush=True)
input()
_ctypes.dlclose(library._handle)
print("unloaded", flush=True)
input()
"""
    with running(mount, sys.executable, "-c", code) as program:
        assert pids(events(mount)["library:loaded"]) == [program.pid]
        assert program.stdin
        assert program.stdout
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "unloaded\n"
        done = relayctl(mount, "events", "library:*")
        assert (done.returncode, done.stdout) == (3, "")


def test_lines_name_a_few_programs_and_patterns_choose(mount):
    with waiting(mount), waiting(mount), waiting(mount), waiting(mount):
        done = relayctl(mount, "events", "test:*", "*:text")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = [line.split() for line in done.stdout.splitlines()]
    assert [first[0], second[0]] == ["long:text", "test:step"]
    assert first[1:3] == ["-", "-"]
    assert first[3].count("traced-") == 3
    assert first[3].endswith(",and_1_more")
    assert first[-3:] == ["n:u32", "text:string", "after:u32"]


def test_what_nothing_matches_is_said(mount, store):
    for words, what in (
        (["--store", str(store.path)], "no running program has an event"),
        (["no:*"], "no running program has an event whose name matches"),
    ):
        done = relayctl(mount, "events", *words)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", f"relayctl: {what}\n")


def test_other_users_see_their_own_programs(mount):
    with waiting(mount), waiting(mount, NOBODY) as theirs:
        done = forking.run(
            [RELAYCTL, "events", "--json"], env=environment_of(mount), user=NOBODY, group=NOBODY, extra_groups=[],
            capture_output=True, text=True, check=False, timeout=DEADLINE_S, cwd="/",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert all(pids(event) == [theirs.process.pid] for event in listed(done)["events"])
        assert len(pids(events(mount)["test:step"])) == 2


def test_a_store_without_a_server_has_running_programs_too(mount):
    with waiting(mount) as program:
        done = relayctl(mount, "events", "--json", "--store", str(mount.store))
        assert pids(listed(done)["events"][0]) == [program.process.pid]


def test_lists_of_anything_harm_nobody(mount):
    """One of the honest programs is listed all the same, and the command ends.

    Each hostile one is of a user of its own, because all of one user are read for 5 seconds, too few on a busy machine.
    """
    program, control = compile_c([HOSTILE]), mount.path / ".traces/control"
    commands = [[kind] for kind in KINDS] + [["random", str(seed)] for seed in range(10)]
    with waiting(mount) as honest, ExitStack() as stack:
        hostile = [
            stack.enter_context(running(mount, program, control, *words, user=FIRST_USER + number))
            for number, words in enumerate(commands)
        ]
        done = relayctl(mount, "events", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = listed(done)
    kinds = {process.pid: words[0] for process, words in zip(hostile, commands, strict=True)}
    by_name = {event["name"]: [kinds[pid] for pid in pids(event) if pid in kinds] for event in found["events"]}
    # Events that are not valid are left out, and those behind them are not.
    assert by_name == {
        "hostile:one": ["name", "between"],
        "hostile:two": ["between"],
        **{name: [] for name in OF_TRACED},
    }
    assert all(honest.process.pid in pids(event) for event in found["events"] if event["name"] in OF_TRACED)
    assert {kinds[one["pid"]]: one["reason"] for one in found["unreadable"]} == {
        "endless": "File too large", "magic": "it has another version of librelayfs",
    }  # fmt: skip


@contextmanager
def slow_memory(mount: Mount, seconds: float, n: int, user: int | None = None) -> Iterator[list[int]]:
    """Start programs whose memory takes so long to read, for root too; they are those with these pids."""
    program, control = compile_c([HOSTILE]), mount.path / ".traces/control"
    with ExitStack() as stack:
        place = stack.enter_context(tmpfs_directory())
        stack.enter_context(running(mount, sys.executable, "-c", SLOW, place, seconds))
        stack.callback(subprocess.run, ["umount", "-l", place], check=True)
        commands = [[program, control, "file", place / str(one)] for one in range(2, n + 2)]
        yield [stack.enter_context(running(mount, *command, user=user)).pid for command in commands]


def test_memory_that_does_not_come_is_not_waited_for(mount):
    with waiting(mount) as honest, slow_memory(mount, DEADLINE_S, 1) as slow:
        done = relayctl(mount, "events", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = listed(done)
    assert all(pids(event) == [honest.process.pid] for event in found["events"])
    reason = "reading its memory takes too long"
    assert found["unreadable"] == [{"program": "hostile_lists", "pid": slow[0], "uid": 0, "reason": reason}]


def test_the_programs_of_a_user_do_not_take_long_together(mount):
    with waiting(mount) as honest, slow_memory(mount, 2, 8, NOBODY) as slow, waiting(mount) as later:
        done = relayctl(mount, "events", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = listed(done)
    assert all(pids(event) == sorted([honest.process.pid, later.process.pid]) for event in found["events"])
    *_, late, last = found["unreadable"]
    assert late["reason"] == "reading its memory takes too long"
    assert last["reason"] == f"no more programs of uid {NOBODY} are read: that takes too long"
    assert len(found["unreadable"]) <= 4
    assert {one["pid"] for one in found["unreadable"]} <= set(slow)


def test_a_command_that_is_killed_leaves_no_process_behind(mount):
    many = "from relayfs_fuse.trace import Event\nall = [Event('many', f'e{n}') for n in range(2000)]\n"
    command = [RELAYCTL, "events", "--mount", mount.path]
    with (
        slow_memory(mount, 2, 1),
        running(mount, sys.executable, "-c", f"{many}print('ready', flush=True); input()"),
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
    ):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(children.read_text, "it reads memory")
        child = int(children.read_text())
        process.kill()
        process.wait(DEADLINE_S)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "its child has ended")


@pytest.mark.parametrize("command", ["events", "list", "stat"])
def test_a_closed_standard_output_is_an_error(mount, command):
    done = subprocess.run(
        ["sh", "-c", f"exec {RELAYCTL} {command} --mount {mount.path} >&-"],
        capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "relayctl: the standard output is closed: open it, or give -o if the command has it\n",
    )
