"""Channels of record rings (type=ring): their Kind, and their rings.

A ring's relay file gives whole records (records.py), each framed as the option `framing` says.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.commands.control import format_size
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE, Kind, Plan
from relayfs_fuse.fs.kinds.records import RecordHandle, StoredRecords
from relayfs_fuse.native.ring import HEADER_BYTES, RingMemory, ring_create, ring_file_bytes
from relayfs_fuse.native.tables import RING_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.records import Keeping, Record
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.streams import Streams

DEFAULT_RING_SIZE = RING_OPTIONS["size"].initial
# The smallest size to which the default is reduced if little memory is free.
LEAST_RING_SIZE = 64 << 10
# How much of a long record is copied before other requests are answered.
_PART_BYTES = 1 << 20


class StoredRing(StoredRecords[RingMemory]):
    """A ring of a channel."""

    written_field = "producer_position"

    @property
    def ring_address(self) -> int:
        """The address of the ring."""
        return self.buffer.address

    def _read(self, size: int, most: int, into: memoryview) -> bytes:
        """Consume and return whole framed records."""
        return self.buffer.read_framed(size, most, into)

    def n_consumed(self) -> int:
        """Return the consumer's position."""
        return int(self.stats().consumer_position)

    async def _copy_long(self, streams: Streams, size: int, may_sleep: bool, keeping: Keeping) -> Record | None:
        """Copy the next record in parts, and answer other requests in between; then consume it."""
        parts = await streams.when_free(lambda: self.buffer.parts(keeping.room), may_sleep)
        if parts is None:
            return None
        try:
            while parts.copy(_PART_BYTES):
                await streams.let_others_run()
            return await streams.when_free(lambda: keeping.consume(parts.consume), may_sleep)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return None

    @property
    def _room(self) -> int:
        """The ring's size."""
        return int(self.channel.stats.ring_size)

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the sum of the wake-up counter and the consumer position.

        A record that arrives in an empty ring increments the counter if the ring is armed. If it is not, or if the
        producer has died before that, records are new to those who were told of some at an earlier consumer position.
        """
        # Loaded before the state, as the answer must not have a later position than that at which records were seen.
        progress = (self.buffer.wake_seq() + self.buffer.consumed()) % 2**64
        state = self.buffer.state()
        if state & native.IS_DAMAGED:
            self.note_state(state)
            return GONE, progress
        events = GONE if state & native.IS_CLOSED else 0
        news = native.HAS_DATA | (native.HAS_DISCARDED if by_mem else 0)
        if (state & news and not state & native.IS_HELD) or self.returned:
            events |= READABLE
        if self._has_room():
            events |= WRITABLE
        return events, progress

    def skip_discarded(self) -> bool:
        """Skip discarded records at the consumer's position, if no record follows them that could be read."""
        state = self.buffer.state()
        if not state & native.HAS_DISCARDED or state & (native.HAS_DATA | native.IS_DAMAGED):
            return False
        try:
            self.buffer.skip()
        except OSError as error:
            # Another consumer is at work, and skips them.
            if error.errno != errno.EBUSY:
                raise
        return True

    def needs_polling(self) -> bool:
        """Whether to look again soon; also if the ring holds only reservations that are not committed yet."""
        state = self.buffer.state()
        return bool(state & (native.LOOK_AGAIN | native.IS_HELD)) or (state == 0 and self.buffer.avail_data() > 0)

    def _has_room(self) -> bool:
        """Whether a short record can be written."""
        stats = self.channel.stats
        return stats.mode == native.MODE_OVERWRITE or self.buffer.avail_data() + 2 * HEADER_BYTES < stats.ring_size

    def open(self, opening: Opening) -> RecordHandle:
        """Open the relay file."""
        return RecordHandle(self, opening)

    def note(self, error: OSError) -> None:
        """Mark the channel as damaged if this error is EBADMSG, and let the ring refuse further records."""
        super().note(error)
        memory = self._memory or self._bare
        if error.errno == errno.EBADMSG and memory is not None:
            # Writes would succeed otherwise, although no consumer can get past the damage.
            memory.refuse_all()


def choose_ring_size(command: Command, n_rings: int, free_bytes: int) -> tuple[int, str | None]:
    """Choose the size of a channel's rings: the option size=, or a default reduced to a part of the free memory.

    n_rings: how many rings the channel will have
    free_bytes: how many bytes of the store are free

    Returns the size in bytes, and the text for error_log if the default was reduced.
    """
    if "size" in command.options:
        return command.options["size"], None
    size = DEFAULT_RING_SIZE
    while size > LEAST_RING_SIZE and ring_file_bytes(size) * n_rings > free_bytes // 16:
        size //= 2
    if size == DEFAULT_RING_SIZE:
        return size, None
    return (
        size,
        f"reduced to rings of {format_size(size)}, from {format_size(DEFAULT_RING_SIZE)}: a channel takes by default "
        f"at most a sixteenth of the {free_bytes} bytes that are free; size= chooses another size",
    )


def _plan(command: Command, n_rings: int, free_bytes: int) -> Plan:
    ring_size, notice = choose_ring_size(command, n_rings, free_bytes)
    what = f"{n_rings} rings of {ring_size} bytes, each of which ends in room for its wrapped records"
    return Plan({"ring_size": ring_size, "n_rings": n_rings}, what, ("size",), notice)


def _file_bytes(spec: Mapping[str, int]) -> int:
    return ring_file_bytes(spec["ring_size"]) * spec["n_rings"]


RING = Kind(
    name="ring",
    memory=RingMemory,
    stored=StoredRing,
    create=ring_create,
    file_bytes=_file_bytes,
    plan=_plan,
    acts={
        "enable": lambda ring, _: ring.stop(native.DISABLED, False),
        "disable": lambda ring, _: ring.stop(native.DISABLED, True),
    },
    refused={
        "flush": "a record can be read as soon as it is committed: there is nothing to flush",
        "reset": "a ring cannot be reset: remove it and create it anew, or read it empty",
        "resume": "only a relay channel can be suspended",
        "consumed": "programs that map a ring consume by storing its consumer position",
    },
    takes_log=False,
)
