"""What an earlier recorder has left of a process. If it was ended with --compress, the files are compressed."""

from __future__ import annotations

import os
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import RelayError
from relayfs_fuse.tracefiles.recorded import plain_name, whole_names
from relayfs_fuse.tracefiles.streams import METADATA, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from relayfs_fuse.tracefiles.recorded import PartReader

# The origin of a process is in these first bytes of its metadata.
_BEGINNING_BYTES = 4096


class Left(NamedTuple):
    """A directory of the process.

    names: of its files
    is_compressed: whether the metadata are, which are compressed first
    """

    path: str
    names: list[str]
    metadata: bytes
    is_compressed: bool

    def streams(self) -> Iterator[tuple[int, int, str]]:
        """Yield the CPU, number and name of each stream file, in order; of compressed ones, only the last of a CPU."""
        files = sorted((*stream, name) for name in self.names if (stream := stream_of(plain_name(name))))
        last = {cpu: number for cpu, number, _ in files}
        return ((cpu, number, name) for cpu, number, name in files if name == plain_name(name) or number == last[cpu])


def find_left(paths: Iterable[str], line: str, reader: PartReader) -> Left | None:
    """Return the last directory that belongs to a process, whose origin has this line; None: there is none.

    paths: where it may be; those behind one that does not exist do not either
    """
    found = None
    for path in takewhile(os.path.isdir, paths):
        names = whole_names(os.listdir(path))
        metadata = next((name for name in names if plain_name(name) == METADATA), None)
        # A directory without metadata was not begun to its end.
        if metadata:
            try:
                with open(reader.plain(os.path.join(path, metadata)), "rb") as file:
                    text = file.read()
            except RelayError:
                continue  # it is spoiled, and no viewer reads the directory either
            if line.encode() in text[:_BEGINNING_BYTES].split(b"\n"):
                found = Left(path, names, text, metadata != METADATA)
    return found
