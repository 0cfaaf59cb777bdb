"""Which requests are answered, and what protects those who look at the answers in a browser.

A page of another site may make a browser send requests to this server. It can read no answer, because no answer permits
it; so it would have to have this server's own address as its own, by a name that it resolves to 127.0.0.1 (DNS
rebinding). Browsers send this name as Host, so only names of this server are answered, and addresses, which nobody can
resolve to others.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    # The address may contain the token.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Answer requests that may be answered with an application, and add HEADERS to all answers.

    hosts: names of this server, besides localhost, the machine's own, and all addresses
    token: what requests must contain; None: nothing
    public: paths of files that contain no data, which a browser fetches without the token
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None, public: Iterable[str]) -> None:
        self._app = app
        self._hosts = {"localhost", os.uname().nodename.lower(), *(name.lower() for name in hosts)}
        self._token = None if token is None else token.encode()
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; other messages of ASGI go to the application."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] == "http":
            await (self._refusal(Request(scope)) or self._app)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        host = request.headers.get("host", "")
        if not self._is_own(host):
            text = f"{host!r} is no name of this server; relayctl serve --host NAME adds one\n"
            return PlainTextResponse(text, 421)
        if request.method not in METHODS:
            return PlainTextResponse("there are GET and HEAD only\n", 405, {"Allow": ", ".join(METHODS)})
        # A page of another site can also cause work, and be it in vain. Links that people follow are no such requests.
        if (
            request.headers.get("sec-fetch-site") == "cross-site"
            and request.headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("pages of other sites get nothing\n", 403)
        if request.scope["path"] in self._public or self._has_token(request):
            return None
        text = "a token is needed, which relayctl serve has printed: as ?token=TOKEN, or Authorization: Bearer TOKEN\n"
        return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})

    def _is_own(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        # An IPv6 address is in brackets, with or without a port.
        name = name if colon and port.isdecimal() else host
        name = name.lower().removesuffix(".")
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
        except ValueError:
            return False
        # Behind a % may stand anything, as what divides an address from a path.
        return "%" not in str(address)

    def _has_token(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        given = value.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)
