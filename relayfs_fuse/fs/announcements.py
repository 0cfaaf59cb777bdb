"""Names that come and go without anybody's asking, made known to the kernel.

inotify(7) tells of what is done through the mount, and of nothing else. So a thread of the server makes and removes
such names through its own mount, as anybody would; the handlers let that thread alone do so:

    expect(path, change)     act()                 the handler             settle(path)
    in the server's thread   in another            take(), change()        in the server's thread
                             mkdir(2), rmdir(2) -> in the server's thread  change(), if nobody could be told

Whoever calls act() must hold nothing that a handler could wait for.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relayfs_fuse.fs.tree import Node

log = logging.getLogger(__name__)


class Announcements:
    """Make and remove directories through the mount.

    mountpoint: where it is
    """

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._pending: dict[str, Callable[[], Node | None]] = {}
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._device: int | None = None

    def begin(self) -> None:
        """Remember which file system this is, now that it is mounted; blocks."""
        self._device = os.stat(self._mountpoint).st_dev

    def expect(self, path: str, change: Callable[[], Node | None]) -> None:
        """Say what will be done in the tree when the kernel hears of a name."""
        self._pending[path] = change

    def make(self, parent: str, names: Iterable[str]) -> None:
        """Make directories in another; blocks."""
        self._act(lambda name, above: os.mkdir(name, dir_fd=above), parent, list(names))

    def remove(self, parent: str, names: Iterable[str]) -> None:
        """Remove directories in another; blocks."""
        self._act(lambda name, above: os.rmdir(name, dir_fd=above), parent, list(names))

    def settle(self, path: str) -> None:
        """Do what was to be done, if nobody could be told."""
        change = self._pending.pop(path, None)
        if change is not None:
            change()

    def take(self, thread: int, path: str) -> Callable[[], Node | None] | None:
        """Return what a request of this thread about a name is to do; None: it is anybody's request."""
        if self._thread is None or thread != self._thread.native_id:
            return None
        return self._pending.pop(path, None)

    def _act(self, act: Callable[[str, int], None], parent: str, names: list[str]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="announcements", daemon=True)
            self._thread.start()
        done: Future[None] = Future()
        self._queue.put((lambda: self._act_on_all(act, parent, names), done))
        done.result()

    def _act_on_all(self, act: Callable[[str, int], None], parent: str, names: list[str]) -> None:
        try:
            above = os.open(os.path.join(self._mountpoint, parent), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            log.debug("%s: nothing is announced: %s", parent, error)
            return
        try:
            # Otherwise these are somebody else's names: it is unmounted, or something is mounted over it.
            if os.fstat(above).st_dev == self._device:
                for name in names:
                    _try(act, name, above)
        except OSError as error:
            # The mount ends.
            log.debug("%s: nothing is announced: %s", parent, error)
        finally:
            os.close(above)

    def _run(self) -> None:
        while True:
            job, done = self._queue.get()
            try:
                job()
            except Exception:
                # Whoever waits for this thread must not wait for ever; settle() does what was not announced.
                log.exception("names could not be announced")
            finally:
                done.set_result(None)


def _try(act: Callable[[str, int], None], name: str, above: int) -> None:
    try:
        act(name, above)
    except OSError as error:
        log.debug("%s is not announced: %s", name, error)
