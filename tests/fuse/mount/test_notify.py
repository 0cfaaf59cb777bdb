"""What starts a server in the foreground is told when it mounts and when it ends; and the unit that systemd starts."""

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import ROOT
from forking import RELAYFS, start
from making import GEOMETRY, contents, environment_of, making
from mounts import DEADLINE_S, LISTED, Mount, User

from relayfs_fuse import Channel

UNIT = ROOT / "mount/relayfs@.service"
FS_IOC_GETFLAGS = 0x80086601


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    return path


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(DEADLINE_S)
        yield listener


@pytest.mark.parametrize("is_abstract", [False, True], ids=["in a directory", "abstract"])
@pytest.mark.parametrize("ends_by", ["signal", "umount"])
def test_ready_is_said_when_the_mount_answers_and_stopping_when_it_ends(
    mountpoint, scratch_store, tmp_path, is_abstract, ends_by
):
    shown = f"@relayfs-test-{os.getpid()}-{ends_by}" if is_abstract else str(tmp_path / "notify")
    with listening(re.sub("^@", "\0", shown)) as listener:
        server = start(
            [RELAYFS, "-f", mountpoint, "-o", f"store={scratch_store}"],
            env={**os.environ, "NOTIFY_SOCKET": shown}, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        assert listener.recv(1000) == b"READY=1"
        assert "".join(f"{name}\n" for name in sorted(os.listdir(mountpoint)) if name[0] != ".") == LISTED
        if ends_by == "signal":
            server.send_signal(signal.SIGTERM)
        else:
            subprocess.run(["umount", mountpoint], check=True)
        assert listener.recv(1000) == b"STOPPING=1"
        assert server.wait(DEADLINE_S) == 0


def test_a_socket_that_nobody_reads_keeps_no_server_from_mounting(make_mount, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    mount: Mount = make_mount()
    mount.expect(r"WARNING: NOTIFY_SOCKET=\S+ did not take (READY|STOPPING)=1: No such file or directory")
    assert (mount.path / "control").exists()


def flags_of(path: Path) -> int:
    """What lsattr shows."""
    with path.open("rb") as file:
        return int(struct.unpack("ixxxx", fcntl.ioctl(file, FS_IOC_GETFLAGS, bytes(8)))[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_a_server_that_is_confined_as_the_unit_says_serves_all_users(
    make_mount: Callable[..., Mount], unprivileged: User, tmp_path: Path
) -> None:
    mount = make_mount("control_mode=0666", start=False, is_forked=False)
    mount.program = tmp_path / "confined"
    mount.program.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' '{ROOT}/tests/support/confine.py' '{UNIT}' '{RELAYFS}' \"$@\"\n"
    )
    mount.program.chmod(0o755)
    mount.start()
    assert mount.process is not None
    status = Path(f"/proc/{mount.server}/status").read_text()
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    # It maps files where another server does (SYS_ADMIN), and protects their pages (LINUX_IMMUTABLE).
    free = make_mount(store=mount.store.with_name("other"))
    assert ("maps no files" in mount.log.read_text()) == ("maps no files" in free.log.read_text())
    for one in (mount, free):
        with Channel(one.create("open", "buffers=single perm=0666")) as channel:
            channel.write(b"record")
        (one.path / ".channels/open/mem0").open("r+b").close()
    assert flags_of(mount.store / "open/mem0") == flags_of(free.store / "open/mem0")
    # Another user's program has its own memory adopted, which is taken from /proc, and stays this user's.
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask(f"open - - {GEOMETRY}")
        maker.ask("write one")
        maker.ask("late cpu -")
        assert contents(mount.path / "cpu") == b"one\n"
        maker.ask("close")
    mount.command(f"create theirs buffers=single uid={unprivileged.uid}")
    assert (mount.path / "theirs").stat().st_uid == unprivileged.uid
    # Who has mounted unmounts.
    assert mount.stop() == 0
    with pytest.raises(OSError, match="not connected"):
        mount.path.stat()
    subprocess.run(["umount", mount.path], check=True)
    assert list(mount.path.iterdir()) == []


def test_who_is_no_service_can_have_no_mount_kept(mountpoint, scratch_store):
    for option in ("--service-mount", "--service-unmount"):
        done = subprocess.run(
            [RELAYFS, option, mountpoint, "-o", f"store={scratch_store}"], capture_output=True, text=True, check=False,
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (
            1, "relayfs: no service manager asked for this: NOTIFY_SOCKET is not set\n",
        )  # fmt: skip
        assert not os.path.ismount(mountpoint)
