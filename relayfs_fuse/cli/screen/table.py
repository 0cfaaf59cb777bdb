"""A table of figures, of which only the lines that are seen are drawn: there may be thousands of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from relayfs_fuse.cli.screen.columns import BY_KEY, Cell, cells, layout, ordered, titles
from relayfs_fuse.cli.screen.history import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from relayfs_fuse.cli.figures import Figures
    from relayfs_fuse.cli.screen.history import Histories, Key

_PLAIN, _SELECTED = Style(), Style(reverse=True)
# What is drawn in a line, and whether it is the selected row.
Row = tuple[list[Cell], bool]


class Table(ScrollView, can_focus=True):
    """Rows of figures below a line of titles; one row is selected, and stays so where the order changes.

    by: the key of the column that sorts
    """

    class Selected(Message):
        """The selected row, or its figures, have changed; None: there is no row."""

        def __init__(self, one: Figures | None) -> None:
            super().__init__()
            self.one = one

    DEFAULT_CSS = "Table { overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000000)", show=False),
        Binding("end", "move(1000000000)", show=False),
        *(Binding(key, f"sort('{key}')", show=False) for key in BY_KEY),
    ]

    def __init__(self, histories: Histories, by: str = "n") -> None:
        super().__init__()
        self.by = by
        self._is_descending = BY_KEY[by].is_number
        self._histories = histories
        self._rows: list[Figures] = []
        self._at = 0
        self._selected: Key | None = None
        self._drawn: dict[int, Row] = {}

    @property
    def selected(self) -> Figures | None:
        """The selected row."""
        return self._rows[self._at] if self._rows else None

    def show(self, found: Sequence[Figures]) -> None:
        """Show figures in place of those before."""
        self._rows = ordered(found, BY_KEY[self.by], is_descending=self._is_descending)
        at = next((i for i, one in enumerate(self._rows) if key_of(one) == self._selected), self._at)
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self._select(at)

    def _select(self, at: int) -> None:
        self._at = max(0, min(at, len(self._rows) - 1))
        self._selected = key_of(self._rows[self._at]) if self._rows else None
        top, height = self.scroll_offset.y, max(1, self.size.height - 1)
        if not top <= self._at < top + height:
            self.scroll_to(y=self._at if self._at < top else self._at - height + 1, animate=False, force=True)
        self.post_message(self.Selected(self.selected))
        self._draw()

    def action_move(self, by: int) -> None:
        """Select another row."""
        self._select(self._at + by)

    def action_page(self, by: int) -> None:
        """Select a row a screen further."""
        self._select(self._at + by * max(1, self.size.height - 2))

    def action_sort(self, key: str) -> None:
        """Sort by a column; once more: the other way round."""
        self._is_descending = BY_KEY[key].is_number if key != self.by else not self._is_descending
        self.by = key
        self.show(self._rows)

    def on_resize(self, _: events.Resize) -> None:
        """Keep the selected row in sight."""
        self.show(self._rows)

    def on_click(self, event: events.Click) -> None:
        """Select a row."""
        if event.y > 0:
            self._select(event.y - 1 + self.scroll_offset.y)

    def _draw(self) -> None:
        """Have those lines drawn again that have changed."""
        for y in range(self.size.height):
            row = self._row(y)
            if self._drawn.get(y) != row:
                self._drawn[y] = row
                self.refresh(Region(0, y, self.size.width, 1))

    def _row(self, y: int) -> Row:
        """Return the cells of a line of the screen, and whether it is the selected one."""
        columns = layout(self.size.width)
        at = y - 1 + self.scroll_offset.y
        if y == 0:
            return titles(columns, BY_KEY[self.by], is_descending=self._is_descending), False
        if at >= len(self._rows):
            return [], False
        return cells(self._rows[at], columns, self._histories), at == self._at

    def render_line(self, y: int) -> Strip:
        """Draw a line of the screen."""
        row, is_selected = self._drawn[y] = self._row(y)
        style = _SELECTED if is_selected else _PLAIN
        strip = Strip([Segment(text, Style.parse(its) + style) for text, its in row])
        return strip.adjust_cell_length(self.size.width, style).apply_style(self.rich_style)
