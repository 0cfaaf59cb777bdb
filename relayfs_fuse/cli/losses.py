"""relayctl stat --losses: when records were lost, and why, as the server of a mount has seen it."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from relayfs_fuse.cli.common import printable, show_json, show_table
from relayfs_fuse.cli.names import CHANNEL, names_in, traces_of
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.store import TRACES_NAME
from relayfs_fuse.reading.source import find_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TITLES = ("NAME", "BUFFER", "FROM", "TO", "RECORDS", "BYTES", "CAUSE")
# The words of a line of a file `losses`, of which all but the cause are numbers.
_KEYS = ("from_ns", "to_ns", "buffer", "cause", "records", "bytes")


def show_losses(mount: str | None, is_wanted: Callable[[str], bool], *, json_wanted: bool) -> None:
    """Print the losses of the channels and traces whose names are wanted; RelayError: nothing is mounted. OSError."""
    root = find_root(mount)
    if root.is_store:
        raise RelayError("nothing is mounted: only a server notes when records are lost")
    found = [one for name in sorted(_names(root.place)) if is_wanted(name) for one in _losses_of(root.place, name)]
    if json_wanted:
        show_json(found)
    else:
        show_table(list(_TITLES), [_row(one) for one in found])


def _names(place: str) -> set[str]:
    return {*names_in(place, CHANNEL), *traces_of("", place)}


def _losses_of(place: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the losses of a channel or, by process, of a trace, and those of its programs that got no buffers."""
    yield from _read(name, os.path.join(place, ".channels", name, "losses"))
    if name not in traces_of("", place):
        return
    above = os.path.join(place, ".channels", name)
    with suppress(FileNotFoundError):  # it has no processes
        for process in sorted(os.listdir(above)):
            yield from _read(f"{name}/{process}", os.path.join(above, process, "cpu", "losses"))
    for one in _read(name, os.path.join(place, TRACES_NAME, "losses")):
        if one["buffer"] == name:
            yield one | {"buffer": None}


def _read(name: str, path: str) -> Iterator[dict[str, Any]]:
    """Yield the losses in a file; none if it is not there, as that of a channel that was just removed."""
    with suppress(FileNotFoundError, NotADirectoryError), open(path, encoding="utf-8") as file:
        for line in file:
            words = [int(word) if word.isdigit() else None if word == "-" else word for word in line.split()]
            yield {"name": printable(name), **dict(zip(_KEYS, words, strict=True))}


def _row(one: dict[str, Any]) -> list[str]:
    times = [_time(one["from_ns"]), _time(one["to_ns"])]
    numbers = ["" if one[key] is None else str(one[key]) for key in ("buffer", "records", "bytes")]
    return [one["name"], numbers[0], *times, *numbers[1:], one["cause"]]


def _time(ns: int | None) -> str:
    return "" if ns is None else datetime.fromtimestamp(ns / 1e9).astimezone().isoformat("T", "milliseconds")[:23]
