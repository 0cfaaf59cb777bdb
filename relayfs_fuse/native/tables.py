"""Options of channels and traces, and statistics of channels: the tables of <relayfs/store.h>.

The tables are in the C library, so that each option and statistic is described in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bytes of a formatted value.
_TEXT_BYTES = 64


def _text(pointer: Any) -> str:
    return ffi.string(pointer).decode() if pointer != ffi.NULL else ""


def _words(pointer: Any) -> Iterator[str]:
    i = 0
    while pointer != ffi.NULL and pointer[i] != ffi.NULL:
        yield _text(pointer[i])
        i += 1


class Option:
    """An option of one type of channel, or of traces; see struct relay_option.

    key: in KEY=VALUE
    field: of struct relay_spec and relay_stats, of those of rings, or of struct relay_trace; empty: none
    file: the file in .channels/PATH/ that shows it; empty: none
    words: the values, whose indexes stand for them; empty: the values are numbers
    allowed: the allowed values, as text for users
    most: the largest allowed number
    initial: the default
    """

    def __init__(self, row: Any) -> None:
        self._row = row
        self.key = _text(row.key)
        self.field = _text(row.field)
        self.file = _text(row.file)
        self.words = tuple(_words(row.words))
        self.allowed = _text(row.allowed) or " or ".join(self.words)
        self.most = int(row.most)
        self.initial = int(row.initial)

    def parse(self, text: str) -> int:
        """Parse a value. ValueError: it is not allowed."""
        number = ffi.new("uint64_t *")
        encoded = text.encode(errors="surrogateescape")
        if b"\0" in encoded or lib.relay_option_parse(self._row, encoded, number):
            raise ValueError(text)
        return int(number[0])

    def format(self, number: int) -> str:
        """Format a value for parse()."""
        text = ffi.new("char[]", _TEXT_BYTES)
        lib.relay_option_format(self._row, number, text, _TEXT_BYTES)
        return _text(text)


def _options(type_of: int) -> dict[str, Option]:
    found: dict[str, Option] = {}
    while row := lib.relay_option_at(type_of, len(found)):
        option = Option(row)
        found[option.key] = option
    return found


RELAY_OPTIONS = _options(lib.RELAY_TYPE_RELAY)
RING_OPTIONS = _options(lib.RELAY_TYPE_RING)
TRACE_OPTIONS = _options(lib.RELAY_TYPE_TRACE)
# The types of channels; the first is the default.
TYPES = RELAY_OPTIONS["type"].words
# By type, and by key.
OPTIONS = dict(zip(TYPES, (RELAY_OPTIONS, RING_OPTIONS), strict=True))


class Statistic(NamedTuple):
    """A statistic of a buffer or ring; see struct relay_statistic.

    name: of its files in .channels/PATH/ and .channels/PATH/bufferN/
    field: of Stats or RingStats
    unit, help: of the counter of this name; empty: there is no such counter
    form: how a channel's value is computed from its buffers'. LATEST: the maximum; OF_BUFFER: not at all; otherwise the
        sum, which for LEVEL is a present amount
    source: if it is not 0, the value is unknown for a ring that was consumed by a program that knows only the BPF
        ring's format: OF_CONSUMERS in any mode, otherwise in mode overwrite
    """

    name: str
    field: str
    unit: str
    help: str
    form: int
    source: int


LEVEL: int = lib.RELAY_STATISTIC_LEVEL
LATEST: int = lib.RELAY_STATISTIC_LATEST
OF_BUFFER: int = lib.RELAY_STATISTIC_OF_BUFFER
OF_CONSUMERS: int = lib.RELAY_STATISTIC_OF_CONSUMERS


def _statistics(type_of: int) -> list[Statistic]:
    found: list[Statistic] = []
    while row := lib.relay_statistic_at(type_of, len(found)):
        found.append(
            Statistic(_text(row.name), _text(row.field), _text(row.unit), _text(row.help), row.form, row.source)
        )
    return found


# By type.
STATISTICS = dict(zip(TYPES, (_statistics(lib.RELAY_TYPE_RELAY), _statistics(lib.RELAY_TYPE_RING)), strict=True))
