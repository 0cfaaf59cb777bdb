"""Permissions, options of channels and traces, clocks, and statistics of channels: the tables of <relayfs/store.h>.

The tables are in the C library, so that each permission, option, clock and statistic is described in one place.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import constants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native.library import Fields

# Bytes of a formatted value.
_TEXT_BYTES = 64

# enum relay_perm, by what follows RELAY_PERM_.
PERMS: dict[str, int] = {
    name.removeprefix("RELAY_PERM_"): perm for name, perm in ffi.typeof("enum relay_perm").relements.items()
}


def rows(at: Callable[[int], Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table of the library, each with its number, until `at` returns NULL.

    at: returns the row of a number
    """
    for number in itertools.count(first):
        row = at(number)
        if not row:
            return
        yield number, row


def text_of(pointer: Any) -> str:
    """Return a string of the library; NULL: empty."""
    return ffi.string(pointer).decode() if pointer != ffi.NULL else ""


def _words(pointer: Any) -> Iterator[str]:
    i = 0
    while pointer != ffi.NULL and pointer[i] != ffi.NULL:
        yield text_of(pointer[i])
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
        self.key = text_of(row.key)
        self.field = text_of(row.field)
        self.file = text_of(row.file)
        self.words = tuple(_words(row.words))
        self.allowed = text_of(row.allowed) or " or ".join(self.words)
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
        return text_of(text)


def _options(type_of: int) -> dict[str, Option]:
    options = (Option(row) for _, row in rows(partial(lib.relay_option_at, type_of)))
    return {option.key: option for option in options}


RELAY_OPTIONS = _options(lib.RELAY_TYPE_RELAY)
RING_OPTIONS = _options(lib.RELAY_TYPE_RING)
TRACE_OPTIONS = _options(lib.RELAY_TYPE_TRACE)
# The types of channels; the first is the default.
TYPES = RELAY_OPTIONS["type"].words
# By type, and by key.
OPTIONS = dict(zip(TYPES, (RELAY_OPTIONS, RING_OPTIONS), strict=True))


class Clock(NamedTuple):
    """A clock of timestamps and traces; see struct relay_clock.

    number: of enum relay_timestamp
    missing: why a machine may not have it
    freq: ticks a second; 0: to be measured
    """

    number: int
    description: str
    missing: str
    freq: int
    is_available: bool


def _clock(number: int, row: Any) -> Clock:
    is_available = bool(lib.relay_clock_is_available(number))
    return Clock(number, text_of(row.description), text_of(row.missing), row.freq, is_available)


# By the word in timestamp= and clock=.
CLOCKS = {text_of(row.word): _clock(number, row) for number, row in rows(lib.relay_clock_at, lib.RELAY_MONO)}


def missing_clock(option: Option, number: int) -> str:
    """Return why this machine cannot have a value of timestamp= or clock=, and which it can; empty: it can."""
    missing = {word: clock.missing for word, clock in CLOCKS.items() if not clock.is_available}
    word = option.format(number)
    allowed = ", ".join(other for other in option.words if other not in missing)
    return f"{option.key}={word}: {missing[word]}; allowed: {allowed}" if word in missing else ""


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

    def of(self, stats: Fields) -> int | None:
        """Return the value for a buffer; None: it cannot be known.

        That is so if a consumer has read that knows only the BPF ring's format: it counts nothing, so what consumers
        would count is missing.
        """
        is_affected = self.source == OF_CONSUMERS or (self.source and stats.mode == constants.MODE_OVERWRITE)
        return None if is_affected and stats.foreign_bytes else getattr(stats, self.field)


LEVEL: int = lib.RELAY_STATISTIC_LEVEL
LATEST: int = lib.RELAY_STATISTIC_LATEST
OF_BUFFER: int = lib.RELAY_STATISTIC_OF_BUFFER
OF_CONSUMERS: int = lib.RELAY_STATISTIC_OF_CONSUMERS


def _statistics(type_of: int) -> list[Statistic]:
    return [
        Statistic(text_of(row.name), text_of(row.field), text_of(row.unit), text_of(row.help), row.form, row.source)
        for _, row in rows(partial(lib.relay_statistic_at, type_of))
    ]


# By type.
STATISTICS = dict(zip(TYPES, (_statistics(lib.RELAY_TYPE_RELAY), _statistics(lib.RELAY_TYPE_RING)), strict=True))
