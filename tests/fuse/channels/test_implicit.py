"""Directories that `create` made above a channel go with the last channel in them; all others stay."""

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from holding import holding
from making import GEOMETRY, Maker, environment_of, making
from mounts import NOBODY, Mount, truncate, wait_until, watching
from traffic import at_once

from relayfs_fuse import native
from relayfs_fuse.native.tables import PERMS

SMALL = "buffers=single subbuf_size=4K n_subbufs=2"


def directories(mount: Mount) -> list[str]:
    """The directories of the mount, which are those of the store."""
    shown = sorted(str(Path(path, name).relative_to(mount.path)) for path, names, _ in os.walk(mount.path)
                   for name in names if not f"{path}/{name}".startswith(f"{mount.path}/."))  # fmt: skip
    stored = sorted(str(Path(path, name).relative_to(mount.store)) for path, names, _ in os.walk(mount.store)
                    for name in names if not f"{path}/{name}".startswith(f"{mount.store}/.")
                    and not any(Path(path, name).glob("mem*")))  # fmt: skip
    assert shown == stored
    return shown


# --- what goes ---


@pytest.mark.one_mount
@pytest.mark.parametrize("options", [SMALL, "", "type=ring size=4K"])
def test_what_create_made_goes_with_remove(mount: Mount, options: str) -> None:
    mount.create("a/b/c", options)
    assert directories(mount) == ["a", "a/b"]
    mount.command("remove a/b/c")
    assert directories(mount) == []
    assert os.listdir(mount.path / ".channels") == []


@pytest.mark.one_mount
def test_it_goes_with_the_last_of_several_channels(mount: Mount) -> None:
    for path in ("a/b/c", "a/b/d", "a/e"):
        mount.create(path, SMALL)
    for path, left in (("a/b/c", ["a", "a/b"]), ("a/b/d", ["a"]), ("a/e", [])):
        mount.command(f"remove {path}")
        assert directories(mount) == left


@pytest.mark.one_mount
def test_each_line_of_a_write_finds_what_those_before_it_have_left(mount: Mount) -> None:
    mount.command(f"create a/b {SMALL}\nremove a/b\ncreate a {SMALL}\n")
    assert (mount.path / "a").is_file()


@pytest.mark.one_mount
def test_a_refused_line_leaves_what_those_before_it_did(mount: Mount) -> None:
    with pytest.raises(OSError):
        mount.command(f"create a/b {SMALL}\nremove a/b\nnonsense\n")
    assert directories(mount) == []


def test_a_damaged_channel_takes_them_along(mount: Mount) -> None:
    mount.create("a/b", SMALL)
    mount.kill()
    truncate(mount.store / "a/b/mem0", 4096)
    mount.expect("truncated")
    mount.start()
    mount.command("remove a/b")
    assert directories(mount) == []


@pytest.mark.parametrize("above", ["", "own/"])
def test_inotify_tells_of_it(mount: Mount, tmp_path: Path, above: str) -> None:
    told = tmp_path / "told"
    (mount.path / above).mkdir(exist_ok=True)

    def is_told() -> bool:
        mount.command(f"create {above}a/b {SMALL}\nremove {above}a/b\n")
        return "DELETE,ISDIR a\n" in told.read_text()

    # A server that the machine leaves no time for removes it untold.
    with watching(mount.path / above, told):
        wait_until(is_told, "inotify tells of a removal")


def test_it_goes_although_somebody_holds_the_directory_above(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    with holding(mount.path / "a"):
        mount.command("remove a/b/c")
        assert not (mount.store / "a").exists()
        mount.create("a/b/c", SMALL)
    mount.command("remove a/b/c")
    assert directories(mount) == []


@pytest.mark.one_mount
def test_a_process_may_be_in_it(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    with subprocess.Popen(["cat"], cwd=mount.path / "a/b", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        mount.command("remove a/b/c")
        assert directories(mount) == []
        assert inside.communicate(b"well")[0] == b"well"
    mount.create("a/b/c", SMALL)
    assert directories(mount) == ["a", "a/b"]


# --- what stays ---


@pytest.mark.one_mount
def test_a_directory_that_was_there_stays(mount: Mount) -> None:
    (mount.path / "a").mkdir()
    mount.create("a/b/c", SMALL)
    mount.command("remove a/b/c")
    assert directories(mount) == ["a"]
    os.rmdir(mount.path / "a")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o750),
        lambda path: path.chmod(0o755),
        lambda path: os.chown(path, -1, NOBODY),
        lambda path: os.chown(path, 0, 0),
        lambda path: (path / "own").mkdir(),
    ],
    ids=["another mode", "its mode", "another group", "its group", "a directory in it"],
)
@pytest.mark.one_mount
def test_who_changes_it_has_made_it_his_own(mount: Mount, change: Callable[[Path], object]) -> None:
    mount.create("a/b/c/d", SMALL)
    change(mount.path / "a/b")
    mount.command("remove a/b/c/d")
    assert directories(mount)[:2] == ["a", "a/b"]
    assert not (mount.path / "a/b/c").exists()


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o750), lambda path: os.chown(path, -1, NOBODY)])
def test_also_in_a_store_that_nobody_serves(mount: Mount, change: Callable[[Path], object]) -> None:
    mount.create("a/b", SMALL)
    mount.kill()
    change(mount.store / "a")
    mount.start()
    mount.command("remove a/b")
    assert directories(mount) == ["a"]


