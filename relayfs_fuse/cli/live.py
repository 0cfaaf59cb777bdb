"""relayctl live: show traces to viewers of LTTng's live protocol, while programs write them."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import trio

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.clocks import say_clocks
from relayfs_fuse.cli.common import are_recordings_all, check_stdout, place_options
from relayfs_fuse.cli.delay import delay_of, delay_option
from relayfs_fuse.errors import RelayError
from relayfs_fuse.lttng_live.server import ServedRecordings, ServedTraces, Server
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.reading.source import Source, find_store
from relayfs_fuse.record.report import Progress
from relayfs_fuse.tracefiles.hosts import Hosts, is_received
from relayfs_fuse.tracefiles.recorded import NoTraceError

if TYPE_CHECKING:
    from collections.abc import Callable

_PORT_MAX = 65535
# The session of several directories.
_SEVERAL = "recordings"


class Address(click.ParamType):  # type: ignore[type-arg]  # before click 8.2 it has no parameter
    """ADDRESS:PORT; of IPv6 the address is in brackets."""

    name = "address"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse the value."""
        if isinstance(value, tuple):
            return value
        host, _, port = value.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if is_bracketed else host
        is_port = port.isascii() and port.isdecimal() and int(port) <= _PORT_MAX
        if not host or not is_port or (":" in host and not is_bracketed):
            rule = f"the port is 0 to {_PORT_MAX}; an address of IPv6 is in brackets, as in [::1]:5344"
            self.fail(f"{value} is no ADDRESS:PORT; {rule}", param, ctx)
        return host, int(port)


def listen_option(port: int, who: str) -> Callable[..., Any]:
    """Return the option --listen; port: of 127.0.0.1, where `who` connect by default."""
    return click.option(
        "--listen", metavar="ADDRESS:PORT", type=Address(), default=f"127.0.0.1:{port}", show_default=True,
        help=f"Where {who} connect; port 0 means a free one.",
    )  # fmt: skip


@click.command()
@click.argument("names", metavar="[TRACE|DIR...]", nargs=-1, shell_complete=complete.traces_or_recordings)
@place_options
@listen_option(5344, "viewers")
@delay_option("gets a later time")
@click.option("--follow/--once", "follows", default=True, help="Of DIR: go on with what arrives, or end viewers then.")
def live(  # noqa: PLR0913, PLR0917  # an option each
    names: tuple[str, ...], mount: str | None, store: str | None, listen: tuple[str, int], delay: int | None,
    follows: bool,
) -> None:  # fmt: skip
    """Show the trace TRACE, or all traces, to viewers of LTTng's live protocol, until ^C or TRACE is removed.

    Of several DIRs, and of a DIR of `relayctl receive`, all machines are on one time line, until ^C. What is
    appended to them is shown when it arrives.

    Whoever can connect sees all events.
    """
    check_stdout()
    permit_many_files()
    shown = Progress(shows_always=False)
    said: set[str] = set()

    def say(line: str) -> None:  # a message that several viewers cause is printed once
        if line not in said:
            said.add(line)
            shown.say(line)

    if are_recordings_all(names, mount, store):
        _say_clocks(names, follows=follows)
        name = os.path.basename(os.path.abspath(names[0])) if len(names) == 1 else _SEVERAL
        delay_ns = delay_of(delay, is_directory=True) if follows else None
        trio.run(_serve, Server(ServedRecordings(names, name, delay_ns, say)), listen, name)
        return
    if not follows:
        raise click.UsageError("--once is for DIR: a trace has no end before it is removed")
    place = find_store(mount, store)
    trace = None
    if names:
        with closing(Source(names[0], place)) as source:
            trace = source.trace
    else:
        Traces(control_in_store(place)).close()  # to fail now, as above
    served = ServedTraces(place, trace, delay_of(delay), say)
    trio.run(_serve, Server(served), listen, trace.name if trace else None)


def _say_clocks(directories: tuple[str, ...], *, follows: bool) -> None:
    """Say how far the clocks of machines were off; fail now, not when a viewer comes."""
    try:
        with closing(Hosts(directories, has_streams=not follows)) as recordings:
            say_clocks(recordings.clocks)
    except NoTraceError:
        if not (follows and any(map(is_received, directories))):
            raise


async def _serve(server: Server, listen: tuple[str, int], name: str | None) -> None:
    listeners = await _listeners(*listen)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        host, port = listeners[0].socket.getsockname()[:2]
        url = f"net://[{host}]:{port}" if ":" in host else f"net://{host}:{port}"
        click.echo(url if name is None else f"{url}/host/{os.uname().nodename}/{name}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, server, listeners, nursery.cancel_scope)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


async def _run(server: Server, listeners: list[trio.SocketListener], scope: trio.CancelScope) -> None:
    await server.run(listeners)
    scope.cancel()


async def _listeners(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise RelayError(f"{host}:{port}: {reason(error)}; --listen ADDRESS:PORT chooses another") from error
