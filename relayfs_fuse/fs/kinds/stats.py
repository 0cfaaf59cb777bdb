"""The files of .channels/PATH/, each of which has one number or word and a newline.

.channels/PATH/NAME           an option that the channel was made with, or a statistic of all its buffers
.channels/PATH/state          ok, disabled, closed, or `damaged: memN: ` and what is wrong
.channels/PATH/bufferN/NAME   a statistic of one buffer

The names come from the library's tables (native/tables.py); relayfs(5) explains them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from relayfs_fuse.native.tables import LATEST, OF_BUFFER, OPTIONS, STATISTICS
from relayfs_fuse.shown import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.tables import Option, Statistic

# A file's name, and the function that returns its contents.
File: TypeAlias = "tuple[str, Callable[[], bytes]]"


def of_channel(channel: StoredChannel) -> Iterator[File]:
    """Yield the files of .channels/PATH/."""
    yield "state", lambda: _line(channel.state())
    yield "n_buffers", lambda: _line(channel.stats.n_buffers)
    for option in OPTIONS[channel.kind.name].values():
        if option.file:
            yield option.file, partial(_option, option, channel)
    for statistic in STATISTICS[channel.kind.name]:
        if statistic.form != OF_BUFFER:
            yield statistic.name, partial(_statistic, statistic, channel.buffers)


def of_buffer(channel: StoredChannel, stored: Stored[Any]) -> Iterator[File]:
    """Yield the files of .channels/PATH/bufferN/."""
    for statistic in STATISTICS[channel.kind.name]:
        yield statistic.name, partial(_statistic, statistic, [stored])


def _line(value: int | str) -> bytes:
    return f"{value}\n".encode()


def _option(option: Option, channel: StoredChannel) -> bytes:
    if not option.field:
        return _line(channel.kind.name)
    number = getattr(channel.stats, option.field)
    return _line(option.format(number) if option.words else number)


def value(statistic: Statistic, stats: Sequence[Fields]) -> int | None:
    """Return a channel's statistic, from the statistics of its buffers; None: it cannot be known."""
    numbers = [statistic.of(one) for one in stats]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return max(known) if statistic.form == LATEST else sum(known)


def _statistic(statistic: Statistic, buffers: Sequence[Stored[Any]]) -> bytes:
    number = value(statistic, [stored.stats() for stored in buffers])
    return _line(UNKNOWN if number is None else number)
