"""The values of counters, appended to a file: a line of JSON each time, which never changes.

{"time": 1764173995.25, "new": [{"name": "app/requests", "kind": "counter", "unit": "requests", "help": ""}],
 "values": {"app/requests": 17}}                                                  all of this in one line

time     when they were read, in seconds since 1970
new      counters that this recorder has not named before, or that have changed; if there are any
lost     how many lines this file does not have, as they had no room; if there are any
values   of all counters, by name; signed, as `relayctl counters --json` has them
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse.native import KINDS
from relayfs_fuse.native.library import Closing
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.record.full import OutputFullError, temporary_errors_mean_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native import CounterInfo
    from relayfs_fuse.record.full import Limit

FILE = "counters.jsonl"
# Beside it: how many lines it does not have, so that a recorder that goes on knows.
LOST = ".lost"
_LOST = re.compile(r"lost=(\d{1,18})\b", re.ASCII)
_LOOK_BYTES = 64 << 10


class CountersFile(Closing):
    """The file FILE in a directory, which is made if it does not exist; an earlier recorder's is continued.

    limit: of the bytes that are written; None: any number
    lost: how many lines had no room
    """

    def __init__(self, directory: str, limit: Limit | None = None) -> None:
        os.makedirs(directory, exist_ok=True)
        self._path = os.path.join(directory, FILE)
        self._lost_path = os.path.join(directory, LOST)
        self._limit = limit
        self._known: dict[str, CounterInfo] = {}
        self.lost = 0
        with suppress(FileNotFoundError), open(self._lost_path, encoding="ascii", errors="replace") as file:
            if found := _LOST.match(file.read(64)):
                self.lost = int(found[1])
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._end = _end_of_lines(self._file)
        os.ftruncate(self._file, self._end)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)

    def append(self, found: Sequence[tuple[CounterInfo, int]], time_s: float) -> int:
        """Append the values of counters; return how many bytes that are, 0: they have no room, and are lost.

        time_s: when they were read, since 1970

        OSError: they cannot be written
        """
        new = {info.name: info for info, _ in found if self._known.get(info.name) != info}
        data = self._line(found, list(new.values()), time_s)
        try:
            if self._limit:
                self._limit.take(len(data), self._path)
            with temporary_errors_mean_full(self._path):
                self._write(data)
        except OutputFullError:
            self.lost += 1
            with suppress(OSError):
                write_atomically(self._lost_path, f"lost={self.lost}\n".encode())
            return 0
        self._known |= new
        return len(data)

    def _line(self, found: Sequence[tuple[CounterInfo, int]], new: Sequence[CounterInfo], time_s: float) -> bytes:
        line: dict[str, Any] = {"time": time_s}
        if new:
            line["new"] = [
                {"name": info.name, "kind": KINDS[info.kind], "unit": info.unit, "help": info.help} for info in new
            ]
        if self.lost:
            line["lost"] = self.lost
        line["values"] = {info.name: value for info, value in found}
        return json.dumps(line).encode() + b"\n"

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)


def _end_of_lines(descriptor: int) -> int:
    """Return where the last whole line of a file ends: a recorder that was killed may have left a part of one."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _LOOK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
