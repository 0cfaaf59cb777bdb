"""relayctl view: show a recording, or a trace or the records of a channel while programs write them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.channel import find_channel, refuse_options
from relayfs_fuse.cli.clocks import errors_option, say_clocks
from relayfs_fuse.cli.common import are_recordings_all, check_stdout, place_options, say
from relayfs_fuse.cli.condition import Selection, if_option
from relayfs_fuse.cli.delay import delay_of, delay_option
from relayfs_fuse.cli.lines import Lines, Stopped
from relayfs_fuse.cli.moment import moment
from relayfs_fuse.cli.own_trace import own_trace
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.merge import EVER, Export, Style
from relayfs_fuse.reading.growing import Growing
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.reading.source import Source, find_store
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import merge, unread

if TYPE_CHECKING:
    from relayfs_fuse.cli.channel import Channel
    from relayfs_fuse.inotify import Inotify
    from relayfs_fuse.native.merge import MergeStats
    from relayfs_fuse.reading.records import Records

# Buffers are read _LOOKS times in each --delay, and at least every _LONGEST_WAIT_S, so that programs find room.
_LOOKS = 8
_LONGEST_WAIT_S = 0.025
_NS_IN_S = 1_000_000_000
# On a terminal that is narrower, lines are brief.
_USUAL_COLUMNS = 60


@click.command()
@click.argument("names", metavar="[TRACE|DIR...|CHANNEL]", nargs=-1, shell_complete=complete.what_to_view)
@place_options
@click.option("-f", "--follow", is_flag=True, help="Then show further events, until ^C or the trace is removed.")
@click.option("-n", "--lines", metavar="N", type=click.IntRange(min=0), help="Only the last N lines of what is there.")
@click.option("--since", metavar="TIME", help="Leave out earlier events.")
@click.option("-e", "--event", "patterns", metavar="PATTERN", multiple=True, help="Only events of these names.")
@if_option
@click.option("--json", "json_wanted", is_flag=True, help="Print a JSON object a line.")
@errors_option
@click.option("--browser", "in_browser", is_flag=True, help="Show the events that are there in Perfetto's viewer.")
@delay_option("is shown out of order")
@click.pass_context
def view(  # noqa: PLR0913, PLR0917  # an option each
    context: click.Context,
    names: tuple[str, ...],
    mount: str | None,
    store: str | None,
    follow: bool,
    lines: int | None,
    since: str | None,
    patterns: tuple[str, ...],
    condition: str | None,
    json_wanted: bool,
    errors: bool,
    in_browser: bool,
    delay: int | None,
) -> None:
    """Show the events of the trace TRACE or the recording DIR, or the records of CHANNEL, in the order of their times.

    Of several DIRs, and of a DIR of `relayctl receive`, all machines are on one time line. With --follow, what is
    appended to them is shown when it arrives.

    CHANNEL is PATH or MNT/PATH of a channel that was made with the option times.

    Without any of them, make a trace of the events that --event names, and show them until ^C.

    TIME is seconds since 1970 or a local time, HH:MM, HH:MM:SS or YYYY-MM-DDTHH:MM:SS, with up to nine decimals; or
    before now, as -10s, with ms, s, m or h.
    PATTERN is a glob of PROVIDER:NAME; without TRACE and DIR, `if CONDITION` may follow it, as in `trace enable`, and
    programs evaluate it.
    """
    check_stdout()
    is_directory = are_recordings_all(names, mount, store)
    what = ", ".join(names) if names else None
    if what is None and not patterns:
        raise click.UsageError("TRACE, DIR, CHANNEL or --event is missing")
    if what is not None and any(" " in pattern for pattern in patterns):
        raise click.UsageError("--event can have a condition only without TRACE and DIR; here --if gives it")
    if what is None and store is not None:
        raise click.UsageError("--event alone makes a trace, which needs a mount")
    if in_browser:
        from relayfs_fuse.cli import browser  # noqa: PLC0415  # most views need no HTTP

        browser.check_options(context)
    channel = None if what is None or is_directory else find_channel(what, mount, store)
    if channel is not None:
        refuse_options(channel, {"--event": patterns, "--if": condition, "--browser": in_browser})
    if in_browser:
        browser.show_in_browser(context)
        return
    style = _style(json_wanted, errors, of_records=channel is not None)
    # A trace of its own has only the events of these patterns.
    selection = Selection(patterns if what is not None else (), condition)
    # A signal, or a reader that closes the pipe, ends the command without an error.
    # A trace of its own has no history either: what comes before the first look was written after the command began.
    n_last = lines if what is not None else None
    with Lines(n_last, handles_signals=follow or what is None) as out, suppress(Stopped, BrokenPipeError):
        if what is not None and is_directory:
            if follow:
                _follow_recordings(names, style, out, since, selection, delay_of(delay, is_directory=True))
            else:
                _show_recording(names, style, out, since, selection)
            return
        permit_many_files()
        earliest = moment(since, time.time_ns(), 0)
        if channel is not None:
            show_records(channel, earliest, style, out, delay_of(delay) if follow else None)
            return
        with ExitStack() as stack:
            name = what if what is not None else stack.enter_context(own_trace(mount, patterns))
            source = stack.enter_context(closing(Source(name, find_store(mount, store))))
            follows = follow or what is None
            wanted = Wanted(selection.patterns, earliest, selection.compiled)
            live = stack.enter_context(Live(source, wanted, say, consumes=follows, is_own=what is None))
            exporter = stack.enter_context(closing(Export(live.merged, style)))
            if follows and (why := selection.why_none(live.declarations)):
                say(f"{name}: {why}")
            _show_live(live, exporter, out, delay_of(delay) if follows else None, source.inotify)
            if not follows and not live.merged.stats().events:
                selection.check(name, live.declarations)


def _style(json_wanted: bool, errors: bool, *, of_records: bool) -> Style:
    is_terminal = sys.stdout.isatty()
    file_format = "json" if json_wanted else "text"
    return Style(
        f"records.{file_format}" if of_records else file_format,
        has_colours=is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        is_brief=is_terminal and shutil.get_terminal_size().columns < _USUAL_COLUMNS,
        marks_late=True,
        shows_errors=errors,
    )


def _show_recording(
    directories: tuple[str, ...], style: Style, out: Lines, since: str | None, selection: Selection
) -> None:
    what = ", ".join(directories)
    with ExitStack() as stack:
        recording = stack.enter_context(closing(Hosts(directories)))
        parts = recording.parts
        selection.check(what, (one for part in parts for one in part.declarations))
        earliest = moment(since, min(part.origin.real for part in parts), 0)
        merged = stack.enter_context(closing(merge(parts, selection.patterns, earliest, condition=selection.compiled)))
        say_clocks(recording.clocks)
        exporter = stack.enter_context(closing(Export(merged, style)))
        for piece in exporter.pieces():
            out.write(piece)
        out.end_history()
        if why := unread(merged, recording):
            raise RelayError(f"{what}: {why}")
        stats = merged.stats()
    _say_damaged(stats)


def _follow_recordings(  # noqa: PLR0913, PLR0917  # as for _show_recording
    directories: tuple[str, ...], style: Style, out: Lines, since: str | None, selection: Selection, delay_ns: int
) -> None:
    """Show recordings, and then what is appended to them, until a signal comes."""
    wanted = Wanted(selection.patterns, moment(since, time.time_ns(), 0), selection.compiled)
    with Growing(directories, wanted, delay_ns, say) as growing, closing(Export(growing.merged, style)) as exporter:
        if why := selection.why_none(growing.declarations):
            say(f"{', '.join(directories)}: {why}")
        n_clocks = len(growing.clocks)
        say_clocks(growing.clocks)
        with out.showing():
            while not out.is_told_to_end:
                _show(exporter, out)
                if growing.has_shown_all:
                    out.end_history()
                out.wait(growing.pause_s, None)
                growing.look()
                say_clocks(growing.clocks[n_clocks:], is_first=False)
                n_clocks = len(growing.clocks)
            growing.finish()
            _show(exporter, out)
        out.end_history()
        growing.check()
        stats = growing.merged.stats()
    _say_damaged(stats)
    _say_late(stats)


def _say_damaged(stats: MergeStats) -> None:
    if stats.damaged:
        say(f"{stats.damaged} packets end in what is no declared event")


def _say_late(stats: MergeStats) -> None:
    if stats.late:
        say(f"{stats.late} came late, and are shown so; --delay says how long events and records are waited for")


def show_records(channel: Channel, earliest: int, style: Style, out: Lines, delay_ns: int | None) -> None:
    """Show the records of a channel.

    earliest: the time before which they are left out, ns since 1970
    delay_ns: as --delay, to show what programs write, too; None: what is there
    """
    with channel.records(earliest) as records, closing(Export(records.merged, style)) as exporter:
        _show_live(records, exporter, out, delay_ns)


def _show_live(
    live: Live | Records, exporter: Export, out: Lines, delay_ns: int | None, inotify: Inotify | None = None
) -> None:
    """Show what is there, and unless the delay is None then what programs write."""
    if delay_ns is None:
        _show_what_is_there(live, exporter, out)
        return
    with out.showing():
        _follow(live, exporter, out, delay_ns, inotify)


def _show_what_is_there(live: Live | Records, exporter: Export, out: Lines) -> None:
    # The first look reads what is there. A loss that it finds has the time of the look, which is after the limit; the
    # second round has a later limit, so it shows the loss.
    for _ in range(2):
        live.merged.limit(live.look())
        _show(exporter, out)
        while live.merged.is_behind_limit:
            live.look()
            _show(exporter, out)
    out.end_history()
    live.check()


def _show(exporter: Export, out: Lines) -> None:
    for piece in exporter.pieces():
        out.write(piece)


def _follow(live: Live | Records, exporter: Export, out: Lines, delay_ns: int, inotify: Inotify | None) -> None:
    first: int | None = None
    is_there = True
    while is_there and not out.is_told_to_end:
        looked = live.look()
        first = looked if first is None else first
        limit = looked if looked == EVER else looked - delay_ns
        live.merged.limit(limit)
        _show(exporter, out)
        is_behind = live.merged.is_behind
        if (limit >= first and not is_behind) or live.merged.stats().time >= first:
            out.end_history()
        is_there = live.tick()
        if is_there and not is_behind:
            out.wait(min(delay_ns / _LOOKS / _NS_IN_S, _LONGEST_WAIT_S), inotify)
    if is_there:
        _show_what_is_there(live, exporter, out)
    out.end_history()
    _say_late(live.merged.stats())
