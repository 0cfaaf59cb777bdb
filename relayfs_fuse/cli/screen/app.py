"""relayctl top on a terminal."""

from __future__ import annotations

import fnmatch
import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input, Static

from relayfs_fuse.cli.common import escaped
from relayfs_fuse.cli.screen.columns import short
from relayfs_fuse.cli.screen.detail import Detail
from relayfs_fuse.cli.screen.history import Histories
from relayfs_fuse.cli.screen.last import trace_of
from relayfs_fuse.cli.screen.table import Table
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.snapshot import Snapshot
from relayfs_fuse.reading.source import Source
from relayfs_fuse.record.report import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from relayfs_fuse.cli.figures import Figures
    from relayfs_fuse.cli.sampler import Sampler

_HINTS = "/ filter  letters sort  z zeros  p pause  Enter detail  t snapshot  q quit"
_KINDS = ("relay", "ring", "trace", "process")
_OF_TRACES = ("trace", "process", "user")


class Main(Screen[None]):
    """All objects, a line each.

    is_paused: whether the figures stay as they are
    hides_zeros: whether objects are hidden that nobody writes to, with nothing unread and nothing lost
    """

    CSS = """
    Main Table { height: 1fr; }
    Main .line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Main Input { height: 1; border: none; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # At once, before further keys are given to the widget that has the focus: some type fast, or paste.
        Binding("slash", "filter", show=False, priority=True),
        Binding("escape", "forget_filter", show=False, priority=True),
        Binding("enter", "end_filter", show=False, priority=True),
        Binding("z", "zeros", show=False),
        Binding("p", "pause", show=False),
        Binding("enter", "detail", show=False),
        Binding("t", "snapshot", show=False),
    ]

    def __init__(self, sampler: Sampler, histories: Histories, interval: float) -> None:
        super().__init__()
        self.is_paused = False
        self.hides_zeros = False
        self._where = sampler.where
        self._interval = interval
        self._found: list[Figures] = []
        self._head = Static(markup=False, classes="line")
        self.table = Table(histories)
        self._of_selected = Static(markup=False, classes="line")
        self._filter = Input(placeholder="part of a name, or a glob; Enter: done; Esc: all", compact=True)

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield self._head
        yield self.table
        yield self._of_selected
        yield self._filter
        yield Static(_HINTS, markup=False, classes="line")

    def on_mount(self) -> None:
        """Let keys go to the table."""
        self.table.focus()

    def show(self, found: list[Figures]) -> None:
        """Show figures, unless it is paused."""
        if not self.is_paused:
            self._found = found
            self._show()

    def _show(self) -> None:
        self.table.show([one for one in self._found if self._is_shown(one)])
        self._head.update(self._summary(), layout=False)

    def _is_shown(self, one: Figures) -> bool:
        if self.hides_zeros and not (one.rate or one.unread_bytes or one.lost or one.lost is None):
            return False
        wanted = self._filter.value.casefold()
        if not wanted:
            return True
        name = escaped(one.name).casefold()
        return wanted in name or fnmatch.fnmatchcase(name, wanted)

    def _summary(self) -> str:
        n = {kind: sum(one.kind == kind for one in self._found) for kind in _KINDS}
        # A process is a part of its trace.
        wholes = [one for one in self._found if one.kind not in ("process", "user")]
        memory = sum(one.memory or 0 for one in wholes)
        n_lost = sum(one.lost or 0 for one in wholes)
        marks = [word for word, is_on in (("PAUSED", self.is_paused), ("NO ZEROS", self.hides_zeros)) if is_on]
        if self._filter.value:
            marks.append(f"/{self._filter.value}")
        kinds = f"relay {n['relay']}, ring {n['ring']}, trace {n['trace']}, process {n['process']}"
        return "  ".join([*marks, f"{kinds}  memory {short(memory, 1024)}  lost {short(n_lost)}", escaped(self._where)])

    def on_table_selected(self, message: Table.Selected) -> None:
        """Tell what did not fit in the row."""
        one = message.one
        if one is None:
            self._of_selected.update("", layout=False)
            return
        causes = f"  lost {one.causes}" if one.causes else ""
        self._of_selected.update(f"{escaped(one.state or '')}{causes}  {escaped(one.name)}", layout=False)

    # --- keys ---

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave a slash to the filter while it is typed, and Enter to the table at other times."""
        if action in {"filter", "end_filter"}:
            return (self.focused is self._filter) == (action == "end_filter")
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Ask for the names to show."""
        self._filter.display = True
        self.set_focus(self._filter)

    def action_forget_filter(self) -> None:
        """Show all names."""
        self._filter.value = ""
        self.action_end_filter()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Show the names that match so far."""
        self._show()

    def action_end_filter(self) -> None:
        """Let keys go to the table again."""
        self._filter.display = False
        self.set_focus(self.table)

    def action_zeros(self) -> None:
        """Hide, or show again, what nobody writes to, with nothing unread and nothing lost."""
        self.hides_zeros = not self.hides_zeros
        self._show()

    def action_pause(self) -> None:
        """Leave the figures as they are, or show the present ones again."""
        self.is_paused = not self.is_paused
        self._show()

    def action_detail(self) -> None:
        """Show the buffers and the last records of the selected object."""
        if self.table.selected is not None:
            self.app.push_screen(Detail(self.table.selected, self._where, self._interval))

    def action_snapshot(self) -> None:
        """Take a snapshot of the selected trace, in a new directory."""
        one = self.table.selected
        if one is None or one.kind not in _OF_TRACES:
            self.app.notify("t is for traces: select a trace or one of its processes", severity="warning", markup=False)
            return
        self._take(trace_of(one))

    @work(thread=True)
    def _take(self, name: str) -> None:
        output = os.path.abspath(time.strftime(f"{name}-%Y%m%d-%H%M%S"))
        said: list[str] = []
        try:
            with closing(Source(name, self._where)) as source:
                taken = Snapshot(source, output, said.append)
                taken.take(lambda: None)
        except RelayError as error:
            self.app.notify(escaped(str(error)), severity="error", markup=False)
        except OSError as error:
            self.app.notify(escaped(f"{output}: {reason(error)}"), severity="error", markup=False)
        else:
            text = summarize(name, output, taken.summary)
            self.app.notify("\n".join(map(escaped, [*said, text])), timeout=20, markup=False)


class Top(App[None]):
    """Show figures until a key ends it.

    interval: between two readings, in seconds
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "* { background: ansi_default; color: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, sampler: Sampler, interval: float) -> None:
        # The terminal's own colours.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._sampler = sampler
        self._interval = interval
        self._histories = Histories(interval)
        self.main = Main(sampler, self._histories, interval)
        self._failed = ""

    def on_mount(self) -> None:
        """Begin to read."""
        self.push_screen(self.main)
        self.call_after_refresh(self.refresh_figures)
        self.set_interval(self._interval, self.refresh_figures)

    def refresh_figures(self) -> None:
        """Read the figures, and show them."""
        try:
            found = self._sampler.take()
        except OSError as error:
            why = f"{error.filename}: {reason(error)}; trying again"
            if why != self._failed:
                self.notify(escaped(why), severity="error", markup=False)
            self._failed = why
            return
        self._failed = ""
        self._histories.note(found)
        self._show(found)

    def _show(self, found: Sequence[Figures]) -> None:
        self.main.show(list(found))
        if isinstance(self.screen, Detail):
            self.screen.show(found)
