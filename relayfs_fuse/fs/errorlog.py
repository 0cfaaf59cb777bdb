"""The contents of error_log: the last commands that were refused, in the format of tracefs, and notices.

[2026-03-01 12:00:00.123] create: error: n_subbufs=0: not allowed; allowed: a number, 1 to 4294967295 [EINVAL]
  Command: create app/cpu n_subbufs=0
                          ^
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from relayfs_fuse.fs.notes import ERRORS

if TYPE_CHECKING:
    from relayfs_fuse.errors import CommandError
    from relayfs_fuse.fs.notes import Notes

# The number of entries that are kept, as in tracefs.
N_ENTRIES = 8
# Of a longer command, so many characters around the error are shown.
_LINE_MAX = 512
# Of a longer message, the first _MESSAGE_MAX and the last _TAIL characters are shown.
_MESSAGE_MAX, _TAIL = 2048, 128


class ErrorLog:
    """The last entries.

    notes: have them for the next server, if this one dies; None: there will be none
    """

    def __init__(self, notes: Notes | None = None) -> None:
        self._notes = notes
        self._entries: deque[str] = deque(maxlen=N_ENTRIES)
        if notes is not None:
            self._entries.extend(json.loads(notes.get(ERRORS, 0) or "[]"))

    def error(self, line: str, error: CommandError) -> str:
        """Add an entry for a refused command; return the entry's first line without the time."""
        return self._add(line, "error", str(error), error.column)

    def notice(self, line: str, message: str, column: int = 0) -> str:
        """Add an entry about a command that was carried out; return the entry's first line without the time.

        column: where the entry's caret points in the line
        """
        return self._add(line, "notice", message, column)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._note()

    def text(self) -> bytes:
        """Return the entries, the oldest first."""
        return os.fsencode("".join(self._entries))

    def _add(self, line: str, kind: str, message: str, column: int) -> str:
        start = max(0, column - _LINE_MAX // 2)
        shown = os.fsencode(_printable(line[start : start + _LINE_MAX])).decode(errors="replace")
        verb = _printable((line.split() or ["?"])[0][:32])
        # The message quotes the command, which any user may have written, and goes to the server's log as one line.
        if len(message) > _MESSAGE_MAX:
            message = f"{message[:_MESSAGE_MAX]} ... {message[-_TAIL:]}"
        message = _printable(message)
        now = datetime.now().astimezone().isoformat(" ", "milliseconds")[:23]
        head = f"{verb}: {kind}: {message}"
        self._entries.append(f"[{now}] {head}\n  Command: {shown}\n           {' ' * (column - start)}^\n")
        self._note()
        return head

    def _note(self) -> None:
        if self._notes is None:
            return
        with suppress(OSError):  # there is no room
            self._notes.put(ERRORS, 0, json.dumps([*self._entries]).encode())


def _printable(text: str) -> str:
    """Replace characters that are not printable by a question mark."""
    return "".join(char if char.isprintable() else "?" for char in text)
