"""The files of a trace: `merged`, `merged.json` and `merged.raw`, the events of all processes; and `triggered`."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse.fs.items import Blocks, JsonLines, Lines
from relayfs_fuse.fs.merged import READERS_MAX, Face, MergedFile, Subject
from relayfs_fuse.fs.nodes import TraceDirectory
from relayfs_fuse.fs.traces.triggered import TriggeredFile
from relayfs_fuse.native.trace import Clocks
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.reading.records import Begin

FACES = {
    "merged": Face("text", Lines),
    "merged.json": Face("json", JsonLines),
    "merged.raw": Face("pcapng", Blocks),
}


@contextmanager
def _follow(store: str, trace: Trace, say: Callable[[str], None], begin: Begin) -> Iterator[Live]:
    clocks = Clocks(*begin.conversion) if begin.conversion else None
    with (
        closing(Source(trace.name, store, trace.id)) as source,
        Live(source, Wanted(since=begin.since, share=READERS_MAX, clocks=clocks), say, consumes=False) as live,
    ):
        yield live


def _owner() -> tuple[int, int, int]:
    return 0o400, os.geteuid(), os.getegid()


def directory_of(trace: Trace, store: Store, tree: Tree) -> TraceDirectory:
    """Show the directory of a trace, with these files in it."""
    directory = TraceDirectory(trace.name)
    tree.attach(tree.root, directory)
    for name, face in FACES.items():
        subject = Subject(f"trace {trace.name}", face, partial(_follow, store.directory, trace), _owner)
        tree.attach(directory, MergedFile(name, subject))
    tree.attach(directory, TriggeredFile("triggered", store.locate(trace.name)))
    return directory
