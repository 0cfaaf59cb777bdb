"""Directories that the server itself adds to the mount and removes from it, such as those of traced processes.

Programs may watch the mount with inotify(7), which reports only what is done by system calls in the mount. So the
*announcing thread* of the server makes and removes such directories by mkdir(2) and rmdir(2)
there. The handlers of these requests ask take() whether a request comes from that thread, and what is to be changed in
the tree then:

    the server's thread        the announcing thread          the handler, in the server's thread
    make(), remove() wait  ->  mkdir(2), rmdir(2) wait  ->    calls take(), and the function that it returns

The caller of make() or remove() must not hold a lock that the handlers take.

The announcing thread has to wait while another process has the kernel's lock of the parent directory. That can take
arbitrarily long: a process has the lock while its getdents(2) waits for a page of its buffer. If the thread has not
finished after REQUEST_S seconds, the change is made without it, and so are all further changes until the thread has
finished. A request of the thread that arrives later than that is refused.

The thread has a descriptor table of its own. If a server is killed while this thread waits for the server's own mount,
the kernel ends the wait only when the last descriptor of /dev/fuse is closed, and with a shared table that would be
after the thread has ended. So the thread cannot write to the log, and returns errors to its callers. They have no
traceback, whose frames would refer to them: the garbage collector frees such cycles after many minutes only.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from relayfs_fuse.fs.nodes import Node

    # Changes the tree when the request for a name arrives. Returns the node of a new directory.
    Change = Callable[[], Node | None]
    # Does something with a name in a directory, given by its descriptor, in the announcing thread.
    Act = Callable[[str, int], None]

log = logging.getLogger(__name__)

# How long a change waits for the announcing thread, in seconds.
REQUEST_S = 10.0

_SYS_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2
_libc = ctypes.CDLL(None)

T = TypeVar("T")


class Announcements:
    """The announcing thread and the changes that it is asked to make.

    mountpoint: of the server's own mount
    """

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._pending: dict[str, Change] = {}
        self._requesting = trio.Lock()
        # One worker thread, which waits for the announcing thread: while it waits, there is no token left.
        self._limiter = trio.CapacityLimiter(1)
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._device: int | None = None

    def begin(self) -> int:
        """Wait until the mount answers, and return its st_dev; blocks. OSError: it is not mounted any more."""
        return self._do(self._find_device)

    async def make(self, parent: str, changes: Mapping[str, Change]) -> None:
        """Make directories in `parent`, a path in the mount; `changes` has a function for each name."""
        await self._change(_make, parent, changes)

    async def remove(self, parent: str, changes: Mapping[str, Change]) -> None:
        """Remove directories in `parent`, a path in the mount; `changes` has a function for each name."""
        await self._change(_remove, parent, changes)

    async def ask_to_remove(self, parent: str, names: list[str]) -> OSError | None:
        """Have the thread call rmdir(2) without a prepared Change: the handler treats the request as a user's.

        names: of a directory in `parent`, of `parent` itself, of the one above, and so on

        Returns the error of the first one that was not removed. None: all were, or the thread has not finished.
        """
        failed = await self._request(_remove_upwards, parent, names)
        return next(iter(failed.values()), None) if failed else None

    async def look_up(self, parent: str, names: Iterable[str]) -> bool:
        """Look up names that were removed, so that the kernel drops them; False: the thread has not finished."""
        return await self._request(_look_up, parent, names) is not None

    def is_asking(self, thread: int) -> bool:
        """Whether a thread is the announcing thread."""
        return self._thread is not None and thread == self._thread.native_id

    def take(self, thread: int, path: str) -> Change | None:
        """Return the change that the request of this thread for this path is to make, once; None: there is none."""
        return self._pending.pop(path, None) if self.is_asking(thread) else None

    async def _change(self, act: Act, parent: str, changes: Mapping[str, Change]) -> None:
        """Have the thread make requests for all names; then make the changes that no request has made."""
        expected = {f"{parent}/{name}": change for name, change in changes.items()}
        self._pending.update(expected)
        await self._request(act, parent, changes)
        for path in expected:
            change = self._pending.pop(path, None)
            if change is not None:
                change()

    async def _request(self, act: Act, parent: str, names: Iterable[str]) -> dict[str, OSError] | None:
        """Have the thread call `act` for each name; return the errors by name, or None: it has not finished."""
        async with self._requesting:
            with trio.move_on_after(REQUEST_S if self._limiter.available_tokens else 0):
                # Also abandoned when the server ends, as it does not answer requests of its own thread any more.
                return await trio.to_thread.run_sync(
                    self._act, act, parent, list(names), limiter=self._limiter, abandon_on_cancel=True
                )
        return None

    def _act(self, act: Act, parent: str, names: list[str]) -> dict[str, OSError]:
        """Do the work of _request() in a worker thread; blocks."""
        try:
            failed = self._do(partial(self._act_on_all, act, parent, names))
        except OSError as error:
            # The parent could not be opened, as it is not mounted any more.
            failed = {parent: error.with_traceback(None)}
        for name, reason in failed.items():
            log.debug("%s is not announced: %s", name, reason)
        return failed

    def _do(self, job: Callable[[], T]) -> T:
        """Have the announcing thread call a function, and return what it returns; blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="announcements", daemon=True)
            self._thread.start()
        done: Future[T] = Future()

        def complete() -> None:
            try:
                done.set_result(job())
            except OSError as error:
                done.set_exception(error.with_traceback(None))
            except Exception as error:
                done.set_exception(error)

        self._queue.put(complete)
        return done.result()

    def _find_device(self) -> int:
        # Noted here, because the thread goes on with the next job before begin() returns.
        self._device = os.stat(os.path.join(self._mountpoint, ".channels")).st_dev
        return self._device

    def _act_on_all(self, act: Act, parent: str, names: list[str]) -> dict[str, OSError]:
        failed = {}
        above = os.open(os.path.join(self._mountpoint, parent), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The device is another one if the server is not mounted any more, or something is mounted over it.
            if os.fstat(above).st_dev == self._device:
                for name in names:
                    try:
                        act(name, above)
                    except OSError as error:
                        failed[name] = error.with_traceback(None)
                        if act is _remove_upwards:
                            break
        finally:
            os.close(above)
        return failed

    def _run(self) -> None:
        # The descriptor to which Python writes when a signal arrives is not in this thread's table.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _unshare_descriptors()
        while True:
            self._queue.get()()


def _make(name: str, above: int) -> None:
    os.mkdir(name, dir_fd=above)


def _remove(name: str, above: int) -> None:
    os.rmdir(name, dir_fd=above)


def _remove_upwards(name: str, above: int) -> None:
    """Remove a directory, and let the descriptor be that of the directory above the one that it was in.

    The path of each one would be looked up anew, which takes the square of the depth.
    """
    os.rmdir(name, dir_fd=above)
    up = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    os.dup2(up, above, inheritable=False)
    os.close(up)


def _look_up(name: str, above: int) -> None:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=above, follow_symlinks=False)


def _unshare_descriptors() -> None:
    """Give this thread a descriptor table of its own, with only /dev/null, as descriptors 0 to 2.

    On Linux before 5.9 the thread shares the table of the other threads.
    """
    if _libc.syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(0), ctypes.c_uint(-1), _CLOSE_RANGE_UNSHARE) == 0:
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
