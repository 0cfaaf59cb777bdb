"""A flight recorder: an overwritten channel under full load, read again and again by cat.

Each cat gives whole records, the oldest that stand first, and what none of them gave is counted exactly.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stress import Channel, Stress, is_long, stresses

if TYPE_CHECKING:
    from mounts import Mount

pytestmark = pytest.mark.stress

N_PRODUCERS = 3
PHASES = 3 if is_long() else 2
RECORDS = 500_000 if is_long() else 15_000
# A cat that producers keep ahead of ends only when they pause.
PATIENCE_S = 1
MARK = (0x007FFFFFFFFF9B1E).to_bytes(8, "little")  # stress_subbuf(STRESS_UNFINISHED)


class Recorder(threading.Thread):
    """Read one relay file with one cat after the other, until finish()."""

    def __init__(self, stress: Stress, relay_file: Path, pipe: Path) -> None:
        super().__init__()
        self.stress, self.relay_file = stress, relay_file
        self.pipe = os.open(pipe, os.O_WRONLY)
        self.finished = threading.Event()
        self.cats: list[int] = []

    def cat(self) -> None:
        """Pass on what is there, and a mark: if what came was not whole, that falls into a record."""
        with subprocess.Popen(["cat", self.relay_file], stdout=self.pipe) as cat:
            try:
                cat.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                with self.stress.paused():
                    cat.wait()
        self.cats.append(cat.returncode)
        os.write(self.pipe, MARK)

    def run(self) -> None:
        while not self.finished.is_set():
            self.cat()

    def finish(self) -> None:
        self.finished.set()
        self.join()


@contextmanager
def recorders(stress: Stress, relay_files: list[Path]) -> Iterator[list[Recorder]]:
    with ExitStack() as stack:
        made = []
        for relay_file, pipe in zip(relay_files, stress.channel.relay_files, strict=True):
            recorder = Recorder(stress, relay_file, pipe)
            stack.callback(os.close, recorder.pipe)
            made.append(recorder)
        yield made


def check_what_is_left(mount: "Mount", readers: list[Recorder]) -> None:
    """With nobody writing, one cat of each file gives all that stands, and nothing more is lost."""

    def stats() -> tuple[int, int, int]:
        names = ("unread_bytes", "read_bytes", "discarded_bytes", "lost_overwritten_bytes")
        unread, read, discarded, lost = (int(mount.shown("recorder", name)) for name in names)
        return unread, read + discarded, lost

    unread, passed, lost = stats()
    for reader in readers:
        reader.cat()
    assert stats() == (0, passed + unread, lost)


def record(mount: "Mount", stress: Stress, relay_files: list[Path], phase: int) -> int:
    """Let producers write and cats read, then only cats; return how often one read."""
    with recorders(stress, relay_files) as readers:
        for _ in range(N_PRODUCERS):
            stress.start_producer(RECORDS)
        for reader in readers:
            reader.start()
        stress.join_producers()
        for reader in readers:
            reader.finish()
        check_what_is_left(mount, readers)
        assert all(status == 0 for reader in readers for status in reader.cats), phase
        return sum(len(reader.cats) for reader in readers)


@pytest.mark.parametrize("reserves", [False, True], ids=["write", "reserve"])
@pytest.mark.parametrize("scheme", ["rseq", "lockless"])
def test_a_flight_recorder_read_by_cat(mount: "Mount", scheme: str, *, reserves: bool) -> None:
    path = mount.create("recorder", f"subbuf_size=60000 n_subbufs=8 mode=overwrite scheme={scheme}")
    with tempfile.TemporaryDirectory(prefix="relayfs-stress-", dir="/dev/shm") as scratch:
        channel = Channel.in_mount(path, mount.store / "recorder", "overwrite")
        relay_files, pipes = channel.relay_files, [Path(scratch) / file.name for file in channel.relay_files]
        for pipe in pipes:
            os.mkfifo(pipe)
        channel.relay_files = pipes
        with stresses(lambda: Stress(channel, Path(scratch) / "ledger", "pipe", reserves=reserves)) as [stress]:
            with ExitStack() as open_until_the_end:
                for pipe in pipes:
                    open_until_the_end.callback(os.close, os.open(pipe, os.O_WRONLY))
                n_cats = sum(record(mount, stress, relay_files, phase) for phase in range(PHASES))
            account = stress.finish()
            assert account["overwritten"] > 0
            assert account["read"] > 0
            assert n_cats > 2 * PHASES * len(pipes)
            assert int(mount.shown("recorder", "read_records")) == account["read"]
            assert int(mount.shown("recorder", "lost_overwritten")) == account["overwritten"]
