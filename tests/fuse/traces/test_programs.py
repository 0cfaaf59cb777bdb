"""What traced programs do: threads, signals, fork, exec, libraries that come and go, a start before the mount.

Each event that a program says it has written is in the trace once, in its own process's part.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from build import compile_c
from making import making
from mounts import NOBODY, Mount, User, wait_until
from traced import (
    check_threads,
    copy_stopped,
    processes,
    program,
    record_stopped,
    start_trace,
    traced,
    wait_for_directories,
)
from traffic import at_once

pytestmark = pytest.mark.one_mount

# Nobody reads meanwhile: all of it must find room, also on one CPU.
ROOM = "subbuf_size=256K n_subbufs=16"
LIBRARY = Path(__file__).with_name("traced_library.c")
CLOCKS = ["mono", "tsc"]
BUFFERS = ["perprocess", "peruser", "shared"]


def in_order(n: int) -> list[int]:
    return list(range(n))


@pytest.mark.parametrize("buffers", BUFFERS)
def test_events_of_threads_are_all_there_each_threads_in_its_order(mount: Mount, tmp_path: Path, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    with traced(mount) as one, traced(mount) as other:
        one.ask("threads 8 2000")
        other.ask("threads 8 2000")
        pids = {one.process.pid, other.process.pid}
    trace = record_stopped(mount, "t", tmp_path / "out")
    missing = 2 * 8 * 2000 - len(trace.events)
    assert trace.lost == missing
    for pid in pids:
        found = len([event for event in trace.events if event.pid == pid])
        check_threads(trace, pid, 8, 2000, lost=8 * 2000 - found)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
def test_signal_handlers_trace_in_the_middle_of_other_events(
    mount: Mount, tmp_path: Path, buffers: str, clock: str
) -> None:
    start_trace(mount, "t", f"subbuf_size=256K n_subbufs=64 buffers={buffers} clock={clock}")
    with traced(mount) as program:
        n_handled = int(program("signals 50"))
        (pid,) = {program.process.pid}
    trace = record_stopped(mount, "t", tmp_path / "out")
    handled = trace.numbers(who=1000)
    written = trace.numbers(who=0)
    assert n_handled >= 100
    assert sorted(written) == written
    assert sorted(handled) == handled
    assert len(set(written)) == len(written)
    assert max(handled) < n_handled
    if trace.lost == 0:
        assert handled == in_order(n_handled)
        assert written == in_order(len(written))
    assert {event.pid for event in trace.events} == {pid}


def test_a_child_of_fork_has_buffers_of_its_own(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:
        program.ask("emit 10")
        child = int(program("fork 500"))
        other = int(program("fork 500"))
        pid = program.process.pid
        wait_for_directories(mount, "t", lambda names: len(names) == 3)
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.by_pid() == {pid: in_order(1010), child: in_order(500), other: in_order(500)}
    assert trace.lost == 0


def test_a_child_of_vfork_becomes_another_program(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:
        child = int(program("vfork 500"))
        program.ask("emit 10")
        pid = program.process.pid
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.by_pid() == {pid: in_order(510), child: in_order(500)}
    assert trace.lost == 0


def test_a_program_that_becomes_another_leaves_its_events(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:
        program.ask("emit 100")
        program.ask("exec")
        program.ask("emit 50")
        program.ask("exec")
        program.ask("emit 25")
        pid = program.process.pid
        names = wait_for_directories(mount, "t", lambda names: len(names) == 3)
    assert names[0] == f"traced-{pid}"
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.by_pid() == {pid: [*range(100), *range(50), *range(25)]}
    assert trace.lost == 0


def test_events_of_a_library_remain_when_it_is_unloaded(mount: Mount, tmp_path: Path) -> None:
    library = compile_c([LIBRARY], None, "", "-shared", "-fPIC")
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:
        for _ in range(50):
            program.ask(f"library {library} 20")
            program.ask("emit 1")
        pid = program.process.pid
        assert "traced_library" not in Path(f"/proc/{pid}/maps").read_text()
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers("library:loaded") == 50 * in_order(20)
    assert trace.numbers() == in_order(50)
    assert trace.lost == 0


def test_libraries_that_come_and_go_leave_nothing_in_the_program(mount: Mount) -> None:
    library = compile_c([LIBRARY], None, "", "-shared", "-fPIC")
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:

        def held() -> tuple[int, int]:
            process = Path(f"/proc/{program.process.pid}")
            return len(os.listdir(process / "fd")), len((process / "maps").read_text().splitlines())

        program.ask(f"library {library} 20")
        n_files, n_mappings = held()
        for _ in range(100):
            program.ask(f"library {library} 20")
        # A CPU's buffer keeps its file open until it has memory.
        assert held()[0] <= n_files
        assert held()[1] == n_mappings


def test_a_trace_that_starts_while_a_library_is_there_sees_it_and_one_that_stopped_does_not(
    mount: Mount, tmp_path: Path
) -> None:
    library = compile_c([LIBRARY], None, "", "-shared", "-fPIC")
    mount.command(f"trace create t {ROOM}")
    with traced(mount) as program:
        program.ask(f"library {library} 20")
        mount.command("trace start t")
        program.ask(f"library {library} 30")
        mount.command("trace stop t")
        program.ask(f"library {library} 40")
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers("library:loaded") == in_order(30)


def test_every_started_trace_gets_the_event(mount: Mount, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(16)]
    for number, name in enumerate(names):
        start_trace(mount, name, f"subbuf_size=16K n_subbufs=4 clock={CLOCKS[number % 2]}")
    with traced(mount) as program:
        program.ask("emit 200")
    traces = at_once(lambda name: record_stopped(mount, name, tmp_path / name), names)
    assert [(trace.numbers(), trace.lost) for trace in traces] == [(in_order(200), 0)] * len(names)


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
def test_what_cat_reads_is_ctf(mount: Mount, tmp_path: Path, mode: str) -> None:
    start_trace(mount, "t", f"{ROOM} mode={mode}")
    cpus = os.sched_getaffinity(0)
    with traced(mount) as program:
        # While one thread gets a CPU's buffer its memory, others on that CPU lose what they write.
        for cpu in cpus:
            os.sched_setaffinity(program.process.pid, {cpu})
            program.ask("emit 1")
        os.sched_setaffinity(program.process.pid, cpus)
        program.ask("threads 2 3000")
        program.ask(f"emit {1000 - len(cpus)}")
        trace = copy_stopped(mount, "t", tmp_path / "out")
    assert (trace.numbers(who=0), trace.numbers(who=1), trace.numbers(who=2)) == (
        in_order(1000),
        in_order(3000),
        in_order(3000),
    )
    assert trace.lost == 0


def overfill(mount: Mount, out: Path, mode: str) -> list[int]:
    """Trace 5000 events into one buffer that is too small; return the numbers of those that are there."""
    start_trace(mount, "t", f"subbuf_size=4K n_subbufs=4 mode={mode}")
    with traced(mount, cpus=[min(os.sched_getaffinity(0))]) as program:
        program.ask("emit 5000")
    trace = record_stopped(mount, "t", out)
    seen = trace.numbers()
    assert 100 < len(seen) < 5000
    assert trace.lost == 5000 - len(seen)
    return seen


def test_what_found_no_room_is_counted(mount: Mount, tmp_path: Path) -> None:
    seen = overfill(mount, tmp_path / "out", "no-overwrite")
    assert seen == in_order(len(seen))


def test_what_was_overwritten_is_counted(mount: Mount, tmp_path: Path) -> None:
    seen = overfill(mount, tmp_path / "out", "overwrite")
    assert seen == list(range(5000 - len(seen), 5000))


# --- before there is a mount ---


@pytest.fixture
def early_mount(make_mount: Callable[..., Mount]) -> Mount:
    return make_mount(start=False)


def test_a_program_that_started_before_the_mount_is_traced_without_being_asked(
    early_mount: Mount, tmp_path: Path
) -> None:
    with making({"RELAYFS": str(early_mount.path)}, None, [program("traced")]) as early:
        early.ask("emit 10")
        early_mount.start()
        start_trace(early_mount, "t", ROOM)

        def is_seen() -> bool:
            early.ask("emit 1")
            return bool(processes(early_mount.path / "t"))

        wait_until(is_seen, "the program has found the mount")
    trace = record_stopped(early_mount, "t", tmp_path / "out")
    seen = trace.numbers()
    assert seen[0] >= 10
    assert seen == list(range(seen[0], seen[0] + len(seen)))


def test_a_program_runs_the_same_without_a_mount(nowhere: Path) -> None:
    with making({"RELAYFS": str(nowhere)}, None, [program("traced")]) as alone:
        alone.ask("emit 1000")
        assert int(alone("fork 10")) > 0
        alone.ask("exec")
        alone.ask("threads 2 10")
        alone.end()
        assert alone.process.returncode == 0


def test_tracing_can_be_forbidden(mount: Mount) -> None:
    start_trace(mount, "t", ROOM)
    with making({"RELAYFS": str(mount.path), "RELAYFS_TRACE": "off"}, None, [program("traced")]) as quiet:
        quiet.ask("emit 1000")
        with traced(mount) as program_:
            program_.ask("emit 1")
            wait_for_directories(mount, "t", lambda names: names == [f"traced-{program_.process.pid}"])


# --- PID namespaces ---


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_process_has_the_number_that_it_has_where_the_mount_is(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    """Its own namespace begins with 1. The store's user makes the directory himself, others have the server do it."""
    start_trace(mount, "t", ROOM)
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    command = ["unshare", "--pid", "--fork", "--kill-child", *as_user, program("traced")]
    with making({"RELAYFS": str(mount.path)}, None, command) as inside, traced(mount) as outside:
        inside.ask("emit 10")
        outside.ask("emit 10")
        pid = int(Path(f"/proc/{inside.process.pid}/task/{inside.process.pid}/children").read_text())
        names = [f"traced-{pid}", f"traced-{outside.process.pid}"]
        wait_for_directories(mount, "t", lambda found: found == sorted(names))
        for name, vpid in zip(names, [1, outside.process.pid], strict=True):
            metadata = (mount.path / "t" / name / "metadata").read_text()
            assert f"\tvpid = {vpid};\n" in metadata
            assert f"\tpid = {name.removeprefix('traced-')};\n" in metadata


def test_a_filter_means_the_number_where_the_mount_is(mount: Mount) -> None:
    start_trace(mount, "t", f"{ROOM} filter=pid:1")
    with making({"RELAYFS": str(mount.path)}, None, ["unshare", "-p", "-f", "--kill-child", program("traced")]) as one:
        one.ask("emit 10")
        assert processes(mount.path / "t") == []
        one.ask("emit 10")
        assert os.listdir(mount.store / "t") == []
