"""The NATS server: a connection that is made again whenever it breaks, and what is asked of JetStream."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import nats
import nats.errors
import nats.js.errors
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.access import Access
from relayfs_fuse.forwarding.names import ALL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import PubAck, StreamInfo
    from nats.js.client import JetStreamContext

_T = TypeVar("_T")

_ANSWER_S = 5.0
_CONNECT_S = 5
_RETRY_S = 0.2
# A message about a server that does not answer is repeated after this time.
_REPEAT_S = 30.0
# The server forgets ids of messages after this time; then the expected sequence of the subject tells the same.
DUPLICATES_S = 600.0
_API = "$JS.API"
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
# The most subjects in one of the server's answers.
_SUBJECTS_AT_ONCE = 100_000
# Codes of JetStream's errors.
_STORE_FAILED, _NO_RESOURCES, _NO_STORAGE = 10077, 10023, 10047
_WRONG_LAST_SEQUENCE, _NAME_IN_USE = 10071, 10058
_FULL = {_STORE_FAILED, _NO_RESOURCES, _NO_STORAGE}


class UnexpectedSequenceError(Exception):
    """The last message of the subject is another one than the publisher expected."""


@dataclass(frozen=True)
class Stored:
    """A message of the stream.

    time: when the server got it
    """

    subject: str
    sequence: int
    data: bytes = field(repr=False)
    headers: dict[str, str]
    time: datetime | None = None


class Server:
    """A connection to a server, for one stream.

    url: nats://HOST:PORT, or several with commas between
    name: what the server calls this connection
    say: prints a message
    access: how to prove who this is
    host: HOST:PORT of the first one

    RelayError: an address is wrong
    """

    def __init__(
        self, url: str, stream: str, name: str, say: Callable[[str], None], access: Access | None = None
    ) -> None:
        for one in url.split(","):
            check_url(one)
        self.url = ",".join(_without_secrets(one) for one in url.split(","))
        self.host = self.url.split(",")[0].partition("://")[2].partition("/")[0]
        self.stream = stream
        self._urls = url.split(",")
        self._name = name
        self._say = say
        self._access = access or Access()
        self._said: dict[str, float] = {}
        self._client: Client | None = None
        self._broken: asyncio.Future[None]
        self._jetstream: JetStreamContext | None = None

    async def open(self) -> None:
        """Connect; wait until there is a server. RelayError, OSError: a file of `access` is wrong."""
        words = self._access.words()
        self._broken = asyncio.get_running_loop().create_future()
        self._client = await nats.connect(
            self._urls, name=self._name, error_cb=self._failed, disconnected_cb=self._broke, connect_timeout=_CONNECT_S,
            max_reconnect_attempts=-1, reconnect_time_wait=_RETRY_S, **words,
        )  # fmt: skip
        # nats-py leaves it to the server whether the connection is encrypted.
        if self._access.wants_tls and not self._client._server_info.get("tls_required"):  # nothing else tells
            raise RelayError(f"{self.url}: the server does not encrypt, and --tls-ca or --tls-cert asks for it")
        self._jetstream = self._client.jetstream(timeout=_ANSWER_S)

    async def close(self) -> None:
        """End the connection."""
        if self._client:
            await self._client.close()

    @property
    def jetstream(self) -> JetStreamContext:
        """The connection's JetStream, after open()."""
        assert self._jetstream
        return self._jetstream

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, ssl.SSLError):
            why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
            self.waits(f"TLS: {why or error}")
        elif isinstance(error, OSError) and error.errno and error.errno > 0:
            # asyncio has a text of its own.
            self.waits(os.strerror(error.errno))
        else:
            self.waits(str(error) or type(error).__name__)

    async def _broke(self) -> None:
        """Let those that wait for an answer ask again."""
        broken, self._broken = self._broken, asyncio.get_running_loop().create_future()
        broken.set_result(None)

    def waits(self, why: str) -> None:
        """Say why nothing goes on for now."""
        now = time.monotonic()
        if now - self._said.get(why, -_REPEAT_S) >= _REPEAT_S:
            self._said[why] = now
            self._say(f"{self.url}: {why}; waiting")

    async def ask(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Do what needs an answer; do it again until there is one, also as soon as the connection has broken."""
        while True:
            try:
                return await self._unless_broken(act)
            except (nats.errors.Error, TimeoutError) as error:
                if not _passes(error):
                    raise
                # The connection says itself why it is broken.
                if self._client and self._client.is_connected:
                    self.waits(_reason(error))
            await asyncio.sleep(_RETRY_S)

    async def _unless_broken(self, act: Callable[[], Awaitable[_T]]) -> _T:
        assert self._client
        while not self._client.is_connected:
            await asyncio.sleep(_RETRY_S)
        task = asyncio.ensure_future(act())
        try:
            waiting: set[asyncio.Future[Any]] = {task, self._broken}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise nats.errors.StaleConnectionError
            return task.result()
        finally:
            task.cancel()

    async def check_stream(self) -> StreamInfo:
        """Return what the server tells of the stream. RelayError: there is none."""
        try:
            return await self.ask(lambda: self.jetstream.stream_info(self.stream))
        except nats.js.errors.NotFoundError:
            why = f"{self.url} has no stream {self.stream}; `relayctl fleet init` makes it"
            raise RelayError(why) from None

    async def make_stream(self, max_bytes: int, max_age_s: float, replicas: int) -> bool:
        """Make the stream, or change its settings; return whether it is new. RelayError: the server refuses it.

        It refuses messages when it is full (discard=new), and keeps those that receivers have acknowledged.

        max_age_s: how long messages are kept; 0: for ever
        """
        settings = StreamConfig(
            name=self.stream, description="recordings of relayfs", subjects=[ALL], retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE, discard=DiscardPolicy.NEW, max_bytes=max_bytes, max_age=max_age_s or None,
            num_replicas=replicas, duplicate_window=min(DUPLICATES_S, max_age_s or DUPLICATES_S),
        )  # fmt: skip
        return await self.ask(partial(self._make, settings))

    async def _make(self, settings: StreamConfig) -> bool:
        try:
            try:
                await self.jetstream.add_stream(settings)
            except nats.js.errors.APIError as error:
                if error.err_code != _NAME_IN_USE:
                    raise
                await self.jetstream.update_stream(settings)
                return False
        except nats.js.errors.APIError as error:
            # To wait until it has room for the stream is no use.
            if error.err_code not in _FULL and _passes(error):
                raise
            more = "; see --max-bytes, and max_file_store of the server, 3/4 of the free disk unless it is set"
            raise RelayError(
                f"{self.url}: stream {self.stream}: {error.description}{more * (error.err_code in _FULL)}"
            ) from error
        return True

    async def subjects(self) -> dict[str, int]:
        """Return how many messages each subject of the stream has."""
        found: dict[str, int] = {}
        while True:
            # nats-py does not ask for more than the first ones.
            question = json.dumps({"subjects_filter": ALL, "offset": len(found)}).encode()
            answer = await self.ask(partial(self._request, f"{_API}.STREAM.INFO.{self.stream}", question))
            more = json.loads(answer.data).get("state", {}).get("subjects") or {}
            found |= more
            if len(more) < _SUBJECTS_AT_ONCE:
                return found

    async def _request(self, subject: str, data: bytes) -> Msg:
        assert self._client
        return await self._client.request(subject, data, timeout=_ANSWER_S)

    async def consumers(self) -> list[tuple[str, str, int, int]]:
        """Return the consumers of the stream.

        Of each: name, description, how many messages it has not acknowledged, and the sequence of the first of these
        """
        found: list[tuple[str, str, int, int]] = []
        while True:
            ask = partial(self.jetstream.consumers_info, self.stream, offset=len(found))
            more = await self.ask(ask)
            if not more:
                return found
            found += [
                (one.name, one.config.description or "", (one.num_pending or 0) + (one.num_ack_pending or 0),
                 (one.ack_floor.stream_seq if one.ack_floor else 0) + 1)
                for one in more
            ]  # fmt: skip

    async def last(self, subject: str) -> Stored | None:
        """Return the last message of a subject, in which * and > may stand for others."""
        return await self._stored(lambda: self.jetstream.get_last_msg(self.stream, subject))

    async def message(self, sequence: int) -> Stored | None:
        """Return a message of the stream; None: it is not there any more."""
        return await self._stored(lambda: self.jetstream.get_msg(self.stream, sequence))

    async def _stored(self, get: Callable[[], Awaitable[nats.js.api.RawStreamMsg]]) -> Stored | None:
        try:
            found = await self.ask(get)
        except nats.js.errors.NotFoundError:
            return None
        return Stored(found.subject or "", found.seq or 0, found.data or b"", dict(found.headers or {}), found.time)

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str], previous: int, *, checks: bool
    ) -> tuple[int, bool]:
        """Add a message to the stream; return its sequence, and whether it was there: its id is known.

        previous: the sequence of the last message of the subject
        checks: have the server compare that, for which it reads that message; without an answer it does in any case

        UnexpectedSequenceError: it is another one
        """
        is_to_check = checks

        async def act() -> PubAck:
            nonlocal is_to_check
            words = {**headers, _EXPECTED: str(previous)} if is_to_check else headers
            is_to_check = True
            return await self.jetstream.publish(subject, data, stream=self.stream, headers=dict(words))

        try:
            answer = await self.ask(act)
        except nats.js.errors.APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise UnexpectedSequenceError from error
            raise RelayError(f"{self.url}: stream {self.stream}: {error.description}") from error
        return answer.seq, bool(answer.duplicate)


def check_url(url: str) -> None:
    """Raise RelayError unless it is the address of a server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"nats", "tls", "ws", "wss"} and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        good = False
    if not good:
        raise RelayError(f"{_without_secrets(url)} is no address of a NATS server, as nats://HOST or nats://HOST:PORT")


def _without_secrets(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _passes(error: Exception) -> bool:
    """Return whether to try again: the server does not answer, starts, or is full."""
    if isinstance(error, nats.js.errors.APIError):
        return error.err_code in _FULL or isinstance(error, nats.js.errors.ServiceUnavailableError)
    return not isinstance(error, (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, nats.errors.BadHeaderError))


def _reason(error: Exception) -> str:
    if isinstance(error, nats.js.errors.APIError):
        return f"the stream takes no message now ({error.description})"
    if isinstance(error, nats.js.errors.NoStreamResponseError):
        return "no stream takes the messages"
    if isinstance(error, nats.errors.NoRespondersError):
        return "JetStream does not answer; it is enabled with -js, or `jetstream {}` in nats-server's configuration"
    return "no answer" if isinstance(error, TimeoutError) else str(error)
