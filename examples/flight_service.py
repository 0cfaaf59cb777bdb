"""Serve HTTP, as a flight recorder: flight_service.py PORT. GET /slow takes a quarter of a second."""

import logging.config
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from relayfs_fuse.trace import Event, Span

# These two declare what the recorder gets of each request, and the third one sends the log there, too.
request = Span("web", "request", {"path": "string"})
answered = Event("web", "answered", {"path": "string", "ms": "f64"})
LOGGING = {"version": 1, "handlers": {"trace": {"class": "relayfs_fuse.TraceHandler"}}, "root": {"handlers": ["trace"]}}


class Service(BaseHTTPRequestHandler):
    """Answers requests."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a request, and say how long that took."""
        begin = time.perf_counter()
        with request(self.path):
            self.answer()
        answered(self.path, 1000 * (time.perf_counter() - begin))

    def answer(self) -> None:
        """Send the text of the page."""
        if self.path == "/slow":
            logging.getLogger("web").warning("the database is asked")
            time.sleep(0.25)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


logging.config.dictConfig(LOGGING)
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service)
print(server.server_port, flush=True)
server.serve_forever()
