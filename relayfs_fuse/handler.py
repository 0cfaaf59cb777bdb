"""Write log messages into a channel: RelayHandler, for the standard module logging."""

from __future__ import annotations

import errno
import logging
import os
import threading
from typing import TYPE_CHECKING, ClassVar

from relayfs_fuse.errors import failure
from relayfs_fuse.native import either
from relayfs_fuse.native.library import closed_on_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native import ChannelHandle
    from relayfs_fuse.native.ring import RingsHandle

# A message that is too long ends with this.
_MARK = " [... {} bytes left out]"
# A full channel is no error: such messages are only counted. A ring has EAGAIN for this.
_FULL = (errno.ENOSPC, errno.EAGAIN)


def _closed(_: bytes) -> int:
    return -errno.EBADF


class _Tally:
    """A number that threads count up without a lock, each a part of its own; a child of fork() begins with 0."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], int] = {}

    def add_one(self) -> None:
        key = os.getpid(), threading.get_ident()
        self._parts[key] = self._parts.get(key, 0) + 1

    def total(self) -> int:
        # One call makes the list, so no thread can change the dictionary meanwhile.
        return sum(n for (pid, _), n in list(self._parts.items()) if pid == os.getpid())


class RelayHandler(logging.Handler):
    r"""Write log messages into a channel of relay files or of record rings, one record each.

        logging.getLogger().addHandler(RelayHandler("/mnt/relay/app/log"))

    or for logging.config.dictConfig(): {"class": "relayfs_fuse.RelayHandler", "path": "/mnt/relay/app/log"}

    path: the path of the channel's relay files without the number
    create: None: the channel must exist; otherwise, if it does not, it is made with these options of the control file's
        `create`, such as "mode=overwrite subbuf_size=64K"; ""; the defaults. It remains after close()

    dropped: how many messages this process could not write, because the channel was full, disabled or removed
    shortened: how many messages were longer than a record can be, which is a little less than a sub-buffer, or than a
        ring. Their ends were left out, and they end with "[... N bytes left out]" in place of them
    terminator: what each record ends with, "\n"; in a ring with framing=line it may be ""

    When a logging call returns, its message is in shared memory, and stays there if the process is killed. emit() takes
    no lock and does not wait for readers: if a channel of mode no-overwrite is full, the message is dropped. The
    channel's statistics count what is dropped, too: MNT/.channels/PATH/lost. Where this user can map neither the mount
    nor the store, each message is a write(2), which the file server answers.

    Any number of threads may log, also in signal handlers and while close() is called. A child of fork() continues to
    use the channel; a child that is spawned configures its own handler. If the channel cannot be used any more, nothing
    is raised: messages are dropped, and logging.Handler.handleError() is called for the first of them.

    The constructor raises OSError: ENOENT, there is no such channel; EACCES, this user may not write to it; as
    Channel and Channel.create() otherwise.
    """

    terminator: ClassVar[str] = "\n"

    def __init__(
        self, path: str | os.PathLike[str], level: int | str = logging.NOTSET, *, create: str | None = None
    ) -> None:
        super().__init__(level)
        self.path = os.fspath(path)
        self._dropped, self._shortened = _Tally(), _Tally()
        self._is_told = False
        self._is_plain = type(self).format is logging.Handler.format
        self._is_plain_filter = type(self).filter is logging.Handler.filter
        handle = _attach(self.path, create)
        with closed_on_error(handle):
            self._largest = handle.largest_record
            self._write: Callable[[bytes], int] = handle.writer()

    def createLock(self) -> None:  # noqa: N802  # its name in logging.Handler
        """Make no lock, because emit() needs none."""
        self.lock = None

    @property
    def dropped(self) -> int:
        """How many messages this process has not written."""
        return self._dropped.total()

    @property
    def shortened(self) -> int:
        """How many messages this process has shortened."""
        return self._shortened.total()

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit the record unless a filter refuses it; without acquire() and release(), as there is no lock."""
        if self.filters or not self._is_plain_filter:
            passed = self.filter(record)
            if not passed:
                return False
            if isinstance(passed, logging.LogRecord):
                record = passed
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write the formatted message and the terminator as one record."""
        try:
            is_plain = self.formatter is None and self._is_plain
            if not is_plain or record.exc_info or record.exc_text or record.stack_info:
                text = self.format(record)
            elif type(record) is logging.LogRecord:
                # What the default formatter makes of it, in half the time; this is getMessage().
                text = str(record.msg)
                if record.args:
                    text %= record.args
            else:
                text = record.getMessage()
            data = (text + self.terminator).encode("utf-8", "backslashreplace")
            if len(data) > self._largest:
                data = self._shorten(data)
            failure = self._write(data)
            if failure:
                self._drop(-failure)
        except RecursionError:  # as logging's own handlers: https://bugs.python.org/issue36272
            raise
        except Exception:  # a logging handler must not raise
            self.handleError(record)

    def close(self) -> None:
        """Close the channel, when the last thread has left emit(); messages that follow are dropped."""
        self._write = _closed
        super().close()

    def _shorten(self, data: bytes) -> bytes:
        self._shortened.add_one()
        end = self.terminator.encode("utf-8", "backslashreplace")
        # The number in the mark has at most as many digits as the length.
        room = self._largest - len(_MARK.format(len(data))) - len(end)
        if room <= 0:
            return data[: self._largest]
        kept = data[:room].decode("utf-8", "ignore").encode()
        return kept + _MARK.format(len(data) - len(end) - len(kept)).encode() + end

    def _drop(self, code: int) -> None:
        """Count a message that was not written; OSError: the first time that another reason than a full channel."""
        self._dropped.add_one()
        if code not in _FULL and not self._is_told:
            self._is_told = True
            raise failure(code, self.path)

    def __repr__(self) -> str:
        return f"<RelayHandler {self.path} ({logging.getLevelName(self.level)})>"


def _attach(path: str, create: str | None) -> ChannelHandle | RingsHandle:
    """Open a channel of either type; make it first if it does not exist and `create` has its options."""
    try:
        return either.attach(path)
    except FileNotFoundError:
        if create is None:
            raise
    try:
        return either.make(path, create)
    except FileExistsError:  # another process was faster
        return either.attach(path)
