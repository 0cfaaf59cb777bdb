"""Sends a recording to a NATS server while it grows: a pass over its files after the other."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.names import Kind, host_subject, kind_of, stream_of
from relayfs_fuse.forwarding.sending import File, Link, OvertakenError, Sender
from relayfs_fuse.tracefiles.streams import METADATA

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from relayfs_fuse.forwarding.recording import OpenFile, Recording
    from relayfs_fuse.forwarding.server import Server
    from relayfs_fuse.reading.packet import Head

    Found = tuple[File, OpenFile, tuple[int, ...], list[tuple[int, Head, bool]]]

# How long to wait before the next pass if there was nothing to send.
_PAUSE_S = 0.2
# Of a file, so many packets are sent in a pass; then all other files have their turn, and new ones are looked for.
_PACKETS_OF_PASS = 64
# So many directories of processes are sent from side by side.
_SIDE_BY_SIDE = 32
# So often it looks at what comes while messages wait, and for no more than a _LOOK_SHAREth of the time.
_LOOK_S = 1.0
_LOOK_SHARE = 20
_MACHINE_ID = "/etc/machine-id"


@dataclass(frozen=True)
class Options:
    """How a recording is sent.

    host: the name of this machine
    name: the name of the recording
    compresses: whether messages are compressed with zstd
    rate: bytes a second; None: as many as the server takes
    removes: whether to remove what is sent and complete
    keeps: so many bytes of a channel's file are kept for its recorder
    """

    host: str
    name: str
    compresses: bool = False
    rate: int | None = None
    removes: bool = False
    keeps: int = 0


@dataclass(frozen=True)
class Progress:
    """How far it is.

    messages, bytes: sent so far
    behind: bytes that can be sent, and are not sent yet
    lost: events that the recording says were lost
    lost_before: of these, those that an earlier forwarder has told of
    files: how many are followed
    waited_s: for how long the oldest of the bytes behind has waited, since it was seen
    """

    messages: int
    bytes: int
    behind: int
    lost: int
    lost_before: int
    files: int
    waited_s: float


class Forwarder:
    """Sends a recording.

    tick: is called now and then, at least every _LOOK_S or so
    is_over: returns whether the recording will not grow any more, so that this ends when all is sent
    """

    def __init__(
        self,
        server: Server,
        recording: Recording,
        options: Options,
        tick: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        sender = Sender(_machine(), os.uname().nodename, os.getpid(), time.time_ns())
        encode = _compress if options.compresses else _leave
        self._link = Link(server, recording, options.host, options.name, sender, encode, self._admit)
        self._options = options
        self._tick = tick
        self._is_over = is_over
        self._is_last = self._is_overtaken = False
        # Of what is removed.
        self._lost = self._lost_before = 0
        # When the last pass has ended, or the first one has begun.
        self._passed_s = 0.0
        self._is_first_pass = True
        self._files: dict[str, File] = {}
        self._slots = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._next_s = 0.0

    @property
    def bytes(self) -> int:
        """How many bytes of files are sent by now."""
        return self._link.bytes

    @property
    def progress(self) -> Progress:
        """How far it is now."""
        files = self._files.values()
        lost, lost_before = _lost(self._files)
        return Progress(
            self._link.messages, self._link.bytes, sum(file.behind for file in files), self._lost + lost,
            self._lost_before + lost_before, len(files), max((file.waited_s() for file in files), default=0.0),
        )  # fmt: skip

    async def run(self) -> None:
        """Send all there is, until the recording is over. RelayError: it is refused."""
        self._passed_s = time.monotonic()
        looking = asyncio.ensure_future(self._look_now_and_then())
        try:
            await self._link.server.check_stream()
            await self._check_host()
            while True:
                before = self._link.messages
                self._is_last = self._is_over()
                await self._pass()
                self._passed_s, self._is_first_pass = time.monotonic(), False
                self._tick()
                if self._is_last and not self._is_overtaken:
                    return
                if self._link.messages == before:
                    await asyncio.sleep(_PAUSE_S)
        finally:
            looking.cancel()

    async def _look_now_and_then(self) -> None:
        """Look at what comes, and tick, while messages wait for the server."""
        while True:
            await asyncio.sleep(_LOOK_S)
            began_s = time.monotonic()
            if began_s - self._passed_s > _LOOK_S:
                self._look()
            self._tick()
            await asyncio.sleep(_LOOK_SHARE * (time.monotonic() - began_s))

    def _look(self) -> None:
        """Look how much can be sent by now, also of new files."""
        for _, paths in self._link.recording.groups():
            for path in paths:
                file = self._files.setdefault(path, File(self._link, self._link.place(path)))
                if self._is_first_pass and file.sequence is None:
                    continue  # an earlier forwarder may have sent it
                # The next pass says what is wrong with it.
                with suppress(FileNotFoundError, RelayError):
                    if file.is_complete or (file.seen and file.seen == self._link.recording.changed(path)):
                        continue
                    with self._link.recording.open(path) as source:
                        file.look(source)

    async def _check_host(self) -> None:
        """Raise RelayError if another machine has this name."""
        last = await self._link.server.last(host_subject(self._link.host))
        machine = last.headers.get("Relay-Machine", "") if last else ""
        if machine and self._link.sender.machine and machine != self._link.sender.machine:
            raise RelayError(
                f"{self._link.server.url}: another machine, whose id is {machine}, sends as {self._link.host}; "
                f"the id of this one is {self._link.sender.machine}. Choose another name with --host"
            )

    async def _pass(self) -> None:
        self._is_overtaken = False
        groups = self._link.recording.groups()
        tasks = [asyncio.ensure_future(self._send_group(directory, paths)) for directory, paths in groups]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _send_group(self, directory: str, paths: list[str]) -> None:
        """Send what one directory has; if that was all of it, remove it.

        Its packets are looked for first, and then its metadata, which the recorder writes before the packets.
        """
        async with self._slots:
            with ExitStack() as stack:
                sending: list[Awaitable[None]] = []
                for path in paths:
                    if kind_of(path) is Kind.PACKETS and (found := await self._find(path, stack)):
                        sending.append(self._send_packets(*found))
                for path in paths:
                    if kind_of(path) is not Kind.PACKETS and (found := await self._find(path, stack)):
                        other = self._send_other(*found)
                        # Of a channel, nothing needs another file.
                        if directory:
                            await other
                        else:
                            sending.append(other)
                await asyncio.gather(*sending)
        if self._options.removes and self._link.recording.has_left(directory):
            with suppress(FileNotFoundError):
                self._remove_if_sent(directory)

    def _remove_if_sent(self, directory: str) -> None:
        """Remove a directory that its recorder has left if all files are sent, also those it made during this pass."""
        paths = self._link.recording.paths(directory)
        if all(map(self._is_sent, paths)):
            self._link.recording.remove(directory)
            lost, lost_before = _lost({path: self._files.pop(path) for path in paths})
            self._lost, self._lost_before = self._lost + lost, self._lost_before + lost_before

    def _is_sent(self, path: str) -> bool:
        """Return whether all of a file is sent which its recorder has left."""
        file = self._files.get(path)
        if file is None:
            return False
        return file.is_complete or (file.seen != () and file.seen == self._link.recording.changed(path))

    async def _find(self, path: str, stack: ExitStack) -> Found | None:
        """Look for what is new in a file. None: nothing, or somebody has moved the complete directory away."""
        file = self._files.setdefault(path, File(self._link, self._link.place(path)))
        with suppress(FileNotFoundError):
            seen = self._link.recording.changed(path)
            if file.is_complete or (seen and seen == file.seen):
                return None
            source = stack.enter_context(self._link.recording.open(path))
            if file.sequence is None:
                await file.find(source)
            most = None if self._is_last else _PACKETS_OF_PASS
            packets = file.packets(source, most) if file.kind is Kind.PACKETS and not file.is_complete else []
            return file, source, seen, packets
        return None

    async def _send_packets(
        self, file: File, source: OpenFile, seen: tuple[int, ...], packets: list[tuple[int, Head, bool]]
    ) -> None:
        metadata = self._files.get(os.path.join(os.path.dirname(file.place.path), METADATA))
        with self._left_for_next_pass(file):
            for at, head, is_last in packets:
                await file.send_packet(source, at, head, metadata.unit if metadata else 0, is_last=is_last)
                self._tick()
            if not file.has_more:
                file.seen = seen

    async def _send_other(self, file: File, source: OpenFile, seen: tuple[int, ...], _: object) -> None:
        with self._left_for_next_pass(file):
            if file.kind is Kind.WHOLE:
                await file.send_whole(source)
            else:
                await file.send_appended(source, self._link.recording.framing if "/" not in file.place.path else "")
                if self._options.removes and not os.path.dirname(file.place.path):
                    # The last message is compared when another forwarder goes on.
                    self._link.recording.free(file.place.path, max(0, file.last - self._options.keeps))
            file.seen = seen

    @contextmanager
    def _left_for_next_pass(self, file: File) -> Iterator[None]:
        """Leave a file for the next pass if its directory was moved away, or another forwarder has sent more of it."""
        try:
            with suppress(FileNotFoundError):
                yield
        except OvertakenError:
            file.sequence, file.seen = None, ()
            self._is_overtaken = True

    async def _admit(self, n: int) -> None:
        """Wait until n further bytes keep the rate."""
        if self._options.rate is None:
            return
        now = time.monotonic()
        self._next_s = max(now, self._next_s)
        wait_s, self._next_s = self._next_s - now, self._next_s + n / self._options.rate
        await asyncio.sleep(wait_s)


def _lost(files: Mapping[str, File]) -> tuple[int, int]:
    """Return how many events were lost in the streams that files have, and how many an earlier forwarder has told."""
    lost: dict[str, int] = defaultdict(int)
    before: dict[str, int] = defaultdict(int)
    for path, file in files.items():
        stream = stream_of(path)
        lost[stream] = max(lost[stream], file.lost)
        before[stream] = max(before[stream], file.lost_before)
    return sum(lost.values()), sum(before.values())


def _machine() -> str:
    """Return the machine's id; "": it has none, as in a container."""
    with suppress(FileNotFoundError), open(_MACHINE_ID, encoding="ascii", errors="replace") as file:
        text = file.read(64).strip()
        return text if text.isalnum() else ""
    return ""


def _leave(data: bytes) -> tuple[bytes, str]:
    return data, ""


def _compress(data: bytes) -> tuple[bytes, str]:
    packed = zstandard.compress(data)
    return (packed, "zstd") if len(packed) < len(data) else (data, "")
