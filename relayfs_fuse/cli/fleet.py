"""relayctl fleet: the stream of a NATS server through which recordings are forwarded."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relayfs_fuse.cli.common import (
    Size,
    check_stdout,
    escaped,
    format_bytes,
    json_lines_option,
    say,
    show_json,
    show_table,
)
from relayfs_fuse.cli.nats_options import access_options, importing, run_until_signal, stream_option
from relayfs_fuse.cli.spans import Age, format_age
from relayfs_fuse.record.report import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relayfs_fuse.forwarding.fleet import Fleet
    from relayfs_fuse.forwarding.server import Server

# The most that JetStream has.
_REPLICAS_MAX = 5
_SHOWN = "list"
_T = TypeVar("_T")

server_option = click.option("--to", "url", required=True, metavar="URL", help="The NATS server: nats://HOST:PORT.")


class _WithDefault(click.Group):
    """A group that shows what there is if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] not in ([], ["-h"], ["--help"]) and args[0] not in self.commands:
            args = [_SHOWN, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault)
def fleet() -> None:
    """Show which machines forward recordings through a NATS server, or make the stream that they need."""


@fleet.command(_SHOWN)
@server_option
@stream_option
@access_options
@json_lines_option
def list_fleet(url: str, stream: str, access: dict[str, str | None], json_wanted: bool) -> None:
    """Show what was forwarded, by host and recording, and who receives it. Without a command, this is done.

    BEHIND is what a host has and has not sent yet, in bytes, as of its last messages, and SINCE when the oldest of
    these wait; of a receiver, the messages that it has not acknowledged, and when the server got the first of them.
    """
    check_stdout()
    with importing("fleet"):
        from relayfs_fuse.forwarding.fleet import survey  # noqa: PLC0415  # it is an extra
    found = _ask(url, stream, access, survey)
    if json_wanted:
        show_json(_objects(found))
        return
    _show(found)
    for host, machines in sorted(_twice(found).items()):
        say(f"{len(machines)} machines forward as {host}: their ids are {', '.join(sorted(machines))}")


@fleet.command()
@server_option
@stream_option
@access_options
@click.option("--max-bytes", type=Size(), required=True, metavar="BYTES", help="The most that the stream holds.")
@click.option("--max-age", type=Age(), metavar="AGE", help="Delete messages of this age. Default: keep them.")
@click.option(
    "--replicas", type=click.IntRange(1, _REPLICAS_MAX), default=1, show_default=True,
    help="How many servers of a cluster store each message.",
)  # fmt: skip
def init(  # noqa: PLR0913, PLR0917  # an option each
    url: str, stream: str, access: dict[str, str | None], max_bytes: int, max_age: int | None, replicas: int
) -> None:
    """Make the stream, or change its settings.

    When it is full, it refuses messages, and forwarders wait.
    """
    if max_bytes == 0:
        raise click.UsageError("--max-bytes 0: at least one byte is needed; K, M or G may follow, as in 100G")
    is_new = _ask(url, stream, access, lambda server: server.make_stream(max_bytes, max_age or 0, replicas))
    what = "is made" if is_new else "has these settings"
    click.echo(f"stream {stream} {what}: {format_bytes(max_bytes)}, {replicas} replicas")


def _ask(url: str, stream: str, access: dict[str, str | None], act: Callable[[Server], Awaitable[_T]]) -> _T:
    """Connect, and return what `act` returns."""
    with importing("fleet"):
        from relayfs_fuse.forwarding.access import Access  # noqa: PLC0415  # it is an extra
        from relayfs_fuse.forwarding.server import Server  # noqa: PLC0415
    server = Server(url, stream, "relayctl fleet", Progress(shows_always=False).say, Access(**access))
    answers: list[_T] = []

    async def run() -> None:
        try:
            await server.open()
            answers.append(await act(server))
        finally:
            await server.close()

    if run_until_signal(run):
        raise KeyboardInterrupt
    return answers[0]


def _show(found: Fleet) -> None:
    now = datetime.now(UTC)
    titles = ["HOST", "RECORDING", "FILES", "MESSAGES", "SIZE", "BEHIND", "SINCE", "LOST", "SEEN"]
    rows = [
        [
            one.host, one.recording, str(one.files), str(one.messages), format_bytes(one.bytes),
            format_bytes(one.behind), _ago(now, one.waits_since), str(one.lost), _ago(now, one.last_seen),
        ]
        for one in found.sent
    ]  # fmt: skip
    show_table(titles, rows)
    if found.receiving:
        rows = [[one.directory or one.name, str(one.behind), _ago(now, one.waits_since)] for one in found.receiving]
        show_table(["RECEIVER", "BEHIND", "SINCE"], rows)
    most = f" of {format_bytes(found.max_bytes)}" if found.max_bytes > 0 else ""
    click.echo(f"{found.messages} messages, {format_bytes(found.bytes)}{most}")


def _ago(now: datetime, then: datetime | None) -> str:
    return f"{format_age((now - then).total_seconds())} ago" if then else ""


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _objects(found: Fleet) -> list[dict[str, Any]]:
    sent = [
        {
            "kind": "recording", **asdict(one), "machines": sorted(one.machines),
            "waits_since": _iso(one.waits_since), "last_seen": _iso(one.last_seen),
        }
        for one in found.sent
    ]  # fmt: skip
    receiving = [{"kind": "receiver", **asdict(one), "waits_since": _iso(one.waits_since)} for one in found.receiving]
    stream = {"kind": "stream", "messages": found.messages, "bytes": found.bytes, "max_bytes": found.max_bytes}
    return [*sent, *receiving, stream]


def _twice(found: Fleet) -> dict[str, set[str]]:
    """Return the hosts whose name several machines have, with the ids of these."""
    machines: dict[str, set[str]] = {}
    for one in found.sent:
        machines.setdefault(escaped(one.host), set()).update(map(escaped, one.machines))
    return {host: ids for host, ids in machines.items() if len(ids) > 1}
