"""relayctl forward: send a recording, or a trace, channel or counters that it has recorded, to a NATS server."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete, record_channel
from relayfs_fuse.cli.common import Size, place_options, say
from relayfs_fuse.cli.forwarders import ForwarderCounters, Told
from relayfs_fuse.cli.nats_options import access_options, config_option, importing, run_until_signal, stream_option
from relayfs_fuse.cli.record_counters import EVERY_S
from relayfs_fuse.cli.spans import Age
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.source import find_root
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.record.counters import LOST
from relayfs_fuse.record.report import Progress, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.cli.live_source import LiveSource
    from relayfs_fuse.forwarding.forwarder import Forwarder
    from relayfs_fuse.forwarding.forwarder import Progress as Sent
    from relayfs_fuse.forwarding.recording import Recording
    from relayfs_fuse.forwarding.server import Server

_SPOOL_MAX = "1G"


@dataclass(frozen=True)
class _Settings:
    """How to send: as the options say."""

    host: str
    compresses: bool
    rate: int | None
    follows: bool


@dataclass(frozen=True)
class _Part:
    """One recording.

    name: at the receivers
    is_over: returns whether it will not grow any more
    is_spooled: whether what is sent of it is removed
    is_gone: returns whether all of it can be removed when it is over and sent
    tick: is called now and then
    keeps: as in Options
    """

    recording: Recording
    name: str
    is_over: Callable[[], bool]
    is_spooled: bool
    is_gone: Callable[[], bool]
    tick: Callable[[], None] = lambda: None
    keeps: int = 0


@click.command()
@click.argument("source", metavar="DIR|TRACE|CHANNEL|counters", shell_complete=complete.traces_or_channels)
@click.option("--to", "url", required=True, metavar="URL", help="The NATS server: nats://HOST:PORT.")
@click.option("--host", metavar="NAME", help="Name of this machine at the receivers. Default: its host name.")
@click.option("--as", "name", metavar="NAME", help="Name at the receivers. Default: that of DIR, TRACE or CHANNEL.")
@stream_option
@access_options
@place_options
@click.option(
    "--spool", metavar="DIR", shell_complete=complete.directories, help="Record a live source there, and send that."
)
@click.option(
    "--spool-max", type=Size(), default=_SPOOL_MAX, show_default=True, metavar="BYTES",
    help="How much the spool holds; what comes then is lost, and counted.",
)  # fmt: skip
@click.option("--every", type=Age(), metavar="AGE", help=f"Of counters: how often to read them. Default: {EVERY_S}s.")
@click.option(
    "--only", multiple=True, metavar="GLOB", shell_complete=complete.counters,
    help="Of counters: those whose names match.",
)  # fmt: skip
@click.option("--compress", type=click.Choice(["zstd"]), help="Compress the messages.")
@click.option("--rate", type=Size(), metavar="BYTES", help="Send at most so many bytes a second.")
@click.option("--follow/--once", "follows", default=True, help="Go on until ^C, or end when all is sent.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@config_option
def forward(  # noqa: PLR0913, PLR0917  # an option each
    source: str,
    url: str,
    host: str | None,
    name: str | None,
    stream: str,
    access: dict[str, str | None],
    mount: str | None,
    store: str | None,
    spool: str | None,
    spool_max: int,
    every: int | None,
    only: tuple[str, ...],
    compress: str | None,
    rate: int | None,
    follows: bool,
    progress: bool,
) -> None:
    """Send a recording to a NATS server, also while it is recorded; `relayctl receive` gets it from there.

    Each packet is sent once: who starts again goes on behind what the server's stream has. While the server does not
    answer, or is full, it waits. Nothing in DIR is changed.

    With --spool, the trace TRACE or the channel CHANNEL, its path or MNT/PATH, is recorded to the spool, and what is
    sent is removed there. So are counters, or MNT/counters: their values, a line each time.
    """
    with importing("forward"):
        from relayfs_fuse.forwarding.access import Access  # noqa: PLC0415  # it is an extra
        from relayfs_fuse.forwarding.server import Server, check_url  # noqa: PLC0415
    from relayfs_fuse.cli.live_source import LiveSource  # noqa: PLC0415  # help needs none of this

    _check(source, mount, store, spool, {"--rate": rate, "--spool-max": spool_max})
    for one in url.split(","):  # before anything is recorded
        check_url(one)
    settings = _Settings(_name("--host", host or os.uname().nodename), compress is not None, rate, follows)
    shown = Progress(shows_always=progress)
    missing: RelayError | None = None
    live: LiveSource | None = None
    with ExitStack() as stack:
        if spool is None:
            record_channel.refuse_options("counters, with --spool", {"--every": every, "--only": only})
            parts = [_recorded(source, name, follows=follows)]
        else:
            live = LiveSource(source, mount, store)
            live.sampling = _sampling(live, source, every, only)
            parts, missing = _spooled(stack, live, name, (spool, spool_max), follows=follows)
        client = f"relayctl forward {settings.host}/{parts[-1].name}"
        server = Server(url, stream, client, shown.say, Access(**access))
        forwarders: list[Forwarder] = []
        whose = f"{name or (live.name if live else parts[-1].name)}@{server.host}"
        counters = stack.enter_context(closing(ForwarderCounters(_place(live), whose, shown.say)))

        def show() -> None:
            _show(shown, forwarders)
            counters.tell(lambda: _told(forwarders))

        was_ended = run_until_signal(lambda: _send_all(server, parts, settings, show, forwarders))
        counters.tell(lambda: _told(forwarders), is_last=True)
        shown.close()
        if forwarders:
            _summarize(_sum(forwarders), f"{settings.host}/{parts[-1].name}", server.url)
    if was_ended and not follows:
        raise KeyboardInterrupt
    if missing:
        raise missing


def _check(source: str, mount: str | None, store: str | None, spool: str | None, sizes: dict[str, int | None]) -> None:
    """Raise UsageError if options contradict each other or the source."""
    for option, value in sizes.items():
        if value == 0:
            raise click.UsageError(f"{option} 0: at least one byte is needed; K, M or G may follow, as in 10M")
    if spool is None and (mount or store or not ("/" in source or os.path.isdir(source))):
        raise click.UsageError(f"{source} is no directory of a recording; other sources need --spool DIR")


def _name(option: str, name: str) -> str:
    from relayfs_fuse.forwarding.names import is_name  # noqa: PLC0415  # as above

    if not is_name(name):
        raise click.UsageError(f"{option} {name!r}: it is to be the name of a directory, which no . begins")
    return name


def _recorded(directory: str, name: str | None, *, follows: bool) -> _Part:
    """Return the recording in a directory."""
    from relayfs_fuse.forwarding.recording import Recording  # noqa: PLC0415  # as above

    recording = Recording(directory)
    name = _name("--as", name or os.path.basename(recording.path))
    return _Part(recording, name, lambda: not follows, is_spooled=False, is_gone=lambda: False)


def _sampling(live: LiveSource, source: str, every: int | None, only: tuple[str, ...]) -> list[str]:
    """Return the options of counters for their recorder. UsageError: there are some, and it is no counters."""
    if not live.is_counters:
        record_channel.refuse_options(f"counters; {source} is something else", {"--every": every, "--only": only})
    words = [word for glob in only for word in ("--only", glob)]
    return [*words, "--every", f"{every or EVERY_S}s"]


def _spooled(
    stack: ExitStack, live: LiveSource, name: str | None, spool: tuple[str, int], *, follows: bool
) -> tuple[list[_Part], RelayError | None]:
    """Begin to record; return the recordings of a source that the spool has, that which grows at last.

    stack: ends the recorder
    spool: its directory, and the bytes that it holds

    Without the source, only earlier recordings are returned, and the error that says so; RelayError: there are none.
    """
    from relayfs_fuse.forwarding.spool import Spool  # noqa: PLC0415  # as above

    recordings = Spool(spool[0], _name("--as", name or live.name))
    missing, origin = None, ""
    try:
        origin = live.origin()
    except RelayError as error:
        missing = error
    parts = [
        _Part(one, os.path.basename(one.path), lambda: True, is_spooled=True, is_gone=lambda: True)
        for one in recordings.recordings() if one.origin != origin
    ]  # fmt: skip
    if missing:
        if not parts:
            raise missing
        return parts, missing
    recording = recordings.recording(origin)
    tick, keeps = _counting_losses(stack, live, recording)
    recorder = live.record(recording.path, recordings.path, spool[1], follows=follows)
    stack.callback(recorder.end)

    def is_gone() -> bool:
        recorder.check(live.name)
        return not live.is_there(origin)

    name = os.path.basename(recording.path)
    return [*parts, _Part(recording, name, recorder.has_ended, True, is_gone, tick, keeps)], None


def _counting_losses(stack: ExitStack, live: LiveSource, recording: Recording) -> tuple[Callable[[], None], int]:
    """Count what a channel loses in a file of its recording, and write there how its records stand.

    Return what counts them now, and Options.keeps.
    """
    from relayfs_fuse.cli.live_source import Losses  # noqa: PLC0415  # as above
    from relayfs_fuse.forwarding.framing import LINE  # noqa: PLC0415
    from relayfs_fuse.forwarding.names import FRAMING  # noqa: PLC0415

    if live.is_counters:
        write_atomically(os.path.join(recording.path, FRAMING), f"{LINE}\n".encode())
    channel = live.channel()
    if channel is None:
        return lambda: None, 0
    losses = Losses(channel, os.path.join(recording.path, LOST))
    stack.callback(losses.close)
    if losses.framing:
        write_atomically(os.path.join(recording.path, FRAMING), f"{losses.framing}\n".encode())
    return losses.note, losses.kept_bytes


async def _send_all(
    server: Server, parts: list[_Part], settings: _Settings, show: Callable[[], None], forwarders: list[Forwarder]
) -> None:
    """Send recordings side by side; RelayError: one is refused, which does not end the others.

    show: called when there may be progress
    forwarders: those that send them are added
    """
    from relayfs_fuse.forwarding.forwarder import Forwarder, Options  # noqa: PLC0415  # as above

    async def send(part: _Part, forwarder: Forwarder) -> None:
        await forwarder.run()
        if part.is_gone():
            part.recording.remove_all()

    try:
        await server.open()
        for part in parts:
            options = Options(
                settings.host, part.name, settings.compresses, settings.rate, part.is_spooled, part.keeps
            )  # fmt: skip

            def tick(part: _Part = part) -> None:
                part.tick()
                show()

            forwarders.append(Forwarder(server, part.recording, options, tick, part.is_over))
        sending = map(send, parts, forwarders)
        for result in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
    finally:
        await server.close()


def _sum(forwarders: list[Forwarder]) -> Sent:
    from relayfs_fuse.forwarding.forwarder import Progress as Sent  # noqa: PLC0415  # as above

    found = [one.progress for one in forwarders]
    sums = {field.name: sum(getattr(one, field.name) for one in found) for field in fields(Sent)}
    return Sent(**sums | {"waited_s": max((one.waited_s for one in found), default=0.0)})


def _place(live: LiveSource | None) -> str | None:
    """Return the mount or store that is to have the counters; None: there is none."""
    # OSError: its server is just dying.
    with suppress(RelayError, OSError):
        return live.place if live else find_root(None).place
    return None


def _told(forwarders: list[Forwarder]) -> Told:
    now = _sum(forwarders)
    return Told(now.messages, now.bytes, now.lost - now.lost_before, now.behind, int(now.waited_s))


def _show(shown: Progress, forwarders: list[Forwarder]) -> None:
    def line(rate: str) -> str:
        now = _sum(forwarders)
        return f"{rate}, {size(now.bytes)} sent, {size(now.behind)} behind, {now.lost} events lost, {now.files} files"

    shown.show(sum(one.bytes for one in forwarders), line)


def _summarize(done: Sent, name: str, url: str) -> None:
    say(
        f"{name}: {done.messages} messages, {size(done.bytes)}, sent to {url}; "
        f"{size(done.behind)} behind, {done.lost} events lost"
    )
