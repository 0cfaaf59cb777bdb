"""relay_open() where nothing is mounted: in a store that nobody serves yet, or that others hold."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import forking
import pytest
from build import compile_c
from making import GEOMETRY, Maker, contents, environment_of, making, numbered, relay_files
from mounts import DEADLINE_S, Mount, wait_until
from traffic import at_once

from relayfs_fuse.native.tables import PERMS


def test_what_is_made_without_a_mount_has_the_same_delivery(late_mount: Mount, early: Maker) -> None:
    early.ask(f"open cpu - {GEOMETRY}")
    environment = {"RELAYFS": str(late_mount.path), "RELAYFS_STORE": str(late_mount.store)}
    program = f"from relayfs_fuse import Channel; Channel.create('{late_mount.path}/made')"
    forking.run([sys.executable, "-c", program], env={**os.environ, **environment}, check=True)
    late_mount.start()
    assert (late_mount.shown("cpu", "delivery"), late_mount.shown("made", "delivery")) == ("bulk", "packet")


def test_a_channel_made_before_there_is_a_mount_is_shown_by_it(late_mount: Mount, early: Maker) -> None:
    early.ask(f"open app/cpu - {GEOMETRY}")
    early.ask("write before")
    late_mount.start()
    assert relay_files(late_mount.path / "app") == numbered("cpu")
    early.ask("write after")
    assert sorted(contents(late_mount.path / "app/cpu").splitlines()) == [b"after", b"before"]


def test_other_programs_find_it_before_there_is_a_mount(nowhere: Path, late_mount: Mount, early: Maker) -> None:
    early.ask(f"open app/cpu {nowhere} {GEOMETRY}")
    with making({"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}) as other:
        other.ask(f"attach {nowhere}/app/cpu")
        other.ask("write other")
    late_mount.start()
    assert contents(late_mount.path / "app/cpu") == b"other\n"


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted by then", "not mounted"])
def test_a_channel_made_without_a_mount_goes_with_relay_close(
    nowhere: Path, late_mount: Mount, early: Maker, mounted: bool
) -> None:
    store = nowhere.parent / "store"
    early.ask(f"open app/cpu - {GEOMETRY}")
    early.ask(f"write {'x' * 100}")
    assert (store / "app/cpu/mem0").exists()
    if mounted:
        late_mount.start()
        reader = os.open(late_mount.path / "app/cpu0", os.O_RDONLY)
    early.ask("close")
    assert not (store / "app/cpu").exists()
    if mounted:
        assert relay_files(late_mount.path) == []
        os.close(reader)
    else:
        late_mount.start()
    assert late_mount.channels() == ""


def test_a_channel_made_without_a_mount_is_as_a_server_makes_it(
    nowhere: Path, late_mount: Mount, early: Maker, make_mount: Callable[..., Mount]
) -> None:
    words = (
        "delivery=packet read=wait reserve=visible mode=overwrite buffers=global flush_interval=50 perm=0604 "
        "start_reserve=1K end_reserve=0 channel_start_reserve=12 timestamp=mono"
    )
    early.ask(f"options {words}")
    early.ask("open a/b/log - 8192 2")
    late_mount.start()
    late_mount.command(f"create a/b/same {words} subbuf_size=8K n_subbufs=2\n")
    lines = late_mount.channels().splitlines()
    assert lines[0].replace("/log ", "/same ") == lines[1]
    store = nowhere.parent / "store"
    for name in ("", "a", "a/b"):
        assert (store / name).stat().st_mode & 0o777 == PERMS["PLAIN" if name else "STORE"]
    assert (store / "a/b/log").stat().st_mode == (store / "a/b/same").stat().st_mode


def test_without_a_mount_options_are_understood_as_by_the_server(early: Maker, nowhere: Path) -> None:
    store = nowhere.parent / "store"
    refused = (
        *("mode=sometimes", "perm=0700", "perm=9", "nonsense=1", "delivery", "read=wait read=wait", "uid=-1"),
        *("flush_interval=x", "flush_interval=99999999999", "subbuf_size=1K", "scheme=rseq buffers=global"),
        *("start_reserve=-1", "end_reserve=1KK", "start_reserve=4K", "end_reserve=2K channel_start_reserve=2K"),
        *("timestamp=now", "timestamp=mono timestamp=mono"),
    )
    for words in refused:
        early.ask(f"options {words}")
        # sizes are given by the arguments already
        assert early(f"open cpu - {GEOMETRY}") == "EINVAL", words
        assert not (store / "cpu").exists()


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ("cpu", "cpu", "EEXIST"),
        ("cpu", "cpu/inner", "ENOTDIR"),
        ("cpu", "cpu0/inner", "ENOTDIR"),
        ("dir/cpu", "dir", "EEXIST"),
        ("cpu0/dir", "cpu", "EEXIST"),
        ("cpu", ".cpu", "EINVAL"),
        ("cpu", "a//b", "EINVAL"),
        ("cpu", "x" * 201, "ENAMETOOLONG"),
        ("cpu", "x/" * 600 + "x", "ENAMETOOLONG"),
    ],
)
def test_without_a_mount_names_that_no_server_could_show_are_refused(
    nowhere: Path, early: Maker, first: str, second: str, error: str
) -> None:
    early.ask(f"open {first} - {GEOMETRY}")
    before = sorted(path for path in (nowhere.parent / "store").rglob("*"))
    assert early(f"open {second} - {GEOMETRY}") == error
    assert sorted(path for path in (nowhere.parent / "store").rglob("*")) == before


def test_a_store_that_others_may_write_to_is_not_used(nowhere: Path, early: Maker) -> None:
    store = nowhere.parent / "store"
    store.mkdir()
    store.chmod(0o777)
    assert early(f"open cpu - {GEOMETRY}") == "EACCES"
    assert os.listdir(store) == []


def test_a_store_that_is_served_elsewhere_is_used_through_its_mount(mount: Mount, nowhere: Path) -> None:
    with making({"RELAYFS": str(nowhere), "RELAYFS_STORE": str(mount.store)}) as maker:
        maker.ask(f"open cpu - {GEOMETRY}")
        assert relay_files(mount.path) == numbered("cpu")
        maker.ask("close")
        assert relay_files(mount.path) == []


def switches(pid: int) -> int:
    """How often a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary"))


