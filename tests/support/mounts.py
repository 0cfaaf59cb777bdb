"""Real mounts for tests: each has a store of its own, and a server whose log may hold no surprises."""

import fcntl
import os
import re
import select
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import forking
import pytest
from forking import RELAYFS

from relayfs_fuse import native

USUAL_LINE = re.compile(r"\S+ \S+ relayfs\[\d+\]: (INFO|DEBUG): ")
# Generous, as others may use the machine: it is waited out by what fails only.
DEADLINE_S = 300.0
COUNTERS = ("counters", "counters.names", "counters.txt")
# What ls(1) shows of a mount that holds nothing.
LISTED = "control\ncounters\ncounters.names\ncounters.txt\nerror_log\n"
NOBODY = 65534
# What the server itself keeps in a store, sorted.
KEPT_IN_STORE = [".counters", ".crashed", ".lock", ".root", ".supervisor", ".traces", ".traces-lost"]

# For sh in a mount namespace of its own: no relayfs is mounted there any more; otherwise it says which are, and fails.
# umount fails for a mount point that another test has removed meanwhile.
NO_MOUNTS = """
umount -a -l -t fuse.relayfs 2>/dev/null || :
! findmnt --list -t fuse.relayfs >&2 || exit 1
"""


def wait_until(condition: Callable[[], object], what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> None:
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > deadline_s:
            pytest.fail(f"waited {deadline_s} s in vain: {what() if callable(what) else what}")
        # Each look takes CPU time, often the server's, too. In a long wait, it matters less how long the last pause is.
        time.sleep(min(max(waited / 10, 0.002), 0.02))


def is_stopped(process: int) -> bool:
    """Whether all threads are stopped: one that goes on for a moment may answer a request."""
    stats = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(text.rpartition(")")[2].split()[0] == "T" for text in stats)


def stop_process(process: int) -> None:
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: is_stopped(process), f"process {process} is stopped")


def wait_until_quick(measure_s: Callable[[], float], n: int, limit_s: float) -> None:
    """Wait until the median of n measurements is below a limit, which it never is if what is measured waits for a tick.

    A busy machine delays everything now and then, so one round above the limit means nothing.
    """
    rounds: list[float] = []

    def is_quick() -> bool:
        rounds.append(statistics.median(measure_s() for _ in range(n)))
        return rounds[-1] < limit_s

    wait_until(is_quick, lambda: f"a median below {limit_s} s: {rounds}")


