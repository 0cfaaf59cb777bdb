"""Running the application with uvicorn until a signal comes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from relayfs_fuse.cli.web.app import Site

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Iterable

# To accept one more connection, one is closed: the first that was accepted of those without a request, otherwise of
# those whose client takes nothing, or else the new one. So answers take no more memory, however many ask.
CONNECTIONS_MAX = 128
# How long a connection may take to send a request.
_REQUEST_S = 10.0
# How long a client may take nothing, though there is something for it.
STALLED_S = 60.0
# How long downloads may go on after a signal.
_GRACE_S = 5


class _Protocol(H11Protocol):
    """A connection that does not last without a reason: uvicorn would wait for a first request, and for a reader."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and set a deadline for the first request."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._stalled: asyncio.TimerHandle | None = None
        self.loop.call_later(_REQUEST_S, self._end_if_idle)
        if len(self.connections) > CONNECTIONS_MAX:
            self._least_needed().transport.abort()

    def _least_needed(self) -> _Protocol:
        others = [one for one in self.connections if isinstance(one, _Protocol) and one is not self]
        idle = [one for one in others if one.is_idle]
        stalled = [one for one in others if one._stalled is not None]
        return min(idle or stalled or [self], key=lambda one: one._since)

    @property
    def is_idle(self) -> bool:
        """Whether there is no request to be answered."""
        return self.cycle is None or self.cycle.response_complete

    def _end_if_idle(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Note that the client takes nothing."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it does."""
        super().resume_writing()
        self._take_back()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._take_back()

    def _take_back(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class Server(uvicorn.Server):
    """The server of a site, which SIGINT and SIGTERM end from now on; see Site for the arguments."""

    def __init__(self, store: str, hosts: Iterable[str], token: str | None) -> None:
        self._site = Site(store, hosts, token)
        config = uvicorn.Config(
            self._site.app, http=_Protocol, ws="none", loop="asyncio", lifespan="on", log_level="error",
            access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=int(_REQUEST_S),
            timeout_graceful_shutdown=_GRACE_S, h11_max_incomplete_event_size=1 << 14,
        )  # fmt: skip
        super().__init__(config)
        # uvicorn installs the same handler while it runs, then calls the one from before for the signal that has come.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self.handle_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which would have no end, then all else."""
        self._site.stop()
        await super().shutdown(sockets)