@pytest.fixture
def held(nowhere: Path) -> Iterator[int]:
    """A store that somebody holds who has no mount (yet): the descriptor of its lock."""
    (nowhere.parent / "store").mkdir(mode=0o755)
    lock = os.open(nowhere.parent / "store/.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock
    os.close(lock)


def test_who_holds_a_store_for_a_moment_is_waited_for(nowhere: Path, early: Maker, held: int) -> None:
    answers: list[str] = []
    before = switches(early.process.pid)
    opening = threading.Thread(target=lambda: answers.append(early(f"open cpu - {GEOMETRY}")))
    opening.start()
    # Each try is followed by a sleep, which switches to somebody else.
    wait_until(lambda: switches(early.process.pid) > before + 10, "it has tried")
    assert answers == []
    assert not (nowhere.parent / "store/cpu").exists()
    fcntl.flock(held, fcntl.LOCK_UN)
    opening.join(DEADLINE_S)
    assert answers == ["0"]


def test_who_holds_a_store_for_ever_is_told_of(nowhere: Path, early: Maker, held: int) -> None:
    assert early(f"open cpu - {GEOMETRY}") == "EBUSY"
    assert os.listdir(nowhere.parent / "store") == [".lock"]


@pytest.mark.parametrize("mounted", [True, False], ids=["mount", "store"])
def test_who_dies_in_relay_open_leaves_all_of_a_channel_or_nothing(
    make_mount: Callable[..., Mount], mounted: bool
) -> None:
    mount = make_mount(start=mounted)
    program = compile_c([Path(__file__).with_name("dying_opener.c")])
    done = subprocess.run(
        [program, "app/cpu"], env={**os.environ, **environment_of(mount)}, capture_output=True, text=True,
        timeout=2 * DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    n_whole, n_killed = map(int, done.stdout.split())
    assert 0 < n_whole < n_killed
    if mounted:
        mount.stop()
    mount.start()  # what was half made goes
    assert mount.channels() == ""
    assert not (mount.store / "app").exists()


def test_what_a_dead_program_of_the_same_number_left_half_done_is_in_nobodys_way(nowhere: Path, early: Maker) -> None:
    store = nowhere.parent / "store"
    for why in ("new", "removed"):
        (store / f".{why}-{early.process.pid}-0-cpu").mkdir(parents=True)
    store.chmod(0o755)
    early.ask(f"open cpu - {GEOMETRY}")
    assert (store / "cpu/mem0").exists()
    early.ask("close")
    assert not (store / "cpu").exists()


def test_several_programs_make_channels_in_one_store_at_once(nowhere: Path, late_mount: Mount) -> None:
    environment = {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}
    makers = [Maker(environment) for _ in range(4)]
    try:
        at_once(lambda i: [makers[i](f"open app{n}/m{i} - 4096 2") for n in range(20)], range(4))
    finally:
        for maker in makers:
            maker.kill()
    late_mount.start()
    assert len(late_mount.channels().splitlines()) == 80
