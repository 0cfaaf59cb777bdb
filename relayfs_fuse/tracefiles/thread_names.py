"""The file `.threads` beside a process's metadata: names of threads, which events do not hold.

It has an entry `PROCESS THREAD NAME`, ended by a null byte, for each thread, with the numbers that events have as _vpid
and _vtid. A name is what the program has chosen: it may contain any bytes but null bytes.
"""

from __future__ import annotations

import re

Names = dict[tuple[int, int], bytes]

FILE = ".threads"
# The most threads of one directory, and the most bytes of a name, of which the kernel lets programs choose 15.
THREADS_MAX = 4096
NAME_BYTES = 63
_ENTRY = re.compile(rb"(?<![^\0])(\d{1,9}) (\d{1,9}) ([^\0]{1,%d})\0" % NAME_BYTES)
# No file is longer.
FILE_BYTES = THREADS_MAX * (2 * len("999999999 ") + NAME_BYTES + 1)


def add(names: Names, more: Names) -> None:
    """Add names to others; if these are too many then, those that were added longest ago are removed."""
    for ids, name in more.items():
        names.pop(ids, None)
        names[ids] = name
    for ids in list(names)[:-THREADS_MAX]:
        del names[ids]


def pack(names: Names) -> bytes:
    """Return the contents of the file."""
    return b"".join(b"%d %d %s\0" % (*ids, name) for ids, name in sorted(names.items()))


def unpack(data: bytes) -> Names:
    """Return the names in the contents of the file; what is no entry is left out."""
    entries = _ENTRY.findall(data[:FILE_BYTES])
    return {(int(pid), int(tid)): name for pid, tid, name in entries[:THREADS_MAX]}