@dataclass
class Mount:
    """A server in the foreground of the test, its mountpoint and its store.

    own_session: whether it leads a session, which the kernel may give CPU time as a whole (sched(7), autogroup)
    is_forked: whether it is started as in forking.py; its memory is then a copy of another process's
    """

    path: Path
    store: Path
    log: Path
    options: list[str] = field(default_factory=list)
    user: int | None = None
    process: subprocess.Popen[bytes] | None = None
    expected: list[str] = field(default_factory=list)
    program: Path = RELAYFS
    own_session: bool = False
    is_forked: bool = True

    def start(self) -> None:
        arguments = ["-f", str(self.path), "-o", ",".join([f"store={self.store}", *self.options])]
        self.starts = self._log_text().count("is mounted")
        with self.log.open("ab") as log:
            who = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
            self.process = (forking.start if self.is_forked else subprocess.Popen)(
                [self.program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=self.own_session, **who,
            )  # fmt: skip
        wait_until(self._answers, self._log_text)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log_text()
        return self._log_text().count("is mounted") > self.starts

    def _log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def error_log(self) -> str:
        return (self.path / "error_log").read_text(errors="surrogateescape")

    def command(self, line: str) -> None:
        """Write to control with one write(2); OSError as the server refuses."""
        descriptor = os.open(self.control, os.O_WRONLY)
        try:
            os.write(descriptor, line.encode())
        except OSError as error:
            with suppress(OSError):
                error.add_note(self.error_log[-1000:])
            raise
        finally:
            os.close(descriptor)

    def channels(self) -> str:
        """Return the lines of control that make channels and traces again, without its comments."""
        lines = self.control.read_text(errors="surrogateescape").splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("#"))

    def create(self, path: str, options: str = "") -> Path:
        """Make a channel and return the path of its relay files without the number."""
        self.command(f"create {path} {options}\n")
        return self.path / path

    def clear(self) -> None:
        """Remove all channels and traces, and the directories that held them; forget errors."""
        for line in self.channels().splitlines():
            words = line.split()
            if words[:2] == ["trace", "create"]:
                self.command(f"trace remove {words[2]}")
            elif words[0] == "create":
                self.command(f"remove {words[1]}")
        for directory in reversed([path for path, *_ in os.walk(self.path) if "/." not in path][1:]):
            os.rmdir(directory)
        os.truncate(self.path / "error_log", 0)

    def shown(self, path: str, name: str) -> str:
        return (self.path / ".channels" / path / name).read_text().strip()

    def cpu_s(self) -> float:
        """Return the CPU time of the server: other than elapsed time, it does not grow with what else runs."""
        assert self.process is not None
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    @property
    def server(self) -> int:
        """The process that serves, once there is one; `process` is its supervisor."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        wait_until(children.read_text, "there is a server")
        return int(children.read_text().split()[-1])

    def kill_server(self) -> int:
        """Let the process die that serves, without a chance to do anything; return what process that was."""
        server = self.server
        os.kill(server, signal.SIGKILL)
        return server

    def expect(self, pattern: str) -> None:
        """Say what the server's log may hold besides the usual."""
        self.expected.append(pattern)

    def wait_for_log(self, pattern: str) -> None:
        """Wait until the log holds it: the server does not wait for its log (fs/log_writer.py)."""
        wait_until(lambda: re.search(pattern, self.log.read_text()), lambda: f"{pattern} in\n{self.log.read_text()}")

    def kill(self) -> None:
        """Let the server and its supervisor die without a chance to do anything."""
        assert self.process is not None
        server = os.pidfd_open(self.server)
        try:
            self.process.kill()
            self.process.wait()
            select.select([server], [], [], DEADLINE_S)
        finally:
            os.close(server)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End the server in order; return its exit status."""
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                status = self.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                pytest.fail(f"the server does not end\n{self._log_text()}")
            else:
                assert status == 0, self._log_text()
        if self._is_mounted():
            subprocess.run(["fusermount3", "-u", "-z", "-q", self.path], check=False, capture_output=True)
        self.check_log()

    def _is_mounted(self) -> bool:
        try:
            return os.lstat(self.path).st_dev != os.lstat(self.path.parent).st_dev
        except OSError:  # ENOTCONN: its server was killed; EACCES: it is another user's
            return True

    def check_log(self) -> None:
        strange = [
            line
            for line in self._log_text().splitlines()
            if not USUAL_LINE.match(line) and not any(re.search(pattern, line) for pattern in self.expected)
        ]
        assert not strange, "unexpected lines in the server's log:\n" + "\n".join(strange)


def shell(script: str, cwd: Path, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


@contextmanager
def watching(directory: Path, told: Path) -> Iterator[None]:
    """Have inotifywait write to a file what comes and goes."""
    command = ["inotifywait", "-m", "-e", "create,delete", "--format", "%e %f", directory]
    with told.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as watcher:
        try:
            assert watcher.stderr is not None
            while b"Watches established" not in watcher.stderr.readline():
                pass
            yield
        finally:
            watcher.kill()


@contextmanager
def tmpfs_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        Path(path).chmod(0o755)
        try:
            yield Path(path)
        finally:
            unprotect(Path(path))


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file; the descriptor is closed in the end."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def truncate(path: Path, length: int) -> None:
    """Truncate a file of a store, as its owner can whatever the server does."""
    descriptor = native.file_open(str(path))
    try:
        native.file_unprotect(descriptor)
        os.ftruncate(descriptor, length)
    finally:
        os.close(descriptor)


def unprotect(directory: Path) -> None:
    """Let files be removed that a server which was killed has left immutable."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    native.file_unprotect(descriptor)
                finally:
                    os.close(descriptor)


