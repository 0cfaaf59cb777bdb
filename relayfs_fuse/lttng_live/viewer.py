"""A viewer that is attached to a trace: its streams, the packets that wait for it, and the answers to its commands.

To viewers a process is a CTF trace, and each CPU on which it writes is a stream of this trace. Both are announced with
their first packet. A viewer fails if it gets an event that is older than what it has shown. So while announced streams
wait for GET_NEW_STREAMS, each index of a packet has the flag NEW_STREAM; a stream without packets gets an empty one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relayfs_fuse.lttng_live import messages
from relayfs_fuse.lttng_live.messages import Data, Index, Metadata, NewStreams, PacketIndex
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head

if TYPE_CHECKING:
    from relayfs_fuse.lttng_live.rounds import Round, ShownProcess
    from relayfs_fuse.native.merge import StreamPacket
    from relayfs_fuse.tracefiles.recorded import Clock

# An answer has at most so many streams, of 4 KiB each, and those that follow of its last process.
_STREAMS = 64
_DISCARDED_MAX = (1 << 64) - 1


@dataclass(eq=False)
class _Shown:
    """A process.

    number: the number of its metadata stream, and of its trace
    metadata: packets that the viewer has not fetched
    streams: by CPU; without those whose end the viewer knows
    """

    number: int
    name: str
    uuid: str
    pid: int
    clock: Clock
    metadata: deque[bytes] = field(default_factory=deque)
    streams: dict[int, _Stream] = field(default_factory=dict)
    has_ended: bool = False


@dataclass(eq=False)
class _Stream:
    """A stream.

    told: the time, in ticks, up to which the viewer has been sent all events, so that no older ones may be sent
    packets: with their headers; the viewer has not been sent their indexes
    index, packet: the index that the viewer was sent last, and its packet, which is empty after the viewer has fetched
        it
    at: the offset of the next packet in the stream, in bytes
    last: the header of the packet that was appended last
    end: the time before which no further packet may begin, in ticks
    """

    number: int
    shown: _Shown
    cpu: int
    told: int
    packets: deque[bytes] = field(default_factory=deque)
    index: PacketIndex | None = None
    packet: bytes = b""
    at: int = 0
    last: Head | None = None
    end: int = 0


class Viewer:
    """Answer the commands of a viewer.

    queued: the bytes that wait: metadata, new streams, and packets that the viewer has not fetched completely
    """

    def __init__(self) -> None:
        self.queued = 0
        self._is_over = False
        self._n_streams = 0
        self._limit = 0
        self._shown: dict[int, _Shown] = {}  # by the process's number
        self._metadata: dict[int, _Shown] = {}  # by the stream's number
        self._streams: dict[int, _Stream] = {}
        self._new: deque[messages.Stream] = deque()

    @property
    def is_over(self) -> bool:
        """Whether no further round will come, and the viewer knows the end of all streams."""
        return self._is_over and not self._streams

    # --- rounds ---

    def add(self, found: Round) -> None:
        """Queue what is new in a round."""
        before, self._limit = self._limit, found.limit
        for identity, text in found.metadata.items():
            shown = self._shown.get(identity) or self._show(identity, found.processes[identity])
            shown.metadata.append(messages.metadata_packet(text, shown.uuid))
            self.queued += len(shown.metadata[-1])
        for packet in found.packets:
            shown = self._shown[packet.identity]
            stream = shown.streams.get(packet.cpu) or self._begin(shown, packet.cpu, before)
            self._put(stream, packet)
        for identity in found.ended & self._shown.keys():
            shown = self._shown.pop(identity)
            shown.has_ended = True
        if found.is_over:
            self.end()

    def end(self) -> None:
        """Note that no further round will come."""
        self._is_over = True
        for shown in self._shown.values():
            shown.has_ended = True

    def _number(self) -> int:
        self._n_streams += 1
        return self._n_streams

    def _show(self, identity: int, process: ShownProcess) -> _Shown:
        origin = process.origin
        pid = origin.pid if origin.buffers == "perprocess" else 0
        shown = _Shown(self._number(), process.name, origin.uuid, pid, process.clock)
        self._shown[identity] = self._metadata[shown.number] = shown
        self._announce(messages.Stream(shown.number, shown.number, True, shown.name, "metadata"))
        return shown

    def _begin(self, shown: _Shown, cpu: int, since: int) -> _Stream:
        stream = _Stream(self._number(), shown, cpu, shown.clock.ticks_at(since))
        stream.end = stream.told
        shown.streams[cpu] = self._streams[stream.number] = stream
        self._announce(messages.Stream(stream.number, shown.number, False, shown.name, f"cpu{cpu}"))
        return stream

    def _announce(self, stream: messages.Stream) -> None:
        self._new.append(stream)
        self.queued += messages.STREAM_BYTES

    def _put(self, stream: _Stream, packet: StreamPacket) -> None:
        begin = max(packet.begin, stream.end)
        if packet.lost:
            # Viewers show a packet's losses in the interval since the packet before. So an empty packet at stream.end
            # comes first; otherwise that interval could begin before times that were shown already.
            self._append(stream, stream.end, stream.end, 0, b"")
        self._append(stream, begin, max(begin, packet.end), packet.lost, packet.events)

    def _append(self, stream: _Stream, begin: int, end: int, lost: int, events: bytes) -> None:
        last, bits = stream.last, 8 * (HEAD_BYTES + len(events))
        # A program that resets its buffer can report any number of losses again and again.
        discarded = min(lost + (last.events_discarded if last else 0), _DISCARDED_MAX)
        number = last.packet_seq_num + 1 if last else 0
        head = Head(MAGIC, 0, stream.cpu, bits, discarded, number, end, begin, bits, stream.cpu, stream.shown.pid)
        stream.last, stream.end = head, end
        stream.packets.append(head.pack() + events)
        self.queued += HEAD_BYTES + len(events)

    # --- commands ---

    def new_streams(self) -> bytes:
        """Answer GET_NEW_STREAMS."""
        found: list[messages.Stream] = []
        # A viewer forgets a process if the answer has only its metadata stream.
        while self._new and (len(found) < _STREAMS or self._new[0].trace == found[-1].trace):
            found.append(self._new.popleft())
            self.queued -= messages.STREAM_BYTES
        if found:
            return messages.streams(NewStreams.OK, found)
        return messages.streams(NewStreams.HUP if self.is_over else NewStreams.NO_NEW, [])

    def metadata(self, number: int) -> bytes:
        """Answer GET_METADATA."""
        shown = self._metadata.get(number)
        if shown is None:
            return messages.metadata(Metadata.ERROR)
        if not shown.metadata:
            return messages.metadata(Metadata.NO_NEW)
        packet = shown.metadata.popleft()
        self.queued -= len(packet)
        return messages.metadata(Metadata.OK, packet)

    def next_index(self, number: int) -> bytes:
        """Answer GET_NEXT_INDEX."""
        stream = self._streams.get(number)
        if stream is None:
            return messages.index(Index.ERROR)
        self._release(stream)
        stream.index = None
        # Viewers warn if two streams are inactive up to the same ns, so each stream reports another time.
        now = stream.shown.clock.ticks_at(max(0, self._limit - 2 * stream.number))
        if not stream.packets and self._new and (now > stream.told or stream.shown.has_ended):
            now = max(now, stream.told)
            self._append(stream, now, now, 0, b"")
        if stream.packets:
            return self._next_packet(stream)
        if stream.shown.has_ended:
            self._leave(stream)
            return messages.index(Index.HUP)
        if self._new or now <= stream.told:
            return messages.index(Index.RETRY)
        stream.told = stream.end = now
        return messages.index(Index.INACTIVE, at=PacketIndex(0, 0, 0, now, 0))

    def _next_packet(self, stream: _Stream) -> bytes:
        packet = stream.packets.popleft()
        head = Head.of(packet)
        stream.told = head.timestamp_end
        stream.packet = packet
        stream.index = PacketIndex(
            stream.at, len(packet), head.timestamp_begin, head.timestamp_end, head.events_discarded
        )
        stream.at += len(packet)
        flags = messages.NEW_STREAM if self._new else 0
        flags |= messages.NEW_METADATA if stream.shown.metadata else 0
        return messages.index(Index.OK, flags, stream.index)

    def _leave(self, stream: _Stream) -> None:
        """Forget a stream all of whose packets the viewer has fetched."""
        del self._streams[stream.number]
        del stream.shown.streams[stream.cpu]
        if not stream.shown.streams:
            del self._metadata[stream.shown.number]
            self.queued -= sum(map(len, stream.shown.metadata))

    def _release(self, stream: _Stream) -> None:
        self.queued -= len(stream.packet)
        stream.packet = b""

    def packet(self, number: int, offset: int, length: int) -> bytes:
        """Answer GET_PACKET: a part of the packet whose index was sent last; after its end the packet is freed."""
        stream = self._streams.get(number)
        if stream is None or stream.index is None:
            return messages.data(Data.ERROR)
        start = offset - stream.index.offset
        if not 0 <= start < start + length <= len(stream.packet):
            return messages.data(Data.ERROR)
        content = stream.packet[start : start + length]
        if start + length == len(stream.packet):
            self._release(stream)
        return messages.data(Data.OK, content)
