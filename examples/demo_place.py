"""The environment of the demo: directories, mount and programs, and their removal.

Signals are the difficult part. Between the making of something and the noting that it must be taken away, none may
interrupt; nor may one interrupt the taking away.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SERVER_EXIT_S = 10.0
REMOVE_TRIES = 50


class DemoError(Exception):
    """The demo cannot continue."""


class Interrupted(BaseException):
    """A signal was caught."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Convert signals to Interrupted, except while something is made that the cleanup must know about."""

    def __init__(self) -> None:
        self._held = 0
        self._pending: int | None = None
        for number in SIGNALS:
            signal.signal(number, self._arrived)

    def hold(self) -> None:
        """Ignore signals from now on."""
        self._held += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals until the end of the block."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._pending is not None and not self._held:
            self._raise(self._pending)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._held:
            self._pending = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> NoReturn:
        # Only once: a second signal must not interrupt the cleanup.
        self._held += 1
        raise Interrupted(number)


class Place:
    """Run programs, keep their files in one directory, and remove everything at the end.

    work: the directory
    mount: where relayfs is mounted
    store: where its memory is
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._cleanup = ExitStack()

    def prepare(self) -> None:
        """Make the directories."""
        self.work = self._directory(None)
        self.store = self._directory("/dev/shm")
        self.mount = self.work / "mnt"
        self.mount.mkdir()

    def start(self, *command: str | Path, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own: Ctrl-C is for the demo to act upon.

        env: what it finds in the environment besides ours
        """
        # Temporary files of a killed compiler or sort are in the demo's directory, too.
        environment = {**os.environ, "TMPDIR": str(self.work), **(env or {})}
        with self._interrupts.held():
            process: subprocess.Popen[bytes] = subprocess.Popen(
                list(map(str, command)), env=environment, start_new_session=True, **options
            )
            self._cleanup.callback(_kill, process)
        return process

    def run(self, *command: str | Path, **options: Any) -> None:
        """Run a program to its end; DemoError: it failed."""
        finish(self.start(*command, **options))

    def mount_relayfs(self) -> list[str]:
        """Mount; return the command that did it."""
        # mount(8) would search only the system's directories for relayfs.
        command = [shutil.which("relayfs") or "relayfs", str(self.mount), "-o", f"store={self.store}"]
        with self._interrupts.held(), (self.work / "mount.log").open("w+b") as log:
            self._cleanup.callback(self._unmount)
            # Use a file, because a pipe would stay open as long as the server.
            done = subprocess.run(command, stdout=log, stderr=log, start_new_session=True, check=False)
            log.seek(0)
            if done.returncode:
                raise DemoError(f"{shlex.join(command)}\n{log.read().decode(errors='replace').strip()}")
        return command

    def clean(self) -> None:
        """Kill, unmount and delete, in reverse order."""
        self._cleanup.close()

    def _directory(self, parent: str | None) -> Path:
        with self._interrupts.held():
            path = Path(tempfile.mkdtemp(prefix=f"relayfs-demo-{os.getpid()}-", dir=parent))
            self._cleanup.callback(_remove, path)
        return path

    def _unmount(self) -> None:
        server = self._server()
        end = time.monotonic() + SERVER_EXIT_S
        while self._is_mounted():
            # Another program may have a file open; the mount disappears when that is closed.
            lazy = ["-l"] if os.geteuid() == 0 else ["-z"]
            command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
            command += lazy if time.monotonic() > end else []
            subprocess.run([*command, str(self.mount)], stderr=subprocess.DEVNULL, check=False)
            if self._is_mounted():
                time.sleep(0.05)
        while server and _runs(server) and time.monotonic() < end:
            time.sleep(0.01)

    def _server(self) -> int | None:
        """Return the server's process, from the store's lock file."""
        try:
            return int((self.store / ".lock").read_text().split()[1].rstrip(","))
        except (OSError, IndexError, ValueError):
            return None

    def _is_mounted(self) -> bool:
        # Do not use ismount(), which sends a request to the server, which may have died.
        for line in Path("/proc/self/mounts").read_bytes().splitlines():
            if line.split()[1].decode("unicode_escape").encode("latin-1") == os.fsencode(self.mount):
                return True
        return False


def _remove(path: Path) -> None:
    """Delete a directory in which a dying program may still make files."""
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.02)


def _runs(process: int) -> bool:
    """Return whether a process is alive, and not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait until a program has succeeded."""
    if process.wait():
        raise DemoError(f"{shlex.join(map(str, process.args))}: exit status {process.returncode}")  # type: ignore[arg-type]
