"""What the server does for a request does not depend on how many channels there are."""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from build import PLAIN, compile_c
from mounts import Mount, opened, serving, tmpfs_directory, wait_until

from relayfs_fuse.fs.survey import Survey

HERE = Path(__file__).parent
OPTIONS = "subbuf_size=4096 n_subbufs=1"
FEW, MANY, BATCH = 10, 500, 100
# Descriptors of a server without channels, and some more.
DESCRIPTORS_MAX = 100


# The kernel asks for the attributes of the directories in a path again after a second: two calls for each, of at most
# three.
AGAIN_MAX = 6


def are_as_many(some: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether the server made the same calls, but for what it is asked again on a slow machine."""
    return (some[0], some[2]) == (others[0], others[2]) and abs(some[1] - others[1]) <= AGAIN_MAX


@dataclass(frozen=True)
class Counted:
    """A server that counts its calls, and the file in which it does."""

    mount: Mount
    counts: Path

    def calls(self) -> tuple[int, ...]:
        return struct.unpack("=3Q", self.counts.read_bytes()[:24])

    def calls_of(self, act: Callable[[], object]) -> tuple[int, ...]:
        """Return how many files the server opens, looks for and maps: the least of some times, as it has ticks, too."""
        act()
        counted = []
        for _ in range(5):
            before = self.calls()
            act()
            counted.append(tuple(now - then for now, then in zip(self.calls(), before, strict=True)))
        return min(counted)

    def create(self, directory: str, first: int, end: int) -> None:
        for begin in range(first, end, BATCH):
            numbers = range(begin, min(begin + BATCH, end))
            self.mount.command("".join(f"create {directory}/{number} {OPTIONS}\n" for number in numbers))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    directory = tmp_path_factory.mktemp("counted")
    counts = directory / "counts"
    counts.write_bytes(bytes(4096))
    library = compile_c([HERE / "count_calls.c"], directory / "count_calls.so", PLAIN, "-shared", "-fPIC")
    with tmpfs_directory() as above, serving(above / "store") as make, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("COUNT_CALLS", str(counts))
        # Without statistics of channels, which a tick sets.
        mount = make("counters=16", is_forked=False)
        patch.undo()
        one = Counted(mount, counts)
        for name in ("many", "listed", "idle"):
            os.mkdir(mount.path / name)
        one.create("few", 0, FEW)
        yield one


def create_and_remove(mount: Mount) -> None:
    mount.command(f"create few/new {OPTIONS}\n")
    mount.command("remove few/new\n")


def open_and_close(mount: Mount) -> None:
    with opened(mount.path / "few/00", os.O_RDONLY | os.O_NONBLOCK):
        pass


def list_all(mount: Mount) -> None:
    for name in os.listdir(mount.path / "few"):
        os.stat(mount.path / "few" / name)


ACTS: dict[str, Callable[[Mount], object]] = {
    "stat control": lambda mount: os.stat(mount.control),
    "ls MNT": lambda mount: os.listdir(mount.path),
    "create, remove": create_and_remove,
    "stat a relay file": lambda mount: os.stat(mount.path / "few/00"),
    "open a relay file": open_and_close,
    "ls -l": list_all,
    "read a statistic": lambda mount: mount.shown("few/0", "records"),
}


def test_a_request_takes_as_many_calls_with_many_channels_as_with_few(counted: Counted) -> None:
    mount = counted.mount
    few = {name: counted.calls_of(lambda act=act: act(mount)) for name, act in ACTS.items()}
    assert few["create, remove"] > (0, 0, 0)  # it counts
    counted.create("many", 0, MANY - FEW)
    os.stat(mount.control)  # which counts the bytes of new lines once
    many = {name: counted.calls_of(lambda act=act: act(mount)) for name, act in ACTS.items()}
    assert not {name: (few[name], many[name]) for name in ACTS if not are_as_many(few[name], many[name])}


def test_names_are_listed_without_a_look_at_the_files(counted: Counted) -> None:
    counted.create("listed", 0, BATCH)
    lists = [counted.calls_of(lambda name=name: os.listdir(counted.mount.path / name)) for name in ("few", "listed")]
    assert are_as_many(*lists), lists


def test_idle_channels_take_no_descriptors(counted: Counted) -> None:
    server = counted.mount.server
    counted.create("idle", 0, 2 * DESCRIPTORS_MAX)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{server}/fd"))

    wait_until(lambda: descriptors() < DESCRIPTORS_MAX, lambda: f"fewer than {descriptors()} descriptors")
    # They are there nevertheless.
    assert counted.mount.shown("idle/0", "state") == "ok"


def test_a_server_shows_more_channels_than_it_has_descriptors(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    few = 120  # descriptors
    mount = make_mount()
    mount.command("".join(f"create {number} {OPTIONS}\n" for number in range(few)))
    assert mount.stop() == 0
    relayfs, mount.program, mount.is_forked = mount.program, tmp_path / "relayfs", False
    mount.program.write_text(f'#!/bin/sh\nexec prlimit --nofile={few}:{few} {relayfs} "$@"\n')
    mount.program.chmod(0o755)
    mount.start()
    assert mount.error_log == ""
    assert mount.channels().count("\n") == few
    assert {mount.shown(str(number), "state") for number in range(few)} == {"ok"}


def test_the_size_of_control_is_that_of_its_contents(mount: Mount) -> None:
    def check() -> None:
        assert mount.control.stat().st_size == len(mount.control.read_bytes())

    check()
    mount.create("app/a", OPTIONS)
    mount.create("b", "type=ring size=4096 buffers=single perm=0600")
    check()
    (mount.path / "b").chmod(0o644)
    check()
    assert "perm=0644" in mount.control.read_text()
    mount.command("trace create t\n")
    check()
    mount.command("remove app/a\n")
    check()
    assert "app/a" not in mount.control.read_text()


def test_a_directory_shows_at_once_what_was_made_in_it(mount: Mount) -> None:
    os.mkdir(mount.path / "app")
    before = os.stat(mount.path / "app")
    mount.create("app/inner/a", OPTIONS)
    after = os.stat(mount.path / "app")
    assert after.st_nlink == before.st_nlink + 1
    assert after.st_mtime_ns > before.st_mtime_ns
    mount.command("remove app/inner/a\n")
    assert os.stat(mount.path / "app").st_nlink == before.st_nlink


def test_a_survey_reads_changed_directories_only(tmp_path: Path) -> None:
    (tmp_path / "app/inner").mkdir(parents=True)
    (tmp_path / "channel").mkdir()
    (tmp_path / "channel/mem0").touch()
    for path in (tmp_path / "app", tmp_path):
        os.utime(path, (1, 1))
    survey = Survey(str(tmp_path), {".counters"})
    assert dict(survey.walk({"channel"})) == {"": [], "app": [], "app/inner": []}
    # Not seen, as the directory's time says that nothing has changed in it.
    (tmp_path / "app/new").mkdir()
    os.utime(tmp_path / "app", (1, 1))
    assert "app/new" not in dict(survey.walk({"channel"}))
    os.utime(tmp_path / "app", (2, 2))
    (tmp_path / "app/new/file").touch()
    assert dict(survey.walk({"channel"}))["app/new"] == ["file"]
    # Directories with files are always read.
    (tmp_path / "app/new/other").touch()
    os.utime(tmp_path / "app/new", (1, 1))
    assert sorted(dict(survey.walk({"channel"}))["app/new"]) == ["file", "other"]
    # The directory of what is no channel any more is one like others.
    assert dict(survey.walk(set()))["channel"] == ["mem0"]
