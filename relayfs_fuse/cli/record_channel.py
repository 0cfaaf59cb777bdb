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

from relayfs_fuse.cli.opened import NoChannelError, open_first
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.app import App
from relayfs_fuse.record.recording import Summary
from relayfs_fuse.record.report import Progress, size
from relayfs_fuse.record.rings import RingsApp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.reading.source import Root
    from relayfs_fuse.record.full import Limit

_TICK_S = 1.0
# How often is looked whether there is room.
_LIMIT_TICK_S = 0.1


def refuse_options(channel: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if one of the options is given, which are for traces."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} is for traces; {channel} is a channel, which has records")


class _End:
    """When a recording is to end: at a signal, or when its time has passed.

    duration: seconds; None: any number
    """

    def __init__(self, duration: float | None) -> None:
        self._end_s = math.inf if duration is None else time.monotonic() + duration
        self.signalled = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: os.eventfd_write(self.signalled, 1))

    @property
    def left_s(self) -> float:
        """How much time is left; 0: none."""
        return max(0.0, self._end_s - time.monotonic())

    def wait(self, app: App | RingsApp | None, wait_s: float) -> bool:
        """Wait so long at most; return whether it is the end, also of the app."""
        poll = select.poll()
        poll.register(self.signalled, select.POLLIN)
        if app is not None:
            poll.register(app, select.POLLIN)
        return bool(poll.poll(1000 * min(wait_s, self.left_s))) or not self.left_s


def record_channel(  # noqa: PLR0913  # an option each
    name: str,
    mount: str | None,
    output: str,
    duration: float | None,
    limit: Limit | None,
    *,
    progress: bool,
    as_json: bool,
) -> None:
    """Record until the channel is removed, a signal comes or the time has passed; say what was lost.

    limit: of the bytes that are written; at the limit, records stay in the channel
    """
    os.makedirs(output, exist_ok=True)

    def open_app(root: Root, path: str) -> App | RingsApp:
        files = os.path.join(output, os.path.basename(path))
        try:
            return App(os.path.join(root.place, path), files)
        except OSError as error:
            if error.errno != errno.EMEDIUMTYPE:
                raise
        return RingsApp(os.path.join(root.place, path), files)

    shown = Progress(shows_always=progress, what="records")
    summary, waits = Summary(), True
    form, unwritten, failure = "", 0, None
    end: _End | None = None
    while waits:
        try:
            app = open_first(name, mount, open_app)
        except NoChannelError:
            if not summary.buffers:
                raise
            break  # it was removed at the limit
        with closing(app):
            # Only now a signal ends it in order: before, nothing is open.
            end = end or _End(duration)
            summary.buffers = app.n_buffers
            failure, waits = _record(app, summary, shown, end, limit)
            if isinstance(app, RingsApp):
                form, unwritten = app.form, unwritten + app.unwritten
        while waits and limit and not limit.has_room():
            waits = not end.wait(None, _LIMIT_TICK_S)
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


def _record(
    app: App | RingsApp, summary: Summary, shown: Progress, end: _End, limit: Limit | None
) -> tuple[OSError | None, bool]:
    """Record; return the error of what could not be read or written, and whether to go on when there is room."""
    n_bytes, n_lost = summary.bytes, summary.lost

    def count() -> None:
        more, lost = app.stats()
        summary.bytes, summary.lost = n_bytes + more, n_lost + lost

    app.start()
    is_over, has_room = False, True
    while has_room and not is_over and end.left_s:
        is_over = end.wait(app, _LIMIT_TICK_S if limit else _TICK_S)
        has_room = limit is None or limit.has_room()
        count()
        shown.tick(summary)
    failure = None
    try:
        app.stop()
    except OSError as error:
        failure = error
    count()
    return failure, failure is None and not (has_room or is_over)
