"""What relayctl top draws: columns that fit, texts as wide as their columns, blocks, and rates that are known."""

import pytest
from rich.cells import cell_len

from relayfs_fuse.cli.figures import Figures, add_rates
from relayfs_fuse.cli.screen.columns import BY_KEY, cells, layout, ordered, short, titles
from relayfs_fuse.cli.screen.history import Histories, bar, sparkline

NAMES = ["a", "a" * 300, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 50, "bytes-\udcff", "line\nend\x1b[31m"]


@pytest.mark.parametrize("width", [1, 20, 80, 120, 200, 500])
def test_rows_are_as_wide_as_their_columns(width: int) -> None:
    columns = layout(width)
    taken = sum(its + 1 for _, its in columns)
    assert taken <= max(width, columns[0][1] + 1)
    assert {"NAME", "RATE", "FILL", "LOST"} <= {column.title for column, _ in columns} or width < 80
    for name in NAMES:
        one = Figures(name, "relay", "damaged: mem0: \n", count=1 << 62, fill=2.0, lost_by_cause={"full": None})
        row = "".join(text for text, _ in cells(one, columns, Histories(1)))
        assert cell_len(row) == taken
        assert row.isprintable()
    assert cell_len("".join(text for text, _ in titles(columns, BY_KEY["r"], is_descending=True))) == taken


def test_numbers_are_short() -> None:
    assert [short(n) for n in (None, 0, 0.25, 9999, 10_000, 123_456_789)] == ["-", "0", "0.2", "9999", "10K", "123M"]
    assert max(len(short(10**n - 1, base)) for n in range(18) for base in (1000, 1024)) <= 5


def test_blocks_are_as_high_as_rates_and_as_long_as_buffers_are_full() -> None:
    assert sparkline([0.0, 7.0, None, 3.5], 60, 60) == " " * 56 + "▁█ ▅"
    assert sparkline([4.0] * 30 + [8.0] * 30, 60, 4) == "▅▅██"
    assert [bar(part, 2) for part in (0, 0.001, 0.5, 0.75, 1, 7)] == ["  ", "▏ ", "█ ", "█▌", "██", "██"]


def test_unknown_values_sort_as_the_least() -> None:
    rows = [Figures(name, "relay", count=n) for name, n in (("a", 1), ("b", None), ("c", 0), ("d", 1))]
    assert [one.name for one in ordered(rows, BY_KEY["c"], is_descending=True)] == ["a", "d", "c", "b"]
    assert [one.name for one in ordered(rows, BY_KEY["c"], is_descending=False)] == ["b", "c", "a", "d"]


def test_what_was_damaged_before_has_no_rate() -> None:
    """It was written before, nobody knows how much."""
    now = [Figures("a", "relay", count=10, bytes=10, at=2.0), Figures("b", "relay", count=10, bytes=10, at=2.0)]
    add_rates(now, [Figures("a", None, "damaged", at=1.0)], since=1.0)
    assert [one.rate for one in now] == [None, 10]
