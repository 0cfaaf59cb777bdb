"""Mounts that are detached while programs use them, and mountpoints that are in use."""

import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, RELAYFS, Mount, opened, wait_until

PRODUCER = """
import sys
from relayfs_fuse import Channel
with Channel(sys.argv[1]) as channel:
    print("attached", flush=True)
    for line in sys.stdin:
        channel.write(line.encode())
        print("written", flush=True)
"""


class Producer:
    """A program that writes a record when it is told to."""

    def __init__(self, path: Path) -> None:
        self.process = forking.start(
            [sys.executable, "-c", PRODUCER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self._heard("attached")

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        self._heard("written")

    def _heard(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0


def unmounted(mount: Mount) -> bool:
    return "unmounted" in (mount.store / ".lock").read_text()


def test_a_store_whose_mount_was_detached_is_mounted_again_while_its_producers_live(make_mount) -> None:
    old: Mount = make_mount()
    path = old.create("log", "buffers=single")
    producer = Producer(path)
    producer.write("before")
    subprocess.run(["umount", "-l", old.path], check=True)
    wait_until(lambda: unmounted(old), "the server notices")
    producer.write("between")
    assert old.process is not None
    assert old.process.poll() is None, "it serves what is open"
    new: Mount = make_mount()
    assert old.process.wait(DEADLINE_S) == 0
    producer.write("after")
    assert (new.path / "log").read_text() == "before\nbetween\nafter\n"
    producer.end()


def test_a_detached_mount_at_the_same_place_is_not_unmounted_by_the_server_that_ends(make_mount) -> None:
    old: Mount = make_mount()
    producer = Producer(old.create("log", "buffers=single"))
    subprocess.run(["umount", "-l", old.path], check=True)
    wait_until(lambda: unmounted(old), "the server notices")
    new: Mount = make_mount(start=False)
    new.path, old.path = old.path, new.path
    new.start()
    assert old.process is not None
    assert old.process.wait(DEADLINE_S) == 0
    producer.write("one")
    assert (new.path / "log").read_text() == "one\n"
    producer.end()


def start(place: Path, store: Path) -> subprocess.CompletedProcess[str]:
    command = [RELAYFS, place, "-o", f"store={store}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd="/")


def test_a_mountpoint_that_is_in_use_is_refused_also_by_way_of_a_link(mount: Mount, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(mount.path)
    for place in (mount.path, link):
        done = start(place, mount.store.with_name("other"))
        assert done.returncode == 1
        assert "a relayfs is mounted there" in done.stderr
    path = mount.create("log", "buffers=single")
    path.write_bytes(b"fine\n")
    assert path.read_bytes() == b"fine\n"


def test_a_directory_that_went_without_the_kernel_is_looked_up_again(mount: Mount) -> None:
    """The server cannot remove it by rmdir(2) while another mount covers it, and another one gets its name."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    mount.command("create made/one buffers=single")
    with opened(mount.path, os.O_PATH) as top, mount.control.open("wb", buffering=0) as control:
        os.stat("made", dir_fd=top)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount.path], check=True)
        try:
            control.write(b"remove made/one\ncreate made/two buffers=single\n")
            assert os.stat("made/two", dir_fd=top).st_size == 0
            assert os.listdir(f"/proc/self/fd/{top}/made") == ["two"]
        finally:
            subprocess.run(["umount", mount.path], check=True)


def test_a_server_that_was_covered_by_another_mount_does_not_take_that_away(mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount.path], check=True)
    (mount.path / "mine").touch()
    assert mount.stop() == 0
    assert (mount.path / "mine").exists()
    subprocess.run(["umount", mount.path], check=True)
