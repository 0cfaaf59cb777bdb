"""The server dies where there are many channels: the next one answers before it has loaded all of them."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mounts import Mount, opened, stop_process, wait_until

from relayfs_fuse import native
from relayfs_fuse.cli.supervisor import LIVES_S
from relayfs_fuse.fs.server import LOADED_FIRST

DIED = "WARNING: the server before, process .* has died"
MANY, BATCH = 5 * LOADED_FIRST, 80
OPTIONS = "subbuf_size=4096 n_subbufs=1"


class Asking(threading.Thread):
    """A thread that makes one request, whose result or errno it keeps."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._ask()
        except OSError as error:
            self.result = errno.errorcode[error.errno or 0]

    def waits(self) -> bool:
        """Whether the kernel has the request, which nobody has answered.

        It may keep one back until that of another thread is answered, which changes the same directory or looks up
        another name in it.
        """
        where = Path(f"/proc/self/task/{self.native_id}/wchan").read_text()
        return any(wait in where for wait in ("request_wait", "rwsem_down", "fuse_lock_inode"))


def ask_next(mount: Mount, asked: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Have the next server find these requests when it begins; return their results."""
    server = mount.server
    stop_process(server)
    asking = {name: Asking(ask) for name, ask in asked.items()}
    for name, one in asking.items():
        wait_until(one.waits, f"{name} waits")
    os.kill(server, signal.SIGKILL)
    for one in asking.values():
        one.join()
    return {name: one.result for name, one in asking.items()}


@pytest.fixture
def many(make_mount: Callable[..., Mount]) -> Mount:
    """Give a mount with channels in `first`, more than are loaded before it answers, and in `last`.

    Without a watchdog: its server is stopped until many requests wait, for which a busy machine may need long.
    """
    mount = make_mount("watchdog=0")
    mount.expect(DIED)
    for begin in range(0, MANY, BATCH):
        mount.command("".join(f"create first/{number} {OPTIONS}\n" for number in range(begin, begin + BATCH)))
    mount.command("".join(f"create last/{name} {OPTIONS}\n" for name in ("a", "a1", "read", "shown", "removed")))
    mount.command(f"create last/single buffers=single {OPTIONS}\ncreate last/inner/c {OPTIONS}\n")
    return mount


def test_requests_are_answered_before_all_channels_are_loaded(many: Mount) -> None:
    exact = len(many.control.read_bytes())
    size = ask_next(many, {"control": lambda: os.stat(many.control).st_size})["control"]
    # So it is while it is an upper limit, because there are channels whose lines are not known yet.
    assert size > exact
    assert len(many.control.read_bytes()) == exact
    wait_until(lambda: os.stat(many.control).st_size == exact, "the size of control is exact again")


def test_a_read_of_control_does_not_hold_up_others_until_all_channels_are_loaded(many: Mount) -> None:
    text = many.control.read_bytes()
    with opened(many.control, os.O_RDONLY) as descriptor:
        results = ask_next(
            many,
            {
                "text": lambda: os.pread(descriptor, len(text) + 1, 0),
                "size": lambda: os.stat(many.control).st_size,
            },
        )
    assert results["text"] == text
    # As above.
    assert results["size"] > len(text)


def test_each_request_finds_the_channel_that_it_is_about(many: Mount) -> None:
    directory, shown = many.path / "last", many.path / ".channels/last"
    (directory / "read0").write_bytes(b"line\n")
    records = many.create("other/records", f"buffers=single times=mono {OPTIONS}")
    records.write_bytes(b"a record\n")
    with opened(records) as reader:
        assert os.read(reader, 3) == b"a r"
    names, numbers = sorted(os.listdir(directory)), sorted(os.listdir(many.path / "first"))
    inode, links = os.stat(directory / "a0").st_ino, os.stat(shown).st_nlink
    with opened(directory / "read0", os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        results = ask_next(
            many,
            {
                "an open file": lambda: os.read(descriptor, 100),
                "a record that was left": records.read_bytes,
                "a relay file": lambda: os.stat(directory / "a0").st_ino,
                "one of two channels": (directory / "a10").exists,
                "one of a single buffer": (directory / "single").exists,
                "no file": (directory / "a2").exists,
                "a statistic": (shown / "shown/state").read_text,
                "links": lambda: os.stat(shown).st_nlink,
                "a listing": lambda: sorted(os.listdir(directory)),
                "a long listing": lambda: sorted(os.listdir(many.path / "first")),
                "mkdir": lambda: os.mkdir(directory / "a"),
                "rmdir": lambda: os.rmdir(directory / "inner"),
                "a command": lambda: many.command("remove last/removed\n"),
            },
        )
    left = [name for name in names if not name.startswith("removed")]
    # The command may have come before these two.
    assert results.pop("a listing") in (names, left)
    assert results.pop("links") in (links, links - 1)
    assert results == {
        "an open file": b"line\n",
        "a record that was left": b"a record\n",
        "a relay file": inode,
        "one of two channels": True,
        "one of a single buffer": True,
        "no file": False,
        "a statistic": "ok\n",
        "a long listing": numbers,
        "mkdir": "EEXIST",
        "rmdir": "ENOTEMPTY",
        "a command": None,
    }
    assert sorted(os.listdir(directory)) == left
    assert many.channels().count("\n") == MANY + 7


def test_a_request_about_an_inode_loads_only_what_it_is_about(many: Mount) -> None:
    """The kernel knows it from the server before. Otherwise one request would hold up all others for seconds."""
    directory, shown, exact = many.path / "last", many.path / ".channels/last/shown", len(many.control.read_bytes())
    names = sorted(os.listdir(directory))

    def size() -> int:
        return os.stat(many.control).st_size

    # While some are not loaded, it is an upper limit, and with each that is loaded it comes nearer.
    most = ask_next(many, {"size": size})["size"] - exact
    with (
        opened(directory) as listed,
        opened(shown, os.O_PATH) as statistics,
        opened(directory / "a0", os.O_PATH) as file,
    ):
        asked = {
            "a file": lambda: os.fstat(file).st_ino,
            "a statistic": lambda: os.stat("state", dir_fd=statistics).st_ino,
            "a listing": lambda: sorted(os.listdir(listed)),
            "rmdir": lambda: os.rmdir(many.path / "first/empty"),
        }
        expected = {
            "a file": (directory / "a0").stat().st_ino,
            "a statistic": (shown / "state").stat().st_ino,
            "a listing": names,
            "rmdir": None,
        }

        def is_early(name: str) -> bool:
            """Ask, and see whether most were not loaded when it was answered; this thread may have been late."""
            began = time.monotonic()
            wait_until(lambda: size() == exact, "all are loaded")
            # The supervisor gives up after ten servers that have served for less than LIVES_S together.
            wait_until(lambda: time.monotonic() - began > LIVES_S / 5, "the server has served for a while")
            if name == "rmdir":
                os.mkdir(many.path / "first/empty")
            result, then = ask_next(many, {name: lambda: (asked[name](), size())})[name]
            assert result == expected[name]
            return bool(then - exact > most / 2)

        for name in asked:
            wait_until(lambda: is_early(name), f"{name} loads few")  # noqa: B023


def test_a_channel_that_was_being_removed_goes_with_the_directory_above(many: Mount) -> None:
    """It is found to be closed only when it is loaded."""
    assert many.stop() == 0
    for number in range(2):
        memory = native.Buffer(str(many.store / f"last/inner/c/mem{number}"))
        memory.stop(native.CLOSED, True)
        memory.close()
    many.start()
    wait_until(lambda: not (many.path / "last/inner").exists(), "last/inner is removed")
    assert not (many.path / ".channels/last/inner").exists()
    assert many.channels().count("\n") == MANY + 6