@contextmanager
def serving(default_store: Path) -> Iterator[Callable[..., Mount]]:
    """Give a function that starts servers: make("size=64M", user=65534). They end with the context."""
    mounts: list[Mount] = []
    scratch = Path(tempfile.mkdtemp(prefix="relayfs-test-"))
    scratch.chmod(0o755)

    def make(
        *options: str, user: int | None = None, store: Path = default_store, start: bool = True, is_forked: bool = True
    ) -> Mount:
        path = scratch / f"mnt{len(mounts)}"
        path.mkdir()
        if user is not None:
            os.chown(path, user, user)
            os.chown(store.parent, user, user)
        mount = Mount(path, store, scratch / f"log{len(mounts)}", list(options), user, is_forked=is_forked)
        mounts.append(mount)
        if start:
            mount.start()
        return mount

    failures = []
    yield make
    for mount in mounts:
        try:
            mount.close()
        except (AssertionError, pytest.fail.Exception) as failure:
            failures.append(failure)
    shutil.rmtree(scratch, ignore_errors=True)
    if failures:
        raise failures[0]


@pytest.fixture
def scratch_store() -> Iterator[Path]:
    """A place on tmpfs where a store can be made."""
    with tmpfs_directory() as path:
        yield path / "store"


@pytest.fixture
def make_mount(scratch_store: Path) -> Iterator[Callable[..., Mount]]:
    """Start servers; see serving()."""
    with serving(scratch_store) as make:
        yield make


@pytest.fixture
def mount(request: pytest.FixtureRequest) -> Iterator[Mount]:
    """A mount by root, with all defaults but the store's place."""
    one_mount = request.node.get_closest_marker("one_mount")
    if one_mount and one_mount.args != (False,):
        mount = request.getfixturevalue("shared_mount")
        yield mount
        mount.clear()
    else:
        make = request.getfixturevalue("make_mount")
        yield make(is_forked=request.node.get_closest_marker("measured") is None)


@pytest.fixture
def mapped_through(mount: Mount) -> None:
    """What is tested needs a mount that maps files."""
    if os.geteuid() != 0 or "maps no files" in mount.log.read_text():
        pytest.skip("files are mapped through the mount on Linux 6.9 and later, with CAP_SYS_ADMIN")


@pytest.fixture
def single(mount: Mount) -> Path:
    """A channel of one file, small sub-buffers."""
    return mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")


@pytest.fixture(scope="module")
def shared_mount() -> Iterator[Mount]:
    """One mount for the tests of a file that leave it as they found it."""
    with tmpfs_directory() as path, serving(path / "store") as make:
        yield make()


@dataclass(frozen=True)
class User:
    """Somebody without privileges."""

    uid: int
    gid: int

    def run(self, *command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return forking.run(
            command, user=self.uid, group=self.gid, extra_groups=[], capture_output=True, text=True,
            check=False, cwd="/", timeout=DEADLINE_S, **options,
        )  # fmt: skip

    def python(self, code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", code, *arguments)


@pytest.fixture
def unprivileged() -> User:
    """The user nobody; only root can become it."""
    if os.geteuid() != 0:
        pytest.skip("only root can run programs as another user")
    return User(NOBODY, NOBODY)


@pytest.fixture
def own_tmpfs() -> Iterator[Path]:
    """A file system in which nobody else takes memory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    with tmpfs_directory() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", path], check=True)
        yield path
        subprocess.run(["umount", "-l", path], check=True)


def used(path: Path) -> int:
    """Bytes in use on a tmpfs, but for those of counters: a name, once given, stays."""
    counters = sum(file.stat().st_blocks * 512 for file in path.glob("store/.counters/*"))
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_bsize - counters


@pytest.fixture
def open_fuse_device() -> Iterator[None]:
    """Let everybody open /dev/fuse, as udev does; minimal machines have no udev."""
    device = Path("/dev/fuse")
    if os.geteuid() != 0:
        if device.stat().st_mode & 0o006 != 0o006:
            pytest.skip("/dev/fuse is root's alone")
        yield
        return
    # One test at a time, also of those that other workers run: none must take away the other's permission.
    descriptor = os.open(device, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    mode = stat.S_IMODE(device.stat().st_mode)
    device.chmod(mode | 0o666)
    yield
    device.chmod(mode)
    os.close(descriptor)
