"""relayctl forward: send a recording to a NATS server, from which other machines receive it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import Size, say
from relayfs_fuse.cli.nats_options import importing, run_until_signal, stream_option
from relayfs_fuse.record.report import Progress, size

if TYPE_CHECKING:
    from relayfs_fuse.forwarding.forwarder import Forwarder, Options


@click.command()
@click.argument("directory", metavar="DIR", shell_complete=complete.directories)
@click.option("--to", "url", required=True, metavar="URL", help="The NATS server: nats://HOST:PORT.")
@click.option("--host", metavar="NAME", help="Name of this machine at the receivers. Default: its host name.")
@click.option("--as", "name", metavar="NAME", help="Name of the recording at the receivers. Default: that of DIR.")
@stream_option
@click.option("--compress", type=click.Choice(["zstd"]), help="Compress the messages.")
@click.option("--rate", type=Size(), metavar="BYTES", help="Send at most so many bytes a second.")
@click.option("--follow/--once", "follows", default=True, help="Go on until ^C, or end when all is sent.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def forward(  # noqa: PLR0913, PLR0917  # an option each
    directory: str,
    url: str,
    host: str | None,
    name: str | None,
    stream: str,
    compress: str | None,
    rate: int | None,
    follows: bool,
    progress: bool,
) -> None:
    """Send the recording in DIR to a NATS server, also while it is recorded; `relayctl receive` gets it from there.

    Each packet is sent once: who starts again goes on behind what the server's stream has. While the server does not
    answer, or is full, it waits. Nothing in DIR is changed.
    """
    with importing("forward"):
        from relayfs_fuse.forwarding.forwarder import Forwarder, Options  # noqa: PLC0415  # it is an extra
        from relayfs_fuse.forwarding.recording import Recording  # noqa: PLC0415
        from relayfs_fuse.forwarding.server import Server  # noqa: PLC0415
    if rate == 0:
        raise click.UsageError("--rate 0: at least one byte a second is needed; K, M or G may follow, as in 10M")
    recording = Recording(directory)
    options = Options(
        _name("--host", host or os.uname().nodename), _name("--as", name or os.path.basename(recording.path)),
        compresses=compress is not None, rate=rate, follows=follows,
    )  # fmt: skip
    shown = Progress(shows_always=progress)
    server = Server(url, stream, f"relayctl forward {options.host}/{options.name}", shown.say)
    forwarders: list[Forwarder] = []

    async def run() -> None:
        try:
            await server.open()
            forwarders.append(Forwarder(server, recording, options, lambda: _show(shown, forwarders[0])))
            await forwarders[0].run()
        finally:
            await server.close()

    was_ended = run_until_signal(run)
    shown.close()
    if was_ended and not follows:
        raise KeyboardInterrupt
    if forwarders:
        _summarize(forwarders[0], options, server.url)


def _name(option: str, name: str) -> str:
    from relayfs_fuse.forwarding.names import is_name  # noqa: PLC0415  # as above

    if not is_name(name):
        raise click.UsageError(f"{option} {name!r}: it is to be the name of a directory, which no . begins")
    return name


def _show(shown: Progress, forwarder: Forwarder) -> None:
    def line(rate: str) -> str:
        now = forwarder.progress
        return f"{rate}, {size(now.bytes)} sent, {size(now.behind)} behind, {now.lost} events lost, {now.files} files"

    shown.show(forwarder.bytes, line)


def _summarize(forwarder: Forwarder, options: Options, url: str) -> None:
    done = forwarder.progress
    say(
        f"{options.host}/{options.name}: {done.messages} messages, {size(done.bytes)}, sent to {url}; "
        f"{size(done.behind)} behind, {done.lost} events lost"
    )
