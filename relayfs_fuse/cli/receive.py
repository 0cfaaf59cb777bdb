"""relayctl receive: get recordings of other machines from a NATS server."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import Size, escaped, say
from relayfs_fuse.cli.nats_options import access_options, importing, run_until_signal, stream_option
from relayfs_fuse.cli.spans import Age, is_age
from relayfs_fuse.record.report import Progress, size

if TYPE_CHECKING:
    from relayfs_fuse.forwarding.receiver import Received, Receiver


class Kept(click.ParamType):  # type: ignore[type-arg]  # before click 8.2 it has no parameter
    """An age or a number of bytes: which one it is, as in Bounds, and how much."""

    name = "age|bytes"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse the value."""
        if isinstance(value, tuple):
            return value
        if is_age(value):
            return "age_s", Age().convert(value, param, ctx)
        return "bytes", Size().convert(value, param, ctx)


@click.command()
@click.option("--from", "url", required=True, metavar="URL", help="The NATS server: nats://HOST:PORT.")
@click.option(
    "-o", "--output", required=True, metavar="DIR", shell_complete=complete.directories,
    help="Output directory, which gets DIR/HOST/RECORDING.",
)  # fmt: skip
@stream_option
@access_options
@click.option(
    "--keep", type=Kept(), multiple=True, metavar="AGE|BYTES",
    help="Remove files that were not written to for AGE, as 7d, or the oldest beyond BYTES, as 100G.",
)  # fmt: skip
@click.option("--follow/--once", "follows", default=True, help="Go on until ^C, or end when all is received.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def receive(  # noqa: PLR0913, PLR0917  # an option each
    url: str,
    output: str,
    stream: str,
    access: dict[str, str | None],
    keep: tuple[tuple[str, int], ...],
    follows: bool,
    progress: bool,
) -> None:
    """Receive what `relayctl forward` sends to a NATS server, of all machines.

    DIR/HOST/RECORDING is a CTF trace for babeltrace2 and other viewers at any time, and in the end what HOST has, byte
    for byte. Each DIR gets everything; several that receive into one DIR share the work.
    """
    with importing("receive"):
        from relayfs_fuse.forwarding.access import Access  # noqa: PLC0415  # it is an extra
        from relayfs_fuse.forwarding.keeping import Bounds  # noqa: PLC0415
        from relayfs_fuse.forwarding.receiver import Receiver  # noqa: PLC0415
        from relayfs_fuse.forwarding.server import Server  # noqa: PLC0415
        from relayfs_fuse.forwarding.target import Target  # noqa: PLC0415
    bounds = Bounds(**dict(keep)) if keep else None
    shown = Progress(shows_always=progress)
    with closing(Target(output)) as target:
        server = Server(url, stream, f"relayctl receive {target.path}", shown.say, Access(**access))
        receiver = Receiver(
            server, target, lambda line: shown.say(escaped(line)), lambda: _show(shown, receiver.received), bounds
        )  # fmt: skip

        async def run() -> None:
            try:
                await server.open()
                await receiver.run(follows=follows)
            finally:
                await server.close()

        # The kernel sends SIGIO if a process opens a file whose lease this one has: see record/stream.py.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        was_ended = run_until_signal(run)
    shown.close()
    if was_ended and not follows:
        raise KeyboardInterrupt
    say(f"{_text(receiver)}, received from {server.url}")


def _show(shown: Progress, received: Received) -> None:
    def line(rate: str) -> str:
        return f"{rate}, {size(received.bytes)} received, {received.messages} messages, {received.refused} refused"

    shown.show(received.bytes, line)


def _text(receiver: Receiver) -> str:
    done = receiver.received
    text = f"{done.messages} messages, {size(done.bytes)}"
    if done.missing:
        text += f", {size(done.missing)} missing"
    if done.removed:
        text += f", {done.removed} files removed"
    return text + (f", {done.refused} messages refused" if done.refused else "")
