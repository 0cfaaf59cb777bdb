"""The open files of the mount by number, and the notes by which the next server opens them again if this one dies.

The note of an open file is written before the kernel is told of it. It has what open(2) was asked, and the handle's
state (Handle.state()) before and after the read(2) that was answered last: which of them counts depends on whether
the kernel has that answer.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import failure
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.channel_files import BufferFile, HoldFile
from relayfs_fuse.fs.kinds.handles import GoneHandle, MemHandle, StoredHandle, TextHandle
from relayfs_fuse.fs.kinds.records import Returned, returned_records
from relayfs_fuse.fs.nodes import Directory, TextFile
from relayfs_fuse.fs.notes import AGAIN, KEPT, OPEN_FILE, PLACE, RECORD, RETURNED, TEXT
from relayfs_fuse.fs.opener import Opener, Opening
from relayfs_fuse.fs.removed import RemovedChannels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.nodes import Node
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.budget import Budget
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

# How long a dead server may take to end, and the pause between two looks.
ENDING_S = 2.0
ENDING_PAUSE_S = 0.001


class _OpenFile:
    """A handle, and what its note says.

    about: what open(2) was asked, as JSON, which takes less memory
    state: the handle's state after the last answer
    is_polled: whether `about` has by which number the kernel knows it as a polled file
    """

    __slots__ = ("about", "handle", "is_polled", "state")

    def __init__(self, handle: Handle, about: dict[str, Any], state: Any) -> None:
        self.handle = handle
        self.about = _json(about)
        self.state = state
        self.is_polled = "poll" in about

    def note(self, before: Any, unique: int, after: Any) -> bytes:
        """Return the note."""
        return b"[%b,%b,%d,%b]" % (self.about, _json(before), unique, _json(after))


class OpenFiles:
    """The open files."""

    # While files are opened again.
    _removed: RemovedChannels

    def __init__(self, notes: Notes, store: Store, tree: Tree, budget: Budget) -> None:
        self._notes = notes
        self._store = store
        self._tree = tree
        self._budget = budget
        self._files: dict[int, _OpenFile] = {}
        # By the inode number of a buffer whose channel was not loaded yet.
        self._returned: dict[int, list[Returned]] = {}

    def get(self, number: int) -> Handle | None:
        """Return the handle of a number; None: it is closed."""
        file = self._files.get(number)
        return None if file is None else file.handle

    def __getitem__(self, number: int) -> Handle:
        handle = self.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        return handle

    def add(self, handle: Handle, node: Node, opening: Opening) -> None:
        """Add a handle that open(2) has made; OSError: ENOMEM."""
        request = opening.request
        about = {
            "node": node.inode,
            "path": node.path,
            "open": request.number,
            "flags": opening.flags,
            "stream": opening.as_stream,
            "thread": request.pid,
            "user": [request.uid, request.gid],
        }
        if opening.has_opener:
            opener = opening.opener
            about["opener"] = [opener.uid, opener.gid, opener.groups, opener.pid, opener.vpid]
        if isinstance(node, BufferFile):
            about["buffer"], about["channel"] = node.stored.inode, node.stored.channel.path
        about["text"] = type(handle) is TextHandle
        if isinstance(node, HoldFile) and node.parent is not None:
            about["in"] = [node.parent.inode, node.name]
        file = _OpenFile(handle, about, handle.state())
        self._write(file, 0, None)
        self._files[handle.number] = file

    def note(self, handle: Handle, unique: int = 0) -> None:
        """Note the state of a handle, which it will have once the request of this number is answered; 0: has now."""
        file = self._files.get(handle.number)
        if file is None:
            return
        state = handle.state()
        if state != file.state:
            self._write(file, unique, state)
            file.state = state

    def note_poll(self, handle: Handle, kernel_handle: int) -> None:
        """Note by which number the kernel knows a file that is polled."""
        file = self._files[handle.number]
        if kernel_handle and not file.is_polled:
            file.about = _json({**json.loads(file.about), "poll": kernel_handle})
            file.is_polled = True
            self._write(file, 0, file.state)

    def _write(self, file: _OpenFile, unique: int, after: Any) -> None:
        before = file.state if unique or after is None else after
        self._notes.put(OPEN_FILE, file.handle.number, file.note(before, unique, after if unique else None))

    def close(self, number: int) -> None:
        """Forget a handle, which is closed."""
        self._files.pop(number, None)
        for kind in (OPEN_FILE, TEXT, PLACE, KEPT, RECORD, AGAIN):
            self._notes.drop(kind, number)

    # ---------------------------------------------------------------- after the death of another server

    def restore(self, acts: Acts, unlisted: Callable[[Directory, str], Node | None]) -> list[int]:
        """Open the files again that a dead server had open; return the kernel's numbers of those that are polled.

        unlisted: returns the node of a name in a directory that readdir(2) does not list
        """
        polled = []
        self._removed = RemovedChannels(self._store, self._tree)
        notes = [(number, json.loads(data)) for number, data in self._notes.all(OPEN_FILE)]
        # A HoldFile is there only once the memory file is open that it holds.
        for number, (about, before, unique, after) in sorted(notes, key=lambda note: ("in" in note[1][0], note[0])):
            if tap.awaits(about["open"]):
                self.close(number)  # the kernel asks for this open(2) again
                continue
            state = before if not unique or tap.awaits(unique) else after
            handle = self._open_again(number, about, state, acts, unlisted)
            self._files[number] = _OpenFile(handle, about, state)
            if "poll" in about:
                polled.append(about["poll"])
        self._removed.finish()
        self._returned = returned_records(self._notes)
        for stored in self._stored():
            self._give_back(stored)
        for path in self._tree.channels:
            self._give_back_to(path)
        self._tree.watchers.append(self._give_back_to)
        self._consume_sent()
        acts.streams.taking.look_for_write(self._buffer)
        return polled

    def _consume_sent(self) -> None:
        """Consume what the dead server has sent to a program, if it died before it could."""
        unique, number, end = tap.last_reply()
        stored = self._buffer(number) if unique and not tap.awaits(unique) else None
        if stored is not None and stored.n_consumed() < end:
            _when_ended(partial(stored.buffer.consume_to, end))
        tap.end_reply()

    def _hold(self, name: str, inode: int) -> Node | None:
        """Return a HoldFile of a channel that was removed; None: the memory file is not open."""
        for file in self._files.values():
            if isinstance(file.handle, MemHandle) and name.endswith(f".{file.handle.token:016x}"):
                node = HoldFile(name, file.handle)
                self._tree.attach_removed(node, inode)
                return node
        return None

    def note_loaded(self) -> None:
        """Drop what was returned to buffers that no channel has: all are loaded."""
        for one in chain.from_iterable(self._returned.values()):
            self._notes.drop(RETURNED, one.number)
        self._returned.clear()

    def _give_back_to(self, path: str) -> None:
        """Do as _give_back() for a channel, if there is one at this path."""
        channel = self._tree.channels.get(path)
        for stored in channel.buffers if channel else ():
            self._give_back(stored)

    def _give_back(self, stored: Any) -> None:
        """Give a buffer the records back that have left it."""
        if stored.inode in self._returned:
            stored.returned.extend(self._returned.pop(stored.inode))

    def _buffer(self, number: int) -> Stored[Any] | None:
        """Return the buffer with an inode number of which a file is open; None: there is none."""
        return next((stored for stored in self._stored() if stored.inode == number), None)

    def _stored(self) -> Iterator[Stored[Any]]:
        return (file.handle.stored for file in self._files.values() if isinstance(file.handle, StoredHandle))

    def _open_again(
        self,
        number: int,
        about: dict[str, Any],
        state: Any,
        acts: Acts,
        unlisted: Callable[[Directory, str], Node | None],
    ) -> Handle:
        opening = _opening(number, about)
        try:
            if "path" in about:
                self._tree.find(about["path"])
            node = self._tree.known(about["node"]) if "path" in about else self._tree.node(about["node"])
            if "in" in about:
                parent, name = about["in"]
                directory = self._tree.node(parent)
                node = (
                    unlisted(directory, name) if isinstance(directory, Directory) else self._hold(name, about["node"])
                )
            elif node is None and "buffer" in about:
                node = self._removed.node(about)
            elif node is None and about["text"]:
                node = TextFile("", bytes)
                self._tree.attach_removed(node, about["node"])
            if node is not None:
                self._budget.hold(number, 0, about["user"][0])
                handle = node.open(opening)
                handle.restore(state, acts)
                return handle
        except OSError as error:
            log.info("an open file cannot be opened again: %s", error)
        except Exception:
            log.exception("an open file cannot be opened again")
        return GoneHandle(opening)


def _json(words: Any) -> bytes:
    return json.dumps(words, separators=(",", ":")).encode()


def _when_ended(act: Callable[[], object]) -> None:
    """Call a function, and again while a lock is held by the dead server, a thread of which may still be ending."""
    deadline = time.monotonic() + ENDING_S
    while True:
        try:
            act()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                log.warning("what was read when a server died cannot be consumed: %s", error.strerror)
                return
        else:
            return
        time.sleep(ENDING_PAUSE_S)


def _opening(number: int, about: dict[str, Any]) -> Opening:
    uid, gid = about["user"]
    request = tap.Request(about["open"], about["thread"], uid, gid, 0, 0)
    opening = Opening(number, about["flags"] & ~os.O_TRUNC, request)
    opening.as_stream = about["stream"]
    opening.is_again = True
    if "opener" in about:
        uid, gid, groups, pid, vpid = about["opener"]
        opening.opener = Opener(uid, gid, tuple(groups), pid, vpid)
    return opening
