"""Another version of the server takes over a mount, and what programs have open goes on.

RELAYFS_OTHER=PROGRAM: the relayfs of another build, such as that of the commit before; ./dev stress has it and this one
follow each other. Otherwise the other version is this build, with another number.
"""

import json
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from forking import RELAYCTL, RELAYFS, run
from mounts import DEADLINE_S, Mount, User, opened, wait_until
from stress import is_long
from traffic import lines, wait_asleep
from versions import OTHER, Build, other_version, served_by, upgrade

import relayfs_fuse
from relayfs_fuse.fs.versions import HANDOVER_VERSION

# What the new server does instead of serving, and what is said of it.
HANGS = ("time.sleep(1000)", "did not answer within 30 s")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return other_version(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def other(build: Build) -> Path:
    return build()


class Writers:
    """A thread that writes the same lines to several files, which stay open."""

    def __init__(self, *paths: Path) -> None:
        self.n = 0
        self._paths = paths
        self._ends = threading.Event()
        self._failed: list[OSError] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with ExitStack() as stack:
            descriptors = [stack.enter_context(opened(path, os.O_WRONLY)) for path in self._paths]
            try:
                while not self._ends.wait(0.01):
                    for descriptor in descriptors:
                        assert os.write(descriptor, lines(1, self.n)) == len(lines(1))
                    self.n += 1
            except OSError as error:
                self._failed.append(error)

    def end(self) -> bytes:
        """Return what was written to each file."""
        self._ends.set()
        self._thread.join(DEADLINE_S)
        assert not self._failed
        return lines(self.n)


class Poller:
    """A thread that polls a file, and reads it when it is readable."""

    def __init__(self, path: Path) -> None:
        self.got = b""
        self._path = path
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with opened(self._path, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
            epoll.register(descriptor, select.EPOLLIN)
            while not self._ends.is_set():
                if epoll.poll(1):
                    self.got += os.read(descriptor, 1 << 16)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Give a function that starts a program whose output goes to a file, and returns the file."""
    with ExitStack() as stack:

        def start(*command: str | Path) -> Path:
            out = tmp_path / command[0]
            with out.open("wb") as file:
                process = stack.enter_context(subprocess.Popen(command, stdout=file))
            stack.callback(process.kill)
            wait_until(lambda: os.listdir(f"/proc/{process.pid}/fd"), "it runs")
            return out

        yield start


def wait_for(what: bytes, got: Callable[[], bytes]) -> None:
    wait_until(lambda: len(got()) >= len(what), lambda: f"{len(got())} of {len(what)} bytes")
    assert got() == what


@pytest.mark.stress
def test_open_files_go_on_while_versions_follow_each_other(
    make_mount: Callable[..., Mount], other: Path, copying: Callable[..., Path]
) -> None:
    mount = make_mount()
    assert mount.process is not None
    sizes = "buffers=single subbuf_size=64K n_subbufs=8"
    waited, tailed, polled = (mount.create(name, f"{sizes} {options}") for name, options in (
        ("waited", "read=wait"), ("tailed", ""), ("polled", "read=wait"),
    ))  # fmt: skip
    ring = mount.create("ring", "type=ring buffers=single size=512K read=wait")
    told = [copying("cat", waited), copying("tail", "-c", "+1", "-f", tailed), copying("dd", f"if={ring}", "bs=64K")]
    poller = Poller(polled)
    writers = Writers(waited, tailed, polled, ring)
    shown = mount.channels()
    programs = [Path(os.environ.get("RELAYFS_OTHER", other)), RELAYFS]
    versions = [json.loads(subprocess.check_output([program, "--handover"]))["version"] for program in programs]
    for n in range(50 if is_long() else 3):
        before, after = served_by(mount.path), versions[n % 2]
        done = upgrade(mount.path, programs[n % 2], "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["before"], said["after"]) == (before, after)
        assert said["pause_ms"] > 0
        assert served_by(mount.path) == after
        assert mount.process.poll() is None
    written = writers.end()
    for file in told:
        wait_for(written, file.read_bytes)
    wait_for(written, lambda: poller.got)
    poller.end()
    assert mount.channels() == shown
    assert mount.stop() == 0
    assert os.listdir(mount.path) == []


def test_after_it_the_supervisor_is_of_the_other_version_too(mount: Mount, other: Path) -> None:
    mount.expect("WARNING: the server before, process .* has died")
    path = mount.create("log", "buffers=single read=wait")
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        wait_asleep(cat, path)
        done = upgrade(mount.path, other)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(
            rf"{mount.path}: version {OTHER} has taken over from {relayfs_fuse.__version__}; "
            r"programs waited \d+ ms at most\n",
            done.stdout,
        )
        mount.kill_server()
        path.write_bytes(lines(1))
        assert cat.stdout.readline() == lines(1)
        assert served_by(mount.path) == OTHER
        cat.kill()
    assert mount.stop() == 0


def test_a_mount_in_the_background_is_taken_over(tmp_path: Path, scratch_store: Path, other: Path) -> None:
    (tmp_path / "mnt").mkdir()
    mountpoint = tmp_path / "mnt"
    options = f"store={os.path.relpath(scratch_store, tmp_path)},log=log,control_mode=0622"
    run([RELAYFS, "here", "mnt", "-o", options], cwd=tmp_path, check=True, timeout=DEADLINE_S)
    try:
        before = mountpoint.joinpath("control").stat()
        done = upgrade(mountpoint, other)
        assert done.returncode == 0, done.stderr
        after = mountpoint.joinpath("control").stat()
        assert (after.st_mode, after.st_ino, after.st_dev) == (before.st_mode, before.st_ino, before.st_dev)
        assert served_by(mountpoint) == OTHER
        assert f"version {OTHER} has taken over from version" in (tmp_path / "log").read_text()
    finally:
        subprocess.run(["umount", mountpoint], check=True)
    text = (scratch_store / ".lock").read_text()
    wait_until(lambda: not Path(f"/proc/{text.split()[1].rstrip(',')}").exists(), "the supervisor ends")


def unchanged(mount: Mount, program: Path, status: int = 1) -> str:
    """Return why an upgrade was refused, which the server goes on after."""
    server = mount.server
    done = upgrade(mount.path, program)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert mount.server == server
    assert served_by(mount.path) == relayfs_fuse.__version__
    return done.stderr


@pytest.mark.one_mount
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("from relayfs_fuse.native import FORMATS\nFORMATS['rings'] = 99",
         rf"relayfs\d+ is of version {OTHER}: its format of rings has version 99, that of this server 4: umount, and"),
        ("import relayfs_fuse.fs.versions as v\nv.HANDOVER_VERSION = 99",
         rf"is of version {OTHER}: its hand-over has version 99, that of this server {HANDOVER_VERSION}: umount"),
        ("sys.exit('it is broken')", r"does not tell its versions: .* \(status 1: it is broken\)"),
        ("if '--take-over' in sys.argv: sys.exit(3)", "the program ended before it was ready"),
    ],
    ids=["format", "hand-over", "broken", "broken later"],
)  # fmt: skip
def test_a_version_that_does_not_fit_is_refused(mount: Mount, build: Build, statements: str, reason: str) -> None:
    assert re.search(reason, unchanged(mount, build(statements)))


@pytest.mark.one_mount
def test_a_program_that_others_could_change_is_refused(mount: Mount, build: Build, unprivileged: User) -> None:
    """It would run as the server's user."""
    program = build("open(os.path.dirname(__file__) + '/ran', 'w')")
    ran = program.with_name("ran")
    program.chmod(0o777)
    assert re.search("has mode 0777: others than its owner can change it", unchanged(mount, program))
    program.chmod(0o755)
    os.chown(program, unprivileged.uid, 0)
    assert re.search(f"belongs to user {unprivileged.uid}, who can change it", unchanged(mount, program))
    os.chown(program, 0, 0)
    program.parent.chmod(0o757)
    assert re.search("everybody can replace", unchanged(mount, program))
    program.parent.chmod(0o755)
    program.chmod(0o644)
    assert re.search("is no program that user 0 may execute", unchanged(mount, program))
    assert re.search("is no program", unchanged(mount, program.parent))
    assert re.search("No such file", unchanged(mount, program.with_name("none")))
    assert re.search("is it another program", unchanged(mount, Path("/bin/true")))
    assert not ran.exists()


@pytest.mark.one_mount
def test_a_stranger_may_not_ask(mount: Mount, other: Path, unprivileged: User) -> None:
    server = mount.server
    done = unprivileged.run(RELAYCTL, "upgrade", mount.path, "--with", other)
    assert done.returncode == 1
    assert re.search("only root and the user who mounted .* may upgrade its server", done.stderr)
    assert mount.server == server


@pytest.mark.stress
@pytest.mark.one_mount
@pytest.mark.parametrize(
    ("end", "reason"),
    [("os._exit(3)", "died before it answered"), *([HANGS] if is_long() else [])],
)
def test_the_old_version_serves_again_if_the_new_one_does_not(
    mount: Mount, build: Build, end: str, reason: str
) -> None:
    mount.expect("WARNING: the server before, process .* has died")
    mount.expect(f"WARNING: the server of version {OTHER} {reason}: this is version {relayfs_fuse.__version__} again")
    bad = build(f"import relayfs_fuse.fs.server\nrelayfs_fuse.fs.server.Server.run = lambda self: {end}")
    path = mount.create("log", "buffers=single read=wait")
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        wait_asleep(cat, path)
        done = upgrade(mount.path, bad)
        assert done.returncode == 1
        assert f"the version before serves again: the server of version {OTHER} {reason}" in done.stderr
        path.write_bytes(lines(1))
        assert cat.stdout.readline() == lines(1)
        assert served_by(mount.path) == relayfs_fuse.__version__
        cat.kill()
    mount.wait_for_log("this is version")


def test_a_version_that_dies_soon_after_it_answered_is_given_up(mount: Mount, build: Build) -> None:
    mount.expect("WARNING: the server before, process .* has died")
    mount.expect(f"WARNING: the server of version {OTHER} died within 2 s")
    bad = build(
        "from relayfs_fuse.fs.handover import Handover\ntell = Handover.tell_answers\n"
        "def answer(self, number):\n    tell(self, number)\n    os._exit(3)\nHandover.tell_answers = answer"
    )
    done = upgrade(mount.path, bad)
    assert done.returncode == 1
    assert f"the server of version {OTHER} died within 2 s" in done.stderr
    assert served_by(mount.path) == relayfs_fuse.__version__
    assert mount.stop() == 0


def test_one_upgrade_at_a_time(mount: Mount, build: Build, tmp_path: Path) -> None:
    asked, goes = tmp_path / "asked", tmp_path / "goes"
    waits = build(f"open({str(asked)!r}, 'w')\nwhile not os.path.exists({str(goes)!r}): time.sleep(0.01)")
    first = subprocess.Popen([RELAYCTL, "upgrade", mount.path, "--with", waits], stdout=subprocess.PIPE)
    wait_until(asked.exists, "it asks")
    done = upgrade(mount.path, waits)
    assert done.returncode == 1
    assert "refused: another upgrade is under way" in done.stderr
    goes.touch()
    out, _ = first.communicate(timeout=DEADLINE_S)
    assert f"version {OTHER} has taken over" in out.decode()
    assert mount.stop(signal.SIGINT) == 0


def test_where_nothing_is_mounted_it_says_so(tmp_path: Path) -> None:
    done = run([RELAYCTL, "upgrade", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is no mount of relayfs" in done.stderr


def test_a_store_in_which_the_socket_cannot_be_made_is_mounted(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(start=False)
    mount.store.mkdir(mode=0o700)
    (mount.store / ".supervisor").mkdir()
    mount.expect("WARNING: this server cannot be upgraded: .supervisor of its store: Is a directory")
    mount.start()
    assert "nobody listens" in upgrade(mount.path, RELAYFS).stderr
    (mount.store / ".supervisor").rmdir()
    assert "nobody listens" in upgrade(mount.path, RELAYFS).stderr
