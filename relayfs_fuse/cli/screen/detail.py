"""The buffers of one channel or process, or the processes of one trace, and the last records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from relayfs_fuse.cli.common import escaped
from relayfs_fuse.cli.screen.history import Histories, key_of
from relayfs_fuse.cli.screen.last import Last, last_of, trace_of
from relayfs_fuse.cli.screen.table import Table
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from relayfs_fuse.cli.figures import Figures

_HINTS = "Esc back  Tab to the records and back  letters sort  q quit"


class Detail(Screen[None]):
    """What is known of one object.

    one: the object
    where: the store
    interval: between two show(), in seconds
    """

    CSS = """
    Detail Table { height: 1fr; }
    Detail VerticalScroll { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,left,backspace", "leave", show=False)]

    def __init__(self, one: Figures, where: str, interval: float) -> None:
        super().__init__()
        self._one = one
        self._histories = Histories(interval)
        self._last: Last | None = None
        self._said: list[str] = []
        self._head = Static(markup=False)
        self._table = Table(self._histories)
        self._records = Static(markup=False)
        self._scroll = VerticalScroll(self._records)
        try:
            self._last = last_of(one, where, self._said.append)
        except RelayError as error:
            self._said.append(str(error))
        except OSError as error:
            self._said.append(reason(error))

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield self._head
        yield self._table
        yield Static(self._what(), markup=False)
        yield self._scroll
        yield Static(_HINTS, markup=False)

    def _what(self) -> str:
        if self._one.kind in ("relay", "ring"):
            return "The last records (without times: the unread ones, by buffer); they are not consumed:"
        return f"The last events of the trace {escaped(trace_of(self._one))}; they are not consumed:"

    def on_mount(self) -> None:
        """Show what is known now."""
        self._scroll.anchor()
        self._table.focus()
        self.show([self._one])

    def on_unmount(self) -> None:
        """Let go of the buffers."""
        if self._last is not None:
            self._last.close()
            self._last = None

    def action_leave(self) -> None:
        """Go back to the list."""
        self.dismiss()

    def show(self, found: Sequence[Figures]) -> None:
        """Show new figures."""
        one = next((other for other in found if key_of(other) == key_of(self._one)), None)
        if one is None:
            self._head.update(f"{escaped(self._one.name)}: it was removed")
            return
        self._one = one
        self._histories.note(one.parts)
        self._table.show(one.parts)
        causes = f"; lost: {one.causes}" if one.causes else ""
        self._head.update(f"{escaped(one.name)}: {one.kind or 'unknown'}, {escaped(one.state or '')}{causes}")
        self._show_records()

    def _show_records(self) -> None:
        lines = ""
        if self._last is not None:
            try:
                lines = self._last.text()
            except OSError as error:
                self._said.append(reason(error))
                self.on_unmount()
        self._records.update("\n".join([*map(escaped, self._said[-3:]), lines.rstrip("\n")]).strip("\n"))
