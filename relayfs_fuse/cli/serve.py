"""relayctl serve: metrics, live events and downloads over HTTP."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
from contextlib import ExitStack

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import check_stdout, place_options
from relayfs_fuse.cli.live import listen_option
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.reading.source import find_store

_TOKEN_LEAST = 16


@click.command()
@place_options
@listen_option(5345, "clients")
@click.option(
    "--token-file", metavar="FILE", type=click.Path(), shell_complete=complete.files,
    help="What requests must contain. Default: on 127.0.0.1 nothing, elsewhere a new token, which is printed.",
)  # fmt: skip
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="A further name under which clients reach it.")
def serve(
    mount: str | None, store: str | None, listen: tuple[str, int], token_file: str | None, hosts: tuple[str, ...]
) -> None:
    """Serve metrics for Prometheus, a page for browsers, live events and downloads over HTTP, until ^C.

    Nothing is consumed. Whoever can connect, and has the token if there is one, sees everything.
    """
    check_stdout()
    try:
        from relayfs_fuse.cli.web.run import Server  # noqa: PLC0415  # it is an extra
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {"anyio", "starlette", "uvicorn", "h11"}:
            raise
        raise RelayError(f"serve needs {missing}; `pip install 'relayfs[serve]'` installs it") from error
    permit_many_files()
    place = find_store(mount, store)
    Traces(control_in_store(place)).close()  # to fail now, not when a client comes
    if not os.access(place, os.R_OK | os.X_OK):
        raise RelayError(f"{place}: this user may not read the store; run serve as the user of the server, or as root")
    token = None if token_file is None else _token_in(token_file)
    with ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in _listeners(*listen)]
        if token is None and not all(_is_local(one) for one in listeners):
            token = secrets.token_urlsafe()
        server = Server(place, [*hosts, listen[0]], token)
        for one in listeners:
            click.echo(_url(one, token if token_file is None else None))
        server.run(listeners)


def _token_in(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
            raise RelayError(f"{path}: all users may read it, so it is no secret; chmod o-r {path}")
        try:
            token = file.read(1 << 16).strip()
        except UnicodeDecodeError:
            token = ""
    if len(token) < _TOKEN_LEAST or not token.isascii() or not token.isprintable() or " " in token:
        rule = f"at least {_TOKEN_LEAST} printable characters of ASCII without spaces"
        raise RelayError(f"{path} contains no token, which is {rule}; `openssl rand -hex 32` prints one")
    return token


def _listeners(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host, at the same port."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            there = (address[0], listeners[0].getsockname()[1] if listeners else port)
            listeners.append(socket.create_server(there, family=family))
    except OSError as error:
        for one in listeners:
            one.close()
        why = reason(error).partition(" (while")[0]  # what Python adds is the address again
        raise RelayError(f"{host}:{port}: {why}; --listen ADDRESS:PORT chooses another") from error
    return listeners


def _is_local(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _url(listener: socket.socket, token: str | None) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = os.uname().nodename
    place = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    return place if token is None else f"{place}?token={token}"
