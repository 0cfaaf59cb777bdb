"""Showing a Perfetto trace in ui.perfetto.dev, which runs in the browser and fetches the trace from this process."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import webbrowser
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from signal import SIG_BLOCK, pthread_sigmask, valid_signals
from threading import Event, Thread

import click
from click.core import ParameterSource

from relayfs_fuse.cli.export import ended_by_signals, export_command
from relayfs_fuse.cli.snapshot import snapshot
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason

_UI = "https://ui.perfetto.dev"
# By its content security policy, the page may fetch traces from no other address.
_HOST, _PORT = "127.0.0.1", 9001
# How long a browser may take to send a request.
_REQUEST_S = 10.0


class _Handler(BaseHTTPRequestHandler):
    """Give out one file, under a random name, which other users can only learn from the list of processes."""

    timeout = _REQUEST_S

    def __init__(self, path: str, name: str, taken: Event, *arguments: object) -> None:
        self._path, self._name, self._taken = path, name, taken
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send the trace."""
        if self.path != f"/{self._name}":
            self.send_error(404)
            return
        with open(self._path, "rb") as file:
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", _UI)
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)
        self._taken.set()

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


class _Server(ThreadingHTTPServer):
    """A server that prints nothing when a client closes its connection."""

    def handle_error(self, *_: object) -> None:
        """Do nothing: the client may send the request again."""


def _serve(server: _Server) -> None:
    """Serve, in a thread that blocks all signals; otherwise it could take one that must wake the main thread."""
    pthread_sigmask(SIG_BLOCK, valid_signals())
    server.serve_forever()


def show_in_browser(context: click.Context, *, is_recording: bool) -> None:
    """Carry out `relayctl view --browser`: show what the recording or trace holds now, until the browser has it.

    context: of the command view
    """
    options = context.params
    given = {name for name in options if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    if options["what"] is None or given & {"follow", "lines", "json_wanted", "delay"}:
        raise click.UsageError("--browser shows what TRACE or DIR holds now; it takes --since and --event only")
    name = "trace.pftrace"
    with ended_by_signals(name), tempfile.TemporaryDirectory(prefix="relayctl-") as directory:
        recording, exported = options["what"], os.path.join(directory, name)
        if not is_recording:
            recording = os.path.join(directory, "snapshot")
            place = {name: options[name] for name in ("mount", "store")}
            context.invoke(snapshot, name=options["what"], output=recording, **place)
        chosen = {name: options[name] for name in ("since", "patterns")}
        context.invoke(export_command, directory=recording, file_format="perfetto", output=exported, **chosen)
        _show(exported)


def _show(path: str) -> None:
    """Have a browser show the Perfetto trace in a file; return when it has fetched all of it.

    RelayError: something else listens where the browser fetches from
    """
    name, taken = f"{secrets.token_urlsafe()}.pftrace", Event()
    try:
        server = _Server((_HOST, _PORT), partial(_Handler, path, name, taken))
    except OSError as error:
        where = f"{_HOST}:{_PORT}"
        raise RelayError(f"{where}: {reason(error)}; {_UI} can fetch a trace from no other port") from error
    with server:
        Thread(target=_serve, args=(server,), daemon=True).start()
        url = f"{_UI}/#!/?url=http://{_HOST}:{_PORT}/{name}"
        click.echo(url)
        if not webbrowser.open(url):
            click.echo("relayctl: no browser was found here; open this address in one that reaches the port", err=True)
        taken.wait()
        server.shutdown()
