"""One viewer's connection, and the order in which it may send commands.

CONNECT, LIST_SESSIONS, CREATE_SESSION, ATTACH_SESSION, and then, again and again,
GET_NEW_STREAMS, GET_METADATA, GET_NEXT_INDEX, GET_PACKET; DETACH_SESSION, and perhaps another session
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import trio

from relayfs_fuse.lttng_live import messages
from relayfs_fuse.lttng_live.messages import Attach, Command, Done, Seek

if TYPE_CHECKING:
    from relayfs_fuse.lttng_live.attachment import Attachment

# How long a command may take to arrive completely, and how long sending its answer may take.
_COMMAND_S = 10.0
_ANSWER_S = 60.0


class _ProtocolError(Exception):
    """The viewer does not keep to the protocol."""


class Sessions(Protocol):
    """What viewers can attach to."""

    async def sessions(self) -> list[messages.Session]:
        """Return the sessions."""

    async def attach(self, session: int, is_whole: bool, nursery: trio.Nursery) -> Attachment | Attach:
        """Attach a viewer, or return the reason why not.

        session: the id of the trace
        is_whole: see Rounds
        """


class Connection:
    """A viewer that has connected.

    asked: when its last command began to arrive, by trio's clock
    """

    def __init__(self, sessions: Sessions, stream: trio.SocketStream, number: int) -> None:
        self.scope = trio.CancelScope()
        self.asked = trio.current_time()
        self._sessions = sessions
        self._stream = stream
        self._number = number
        self._received = bytearray()
        self._is_connected = self._has_session = False
        self._attached: Attachment | None = None

    @property
    def is_attached(self) -> bool:
        """Whether it is attached to a trace."""
        return self._attached is not None

    async def run(self) -> None:
        """Answer commands until the viewer has gone, or does not keep to the protocol."""
        with self.scope:
            async with self._stream, trio.open_nursery() as nursery:
                # These errors end this connection only.
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, _ProtocolError):
                    while await self._answer_next(nursery):
                        pass
                nursery.cancel_scope.cancel()

    async def _answer_next(self, nursery: trio.Nursery) -> bool:
        """Answer the next command; False: the viewer has closed the connection."""
        if not self._received and not await self._receive():
            return False
        self.asked = trio.current_time()
        with trio.fail_after(_COMMAND_S):
            length, number, _ = messages.COMMAND.unpack(await self._exactly(messages.COMMAND.size))
            if length > messages.PAYLOAD_MAX:
                raise _ProtocolError
            payload = await self._exactly(length)
        answer = await self._answer(number, payload, nursery)
        with trio.fail_after(_ANSWER_S):
            await self._stream.send_all(answer)
        return True

    async def _receive(self) -> bool:
        data = await self._stream.receive_some(messages.PAYLOAD_MAX)
        self._received += data
        return bool(data)

    async def _exactly(self, length: int) -> bytes:
        while len(self._received) < length:
            if not await self._receive():
                raise _ProtocolError
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken

    # --- commands ---

    async def _answer(self, number: int, payload: bytes, nursery: trio.Nursery) -> bytes:
        if number not in messages.PAYLOADS:
            return messages.UNKNOWN_COMMAND
        command = Command(number)
        if len(payload) != messages.PAYLOADS[command] or (command == Command.CONNECT) == self._is_connected:
            raise _ProtocolError
        if command == Command.LIST_SESSIONS:
            return messages.sessions(await self._sessions.sessions())
        if command == Command.ATTACH_SESSION:
            session, _, seek = messages.ATTACH.unpack(payload)
            return messages.streams(await self._attach(session, seek, nursery), [])
        return self._answer_at_once(command, payload)

    def _answer_at_once(self, command: Command, payload: bytes) -> bytes:
        if command == Command.CONNECT:
            return self._connect(payload)
        if command == Command.CREATE_SESSION:
            self._has_session = True
            return messages.status(Done.OK)
        if command == Command.DETACH_SESSION:
            return messages.status(self._detach(*messages.ID.unpack(payload)))
        return self._show(command, payload)

    def _connect(self, payload: bytes) -> bytes:
        _, major, _, kind = messages.CONNECT.unpack(payload)
        if major != messages.MAJOR or kind != messages.CLIENT_COMMAND:
            raise _ProtocolError
        self._is_connected = True
        return messages.connected(self._number)

    async def _attach(self, session: int, seek: int, nursery: trio.Nursery) -> Attach:
        if not self._has_session:
            return Attach.NO_SESSION
        if seek not in set(Seek):
            return Attach.SEEK_ERROR
        if self._attached:
            return Attach.ALREADY
        attached = await self._sessions.attach(session, seek == Seek.BEGINNING, nursery)
        if isinstance(attached, Attach):
            return attached
        self._attached = attached
        return Attach.OK

    def _detach(self, session: int) -> Done:
        if self._attached is None or self._attached.trace.id != session:
            return Done.ERROR
        self._attached.leave()
        self._attached = None
        return Done.OK

    def _show(self, command: Command, payload: bytes) -> bytes:
        if self._attached is None:
            raise _ProtocolError
        viewer = self._attached.viewer
        self._attached.note_taken()
        if command == Command.GET_NEW_STREAMS:
            (session,) = messages.ID.unpack(payload)
            if session != self._attached.trace.id:
                return messages.streams(messages.NewStreams.ERROR, [])
            return viewer.new_streams()
        if command == Command.GET_METADATA:
            return viewer.metadata(*messages.ID.unpack(payload))
        if command == Command.GET_PACKET:
            return viewer.packet(*messages.GET_PACKET.unpack(payload))
        return viewer.next_index(*messages.ID.unpack(payload))
