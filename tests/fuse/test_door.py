"""What programs open on the way to a channel's memory, and what other users can do to it."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from relayfs_fuse import Channel, Reader, Ring
from relayfs_fuse.inotify import Inotify

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
    facts = tmp_path / ".channels/trap"
    facts.mkdir(parents=True)
    if name != "mem0":
        (facts / "mem0").touch()
    trap = make(kind, facts / name)
    path = tmp_path / "trap"
    for act in (lambda: Channel(path), lambda: Reader(path), lambda: Reader(f"{path}0"), lambda: Ring(path)):
        assert not is_opened_by(trap, act)


@pytest.mark.parametrize("kind", ["fifo", "file", "link"])
def test_commands_go_to_nothing_but_a_mount(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".channels").mkdir()
    trap = make(kind, tmp_path / "control")
    assert not is_opened_by(trap, lambda: Channel.create(tmp_path / "trap"))
    assert kind == "fifo" or not trap.read_bytes().strip(b"\0")
