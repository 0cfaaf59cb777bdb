"""The columns of relayctl top: which there are, which fit on a screen, what stands in them, and how they sort."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from relayfs_fuse.cli.common import escaped
from relayfs_fuse.cli.screen.history import bar, sparkline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.cli.figures import Figures
    from relayfs_fuse.cli.screen.history import Histories

# A name is cut in the middle when it is wider.
_NAME_WIDTH = 18
_NAME_WIDTH_MAX = 60
_SPARK_WIDTH = 10
_SPARK_WIDTH_MAX = 60
_CAUSES_WIDTH = 20
_CAUSES_WIDTH_MAX = 40
_BAR_WIDTH = 5
_GAP = 1
_UNITS = " KMGTPE"
# Styles, by how full a buffer is.
_FILLS = ((0.9, "red"), (0.7, "yellow"), (0.0, "green"))
LOSS = "bold red"
_NOTHING = "dim"

Cell = tuple[str, str]


@dataclass(frozen=True)
class Column:
    """A column.

    title: its words
    key: the letter that sorts by it, which is in the title; empty: nothing does
    width: the least; the most is in _WIDEST, if it is not the same
    rank: columns of a lower one are shown first when the screen is narrow
    cell: returns text and style
    order: what it sorts by; None sorts as the least
    """

    title: str
    key: str
    width: int
    rank: int
    cell: Callable[[Figures], Cell]
    order: Callable[[Figures], Any] | None = None
    is_number: bool = True


def short(value: float | None, base: int = 1000) -> str:
    """Format a number in at most five characters; None: -."""
    if value is None:
        return "-"
    unit = 0
    while abs(value) >= (base if unit else 10 * base) and unit < len(_UNITS) - 1:
        value /= base
        unit += 1
    if unit == 0:
        return f"{value:.1f}" if value and abs(value) < 10 and value != int(value) else f"{value:.0f}"
    return f"{value:.1f}{_UNITS[unit]}" if abs(value) < 10 else f"{value:.0f}{_UNITS[unit]}"


def cut(text: str, width: int) -> str:
    """Cut the middle of a text that is wider, and fill up one that is not."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    left = (width - 1) // 2
    head = set_cell_size(text, left)
    tail = text
    while cell_len(tail) > width - 1 - left:
        tail = tail[1:]
    return set_cell_size(f"{head}…{tail}", width)


def _number(name: str, base: int = 1000) -> Callable[[Figures], Cell]:
    def cell(one: Figures) -> Cell:
        value = getattr(one, name)
        return short(value, base), "" if value else _NOTHING

    return cell


def _lost(one: Figures) -> Cell:
    n = one.lost
    if n is None and one.lost_by_cause:
        return "?", LOSS
    return short(n), LOSS if n else _NOTHING


def _causes(one: Figures) -> Cell:
    return one.causes, LOSS


def _fill(one: Figures) -> Cell:
    if one.fill is None:
        return "-", _NOTHING
    style = next(style for least, style in _FILLS if one.fill >= least)
    return f"{bar(one.fill, _BAR_WIDTH)}{one.fill:4.0%}", style if one.fill else _NOTHING


def _state(one: Figures) -> Cell:
    state = one.state or ""
    is_good = state in ("ok", "started", "stopped", "alive", "dead")
    return escaped(state), "" if is_good else LOSS


def _none(_: Figures) -> Cell:
    return "", ""


NAME = Column("NAME", "n", _NAME_WIDTH, 0, lambda one: (escaped(one.name), ""), lambda one: one.name, is_number=False)
SPARK = Column("60 S", "", _SPARK_WIDTH, 3, _none, is_number=False)
CAUSES = Column("CAUSES", "", _CAUSES_WIDTH, 9, _causes, is_number=False)
COLUMNS = (
    NAME,
    Column("KIND", "k", 7, 5, lambda one: (one.kind or "-", ""), lambda one: one.kind or "", is_number=False),
    Column("STATE", "s", 9, 10, _state, lambda one: one.state or "", is_number=False),
    Column("BUFS", "", 5, 13, _number("buffers")),
    Column("MEM", "m", 5, 6, _number("memory", 1024), lambda one: one.memory),
    Column("WRITERS", "w", 7, 11, _number("writers"), lambda one: one.writers),
    Column("COUNT", "c", 6, 8, _number("count"), lambda one: one.count),
    Column("RATE", "r", 6, 1, _number("rate"), lambda one: one.rate),
    SPARK,
    Column("BYTES/S", "b", 7, 7, _number("byte_rate", 1024), lambda one: one.byte_rate),
    Column("UNREAD", "u", 6, 4, _number("unread_bytes", 1024), lambda one: one.unread_bytes),
    Column("FILL", "f", _BAR_WIDTH + 4, 2, _fill, lambda one: one.fill),
    Column("LOST", "l", 5, 2, _lost, lambda one: one.lost),
    CAUSES,
)
_WIDEST = {NAME: _NAME_WIDTH_MAX, SPARK: _SPARK_WIDTH_MAX, CAUSES: _CAUSES_WIDTH_MAX}
BY_KEY = {column.key: column for column in COLUMNS if column.key}


@lru_cache(maxsize=8)
def layout(width: int) -> list[tuple[Column, int]]:
    """Choose the columns that fit on a screen of this width; each with the width that it gets."""
    chosen: list[Column] = []
    left = width
    for column in sorted(COLUMNS, key=lambda one: one.rank):
        if column.width + _GAP <= left or not chosen:
            chosen.append(column)
            left -= column.width + _GAP
    widths = {column: column.width for column in chosen}
    for column in (NAME, CAUSES, SPARK, NAME):
        if column in widths and left > 0:
            # The first time a name gets half of what is left.
            share = left // 2 if column is NAME and SPARK in widths and widths[NAME] == NAME.width else left
            more = max(0, min(share, _WIDEST[column] - widths[column]))
            widths[column] += more
            left -= more
    return [(column, widths[column]) for column in COLUMNS if column in widths]


def cells(one: Figures, columns: Sequence[tuple[Column, int]], histories: Histories) -> list[Cell]:
    """Return the texts of a row, as wide as the columns and the gaps behind them, and their styles."""
    row = []
    for column, width in columns:
        if column is SPARK:
            text, style = sparkline(histories.of(one), histories.length, width), "cyan"
        else:
            text, style = column.cell(one)
        row.append((_fit(text, width, column), style))
    return row


def titles(columns: Sequence[tuple[Column, int]], by: Column, *, is_descending: bool) -> list[Cell]:
    """Return the titles; that of the column by which rows are sorted has an arrow if there is room."""
    row = []
    for column, width in columns:
        text = column.title
        if column is by and len(text) < width:
            text += "▼" if is_descending else "▲"
        row.append((_fit(text, width, column), "bold reverse" if column is by else "bold"))
    return row


def _fit(text: str, width: int, column: Column) -> str:
    padded = text.rjust(width) if column.is_number else text
    return cut(padded, width) + " " * _GAP


def ordered(found: Sequence[Figures], by: Column, *, is_descending: bool) -> list[Figures]:
    """Sort by a column; equal ones stay in the order of their names."""
    order = by.order
    assert order is not None

    def key(one: Figures) -> tuple[bool, Any]:
        value = order(one)
        return value is not None, value if value is not None else 0

    return sorted(found, key=key, reverse=is_descending)
