"""Names that come and go without anybody's asking, made known to the kernel.

inotify(7) tells of what is done through the mount, and of nothing else. So a thread of the server makes and removes
such names through its own mount, as anybody would; the handlers let that thread alone do so:

    expect(path, change)     act()                 the handler             settle(path)
    in the server's thread   in another            take(), change()        in the server's thread
                             mkdir(2), rmdir(2) -> in the server's thread  change(), if nobody could be told

Whoever calls act() must hold nothing that a handler could wait for.

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
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relayfs_fuse.fs.tree import Node

log = logging.getLogger(__name__)

_SYS_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2
_libc = ctypes.CDLL(None)

T = TypeVar("T")


class Announcements:
    """Make and remove directories through the mount.

    mountpoint: where it is
    """

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._pending: dict[str, Callable[[], Node | None]] = {}
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._device: int | None = None

    def begin(self) -> int:
        """Wait until the file system answers, and return its device number; blocks. OSError: it has ended."""
        self._device = self._do(self._find_device)
        return self._device

    def expect(self, path: str, change: Callable[[], Node | None]) -> None:
        """Say what will be done in the tree when the kernel hears of a name."""
        self._pending[path] = change

    def make(self, parent: str, names: Iterable[str]) -> None:
        """Make directories in another; blocks."""
        self._act(lambda name, above: os.mkdir(name, dir_fd=above), parent, list(names))

    def remove(self, parent: str, names: Iterable[str]) -> dict[str, OSError]:
        """Remove directories in another, and return why some were not removed; blocks."""
        return self._act(lambda name, above: os.rmdir(name, dir_fd=above), parent, list(names))

    def settle(self, path: str) -> None:
        """Do what was to be done, if nobody could be told."""
        change = self._pending.pop(path, None)
        if change is not None:
            change()

    def is_asking(self, thread: int) -> bool:
        """Whether a request of this thread is the server's own."""
        return self._thread is not None and thread == self._thread.native_id

    def take(self, thread: int, path: str) -> Callable[[], Node | None] | None:
        """Return what a request of this thread about a name is to do; None: it is anybody's request."""
        return self._pending.pop(path, None) if self.is_asking(thread) else None

    def _act(self, act: Callable[[str, int], None], parent: str, names: list[str]) -> dict[str, OSError]:
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

    def _act_on_all(self, act: Callable[[str, int], None], parent: str, names: list[str]) -> dict[str, OSError]:
        """Do one thing with each name, and return what did not succeed."""
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


def _unshare_descriptors() -> None:
    """Give this thread a table of descriptors of its own, where nothing is open but /dev/null as the standard ones.

    Before Linux 5.9 it goes on with those of all threads.
    """
    if _libc.syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(0), ctypes.c_uint(-1), _CLOSE_RANGE_UNSHARE) == 0:
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
