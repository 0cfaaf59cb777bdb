"""What is at which address; see relayctl(1), relayctl serve."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, TypeVarTuple, Unpack

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from relayfs_fuse.cli.common import printable
from relayfs_fuse.cli.web import downloads
from relayfs_fuse.cli.web.answers import EVENTS_TYPE, EventStream, FileAnswer, disposition
from relayfs_fuse.cli.web.guard import Guard
from relayfs_fuse.cli.web.metrics import Scrape, choose_type
from relayfs_fuse.cli.web.tails import BusyError, Followed, Tails, find_channel_in
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_DOWNLOADS_MAX = 4
_READS_MAX = 4
_PAGE = Path(__file__).with_name("page")
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
}
# What a browser fetches without the token.
_PUBLIC = ("/page.js", "/page.css")


class Site:
    """The application.

    store: the store's directory
    hosts, token: see Guard
    """

    def __init__(self, store: str, hosts: Iterable[str], token: str | None) -> None:
        self._store = store
        self._scraped: tuple[float, Scrape] | None = None
        self._n_downloads = 0
        pages = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css", "/grafana.json": "grafana.json"}
        routes = [
            *(Route(path, partial(_page, (_PAGE / name).read_bytes(), name)) for path, name in pages.items()),
            Route("/metrics", self._metrics),
            Route("/events", self._events),
            Route("/snapshot", partial(self._download, downloads.snapshot, ".tar", "application/x-tar")),
            Route(
                "/trace.pftrace", partial(self._download, downloads.perfetto, ".pftrace", "application/octet-stream")
            ),
        ]
        handlers = {HTTPException: _refused, RelayError: _not_found, BusyError: _busy, OSError: _failed}
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        app.router.redirect_slashes = False
        self.app: ASGIApp = Guard(app, hosts, token, _PUBLIC)

    def stop(self) -> None:
        """End all streams: the server is to end."""
        self._tails.stop()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._reads, self._turn = CapacityLimiter(_READS_MAX), anyio.Lock()
        async with anyio.create_task_group() as group:
            self._tails = Tails(self._store, group)
            yield
            self._tails.stop()

    async def _metrics(self, request: Request) -> Response:
        content_type = choose_type(",".join(request.headers.getlist("accept")))
        came = time.monotonic()
        async with self._turn:
            # One reads at a time: all who have come while another was reading get the figures that are read next.
            if self._scraped is None or self._scraped[0] < came:
                began = time.monotonic()
                self._scraped = began, await self._read(Scrape, self._store, self._tails.n_streams)
            scrape = self._scraped[1]
        text = await self._read(scrape.text, content_type)
        return Response(text, headers={"Content-Type": content_type, "Vary": "Accept"})

    async def _events(self, request: Request) -> ASGIApp:
        given = [(sort, request.query_params[sort]) for sort in ("trace", "channel") if sort in request.query_params]
        if len(given) != 1:
            raise HTTPException(400, "/events needs ?trace=NAME or ?channel=PATH, one of them")
        followed = Followed(*given[0])
        if request.method == "HEAD":
            await self._read(_find, self._store, followed)
            return Response(headers={"Content-Type": EVENTS_TYPE})
        return EventStream(self._tails, followed)

    async def _download(
        self, make: Callable[[str, str], BinaryIO], suffix: str, content_type: str, request: Request
    ) -> ASGIApp:
        name = request.query_params.get("trace")
        if not name:
            raise HTTPException(400, f"{request.scope['path']} needs ?trace=NAME")
        if request.method == "HEAD":
            await self._read(_find, self._store, Followed("trace", name))
            return Response(headers={"Content-Type": content_type, "Content-Disposition": disposition(name + suffix)})
        return partial(self._send_download, make, name, suffix, content_type)

    async def _send_download(  # noqa: PLR0913, PLR0917  # the last three are ASGI's
        self,
        make: Callable[[str, str], BinaryIO],
        name: str,
        suffix: str,
        content_type: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if self._n_downloads >= _DOWNLOADS_MAX:
            raise BusyError(f"{self._n_downloads} downloads are under way, which is as many as there may be")
        self._n_downloads += 1
        try:
            file = await self._read(make, self._store, name)
            await FileAnswer(file, name + suffix, content_type)(scope, receive, send)
        finally:
            self._n_downloads -= 1

    async def _read(self, act: Callable[[Unpack[Arguments]], Result], *arguments: *Arguments) -> Result:
        return await to_thread.run_sync(act, *arguments, limiter=self._reads)


def _find(store: str, followed: Followed) -> None:
    """Raise RelayError or OSError unless it exists."""
    if followed.sort == "trace":
        Source(followed.name, store).close()
    else:
        find_channel_in(store, followed.name)


async def _page(content: bytes, name: str, _: Request) -> Response:
    return Response(content, headers={"Content-Type": _PAGE_TYPES[Path(name).suffix]})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


async def _not_found(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{printable(str(error))}\n", 404)


async def _busy(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "5"})


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    where = f"{error.filename}: " if error.filename else ""
    return PlainTextResponse(f"{printable(where)}{reason(error)}\n", 500)
