"""The contents of `control`: the commands that would make all channels and traces again, and which are damaged.

stat(2) shows the length of the contents, and the kernel asks for it at each open(2) and at each lookup of the name. So
the length of each channel's lines is remembered, and computed again only for channels that were added, removed or
changed. A read makes all lines anew, because the store's owner can change mode and owner of files without the server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.damaged import DamagedChannel
    from relayfs_fuse.fs.tree import Tree

# The most bytes of the lines of a channel, without its path.
LINES_MAX = 1024
# The first line. It is a comment, so that the contents can be written back as commands.
_HEAD = "# Commands are written here, one a line: see relayfs(5). error_log says why one was refused."


class ControlText:
    """The contents, and their length.

    tree: has the channels
    trace_lines: returns the lines of traces, of which there are few
    """

    def __init__(self, tree: Tree, trace_lines: Callable[[], list[str]]) -> None:
        self._tree = tree
        self._trace_lines = trace_lines
        self._bytes: dict[str, int] = {}
        self._sum = 0
        self._changed: set[str] = set()
        tree.watchers.append(self._changed.add)

    def text(self) -> bytes:
        """Return the contents."""
        self._tree.unloaded.load_all()
        channels = [self._tree.channels[path] for path in sorted(self._tree.channels)]
        created = [_create_lines(channel) for channel in channels]
        damaged: list[StoredChannel | DamagedChannel] = [*self._tree.damaged.values(), *channels]
        lines = [_HEAD, *created, *self._trace_lines(), *(_damage_lines(one) for one in damaged)]
        for channel, line in zip(channels, created, strict=True):
            self._note(channel.path, _length([line, _damage_lines(channel)]))
        return os.fsencode("".join(f"{line}\n" for line in lines if line))

    def length(self) -> int:
        """Return the length of the contents in bytes, with mode and owner of each channel as they were last seen.

        While there are channels that are not loaded yet, it is an upper limit.
        """
        while self.measure():
            pass
        unloaded = self._tree.unloaded
        most = 2 * unloaded.n_bytes + LINES_MAX * unloaded.n
        return self._sum + most + _length([_HEAD, *self._trace_lines()])

    def measure(self) -> bool:
        """Measure the lines of a channel that was changed; False: all are measured."""
        if not self._changed:
            return False
        path = self._changed.pop()
        channel = self._tree.channels.get(path)
        damaged = channel or self._tree.damaged.get(path)
        lines = [_create_lines(channel) if channel else "", _damage_lines(damaged) if damaged else ""]
        self._note(path, _length(lines))
        return True

    def _note(self, path: str, n_bytes: int) -> None:
        """Note how many bytes the lines of a channel have; 0: there is no such channel."""
        self._sum += n_bytes - self._bytes.pop(path, 0)
        if n_bytes:
            self._bytes[path] = n_bytes


def _length(lines: Iterable[str]) -> int:
    """Return the bytes of lines with their newlines; an empty line is none."""
    return sum(len(os.fsencode(line)) + 1 for line in lines if line)


def _create_lines(channel: StoredChannel) -> str:
    """Return the line that makes a channel; empty: the files of the store were removed."""
    try:
        return channel.create_line()
    except FileNotFoundError:
        return ""


def _damage_lines(channel: StoredChannel | DamagedChannel) -> str:
    """Return the line about a damaged channel; empty: it is not damaged."""
    return f"# {channel.path} is damaged: {channel.damage}" if channel.damage else ""