def test_what_rmdir_empties_stays(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    (mount.path / "a/own").mkdir()
    mount.command("remove a/b/c")
    os.rmdir(mount.path / "a/own")
    assert directories(mount) == ["a"]
    mount.kill()
    mount.start()
    assert directories(mount) == ["a"]


@pytest.mark.one_mount
def test_where_something_is_mounted_it_stays(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64K", "tmpfs", mount.path / "a/b"], check=True)
    try:
        mount.command("remove a/b/c")
        (mount.path / "a/b/file").touch()
    finally:
        subprocess.run(["umount", mount.path / "a/b"], check=True)
    assert directories(mount) == ["a", "a/b"]


def test_what_the_store_holds_besides_keeps_it(mount: Mount) -> None:
    mount.create("a/b", SMALL)
    (mount.store / "a/stray").touch()
    mount.command("remove a/b")
    assert (mount.path / "a").is_dir()


@pytest.mark.one_mount
def test_its_mark_is_not_seen_and_cannot_be_set(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    assert stat.S_IMODE((mount.path / "a").stat().st_mode) == PERMS["PLAIN"]
    (mount.path / "own").mkdir()
    with pytest.raises(PermissionError):
        (mount.path / "own").chmod(0o4755)
    mount.create("own/c", SMALL)
    mount.command("remove own/c")
    assert (mount.path / "own").is_dir()


# --- a server that ends ---


def test_a_restart_changes_nothing(mount: Mount) -> None:
    for path in ("a/b/c", "a/d"):
        mount.create(path, SMALL)
    (mount.path / "e/f").mkdir(parents=True)
    mount.kill()
    mount.start()
    assert directories(mount) == ["a", "a/b", "e", "e/f"]
    mount.command("remove a/b/c\nremove a/d\n")
    assert directories(mount) == ["e", "e/f"]


def test_a_server_that_dies_half_way_leaves_none(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    mount.kill()
    (mount.store / "a/b/c").rename(mount.store / ".removed-1-1")
    (mount.store / "ours").mkdir()
    mount.start()
    assert directories(mount) == ["ours"]


# --- the library ---


def test_what_the_library_made_in_a_mount_goes_with_relay_close(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open a/b/cpu - {GEOMETRY}")
    assert directories(mount) == ["a", "a/b"]
    maker.ask("close")
    assert directories(mount) == []


def test_what_the_library_makes_in_a_store_goes_as_well(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(start=False)
    mount.store.mkdir(mode=0o700)
    own = mount.store / "own"
    own.mkdir()
    with making(environment_of(mount)) as one, making(environment_of(mount)) as other:
        one.ask(f"open own/a/b/cpu - {GEOMETRY}")
        other.ask(f"open own/a/cpu - {GEOMETRY}")
        one.ask("close")
        assert os.listdir(own) == ["a"]
        assert os.listdir(own / "a") == ["cpu"]
        other.ask("close")
    assert os.listdir(mount.store / "own") == []


def test_a_channel_that_cannot_be_made_leaves_none(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(start=False)
    mount.store.mkdir(mode=0o700)
    with making(environment_of(mount)) as maker:
        assert maker(f"open a/b/cpu - {1 << 31} {1 << 8}") == "ENOSPC"
        assert [name for name in os.listdir(mount.store) if not name.startswith(".")] == []


def test_a_server_knows_what_the_library_made_and_the_library_what_a_server_made(
    nowhere: Path, late_mount: Mount, early: Maker
) -> None:
    store = nowhere.parent / "store"
    early.ask(f"open a/b/cpu - {GEOMETRY}")
    late_mount.start()
    late_mount.command(f"create c/d/e {SMALL}")
    assert directories(late_mount) == ["a", "a/b", "c", "c/d"]
    early.ask("close")
    assert directories(late_mount) == ["c", "c/d"]
    late_mount.stop()
    early.ask(f"open c/d/cpu - {GEOMETRY}")
    late_mount.start()
    late_mount.command("remove c/d/e")
    assert directories(late_mount) == ["c", "c/d"]
    late_mount.stop()
    early.ask("close")
    assert not (store / "c").exists()


def test_a_channel_that_is_closed_while_nobody_can_remove_it_takes_them_along_at_the_next_mount(mount: Mount) -> None:
    mount.create("a/b/c", SMALL)
    mount.create("a/d", SMALL)
    mount.kill()
    buffer = native.Buffer(str(mount.store / "a/b/c/mem0"))
    buffer.stop(native.CLOSED, True)
    buffer.close()
    mount.start()
    assert directories(mount) == ["a"]


# --- side by side ---


N_ROUNDS = 40


def test_no_create_fails_because_a_remove_takes_its_directory_away(mount: Mount, maker: Maker) -> None:
    def by_command(number: int) -> None:
        for _ in range(N_ROUNDS):
            mount.command(f"create a/b/c/x{number} {SMALL}")
            mount.command(f"remove a/b/c/x{number}")

    def by_library() -> None:
        for _ in range(N_ROUNDS):
            maker.ask("open a/b/cpu - 4096 2")
            maker.ask("close")

    def by_mkdir() -> None:
        for _ in range(N_ROUNDS):
            try:
                (mount.path / "a").mkdir()
            except FileExistsError:
                continue
            # His own: only he removes it.
            while True:
                assert (mount.path / "a").is_dir()
                try:
                    os.rmdir(mount.path / "a")
                    break
                except OSError as error:
                    assert error.errno == errno.ENOTEMPTY, error

    jobs = [lambda number=number: by_command(number) for number in range(3)]
    at_once(lambda job: job(), [*jobs, by_library, by_mkdir])
    assert directories(mount) == []


def test_no_program_without_a_server_takes_anothers_directory_away(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(start=False)

    def make_and_close(name: str) -> None:
        with making(environment_of(mount)) as maker:
            for _ in range(N_ROUNDS):
                maker.ask(f"open a/b/{name} - 4096 2")
                maker.ask("close")

    at_once(make_and_close, ("x", "y"))
    assert [name for name in os.listdir(mount.store) if not name.startswith(".")] == []
