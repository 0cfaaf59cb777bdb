"""Snapshots that the mount keeps: directories of `.traces/TRACE/snapshots`. babeltrace2 is the judge."""

import errno
import json
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from babeltrace import babeltrace, packets_in
from making import N_CPUS, Maker
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from traced import directory_of, record_stopped, relayctl, start_trace, traced
from tracing import spoil

from relayfs_fuse.fs.commands.control import parse_size
from relayfs_fuse.tracefiles.snapshots import SNAPSHOTS_NAME, Kept, kept

ROOM = "mode=overwrite subbuf_size=16K n_subbufs=4"
LARGE = "mode=overwrite subbuf_size=1M n_subbufs=16"


def snapshots_of(mount: Mount, trace: str = "t") -> Path:
    return mount.path / ".traces" / trace / "snapshots"


def stored(mount: Mount) -> list[Kept]:
    """What the store has of the only trace that has had snapshots."""
    (directory,) = (mount.store / SNAPSHOTS_NAME).iterdir()
    return kept(str(mount.store), int(directory.name))


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """The inode numbers and bytes of all files, by their paths."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.stat().st_ino, path.read_bytes()) for path in files}


def overwrite(program: Maker, n: int = 20_000) -> None:
    """Write more events than ROOM has room for."""
    program.ask(f"emit {n}")


def take_until_refused(above: Path, most: int) -> None:
    """Take snapshots until there is no room, which must come before the last one."""
    names = map(str, range(most))
    with pytest.raises(OSError, match="No space left on device"):
        deque(((above / name).mkdir() for name in names), 0)


@contextmanager
def during(act: Callable[[], None], is_moment: Callable[[], bool]) -> Iterator[list[OSError | None]]:
    """Do something in the middle of what another thread does; give how that has ended."""
    done: list[OSError | None] = []

    def work() -> None:
        try:
            done.append(act())
        except OSError as error:
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + DEADLINE_S
    while not (done or is_moment()):
        assert time.monotonic() < until
    yield done
    thread.join()


def has(mount: Mount, name: str) -> bool:
    """Whether the store has a snapshot of this name."""
    return any(mount.store.glob(f"{SNAPSHOTS_NAME}/*/{name}"))


def test_mkdir_takes_a_snapshot_that_stays_as_it_is_until_rmdir(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t")
    above = snapshots_of(mount)
    with traced(mount) as program:
        program.ask("emit 10")
        (above / "one").mkdir()
        before = contents(above / "one")
        program.ask("emit 5")
        (above / "two").mkdir()
        assert contents(above / "one") == before
        assert babeltrace(above / "one").numbers() == list(range(10))
        assert babeltrace(above / "two").numbers() == list(range(15))
        assert relayctl(mount, "snapshot", "t", "-o", tmp_path / "written").returncode == 0
    for command in ("view", "export"):
        said = [relayctl(mount, command, where).stdout for where in (above / "two", tmp_path / "written")]
        assert said[0] == said[1] != ""
    assert record_stopped(mount, "t", tmp_path / "out").numbers() == list(range(15))
    assert sorted(path.name for path in above.iterdir()) == ["one", "two"]
    (process,) = (above / "one").iterdir()
    for path, mode in ((above, 0o755), (above / "one", 0o500), (process, 0o500), (process / "metadata", 0o400)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    for act in (process.rmdir, (process / "metadata").unlink, (process / "more").mkdir):
        with pytest.raises(OSError, match="Operation not permitted"):
            act()
    with pytest.raises(OSError, match="Invalid argument"):
        os.write(os.open(process / "metadata", os.O_WRONLY), b"x")
    assert [one.name for one in stored(mount)] == ["one", "two"]
    (above / "one").rmdir()
    assert [one.name for one in stored(mount)] == ["two"]
    assert sorted(path.name for path in above.iterdir()) == ["two"]


def test_other_users_neither_take_nor_read_nor_remove(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t")
    above = snapshots_of(mount)
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 3")
        (above / "one").mkdir()
    assert babeltrace(above / "one").numbers() == list(range(3))
    for command in (["mkdir", above / "two"], ["rmdir", above / "one"], ["ls", above / "one"]):
        done = unprivileged.run(*command)
        assert done.returncode != 0
        assert "ermission denied" in done.stderr
    done = unprivileged.run("sh", "-c", 'echo "trace snapshot t two" >$0', mount.control)
    assert done.returncode != 0
    assert [one.name for one in stored(mount)] == ["one"]


@pytest.fixture
def with_snapshot(mount: Mount) -> Iterator[Mount]:
    start_trace(mount, "t")
    (snapshots_of(mount) / "there").mkdir()
    yield mount
    mount.command("trace remove t")


@pytest.mark.one_mount
@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda mount: (snapshots_of(mount) / "there").mkdir(), errno.EEXIST),
        (lambda mount: mount.command("trace snapshot t there"), errno.EEXIST),
        (lambda mount: (snapshots_of(mount) / "a b").mkdir(), errno.EINVAL),
        (lambda mount: (snapshots_of(mount) / ".new-a").mkdir(), errno.EINVAL),
        (lambda mount: (snapshots_of(mount) / ("x" * 201)).mkdir(), errno.ENAMETOOLONG),
        (lambda mount: mount.command("trace snapshot t ../t"), errno.EINVAL),
        (lambda mount: mount.command("trace snapshot t"), errno.EINVAL),
        (lambda mount: mount.command("trace snapshot none a"), errno.ENOENT),
        (lambda mount: mount.command("trace snapshot t a since=-1"), errno.EINVAL),
        (lambda mount: mount.command("trace snapshot t a since=1 since=2"), errno.EINVAL),
        (lambda mount: mount.command("trace snapshot t a b"), errno.EINVAL),
        (lambda mount: mount.command("trace set t snapshot_memory=0"), errno.EINVAL),
        (lambda mount: (snapshots_of(mount) / "none").rmdir(), errno.ENOENT),
        (lambda mount: snapshots_of(mount).rmdir(), errno.EPERM),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(with_snapshot: Mount, act: Callable, code: int) -> None:
    before = with_snapshot.control.read_text()
    with pytest.raises(OSError) as refused:
        act(with_snapshot)
    assert refused.value.errno == code
    assert with_snapshot.control.read_text() == before
    assert [one.name for one in stored(with_snapshot)] == ["there"]
    if code in (errno.EINVAL, errno.ENAMETOOLONG):
        assert f"[{errno.errorcode[code]}]" in with_snapshot.error_log


def test_their_memory_is_bounded_by_a_setting_of_the_trace(mount: Mount) -> None:
    start_trace(mount, "t", ROOM)
    above = snapshots_of(mount)
    (above.parent / "snapshot_memory").write_text("100K")
    assert (above.parent / "snapshot_memory").read_text() == "100K\n"
    assert " snapshot_memory=100K " in mount.control.read_text()
    with traced(mount) as program:
        overwrite(program)
        (above / "one").mkdir()
        size = stored(mount)[0].n_bytes
        assert 50 << 10 < size < 100 << 10
        with pytest.raises(OSError, match="No space left on device"):
            (above / "two").mkdir()
        assert f"left of snapshot_memory=100K: 1 snapshots of t have {size}" in mount.error_log
        assert os.listdir(above) == ["one"]
        (directory,) = (mount.store / SNAPSHOTS_NAME).iterdir()
        assert os.listdir(directory) == ["one"]
        # Of a trace that is started, no other option changes.
        (above.parent / "snapshot_memory").write_text("1M")
        (above / "two").mkdir()
        assert babeltrace(above / "two").numbers()[-1] == 19_999
        take_until_refused(above, 100)
        assert sum(one.n_bytes for one in stored(mount)) <= 1 << 20
        (above / "one").rmdir()
        (above / "three").mkdir()


def test_snapshots_without_events_are_bounded_too(mount: Mount) -> None:
    start_trace(mount, "t")
    (snapshots_of(mount).parent / "snapshot_memory").write_text("40K")
    take_until_refused(snapshots_of(mount), 11)
    assert len(stored(mount)) == 10


def test_a_program_that_writes_without_end_fills_no_more_than_the_memory(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", "mode=overwrite subbuf_size=4K n_subbufs=4")
    above = snapshots_of(mount)
    (above.parent / "snapshot_memory").write_text("1M")
    with traced(mount, user=NOBODY) as program:
        program.start("flood 100000 1")
        wait_until(lambda: list(mount.path.glob("t/traced-*/cpu0")), "it writes")
        take_until_refused(above, 10_000)
        program.process.kill()
    assert sum(one.n_bytes for one in stored(mount)) <= 1 << 20
    streams = [stream.read_bytes() for stream in above.glob("*/traced-*/cpu*")]
    assert max(len(packets_in(stream)) for stream in streams) <= 1 + 4


def test_the_store_has_its_limit_too(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("size=2M")
    start_trace(mount, "t", f"{ROOM} memory=1M")
    (snapshots_of(mount).parent / "snapshot_memory").write_text("1G")
    with traced(mount) as program:
        overwrite(program)
        take_until_refused(snapshots_of(mount), 100)
    assert "are left of the limit size=2M" in mount.error_log
    with pytest.raises(OSError, match="No space left on device"):  # which a survey of the store precedes
        mount.create("channel", "buffers=global subbuf_size=512K n_subbufs=2")
    assert 0 < sum(one.n_bytes for one in stored(mount)) < 2 << 20


def test_what_was_overwritten_is_said_to_be_lost(mount: Mount) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount) as program:
        overwrite(program)
        (snapshots_of(mount) / "one").mkdir()
    seen = babeltrace(snapshots_of(mount) / "one")
    assert len(seen.numbers()) + seen.lost == 20_000
    # A line of each CPU on which the program was.
    shown = re.findall(r" lost (\d+) events since ", relayctl(mount, "view", snapshots_of(mount) / "one").stdout)
    assert sum(map(int, shown)) == seen.lost > 0


def test_what_is_damaged_is_said_and_harms_no_other(mount: Mount) -> None:
    trace = start_trace(mount, "t")
    mount.expect("trace: notice: it is incomplete: ")
    with traced(mount) as bad, traced(mount) as good:
        for program in (bad, good):
            program.ask("emit 10")
        directory = directory_of(trace, bad)
        for cpu in range(N_CPUS):
            spoil(mount.store / "t" / directory.name / f"cpu/mem{cpu}", 1)
        done = relayctl(mount, "trace", "snapshot", "t", "one")
    assert done.returncode == 0
    assert f"trace snapshot t one: it is incomplete: {directory.name} (uid 0) is damaged: " in done.stderr
    taken = snapshots_of(mount) / "one"
    assert babeltrace(taken / directory_of(trace, good).name).numbers() == list(range(10))
    assert (taken / ".damaged" / directory.name / "why").read_text()


def test_a_window_leaves_out_what_is_older(mount: Mount) -> None:
    start_trace(mount, "t", LARGE)
    with traced(mount) as program:
        program.ask("emit 10")
        (snapshots_of(mount) / "all").mkdir()  # ends a packet
        program.ask("emit 10")
        (snapshots_of(mount) / "more").mkdir()
        times = [event.ns for event in babeltrace(snapshots_of(mount) / "more").named("judge:step")]
        mount.command(f"trace snapshot t newer since={times[10]}")
        mount.command(f"trace snapshot t older until={times[9]}")
    assert babeltrace(snapshots_of(mount) / "newer").numbers() == list(range(10, 20))
    assert babeltrace(snapshots_of(mount) / "older").numbers() == list(range(10))


def test_they_are_the_same_directories_after_the_death_of_the_server(mount: Mount) -> None:
    start_trace(mount, "t", ROOM)
    above = snapshots_of(mount)
    with traced(mount) as program:
        program.ask("emit 10")
        (above / "one").mkdir()
        (above / "two").mkdir()
    before = contents(above)
    numbers = {path.name: path.stat().st_ino for path in above.iterdir()}
    (left,) = (mount.store / SNAPSHOTS_NAME).iterdir()
    for dies in (mount.kill_server, mount.kill):
        if dies == mount.kill_server:
            mount.expect("WARNING: the server before, process .* has died")
        dies()
        (left / ".new-half").mkdir()
        if dies == mount.kill:
            mount.start()
            assert sorted(os.listdir(left)) == ["one", "two"]
        assert contents(above) == before
        assert {path.name: path.stat().st_ino for path in above.iterdir()} == numbers
    assert babeltrace(above / "one").numbers() == list(range(10))
    done = relayctl(mount, "check")
    assert (done.returncode, done.stderr) == (0, "")
    (above / "one").rmdir()
    assert [one.name for one in stored(mount)] == ["two"]


def test_one_that_is_being_taken_or_removed_when_the_server_dies_is_there_whole_or_gone(mount: Mount) -> None:
    start_trace(mount, "t", LARGE)
    mount.expect("WARNING: the server before, process .* has died")
    with traced(mount) as program:
        program.ask("emit 100000")
        for name, moment in (("0", ".new-0"), ("1", "1")):  # before it has its name, and before that is answered
            with during((snapshots_of(mount) / name).mkdir, partial(has, mount, moment)) as done:
                mount.kill_server()
            assert done == [None]
    assert babeltrace(snapshots_of(mount) / "1").numbers() == list(range(100_000))
    first, second = ([len(data) for _, data in contents(path).values()] for path in snapshots_of(mount).iterdir())
    assert sorted(first) == sorted(second)
    assert [one.name for one in stored(mount)] == ["0", "1"]
    with during((snapshots_of(mount) / "0").rmdir, lambda: not has(mount, "0")) as done:
        mount.kill_server()
    assert done == [None]
    assert [one.name for one in stored(mount)] == ["1"]
    (snapshots_of(mount) / "1").rmdir()


def test_one_that_is_being_taken_goes_with_its_trace(mount: Mount) -> None:
    start_trace(mount, "t", LARGE)
    with traced(mount) as program:
        program.ask("emit 100000")
        with during((snapshots_of(mount) / "one").mkdir, partial(has, mount, ".new-one")) as done:
            mount.command("trace remove t")
    assert done == [None] or (isinstance(done[0], OSError) and done[0].errno == errno.ENOENT)
    assert os.listdir(mount.store / SNAPSHOTS_NAME) == []
    start_trace(mount, "t")
    (snapshots_of(mount) / "one").mkdir()


def test_they_go_with_their_trace(mount: Mount) -> None:
    start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 3")
        (snapshots_of(mount) / "one").mkdir()
        with (next((snapshots_of(mount) / "one").iterdir()) / "metadata").open("rb", buffering=0) as file:
            snapshots_of(mount).parent.rmdir()
            with pytest.raises(OSError, match="Stale file handle"):
                file.read()
    assert os.listdir(mount.store / SNAPSHOTS_NAME) == []
    start_trace(mount, "t")
    assert os.listdir(snapshots_of(mount)) == []
    mount.kill()
    (mount.store / SNAPSHOTS_NAME / "77/one").mkdir(parents=True)  # of a trace that the server had removed
    mount.start()
    assert os.listdir(mount.store / SNAPSHOTS_NAME) == []


def test_relayctl_takes_and_lists_them(mount: Mount) -> None:
    start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 10")
        done = relayctl(mount, "trace", "snapshot", "t", "one", "--since", "-1h")
        assert (done.returncode, done.stderr) == (0, "")
        done = relayctl(mount, "trace", "snapshot", "t", "older", "--until", "-1h")
        assert (done.returncode, done.stderr) == (0, "")
    assert babeltrace(snapshots_of(mount) / "one").numbers() == list(range(10))
    assert list((snapshots_of(mount) / "older").glob("*/cpu*")) == []
    (one,) = map(json.loads, relayctl(mount, "trace", "list", "--json").stdout.splitlines())
    n_bytes = sum(snapshot.n_bytes for snapshot in stored(mount))
    assert (one["snapshots"], one["snapshot_bytes"], one["snapshot_memory"]) == (
        2, n_bytes, parse_size((snapshots_of(mount).parent / "memory").read_text().strip())
    )  # fmt: skip
    assert relayctl(mount, "trace", "list").stdout.split()[-2:] == ["2", f"{n_bytes / 1024:.1f}K"]
    done = relayctl(mount, "trace", "snapshot", "t", "one")
    assert done.returncode == 1
    assert "snapshot one of t exists; rmdir removes it" in done.stderr
