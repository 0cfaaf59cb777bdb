"""What programs open on the way to a channel's memory, and what other users can do to it."""

import errno
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounts import Mount, User, wait_until
from traffic import Stream

from relayfs_fuse import Channel, Reader, Ring
from relayfs_fuse.inotify import Inotify
from relayfs_fuse.native.tables import PERMS

OPENED = 0x20  # IN_OPEN


def is_opened_by(path: Path, act: Callable[[], object]) -> bool:
    """Whether the file is opened in the meantime; to look at it by O_PATH does not count."""
    watcher = Inotify()
    try:
        watcher.add(str(path), OPENED)
        with pytest.raises(OSError) as refused:
            act()
        assert refused.value.errno in (errno.EBADMSG, errno.ELOOP, errno.ENOENT, errno.EINVAL)
        return bool(watcher.events())
    finally:
        watcher.close()


def make(kind: str, path: Path) -> Path:
    """Make a file that is no memory file; return the one that must not be opened."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif kind == "file":
        path.write_bytes(bytes(1 << 16))
    else:
        target = path.with_name("target")
        target.write_bytes(bytes(1 << 16))
        path.symlink_to(target)
        return target
    return path


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "file", "link"])
@pytest.mark.parametrize("name", ["mem0", "buffers"])
def test_what_only_looks_like_a_channel_is_not_opened(tmp_path: Path, kind: str, name: str) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("only root can make a device")
    stats = tmp_path / ".channels/trap"
    stats.mkdir(parents=True)
    if name != "mem0":
        (stats / "mem0").touch()
    trap = make(kind, stats / name)
    path = tmp_path / "trap"
    for act in (lambda: Channel(path), lambda: Reader(path), lambda: Reader(f"{path}0"), lambda: Ring(path)):
        assert not is_opened_by(trap, act)


@pytest.mark.parametrize("kind", ["fifo", "file", "link"])
def test_commands_go_to_nothing_but_a_mount(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".channels").mkdir()
    trap = make(kind, tmp_path / "control")
    assert not is_opened_by(trap, lambda: Channel.create(tmp_path / "trap"))
    assert kind == "fifo" or not trap.read_bytes().strip(b"\0")


# --- what users who may write a channel can do to its memory ---

INTRUDER = Path(__file__).with_name("intruder.py")
# For what the file system's own rules let nobody do, it does not matter whether it is asked as somebody's root.
AS_ROOT_OF_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "--fork"]


def shape(mount: Mount) -> dict[str, tuple[int, int, int, int, int]]:
    """What must stay of each file of the store: who it is, its names, its mode, length and memory."""
    found = {}
    for path in mount.store.rglob("mem*"):
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_nlink, status.st_mode, status.st_size, status.st_blocks)
    return found


@pytest.fixture
def victim(mount: Mount) -> Iterator[Stream]:
    """Root's producer, which has the channel mapped that others may write, too."""
    stream = Stream(mount, "open/cpu")
    mount.create(stream.channel, "perm=0666 subbuf_size=64K n_subbufs=4 mode=overwrite")
    stream.start(burst=100, at_most=1 << 40)
    yield stream
    stream.kill()


@pytest.mark.usefixtures("mapped_through")
@pytest.mark.parametrize("namespace", [[], AS_ROOT_OF_A_NAMESPACE], ids=["plainly", "in a user namespace"])
@pytest.mark.parametrize("file", ["memory", "relay file"])
def test_who_may_write_a_channel_cannot_truncate_grow_or_keep_it(
    mount: Mount, victim: Stream, unprivileged: User, namespace: list[str], file: str
) -> None:
    if namespace and unprivileged.run(*namespace, "true").returncode:
        pytest.skip("this machine gives users no namespaces")
    path = mount.path / f".channels/open/cpu/mem{victim.cpu}" if file == "memory" else victim.file
    before, relay_file = shape(mount), (victim.file.stat().st_ino, victim.file.stat().st_mode)
    done = unprivileged.run(*namespace, sys.executable, INTRUDER, path)
    assert done.returncode == 0, done.stderr
    assert "ftruncate" in done.stdout
    assert shape(mount) == before, done.stdout
    assert (victim.file.stat().st_ino, victim.file.stat().st_mode) == relay_file
    # What maps the memory goes on, and so does the server.
    assert victim.process is not None
    wrote = victim.shown("records")
    wait_until(lambda: victim.shown("records") > wrote, "root's producer goes on")
    assert victim.process.poll() is None
    kept = [*Path("/tmp").glob("relayfs-intruder-*"), *Path("/dev/shm").glob("relayfs-intruder-*")]
    assert not kept


@pytest.mark.usefixtures("mapped_through")
def test_who_reaches_beyond_the_memory_kills_only_himself(mount: Mount, victim: Stream, unprivileged: User) -> None:
    path = mount.path / f".channels/open/cpu/mem{victim.cpu}"
    assert unprivileged.run(sys.executable, INTRUDER, path, "beyond").returncode == -signal.SIGBUS
    wrote = victim.shown("records")
    wait_until(lambda: victim.shown("records") > wrote, "root's producer goes on")


def test_the_store_is_for_its_own_user(mount: Mount, unprivileged: User) -> None:
    mount.create("dir/log", "buffers=single perm=0666")
    assert stat.S_IMODE(mount.store.stat().st_mode) == PERMS["STORE"]
    assert unprivileged.run("cat", mount.store / "dir/log/mem0").stderr.endswith("Permission denied\n")
    assert unprivileged.run("sh", "-c", f": > {mount.path}/dir/log").returncode == 0


@pytest.mark.parametrize("options", [[], ["trusted"]], ids=["closed", "trusted"])
def test_a_store_that_was_open_is_as_the_server_is_told(make_mount: Callable[..., Mount], options: list[str]) -> None:
    mount = make_mount(*options, start=False)
    mount.store.mkdir(mode=0o755)
    mount.start()
    assert stat.S_IMODE(mount.store.stat().st_mode) == PERMS["STORE_TRUSTED" if options else "STORE"]
    assert stat.S_IMODE(mount.path.stat().st_mode) == PERMS["PLAIN"]


def test_the_mounts_root_keeps_its_mode_whatever_the_stores_is(mount: Mount) -> None:
    mount.path.chmod(0o711)
    assert stat.S_IMODE(mount.store.stat().st_mode) == PERMS["STORE"]
    mount.kill()
    mount.start()
    assert stat.S_IMODE(mount.path.stat().st_mode) == 0o711


def test_a_trusting_mount_lets_others_open_files_as_their_modes_say(
    make_mount: Callable[..., Mount], unprivileged: User
) -> None:
    mount = make_mount("trusted")
    mount.create("log", "buffers=single perm=0644")
    assert unprivileged.run("cmp", "-n", "1", mount.store / "log/mem0", "/dev/zero").returncode == 0
    assert unprivileged.run("sh", "-c", f": >> {mount.store}/log/mem0").returncode != 0
