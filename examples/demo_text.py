"""Find text on this machine for the demo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

# Enough to measure a rate, and not so much that the demo takes long.
LARGEST = 32 << 20
# With less text than this, search further.
SMALLEST = 6 << 20

LISTS = ("/var/lib/dpkg/status", "/var/lib/dpkg/available")
TREES = ("/var/log", "/var/lib/dpkg/info")
LAST_RESORT = ("/usr/share", "/usr/include", "/usr/lib")


def default_text(target: Path) -> str:
    """Fill a file with text; return a description of its sources."""
    sources = []
    with target.open("wb") as out:
        for path in map(Path, LISTS):
            if _add(out, path):
                sources.append(str(path))
        for tree in TREES:
            if _add_tree(out, tree, LARGEST):
                sources.append(tree)
        if _add_available(out):
            sources.append("apt-cache dumpavail")
        for tree in LAST_RESORT:
            if out.tell() < SMALLEST and _add_tree(out, tree, SMALLEST):
                sources.append(tree)
    return ", ".join(sources)


def longest_line(path: Path) -> tuple[int, int]:
    """Return the number of lines and the length of the longest, newline included."""
    n_lines = longest = 0
    with path.open("rb") as file:
        for line in file:
            n_lines += 1
            longest = max(longest, len(line))
    return n_lines, longest


def _add_tree(out: BinaryIO, tree: str, enough: int) -> int:
    added = 0
    for path in _files(tree):
        if out.tell() >= enough:
            break
        added += _add(out, path)
    return added


def _files(tree: str) -> Iterator[Path]:
    # Do not follow links, which may lead anywhere, and in circles.
    for directory, names, files in os.walk(tree):
        names.sort()
        yield from (Path(directory, name) for name in sorted(files))


def _add(out: BinaryIO, path: Path) -> int:
    """Append a file, if it is readable text; return the number of bytes."""
    try:
        if not path.is_file() or path.is_symlink():
            return 0
        with path.open("rb") as file:
            data = file.read(LARGEST)
    except OSError:
        return 0
    return _append(out, b"" if b"\0" in data[:4096] else data)


def _add_available(out: BinaryIO) -> int:
    """Append apt's package descriptions: its lists are often stored compressed."""
    try:
        done = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, start_new_session=True, check=False)
    except OSError:
        return 0
    return _append(out, done.stdout)


def _append(out: BinaryIO, data: bytes) -> int:
    """Append whole lines as long as there is room."""
    room = LARGEST - out.tell()
    if len(data) > room:
        data = data[: data.rfind(b"\n", 0, room) + 1]
    if data and not data.endswith(b"\n"):
        data += b"\n"
    return out.write(data)
