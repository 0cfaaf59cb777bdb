"""relayctl fleet: the stream of a NATS server through which recordings are forwarded."""

from __future__ import annotations

import click

from relayfs_fuse.cli.common import Size, format_bytes
from relayfs_fuse.cli.nats_options import importing, run_until_signal, stream_option
from relayfs_fuse.cli.spans import Age
from relayfs_fuse.record.report import Progress

# The most that JetStream has.
_REPLICAS_MAX = 5


@click.group()
def fleet() -> None:
    """Make the stream through which recordings are forwarded."""


@fleet.command()
@click.option("--to", "url", required=True, metavar="URL", help="The NATS server: nats://HOST:PORT.")
@stream_option
@click.option("--max-bytes", type=Size(), required=True, metavar="BYTES", help="The most that the stream holds.")
@click.option("--max-age", type=Age(), metavar="AGE", help="Delete messages of this age. Default: keep them.")
@click.option(
    "--replicas", type=click.IntRange(1, _REPLICAS_MAX), default=1, show_default=True,
    help="How many servers of a cluster store each message.",
)  # fmt: skip
def init(url: str, stream: str, max_bytes: int, max_age: int | None, replicas: int) -> None:
    """Make the stream, or change its settings.

    When it is full, it refuses messages, and forwarders wait.
    """
    with importing("fleet"):
        from relayfs_fuse.forwarding.server import Server  # noqa: PLC0415  # it is an extra
    if max_bytes == 0:
        raise click.UsageError("--max-bytes 0: at least one byte is needed; K, M or G may follow, as in 100G")
    shown = Progress(shows_always=False)
    server = Server(url, stream, "relayctl fleet", shown.say)
    made: list[bool] = []

    async def run() -> None:
        try:
            await server.open()
            made.append(await server.make_stream(max_bytes, max_age or 0, replicas))
        finally:
            await server.close()

    if run_until_signal(run):
        raise KeyboardInterrupt
    what = "is made" if made[0] else "has these settings"
    click.echo(f"{server.url}: stream {stream} {what}: {format_bytes(max_bytes)}, {replicas} replicas")
