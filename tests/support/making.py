"""Programs that make channels, run by tests: tests/support/programs/maker.c, and what is seen of their channels.

with making({"RELAYFS": str(mount.path)}) as maker:
    maker.ask("open cpu - 4096 4")
    maker.ask("write hello")
    assert contents(mount.path / "cpu") == b"hello\n"
"""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import compile_c
from mounts import COUNTERS, DEADLINE_S, Mount, tmpfs_directory
from traffic import drain

from relayfs_fuse import native

SOURCE = Path(__file__).parent / "programs/maker.c"
N_CPUS = native.n_possible_cpus()
GEOMETRY = "4096 4"
# create_buf_file and remove_buf_file that do what most do.
USUAL = "files = = 600 0"


class Maker:
    """tests/support/programs/maker.c, running."""

    def __init__(
        self, environment: dict[str, str], user: int | None = None, command: Sequence[str | Path] | None = None
    ) -> None:
        self.process = forking.start(
            command or [compile_c([SOURCE])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, **environment}, user=user, group=user, extra_groups=None if user is None else [],
            cwd="/",
        )  # fmt: skip
        self.told: list[str] = []
        self._answers: list[str] = []
        self._heard = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                (self.told if line.startswith("* ") else self._answers).append(line.removeprefix("* ").rstrip("\n"))
                self._heard.notify_all()

    def __call__(self, command: str) -> str:
        """Have it do something; return its answer."""
        self.start(command)
        return self.answer(command)

    def start(self, command: str) -> None:
        """Have it do something, without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")

    def answer(self, command: str = "what was started") -> str:
        """Wait for its next answer."""
        with self._heard:
            assert self._heard.wait_for(lambda: self._answers, DEADLINE_S), f"{command}: no answer"
            return self._answers.pop(0)

    def ask(self, command: str) -> list[str]:
        """Have it do something that succeeds; return what its callbacks were told meanwhile."""
        self.told.clear()
        answer = self(command)
        assert answer == "0", f"{command}: {answer}"
        return list(self.told)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)
        self.process.stdout.close()


@contextmanager
def making(
    environment: dict[str, str], user: int | None = None, command: Sequence[str | Path] | None = None
) -> Iterator[Maker]:
    maker = Maker(environment, user, command)
    try:
        yield maker
    finally:
        maker.process.kill()
        maker.end()


def environment_of(mount: Mount) -> dict[str, str]:
    """Make a mount a program's default."""
    return {"RELAYFS": str(mount.path), "RELAYFS_STORE": str(mount.store)}


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Path]:
    """A directory where nothing is mounted; its parent is a place for a store, on tmpfs."""
    with tmpfs_directory() as path:
        (path / "mnt").mkdir()
        yield path / "mnt"


@pytest.fixture
def maker(mount: Mount) -> Iterator[Maker]:
    """A program whose default mount is that of the test."""
    with making(environment_of(mount)) as program:
        yield program


@pytest.fixture
def early(nowhere: Path) -> Iterator[Maker]:
    """A program that starts before anything is mounted."""
    with making({"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}) as program:
        yield program


@pytest.fixture
def late_mount(nowhere: Path, make_mount: Callable[..., Mount]) -> Iterator[Mount]:
    """A mount of the store of `early`, not mounted yet, in its place."""
    mount = make_mount(store=nowhere.parent / "store", start=False)
    mount.path = nowhere
    yield mount
    mount.close()


def contents(channel: Path) -> bytes:
    """Everything that can be read from a channel's relay files."""
    return b"".join(drain(Path(f"{channel}{cpu}")) for cpu in range(N_CPUS))


def relay_files(directory: Path) -> list[str]:
    ours = ("control", "error_log", ".channels", ".counters", ".crashed", ".traces", *COUNTERS)
    return sorted(name for name in os.listdir(directory) if name not in ours)


def numbered(name: str) -> list[str]:
    return sorted(f"{name}{cpu}" for cpu in range(N_CPUS))
