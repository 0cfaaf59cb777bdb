"""Answers that are sent bit by bit: the stream of what is found in a channel or trace, and files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

import anyio
from anyio import to_thread

from relayfs_fuse.cli.common import printable
from relayfs_fuse.cli.web.tails import Ended, Missed, Said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from relayfs_fuse.cli.web.tails import Followed, Queue, Tails

_BLOCK_BYTES = 1 << 18
# A comment now and then tells a client that the server lives, and proxies that the connection does.
_QUIET_S = 15.0
EVENTS_TYPE = "text/event-stream; charset=utf-8"


class EventStream:
    """Server-sent events of a channel or trace, until it is removed or the client has gone.

    A message without a type has a line of JSON, as relayctl view --json prints it. The types are `begin`, `missed` with
    the number of lines that this client was too slow for, `said` with a message for users, and `end` with a reason.
    """

    def __init__(self, tails: Tails, followed: Followed) -> None:
        self._tails = tails
        self._followed = followed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's arguments
        """Send them."""
        async with self._tails.following(self._followed) as queue:
            await start(send, {"Content-Type": EVENTS_TYPE})
            await while_connected(receive, lambda: self._send(queue, send))

    async def _send(self, queue: Queue, send: Send) -> None:
        data = _message("begin", {self._followed.sort: self._followed.name})
        while data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = b":\n\n"
            with anyio.move_on_after(_QUIET_S):
                item = await queue.wait()
                data = _as_messages(item)
                if isinstance(item, Ended):
                    break
        await send({"type": "http.response.body", "body": data})


class FileAnswer:
    """A file, which is closed then."""

    def __init__(self, file: BinaryIO, name: str, content_type: str) -> None:
        self._file = file
        self._headers = {"Content-Type": content_type, "Content-Disposition": disposition(name)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's arguments
        """Send it."""
        with self._file:
            length = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            await start(send, {**self._headers, "Content-Length": str(length)})
            await while_connected(receive, lambda: self._send(send))

    async def _send(self, send: Send) -> None:
        while block := await to_thread.run_sync(self._file.read, _BLOCK_BYTES):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body"})


async def start(send: Send, headers: dict[str, str]) -> None:
    """Begin an answer."""
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})


async def while_connected(receive: Receive, act: Callable[[], Awaitable[None]]) -> None:
    """Do something, but no longer than the client is connected."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await act()
        group.cancel_scope.cancel()


def disposition(name: str) -> str:
    """Return the header that has a browser save a file under this name."""
    return f"attachment; filename*=UTF-8''{quote(name.replace('/', '_'))}"


def _as_messages(item: bytes | Missed | Said | Ended) -> bytes:
    if isinstance(item, bytes):
        return b"data: " + item.removesuffix(b"\n").replace(b"\n", b"\n\ndata: ") + b"\n\n"
    if isinstance(item, Missed):
        return _message("missed", {"lines": item.n_lines})
    if isinstance(item, Said):
        return _message("said", {"text": printable(item.text)})
    return _message("end", {"why": printable(item.why)})


def _message(sort: str, data: dict[str, object]) -> bytes:
    return f"event: {sort}\ndata: {json.dumps(data)}\n\n".encode()
