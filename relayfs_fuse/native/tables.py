"""What channels and traces are made with, and what is counted of them: the tables of <relayfs/store.h>.

Both are the library's, so that an option or a number is described in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of a number with its unit, or of a word.
_TEXT_BYTES = 64


def _text(pointer: Any) -> str:
    return ffi.string(pointer).decode() if pointer != ffi.NULL else ""


def _words(pointer: Any) -> Iterator[str]:
    i = 0
    while pointer != ffi.NULL and pointer[i] != ffi.NULL:
        yield _text(pointer[i])
        i += 1


class Option:
    """One option of one type of channel, or of traces.

    key: in KEY=VALUE
    field: of struct relay_spec and relay_stats, of those of rings, or of struct relay_trace; empty: it has none
    file: in .channels/PATH/; empty: none shows it
    words: the values, whose indexes stand for them; empty: the values are numbers
    allowed: which values are, for people
    most: the largest number that is allowed
    initial: the value if it is not given
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
        """Understand a value. ValueError: it is not allowed."""
        number = ffi.new("uint64_t *")
        encoded = text.encode(errors="surrogateescape")
        if b"\0" in encoded or lib.relay_option_parse(self._row, encoded, number):
            raise ValueError(text)
        return int(number[0])

    def format(self, number: int) -> str:
        """Write a value as parse() reads it."""
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
# What a channel is made of; without type=, the first.
TYPES = RELAY_OPTIONS["type"].words
# By type, and by key.
OPTIONS = dict(zip(TYPES, (RELAY_OPTIONS, RING_OPTIONS), strict=True))


class Statistic(NamedTuple):
    """One number of a buffer or ring; see struct relay_statistic.

    name: of its files in .channels/PATH/ and .channels/PATH/bufferN/
    field: of Stats or RingStats
    unit, help: of the counter of its name; empty: there is none
    form: LATEST: of a channel's buffers the largest counts; OF_BUFFER: only each buffer's says something; else they add
        up, LEVEL what there is now
    source: if it is not 0, it is not known of a ring that was consumed by a program that knows only the BPF ring's
        format: OF_CONSUMERS in any mode, else in mode overwrite
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
