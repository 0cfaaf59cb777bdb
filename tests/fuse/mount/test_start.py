"""Servers that fail while they start: they say why, and leave no mountpoint at which programs sleep for ever."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from forking import RELAYFS, start
from mounts import DEADLINE_S, wait_until

# What a start needs of descriptors lies in between; the server raises its own limit to the hard one.
DESCRIPTORS = range(5, 41)


@pytest.fixture
def mountpoint(tmp_path: Path):
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    subprocess.run(["fusermount3", "-u", "-z", "-q", path], check=False, capture_output=True)


def answers(path: Path) -> bool:
    """Whether a program that touches the mountpoint is answered, with whatever: it must not sleep."""
    toucher = subprocess.Popen(["stat", path / "control"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        toucher.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def is_mount(path: Path) -> bool:
    return str(path) in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("n", DESCRIPTORS)
def test_a_start_without_descriptors_fails_or_serves(mountpoint: Path, scratch_store: Path, n: int) -> None:
    server = start(
        [RELAYFS, "-f", mountpoint, "-o", f"store={scratch_store}"], n_files=n,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    try:
        wait_until(lambda: server.poll() is not None or is_mount(mountpoint), "it starts or fails")
        assert answers(mountpoint)
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
    finally:
        try:
            said = server.communicate(timeout=DEADLINE_S)[1]
        except subprocess.TimeoutExpired:
            server.kill()
            raise
    assert not is_mount(mountpoint), said
    if server.returncode:
        assert said.strip(), "it says why"
    os.listdir(mountpoint)


def test_a_server_that_is_told_to_end_as_soon_as_it_is_mounted_ends_in_order(mountpoint, scratch_store) -> None:
    server = subprocess.Popen(
        [RELAYFS, "-f", mountpoint, "-o", f"store={scratch_store}"], stderr=subprocess.DEVNULL, cwd="/"
    )
    wait_until(lambda: is_mount(mountpoint), "it is mounted")
    server.send_signal(signal.SIGTERM)
    assert server.wait(DEADLINE_S) == 0
    assert not is_mount(mountpoint)
