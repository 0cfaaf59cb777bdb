"""RELAYFS_TRACE_EARLY: what programs write before their trace is there becomes part of it, whatever else there is."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from making import Maker, making
from mounts import Mount, wait_until
from traced import check_threads, program, record_stopped, start_trace, traced, wait_for_directories, wait_gone

pytestmark = pytest.mark.one_mount

# Nobody reads meanwhile: all of it must find room, also on one CPU.
ROOM = "subbuf_size=256K n_subbufs=16"
WISH = "boot,subbuf_size=64K,n_subbufs=16"


@pytest.fixture
def mount(make_mount: Callable[..., Mount]) -> Mount:
    """Not mounted yet."""
    return make_mount(start=False)


@pytest.fixture
def elsewhere(nowhere: Path) -> Iterator[Path]:
    """A store in a file system of its own, whose files cannot be linked into another."""
    path = nowhere.parent / "tmpfs"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "none", path], check=True)
    yield path / "store"
    subprocess.run(["umount", "-l", path], check=True)


def starting(
    mount: Mount, wish: str = WISH, store: Path | None = None, *command: str | Path
) -> AbstractContextManager[Maker]:
    environment = {
        "RELAYFS": str(mount.path), "RELAYFS_STORE": str(store or mount.store), "RELAYFS_TRACE_EARLY": wish,
    }  # fmt: skip
    return making(environment, None, [*command, program("traced")])


@pytest.mark.one_mount(False)
def test_events_of_before_the_mount_appear_in_the_trace(mount: Mount, tmp_path: Path) -> None:
    with starting(mount) as early:
        early.ask("emit 300")
        early.ask("threads 4 100")
        mount.start()
        early.ask("emit 100")
        start_trace(mount, "boot", ROOM)
        # What emits nothing any more is there all the same.
        wait_for_directories(mount, "boot", lambda names: names == [f"traced-{early.process.pid}"])
        early.ask("emit 100")
    trace = record_stopped(mount, "boot", tmp_path / "out")
    assert trace.numbers(who=0) == list(range(500))
    check_threads(trace, early.process.pid, 4, 100, lost=trace.lost)
    wait_gone(mount.store / ".early/boot")


@pytest.mark.one_mount(False)
def test_what_early_buffers_could_not_hold_is_counted(mount: Mount, tmp_path: Path) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    wish = "boot,subbuf_size=4K,n_subbufs=4,mode=overwrite"
    with starting(mount, wish, None, "taskset", "-c", cpu) as early:
        early.ask("emit 5000")
        mount.start()
        start_trace(mount, "boot", ROOM)
        wait_for_directories(mount, "boot", lambda names: len(names) == 1)
    trace = record_stopped(mount, "boot", tmp_path / "out")
    seen = trace.numbers()
    assert seen == list(range(5000 - len(seen), 5000))
    assert trace.lost == 5000 - len(seen)
    assert len(seen) > 100


@pytest.mark.parametrize("clock", ["mono", "tsc"])
@pytest.mark.one_mount(False)
def test_events_wait_for_their_trace_while_there_is_a_mount_without_it(
    mount: Mount, tmp_path: Path, clock: str
) -> None:
    mount.start()
    start_trace(mount, "other", ROOM)
    with starting(mount) as early:
        early.ask("emit 1500")
        start_trace(mount, "boot", f"{ROOM} clock={clock}")
        early.ask("emit 1500")
        trace = record_stopped(mount, "boot", tmp_path / "out")
        assert (trace.numbers(), trace.lost) == (list(range(3000)), 0)
    other = record_stopped(mount, "other", tmp_path / "other")
    assert (other.numbers(), other.lost) == (list(range(3000)), 0)


@pytest.mark.one_mount(False)
def test_events_wait_for_their_trace_while_there_is_an_old_store(mount: Mount, tmp_path: Path) -> None:
    mount.start()
    start_trace(mount, "other", ROOM)
    mount.close()
    with starting(mount) as early:
        early.ask("emit 1500")
        mount.start()
        start_trace(mount, "boot", ROOM)
        early.ask("emit 1500")
        trace = record_stopped(mount, "boot", tmp_path / "out")
        assert (trace.numbers(), trace.lost) == (list(range(3000)), 0)


@pytest.mark.one_mount(False)
def test_a_trace_that_is_there_gets_all_events_at_once(mount: Mount, tmp_path: Path) -> None:
    mount.start()
    start_trace(mount, "boot", ROOM)
    with starting(mount) as early:
        early.ask("emit 100")
        assert not (mount.store / ".early/boot").exists()
    trace = record_stopped(mount, "boot", tmp_path / "out")
    assert (trace.numbers(), trace.lost) == (list(range(100)), 0)


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.one_mount(False)
def test_a_program_that_ends_before_leaves_its_events(mount: Mount, tmp_path: Path, is_mounted: bool) -> None:
    if is_mounted:
        mount.start()
    with starting(mount) as early:
        early.ask("emit 700")
        pid = early.process.pid
    with starting(mount) as other:
        child = int(other("fork 30"))
        other_pid = other.process.pid
    if is_mounted:
        mount.kill()
    mount.start()
    mount.command(f"trace create boot {ROOM}")
    trace = record_stopped(mount, "boot", tmp_path / "out")
    assert trace.by_pid() == {pid: list(range(700)), other_pid: list(range(30)), child: list(range(30))}
    assert trace.lost == 0


@pytest.mark.one_mount(False)
def test_a_trace_whose_store_is_another_gets_a_copy(mount: Mount, tmp_path: Path, elsewhere: Path) -> None:
    with starting(mount, WISH, elsewhere) as early:
        early.ask("threads 3 200")
        early.ask("emit 1500")
        assert os.listdir(elsewhere / ".early/boot") == [f"traced-{early.process.pid}"]
        mount.start()
        wait_until(lambda: not os.listdir(elsewhere / ".early/boot"), "the program has found the mount")
        early.ask("emit 500")
        start_trace(mount, "boot", ROOM)
        early.ask("emit 1000")
        wait_for_directories(mount, "boot", lambda names: len(names) == 2)
        trace = record_stopped(mount, "boot", tmp_path / "out")
    assert sorted(trace.numbers(who=0)) == list(range(3000))
    check_threads(trace, early.process.pid, 3, 200, lost=trace.lost)


@pytest.mark.one_mount(False)
def test_a_program_whose_old_store_is_not_the_mounts_finds_the_mount(
    mount: Mount, make_mount: Callable[..., Mount], tmp_path: Path, nowhere: Path
) -> None:
    old = make_mount(store=nowhere.parent / "store")
    start_trace(old, "other", ROOM)
    old.close()
    with starting(mount, WISH, nowhere.parent / "store") as early:
        early.ask("emit 1500")
        mount.start()
        start_trace(mount, "boot", ROOM)
        wait_for_directories(mount, "boot", lambda names: len(names) == 1)
        early.ask("emit 1500")
        trace = record_stopped(mount, "boot", tmp_path / "out")
    assert sorted(trace.numbers()) == list(range(3000))
    assert trace.lost == 0


@pytest.mark.one_mount(False)
def test_programs_that_nobody_traces_do_not_fill_the_store(mount: Mount, tmp_path: Path) -> None:
    """The dead give way, and the trace says what was lost with them."""
    for _ in range(40):
        with starting(mount, "boot,subbuf_size=4K,n_subbufs=2") as early:
            early.ask("emit 20")
    assert len(os.listdir(mount.store / ".early/boot")) < 40
    mount.expected.append("because memory= is used up")
    mount.start()
    mount.command(f"trace create boot {ROOM}")
    wait_until(
        lambda: "was removed with 20 unread events" in (mount.path / "error_log").read_text(),
        "what was lost is said",
    )


@pytest.mark.parametrize("wish", ["", ",mode=overwrite", "boot,mode=none", "boot,size=3", f"{'n' * 200}", "../boot"])
def test_what_is_no_name_of_a_trace_asks_for_nothing(mount: Mount, wish: str) -> None:
    with starting(mount, wish) as early:
        early.ask("emit 100")
    assert not list(mount.store.glob(".early/*/*"))


@pytest.mark.one_mount(False)
def test_a_mount_whose_server_does_not_answer_does_not_stop_programs_of_another(
    mount: Mount, make_mount: Callable[..., Mount], tmp_path: Path, nowhere: Path
) -> None:
    other = make_mount(store=nowhere.parent / "store")
    mount.start()
    start_trace(mount, "t", ROOM)
    assert other.process is not None
    other.process.send_signal(signal.SIGSTOP)
    try:
        with traced(mount) as judge:
            judge.ask("emit 10")
    finally:
        other.process.send_signal(signal.SIGCONT)
    assert record_stopped(mount, "t", tmp_path / "out").numbers() == list(range(10))
