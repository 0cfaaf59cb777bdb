"""relayctl record: write a trace, or the records of a channel, to disk while programs write."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete, record_channel, record_counters
from relayfs_fuse.cli.channel import find_channel
from relayfs_fuse.cli.common import Seconds, Size, check_option, check_stdout, output_option, place_options
from relayfs_fuse.cli.record_counters import EVERY_S
from relayfs_fuse.cli.spans import Age
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.reading.source import Source, find_store
from relayfs_fuse.record.full import Limit, OutputFullError
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.record.recorder import Options, Recorder
from relayfs_fuse.record.report import Progress, as_json, summarize
from relayfs_fuse.tracefiles.recorder_lock import RecorderLock

if TYPE_CHECKING:
    from relayfs_fuse.record.compress import Compressor
    from relayfs_fuse.record.outputs import Output

_STDOUT = "-"


@click.command()
@click.argument("name", shell_complete=complete.traces_or_channels)
@output_option("; - means a tar archive on stdout")
@place_options
@click.option("--rotate-size", type=Size(), metavar="BYTES", help="Begin DIR/0001, DIR/0002 ... after this many bytes.")
@click.option("--rotate-time", type=Seconds(0.1), metavar="SECONDS", help="The same after this time.")
@click.option("--max", "most", type=Size(), metavar="BYTES", help="Wait while the files in DIR take so many bytes.")
@click.option("--max-of", metavar="DIR", help="The directory that --max is about, such as one of several recordings.")
@click.option("--wait", "waits", is_flag=True, help="With --max: after --duration, wait for room for what there is.")
@click.option("--compress", is_flag=True, help="Compress complete files with zstd.")
@check_option
@click.option("--until-stopped", is_flag=True, help="End when the trace is stopped.")
@click.option("--duration", type=Seconds(0), metavar="SECONDS", help="End after this many seconds.")
@click.option("--every", type=Age(), metavar="AGE", help=f"Of counters: how often to read them. Default: {EVERY_S}s.")
@click.option(
    "--only", multiple=True, metavar="GLOB", shell_complete=complete.counters,
    help="Of counters: those whose names match.",
)  # fmt: skip
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@click.option("--json", "json_wanted", is_flag=True, help="Print a summary as a JSON object.")
def record(  # noqa: PLR0913, PLR0917  # an option each
    name: str,
    output: str,
    mount: str | None,
    store: str | None,
    rotate_size: int | None,
    rotate_time: float | None,
    most: int | None,
    max_of: str | None,
    waits: bool,
    compress: bool,
    check: str,
    until_stopped: bool,
    duration: float | None,
    every: int | None,
    only: tuple[str, ...],
    progress: bool,
    json_wanted: bool,
) -> None:
    """Record the trace or channel NAME until it is removed, or until interrupted (SIGINT, SIGTERM).

    Of a trace, DIR is a CTF trace for babeltrace2 and other viewers at any time. Of a channel, PATH or MNT/PATH, it has
    a file for each buffer: the records as cat has them, without their times; only those of rings have them. An
    interrupted recording to it is continued.

    NAME may be `counters`, or MNT/counters: DIR/counters.jsonl has their values, a line each time.
    """
    limit = _limit(most, max_of, output)
    if waits and (limit is None or duration is None):
        raise click.UsageError("--wait is about the end of --duration, while --max leaves no room: give it with both")
    for_traces = {
        "-o -": output == _STDOUT, "--rotate-size": rotate_size, "--rotate-time": rotate_time,
        "--compress": compress, "--until-stopped": until_stopped,
    }  # fmt: skip
    if (place := record_counters.counters_place(name, mount, store)) is not None:
        record_channel.refuse_options("traces; these are counters", for_traces | {"--wait": waits})
        record_counters.record_counters(
            place, output, every or EVERY_S, only, duration, limit, progress=progress, as_json=json_wanted
        )
        return
    record_channel.refuse_options(f"counters; {name} is something else", {"--every": every, "--only": only})
    channel = find_channel(name, mount, store)
    if channel is not None:
        record_channel.refuse_options(f"traces; {channel.path} is a channel, which has records", for_traces)
        if store is not None:
            # The library looks there.
            os.environ["RELAYFS_STORE"] = os.path.abspath(store)
            name = os.path.join(os.environ["RELAYFS_STORE"], channel.path)
        record_channel.record_channel(
            name, mount, output, duration, limit, waits=waits, progress=progress, as_json=json_wanted
        )
        return
    if output == _STDOUT:
        check_stdout()
        if compress or rotate_size or rotate_time or limit:
            raise click.UsageError("-o - cannot have --rotate-size, --rotate-time, --max or --compress; give -o DIR")
    options = Options(rotate_size, rotate_time, duration, until_stopped, store is not None, waits, check)
    shown = Progress(shows_always=progress)
    permit_many_files()
    with ExitStack() as stack:
        source = Source(name, find_store(mount, store))
        stack.callback(source.close)
        _check_sub_buffers(source, limit)
        stack.callback(RecorderLock(source.directory).close)
        compressor = None
        if compress:
            from relayfs_fuse.record.compress import Compressor  # noqa: PLC0415  # most recordings need no zstd

            compressor = Compressor()
            stack.callback(compressor.close)
        to = _open(output, source, bool(rotate_size or rotate_time), compressor, limit)
        recorder = Recorder(source, to, options, shown.say, lambda: shown.tick(recorder.summary, recorder.n_buffers))
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: recorder.stop())
        # The kernel sends SIGIO if a process opens a file whose lease the recorder has: see stream.py.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        stack.callback(shown.close)
        if not (source.trace.is_started or until_stopped or source.is_of_earlier_boot):
            shown.say(f"{name} is stopped; its events are recorded, and further ones when it is started")
        full = _run(recorder)
    if json_wanted:
        click.echo(as_json(name, output, recorder.summary), err=output == _STDOUT)
    else:
        click.echo(summarize(name, output, recorder.summary), err=True)
    if full:
        raise full


def _limit(most: int | None, directory: str | None, output: str) -> Limit | None:
    """Return the limit that --max and --max-of are about. UsageError: they do not fit."""
    if directory is not None and most is None:
        raise click.UsageError("--max-of is about --max, which says how many bytes")
    if most == 0:
        raise click.UsageError("--max 0: at least one byte is needed; K, M or G may follow, as in 2G")
    return Limit(os.path.abspath(directory or output), most) if most else None


def _check_sub_buffers(source: Source, limit: Limit | None) -> None:
    """Raise RelayError if a sub-buffer would never have room."""
    n = source.trace.subbuf_size
    if limit and n > limit.largest:
        why = f"--max {limit.most} permits {limit.largest} bytes at once"
        raise RelayError(f"{why}; sub-buffers of {source.trace.name} have {n}")


def _run(recorder: Recorder) -> OutputFullError | None:
    """Record; return the error if the recording had to end while its output was full."""
    try:
        recorder.run()
    except OutputFullError as full:
        return full
    return None


def _open(output: str, source: Source, rotates: bool, compressor: Compressor | None, limit: Limit | None) -> Output:
    if output == _STDOUT:
        from relayfs_fuse.record.tar import TarOutput  # noqa: PLC0415  # most recordings need no tarfile

        return TarOutput(sys.stdout.fileno())
    return DirectoryOutput(
        os.path.abspath(output), source.identity, rotates=rotates, compressor=compressor, limit=limit
    )
