"""What starts a server in the foreground is told when it mounts and when it ends; and the unit that systemd starts."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import ROOT
from forking import RELAYFS, start
from mounts import DEADLINE_S, LISTED, Mount

UNIT = ROOT / "mount/relayfs@.service"


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


def test_the_unit_is_confined_as_systemd_judges():
    subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=40", UNIT], check=True,
                   capture_output=True)  # fmt: skip


def test_the_unit_has_no_mount_namespace():
    """In one, what the server mounts is seen by nobody else (systemd.exec(5), PrivateMounts=)."""
    making = (
        r"(Private(?!Network)|Protect(?!Clock|Hostname)|Read|Inaccessible|Bind|Temporary|Root|MountFlags|ProcSubset)"
    )
    assert not re.findall(rf"^{making}.*=", UNIT.read_text(), re.MULTILINE)
