"""One process's part of a trace, in the store."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from relayfs_fuse import ctf, native, native_trace
from relayfs_fuse.ctf import Origin
from relayfs_fuse.native_packets import Consumer

if TYPE_CHECKING:
    from relayfs_fuse.ctf import Clocks
    from relayfs_fuse.record.sleeper import Sleepers

# Nobody has so many events; who writes more of them himself wants to fill our memory.
_EVENTS_MAX = 16 << 20


class Process:
    """Map the buffers of a directory STORE/NAME/PROCESS-PID, and read what it tells about itself.

    OSError: it cannot be opened, or EBADMSG, EPROTO: it is damaged; ValueError: what it tells is not what the library
    writes.

    n_subbufs, subbuf_size: how many sub-buffers a buffer has, and their bytes
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self._events_fd = os.open(
            os.path.join(directory, ".events"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        self.buffers: dict[int, Consumer] = {}
        self._n_events_bytes = -1
        self._declared: dict[bytes, None] = {}
        self._baseline = 0
        try:
            if not stat.S_ISREG(os.fstat(self._events_fd).st_mode):
                raise ValueError(".events is no regular file")
            self.origin = Origin.of(os.pread(self._events_fd, 4096, 0))
            channel = os.path.join(directory, "cpu")
            for cpu in sorted(int(name[3:]) for name in os.listdir(channel)):
                self.buffers[cpu] = Consumer(native.Buffer(os.path.join(channel, f"mem{cpu}")))
            facts = [consumer.buffer.facts() for consumer in self.buffers.values()]
            self.n_subbufs = max(fact.n_subbufs for fact in facts)
            self.subbuf_size = max(fact.subbuf_size for fact in facts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap it."""
        os.close(self._events_fd)
        for consumer in self.buffers.values():
            consumer.buffer.close()

    def is_alive(self) -> bool:
        """Tell whether somebody writes to it, or will."""
        return native_trace.trace_is_alive(self.directory)

    def is_closed(self) -> bool:
        """Tell whether it was removed from the store: what is unread can be read still."""
        return all(consumer.buffer.state() & native.IS_CLOSED for consumer in self.buffers.values())

    def has_ended(self) -> bool:
        """Tell whether nothing can come any more."""
        if self.is_closed():
            return True
        # Others may come to buffers of a user, or of all.
        return self.origin.buffers == "perprocess" and not self.is_alive()

    def close_after(self, sleepers: Sleepers) -> None:
        """Unmap it once nobody sleeps on it."""
        for consumer in self.buffers.values():
            sleepers.remove(consumer.buffer)
        self.close()

    def flush(self) -> None:
        """Finish the sub-buffers that are being filled, so that they can be read."""
        for consumer in self.buffers.values():
            try:
                facts = consumer.buffer.facts()
                # A flight recorder would lose its oldest events for a packet without any.
                if facts.offset > facts.reserved_at_start or (facts.records and facts.offset < facts.reserved_at_start):
                    consumer.buffer.flush()
            except OSError as error:
                # Others: it was removed; nobody fills it any more.
                if error.errno == errno.EBADMSG:
                    raise

    def lost(self) -> dict[int, int]:
        """Count the events that each buffer has lost."""
        lost = {}
        for cpu, consumer in self.buffers.items():
            facts = consumer.buffer.facts()
            refused = facts.lost_full_records + facts.lost_too_large_records + facts.lost_disabled_records
            lost[cpu] = refused + facts.lost_overwritten_records + facts.lost_torn_records
        return lost

    def has_new_metadata(self, clocks: Clocks) -> bool:
        """Tell whether metadata() would return something else, or much better, than the last time.

        The frequency of the time stamp counter is known the better, the longer it has been watched. If that is made
        anew each time it has been watched for twice as long, the error stays that of the first time.
        """
        if os.fstat(self._events_fd).st_size != self._n_events_bytes:
            return True
        return self.origin.is_tsc and clocks.mono_ns - self.origin.mono > 2 * self._baseline

    def metadata(self, clocks: Clocks) -> bytes:
        """Return its metadata as of now."""
        size = os.fstat(self._events_fd).st_size
        events = os.pread(self._events_fd, min(size, _EVENTS_MAX), 0)
        self._n_events_bytes = size
        self._baseline = clocks.mono_ns - self.origin.mono
        # The process may have changed what it has once said, which packets need that are recorded.
        self.learn(ctf.declarations(events))
        return ctf.preamble(self.origin, clocks) + b"".join(self._declared)

    def learn(self, declarations: list[bytes]) -> None:
        """Add declarations of events to those that are known, the first of each id."""
        known = {ctf.event_id(one) for one in self._declared}
        self._declared |= dict.fromkeys(one for one in declarations if ctf.event_id(one) not in known)
