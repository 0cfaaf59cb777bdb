"""Names that come and go without anybody's asking, made known to the kernel.

inotify(7) tells of what is done through the mount, and of nothing else. So a thread of the server makes and removes
such names through its own mount, as anybody would; the handlers let that thread alone do so:

    make(), remove()           the announcing thread   the handler
    in the server's thread     mkdir(2), rmdir(2) ->   in the server's thread
    wait for it             <-                         take() says what is to be done

Whoever calls make() or remove() must hold nothing that a handler could wait for.

The thread waits while another process has the kernel's lock of the directory above; a process that sleeps in
getdents(2), because the memory for the answer is not there, has it for as long as it likes. What the thread has not
done after TELL_S seconds is done without being announced, and so is everything that follows, until the thread goes on.
Its request comes too late then, and is refused.

The thread shares no descriptor with the others, because a server that is killed while the thread waits for its own
mount would never end otherwise: the kernel ends the wait when the last descriptor of /dev/fuse is closed, and threads
share theirs. So the thread cannot write to the log; what went wrong is returned.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from relayfs_fuse.fs.nodes import Node

    # What is done in the tree when the kernel hears of a name.
    Change = Callable[[], Node | None]
    Act = Callable[[str, int], None]

log = logging.getLogger(__name__)

# How long a change waits for the announcing thread.
TELL_S = 10.0

_SYS_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2
_libc = ctypes.CDLL(None)

T = TypeVar("T")


class Announcements:
    """Make and remove directories through the mount.

    mountpoint: where it is
    """

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._pending: dict[str, Change] = {}
        self._telling = trio.Lock()
        # Of one thread: who is held up has it until the announcing thread goes on.
        self._limiter = trio.CapacityLimiter(1)
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._device: int | None = None

    def begin(self) -> int:
        """Wait until the file system answers, and return its device number; blocks. OSError: it has ended."""
        self._device = self._do(self._find_device)
        return self._device

    async def make(self, parent: str, changes: Mapping[str, Change]) -> None:
        """Make directories in another, each by its change."""
        await self._change(_make, parent, changes)

    async def remove(self, parent: str, changes: Mapping[str, Change]) -> None:
        """Remove directories in another, each by its change."""
        await self._change(_remove, parent, changes)

    async def ask_to_remove(self, parent: str, name: str) -> OSError | None:
        """Remove a directory as anybody may; return why it could not be removed, if the thread has found out."""
        return (await self._tell(_remove, parent, [name]) or {}).get(name)

    async def look_up(self, parent: str, names: Iterable[str]) -> bool:
        """Have the kernel find out that names in a directory are gone; False: the thread is held up."""
        return await self._tell(_look_up, parent, names) is not None

    def is_asking(self, thread: int) -> bool:
        """Whether a request of this thread is the server's own."""
        return self._thread is not None and thread == self._thread.native_id

    def take(self, thread: int, path: str) -> Change | None:
        """Return what a request of this thread about a name is to do; None: it is anybody's request."""
        return self._pending.pop(path, None) if self.is_asking(thread) else None

    async def _change(self, act: Act, parent: str, changes: Mapping[str, Change]) -> None:
        expected = {f"{parent}/{name}": change for name, change in changes.items()}
        self._pending.update(expected)
        await self._tell(act, parent, changes)
        for path in expected:
            change = self._pending.pop(path, None)
            if change is not None:
                change()

    async def _tell(self, act: Act, parent: str, names: Iterable[str]) -> dict[str, OSError] | None:
        """Have the thread do one thing with each name, and return what did not succeed; None: it is held up."""
        async with self._telling:
            with trio.move_on_after(TELL_S if self._limiter.available_tokens else 0):
                # Abandoned also when the server ends: nobody answers its own requests any more.
                return await trio.to_thread.run_sync(
                    self._act, act, parent, list(names), limiter=self._limiter, abandon_on_cancel=True
                )
        return None

    def _act(self, act: Act, parent: str, names: list[str]) -> dict[str, OSError]:
        """Do so; blocks."""
        try:
            failed = self._do(partial(self._act_on_all, act, parent, names))
        except OSError as error:
            failed = {parent: error}  # it is unmounted, or the mount ends
        for name, reason in failed.items():
            log.debug("%s is not announced: %s", name, reason)
        return failed

    def _do(self, job: Callable[[], T]) -> T:
        """Have the thread do something; blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="announcements", daemon=True)
            self._thread.start()
        done: Future[T] = Future()

        def complete() -> None:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)

        self._queue.put(complete)
        return done.result()

    def _find_device(self) -> int:
        return os.stat(os.path.join(self._mountpoint, "control")).st_dev

    def _act_on_all(self, act: Act, parent: str, names: list[str]) -> dict[str, OSError]:
        failed = {}
        above = os.open(os.path.join(self._mountpoint, parent), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Otherwise these are somebody else's names: it is unmounted, or something is mounted over it.
            if os.fstat(above).st_dev == self._device:
                for name in names:
                    try:
                        act(name, above)
                    except OSError as error:
                        failed[name] = error
        finally:
            os.close(above)
        return failed

    def _run(self) -> None:
        _unshare_descriptors()
        while True:
            self._queue.get()()


def _make(name: str, above: int) -> None:
    os.mkdir(name, dir_fd=above)


def _remove(name: str, above: int) -> None:
    os.rmdir(name, dir_fd=above)


def _look_up(name: str, above: int) -> None:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=above, follow_symlinks=False)


def _unshare_descriptors() -> None:
    """Give this thread a table of descriptors of its own, where nothing is open but /dev/null as the standard ones.

    Before Linux 5.9 it goes on with those of all threads.
    """
    if _libc.syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(0), ctypes.c_uint(-1), _CLOSE_RANGE_UNSHARE) == 0:
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
