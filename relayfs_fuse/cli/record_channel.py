"""relayctl record, of a channel: its records go to files, one for each buffer or ring."""

from __future__ import annotations

import errno
import json
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
from relayfs_fuse.record.recording import Summary
from relayfs_fuse.record.report import Progress, size
from relayfs_fuse.record.rings import RingsApp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.reading.source import Root

_TICK_S = 1.0


def refuse_options(channel: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if one of the options is given, which are for traces."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} is for traces; {channel} is a channel, which has records")


def record_channel(  # noqa: PLR0913  # an option each
    name: str, mount: str | None, output: str, duration: float | None, *, progress: bool, as_json: bool
) -> None:
    """Record until the channel is removed, a signal comes or the time has passed; say what was lost."""
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
    with closing(open_first(name, mount, open_app)) as app:
        summary = Summary(buffers=app.n_buffers)
        failure = _record(app, summary, shown, duration)
        form, unwritten = (app.form, app.unwritten) if isinstance(app, RingsApp) else ("", 0)
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


def _record(app: App | RingsApp, summary: Summary, shown: Progress, duration: float | None) -> OSError | None:
    """Record; return the error of what could not be read or written."""
    signalled = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: os.eventfd_write(signalled, 1))
    poll = select.poll()
    poll.register(signalled, select.POLLIN)
    poll.register(app, select.POLLIN)
    end = None if duration is None else time.monotonic() + duration
    app.start()
    ready = False
    while not ready and (end is None or time.monotonic() < end):
        left = _TICK_S if end is None else max(0.0, min(_TICK_S, end - time.monotonic()))
        ready = bool(poll.poll(1000 * left))
        summary.bytes, summary.lost = app.stats()
        shown.tick(summary)
    failure = None
    try:
        app.stop()
    except OSError as error:
        failure = error
    summary.bytes, summary.lost = app.stats()
    return failure
