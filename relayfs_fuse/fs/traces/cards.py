"""Crash cards: what is kept of traced processes that have ended without closing their trace in order.

    STORE/.crashed/PROCESS-PID-TIME/     MNT/.crashed/PROCESS-PID-TIME/
        ctf/metadata, ctf/cpuN               its last events, for babeltrace2 and relayctl
        events                               the last of them as text
        cause process losses ...             texts; see card_contents.py
    STORE/.crashed/.new-*                a card that is being made

A card belongs to the user of the process. Each user may have a number of cards and of bytes. Only his own new cards
remove his oldest, so no user can remove another's, or take memory for more. The ledger charges him for them, too.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.fs.protection import delete
from relayfs_fuse.fs.store import CRASHED_NAME
from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles.merged import merge
from relayfs_fuse.tracefiles.recorded import Recording

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.fs.store import Store

log = logging.getLogger(__name__)

# How many users other than root and the store's owner may have cards.
USERS_MAX = 64
# One card takes at most 1/PART of the bytes of a user.
PART = 4
# How many bytes of text the file `events` has at most: the last lines.
TEXT_MAX = 256 << 10
CTF = "ctf"
_NEW = ".new-"


class Card(NamedTuple):
    """A card.

    name: of its directory
    uid: whose it is
    n_bytes: the lengths of its files
    made_ns: when it was made
    """

    name: str
    uid: int
    n_bytes: int
    made_ns: int


class Cards:
    """The cards of a store; all methods may block, and can be called in any thread.

    number, size: how many cards a user may have, and how many bytes of them; number 0: none are made
    """

    def __init__(self, store: Store, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.directory = store.locate(CRASHED_NAME)
        self._store = store
        self._lock = threading.Lock()
        self._cards: dict[str, Card] = {}

    def load(self) -> list[str]:
        """Find the cards that are there, and delete what was half made; return their names; OSError."""
        with suppress(FileExistsError):
            os.mkdir(self.directory, PERMS["CARDS"])
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if name.startswith("."):
                delete(path)
            else:
                self._cards[name] = _read(name, path)
        return list(self._cards)

    def add(self, name: str, uid: int, files: Mapping[str, bytes]) -> tuple[str, list[str]]:
        """Make a card; return its name, and those of the user's oldest cards, which were removed for it.

        name: of the card, to which a number is added if it is taken
        files: the contents by path; `events` is added to them

        CommandError: ENOSPC, the user's memory or the number of users is used up. OSError.
        """
        hidden = os.path.join(self.directory, f"{_NEW}{os.getpid()}-{time.monotonic_ns()}")
        need = sum(map(len, files.values())) + TEXT_MAX
        with self._lock:
            removed = self._make_room(uid, need)
            try:
                with self._store.ledger.claim(need, uid):
                    _write(hidden, files)
                    _write(hidden, {"events": _last_lines(os.path.join(hidden, CTF))})
                    _give(hidden, uid)
                    name = self._show(hidden, name)
                    self._store.charge(os.path.join(self.directory, name))
            except BaseException:
                with suppress(OSError):
                    delete(hidden)
                raise
            self._cards[name] = _read(name, os.path.join(self.directory, name))
        return name, removed

    def remove(self, name: str) -> None:
        """Delete a card; OSError."""
        with self._lock:
            self._remove(name)

    def most_bytes(self) -> int:
        """Return how many bytes one card may take, without `events`."""
        return max(0, self.size // PART - TEXT_MAX)

    def _make_room(self, uid: int, need: int) -> list[str]:
        """Remove a user's oldest cards until there is room for another one; return their names; CommandError."""
        users = {card.uid for card in self._cards.values()} - {0, os.geteuid()}
        if uid not in users | {0, os.geteuid()} and len(users) >= USERS_MAX:
            raise CommandError(errno.ENOSPC, f"{USERS_MAX} users have crash cards, which is the limit")
        removed: list[str] = []
        own = sorted((card for card in self._cards.values() if card.uid == uid), key=lambda card: card.made_ns)
        for oldest in own:
            has = sum(card.n_bytes for card in own[len(removed) :])
            if len(own) - len(removed) < self.number and has + need <= self.size and self._has_room(uid, need):
                break
            self._remove(oldest.name)
            removed.append(oldest.name)
        return removed

    def _has_room(self, uid: int, need: int) -> bool:
        try:
            self._store.check_room(need, uid)
        except CommandError:
            return False
        return True

    def _remove(self, name: str) -> None:
        self._cards.pop(name, None)
        discard(self._store, os.path.join(self.directory, name))

    def _show(self, hidden: str, name: str) -> str:
        """Give a card its name, and return that."""
        free = name
        number = 1
        while free in self._cards:
            number += 1
            free = f"{name}-{number}"
        os.rename(hidden, os.path.join(self.directory, free))
        return free


def discard(store: Store, path: str) -> None:
    """Delete a directory of the store with all that is in it, which is charged no more; OSError.

    It is renamed first, so that a server which is killed meanwhile leaves no half of it under its name.
    """
    hidden = os.path.join(os.path.dirname(path), f"{_NEW}{os.getpid()}-{time.monotonic_ns()}")
    os.rename(path, hidden)
    inodes = [os.lstat(os.path.join(at, file)).st_ino for at, _, files in os.walk(hidden) for file in files]
    delete(hidden)
    for inode in inodes:
        store.ledger.release(inode)


def _read(name: str, path: str) -> Card:
    status = os.stat(path)
    n_bytes = sum(os.lstat(os.path.join(at, file)).st_size for at, _, files in os.walk(path) for file in files)
    return Card(name, status.st_uid, n_bytes, status.st_mtime_ns)


def _write(directory: str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        whole = os.path.join(directory, path)
        # Not the directories above, which are gone if the store was unmounted or removed.
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(whole), PERMS["CARDS"])
        with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PERMS["CARD"]), "wb") as file:
            file.write(data)


def _give(directory: str, uid: int) -> None:
    """Let a user have all files; the directory above keeps him from reaching them but through the mount."""
    for at, _, files in os.walk(directory):
        for path in (at, *(os.path.join(at, file) for file in files)):
            if uid != os.geteuid():
                os.chown(path, uid, -1)


def _last_lines(directory: str) -> bytes:
    """Return the last events of a recording as text; b"" if there are none, or they cannot be read."""
    if not os.path.isdir(directory):
        return b""
    text = bytearray()
    has_cut = False
    try:
        with (
            closing(Recording(directory)) as recording,
            closing(merge(recording.parts)) as merged,
            closing(Export(merged, Style(times="date"))) as exported,
        ):
            for piece in exported.pieces():
                text += piece
                if len(text) > 2 * TEXT_MAX:
                    has_cut = True
                    del text[:-TEXT_MAX]
    except (OSError, RelayError) as error:
        log.info("%s: no text: %s", directory, error)
    if not has_cut and len(text) <= TEXT_MAX:
        return bytes(text)
    del text[:-TEXT_MAX]
    return bytes(text[text.find(b"\n") + 1 :])
