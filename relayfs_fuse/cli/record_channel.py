"""relayctl record, of a channel: its records go to files, one for each buffer or ring."""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli.opened import open_first
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.app import App
from relayfs_fuse.reading.summary import Summary
from relayfs_fuse.record.full import LimitError
from relayfs_fuse.record.report import Progress, size
from relayfs_fuse.record.rings import RingsApp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.reading.source import Root
    from relayfs_fuse.record.full import Limit

_TICK_S = 1.0
# How often is looked whether there is room, and how often a message about that is repeated.
_LIMIT_TICK_S = 0.1
_REPEAT_S = 60.0


def refuse_options(what: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if one of the options is given, which are not for this.

    what: the end of the message
    """
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} is for {what}")


class End:
    """When a recording is to end: at a signal, or when its time has passed.

    duration: seconds; None: any number
    waits: whether to wait then until there is room for what there is
    """

    def __init__(self, duration: float | None, *, waits: bool) -> None:
        self._waits = waits
        self._end_s = math.inf if duration is None else time.monotonic() + duration
        self.signalled = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: os.eventfd_write(self.signalled, 1))

    @property
    def left_s(self) -> float:
        """How much time is left; 0: none."""
        return max(0.0, self._end_s - time.monotonic())

    def wait(self, app: App | RingsApp) -> bool:
        """Wait for a tick at most; return whether it is the end, also of the app."""
        poll = select.poll()
        poll.register(self.signalled, select.POLLIN)
        poll.register(app, select.POLLIN)
        return bool(poll.poll(1000 * min(_TICK_S, self.left_s))) or not self.left_s

    def comes_by(self, due_s: float) -> bool:
        """Wait until a time of time.monotonic(); return whether it is the end before."""
        poll = select.poll()
        poll.register(self.signalled, select.POLLIN)
        wait_s = min(due_s - time.monotonic(), self.left_s)
        return bool(poll.poll(1000 * max(0.0, wait_s))) or not self.left_s

    def comes_before(self, limit: Limit, room: int) -> bool:
        """Wait until there is more room than so many bytes; return whether it is the end before."""
        poll = select.poll()
        poll.register(self.signalled, select.POLLIN)
        while limit.measure() <= room:
            if poll.poll(1000 * _LIMIT_TICK_S) or not (self.left_s or self._waits):
                return True
        return False


def record_channel(  # noqa: PLR0913  # an option each
    name: str,
    mount: str | None,
    output: str,
    duration: float | None,
    limit: Limit | None,
    *,
    waits: bool,
    progress: bool,
    as_json: bool,
) -> None:
    """Record until the channel is removed, a signal comes or the time has passed; say what was lost.

    limit: of the bytes that are written; at the limit, records stay in the channel
    waits: whether to wait for room when the time has passed
    """
    os.makedirs(output, exist_ok=True)

    def open_app(root: Root, path: str) -> App | RingsApp:
        files = os.path.join(output, os.path.basename(path))
        try:
            return App(os.path.join(root.place, path), files)
        except OSError as error:
            if error.errno != errno.EMEDIUMTYPE:
                raise
        return RingsApp(os.path.join(root.place, path), files, limit)

    shown = Progress(shows_always=progress, what="records")
    with closing(open_first(name, mount, open_app)) as app:
        # Only now a signal ends it in order: before, nothing is open.
        end = End(duration, waits=waits)
        recording = _Recording(app, limit, shown)
        failure = recording.record(name, end)
        form, unwritten = (app.form, app.unwritten) if isinstance(app, RingsApp) else ("", 0)
    summary = recording.summary
    shown.close()
    if as_json:
        told = {"channel": name, "output": output, "bytes": summary.bytes, "lost": summary.lost}
        told |= {"buffers": summary.buffers} | ({"before_each_record": form} if form else {})
        click.echo(json.dumps(told | ({"unwritten_bytes": unwritten} if unwritten else {})))
    else:
        text = f"{name}: {size(summary.bytes)} of {summary.buffers} buffers to {output}, {summary.lost} records lost"
        text += f", each record after its {form.replace(',', ' and its ')}" * bool(form)
        text += f", {unwritten} bytes consumed and not written" * bool(unwritten)
        click.echo(text, err=True)
    if failure is not None:
        raise RelayError(
            f"{name}: {failure.strerror}; what was not {'consumed' if unwritten else 'written'} is still in the channel"
        )


class _Recording:
    """The recording of a channel, in several runs if the files may take no more meanwhile.

    limit: of their bytes; None: any number
    summary: what was recorded
    """

    def __init__(self, app: App | RingsApp, limit: Limit | None, shown: Progress) -> None:
        self.summary = Summary(buffers=app.n_buffers)
        self._app = app
        self._limit = limit
        self._shown = shown
        # In the runs before this one.
        self._bytes = self._lost = 0
        self._has_run = False

    def record(self, name: str, end: End) -> OSError | None:
        """Record; return the error of what could not be read or written.

        name: of the channel, for messages
        """
        said_s = -math.inf
        while True:
            room, before = self._limit.measure() if self._limit else None, self.summary.bytes
            failure = self._run(end, room)
            if self._limit is None or room is None or failure is None or failure.errno != errno.EDQUOT:
                return failure
            if self.summary.bytes > before:
                continue
            full = failure if isinstance(failure, LimitError) else self._limit.error("nothing more has room", name)
            if time.monotonic() - said_s >= _REPEAT_S:
                self._shown.say(f"{name}: {full.strerror}; the recording waits until there is room")
                said_s = time.monotonic()
            if end.comes_before(self._limit, room):
                return full

    def _run(self, end: End, room: int | None) -> OSError | None:
        """Record until there is no more room; return why it could not go on."""
        if self._has_run:
            self._count()  # what was lost since the last run has ended
        self._bytes, self._lost, self._has_run = self.summary.bytes, self.summary.lost, True
        if isinstance(self._app, App) and room is not None:
            self._app.limit(room)
        self._app.start()
        is_over = False
        while not is_over and end.left_s:
            is_over = end.wait(self._app)
            self._count()
            self._shown.tick(self.summary)
        failure = None
        try:
            self._app.stop()
        except OSError as error:
            failure = error
        self._count()
        return failure

    def _count(self) -> None:
        n_bytes, n_lost = self._app.stats()
        self.summary.bytes, self.summary.lost = self._bytes + n_bytes, self._lost + n_lost
