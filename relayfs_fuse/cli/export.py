"""relayctl export: write the events of a trace as text or for viewers, all of them in the order of their times."""

from __future__ import annotations

import os
import signal
import stat
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.clocks import errors_option, say_clocks
from relayfs_fuse.cli.common import are_recordings_all, check_stdout, place_options
from relayfs_fuse.cli.condition import Selection, if_option
from relayfs_fuse.cli.moment import moment
from relayfs_fuse.cli.snapshot import held_now
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.merge import EVER, TIMES, Export, Style
from relayfs_fuse.record.report import size
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import merge, unread

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from relayfs_fuse.native.merge import Merge

_PROGRESS_S = 1.0


def _choose_format(context: click.Context, option: click.Parameter, given: bool) -> None:
    """Set the parameter file_format; UsageError if it has been set by another option."""
    if given:
        if before := context.params.get("file_format"):
            raise click.UsageError(f"--{before} and --{option.name}: there is one format; give one of them")
        context.params["file_format"] = option.name


_format_option = partial(click.option, is_flag=True, expose_value=False, callback=_choose_format)


@click.command("export")
@click.argument("what", metavar="TRACE|DIR...", nargs=-1, required=True, shell_complete=complete.traces_or_recordings)
@place_options
@_format_option("--text", help="One line per event (default).")
@_format_option("--json", help="One JSON object per event, each on a line.")
@_format_option("--chrome", help="Chrome's trace events, in JSON.")
@_format_option("--perfetto", help="A Perfetto trace, for ui.perfetto.dev.")
@click.option(
    "-o", "--output", metavar="FILE", shell_complete=complete.files,
    help="Write to FILE, which appears when complete. Default: stdout.",
)  # fmt: skip
@click.option("--since", metavar="TIME", help="Leave out earlier events.")
@click.option("--until", metavar="TIME", help="Leave out later events.")
@click.option("-e", "--event", "patterns", metavar="PATTERN", multiple=True, help="Only events of these names.")
@if_option
@click.option(
    "--time", "times", type=click.Choice(list(TIMES)), default="clock", show_default=True,
    help="How --text writes times: of the day, with the date, since the first event, since 1970.",
)  # fmt: skip
@errors_option
def export_command(  # noqa: PLR0913, PLR0917  # an option each
    what: tuple[str, ...],
    mount: str | None,
    store: str | None,
    output: str | None,
    since: str | None,
    until: str | None,
    patterns: tuple[str, ...],
    condition: str | None,
    times: str,
    errors: bool = False,
    file_format: str = "text",
) -> None:
    """Write the events of the recording DIR, or what the buffers of the trace TRACE hold, in the order of their times.

    Of several DIRs, and of a DIR of `relayctl receive`, all machines are on one time line.

    TIME is seconds since 1970 or a local time, HH:MM, HH:MM:SS or YYYY-MM-DDTHH:MM:SS, with up to nine decimals; or
    before now, as -10s, with ms, s, m or h.
    PATTERN is a glob of PROVIDER:NAME.
    """
    if output is None:
        check_stdout()
    if file_format == "perfetto" and output is None and sys.stdout.isatty():
        raise click.UsageError("--perfetto is binary: give -o FILE, or redirect the standard output")
    if errors and file_format not in {"text", "json"}:
        raise click.UsageError(f"--errors is about lines, which --{file_format} does not write")
    are_recordings, name = are_recordings_all(what, mount, store), ", ".join(what)
    with ended_by_signals(output), ExitStack() as stack:
        directories = what if are_recordings else [stack.enter_context(held_now(what[0], mount, store))]
        recording = stack.enter_context(closing(Hosts(directories)))
        selection = Selection(patterns, condition)
        selection.check(name, (one for part in recording.parts for one in part.declarations))
        made = min(part.origin.real for part in recording.parts)
        limits = moment(since, made, 0), moment(until, made, EVER)
        merged = stack.enter_context(closing(merge(recording.parts, patterns, *limits, selection.compiled)))
        say_clocks(recording.clocks)
        pieces = exported(name, recording, merged, Style(file_format, times, shows_errors=errors))
        with closing(pieces), _opened(output) as file:
            _write(file, merged, pieces)
        _report(merged, name, output)


def exported(what: str, recording: Hosts, merged: Merge, style: Style) -> Generator[memoryview]:
    """Yield the merged events of a recording in a style; the caller closes this, then the merge.

    what: its name for messages
    style: without mono_offset

    Each piece is valid until the next one. RelayError, in the end: a part of the recording could not be read.
    """
    # All parts of a machine are of one trace, so their origins are the same.
    origin = recording.parts[0].origin
    zero = recording.begin if recording.clocks else max(0, origin.real - origin.mono)
    with closing(Export(merged, replace(style, mono_offset=zero))) as exporter:
        yield from exporter.pieces()
    if why := unread(merged, recording):
        raise RelayError(f"{what}: {why}")


@contextmanager
def ended_by_signals(output: str | None) -> Iterator[None]:
    """Remove temporary files when SIGTERM or SIGHUP ends the command, or SIGPIPE when the reader of stdout has gone."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except BrokenPipeError:
        if output is not None:
            raise
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)


@contextmanager
def _opened(output: str | None) -> Iterator[BinaryIO]:
    """Open the output; a regular file appears when it is complete, or not at all if writing it fails."""
    if output is None:
        # Unbuffered, because pieces are large, and nothing must be left to be written when the program ends.
        with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as file:
            yield file
        return
    if os.path.exists(output) and not stat.S_ISREG(os.stat(output).st_mode):
        with open(output, "wb", buffering=0) as file:
            yield file
        return
    target = os.path.realpath(output)
    try:
        descriptor, hidden = tempfile.mkstemp(prefix=".relayctl-", dir=os.path.dirname(target))
    except OSError as error:
        raise OSError(error.errno, error.strerror, output) from None
    try:
        with open(descriptor, "wb", buffering=0) as file:
            yield file
            os.fchmod(descriptor, 0o666 & ~_umask())
        os.rename(hidden, target)
    except BaseException:
        os.unlink(hidden)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _write(file: BinaryIO, merged: Merge, pieces: Iterator[memoryview]) -> None:
    shows = sys.stderr.isatty() and not file.isatty()
    n_bytes, shown = 0, time.monotonic()
    for piece in pieces:
        left = piece
        while left:
            left = left[file.write(left) :]
        n_bytes += len(piece)
        if shows and time.monotonic() - shown >= _PROGRESS_S:
            shown = time.monotonic()
            print(f"\r{merged.stats().events} events, {size(n_bytes)} ", end="", file=sys.stderr, flush=True)
    if shows:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report(merged: Merge, what: str, output: str | None) -> None:
    """Print how many events were written, unless to stdout, and warnings about wrong packets and late events."""
    stats = merged.stats()
    if output is not None:
        print(f"{what}: {stats.events} events to {output}, {stats.lost} events lost", file=sys.stderr)
    if stats.damaged:
        print(f"relayctl: {stats.damaged} packets end in what is no declared event", file=sys.stderr)
    if stats.late:
        print(f"relayctl: {stats.late} events are older than the one before them", file=sys.stderr)
