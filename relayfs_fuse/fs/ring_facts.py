"""The files of .channels/PATH/ for rings, as facts.py has them for relay channels.

producer_position, consumer_position   bytes, as the kernel counts them: headers and fill included
records                                ever reserved
read_records, read_bytes               given to readers
unread_bytes                           between the positions
skipped                                records that readers passed: discarded, or torn
lost                                   all records that were not or will not be read, and by cause:
lost_full, lost_too_large, lost_disabled, each also as _bytes; lost_overwritten, lost_torn
wakeups                                of those who slept for a record

What is counted by consumers is `unknown` where one has consumed that knows only the kernel's format, such as libbpf's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayfs_fuse import native, native_ring
from relayfs_fuse.fs import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native_ring import RingFacts

_REFUSED = ("full", "too_large", "disabled")

COUNTERS: dict[str, Callable[[RingFacts], int]] = {
    "producer_position": lambda facts: facts.producer_position,
    "consumer_position": lambda facts: facts.consumer_position,
    "records": lambda facts: facts.records,
    "read_records": lambda facts: facts.read_records,
    "read_bytes": lambda facts: facts.read_bytes,
    "unread_bytes": lambda facts: facts.unread_bytes,
    "skipped": lambda facts: facts.skipped_records,
    "wakeups": lambda facts: facts.wakeups,
    "file_bytes": lambda facts: facts.file_bytes,
    "lost": lambda facts: (
        sum(getattr(facts, f"lost_{cause}_records") for cause in _REFUSED)
        + facts.lost_overwritten_records
        + facts.torn_records
    ),
    "lost_overwritten": lambda facts: facts.lost_overwritten_records,
    "lost_torn": lambda facts: facts.torn_records,
}
for _cause in _REFUSED:
    COUNTERS[f"lost_{_cause}"] = lambda facts, name=f"lost_{_cause}_records": int(getattr(facts, name))  # type: ignore[misc]
    COUNTERS[f"lost_{_cause}_bytes"] = lambda facts, name=f"lost_{_cause}_bytes": int(getattr(facts, name))  # type: ignore[misc]

_LATEST: dict[str, Callable[[RingFacts], int]] = {"disabled": lambda facts: facts.disabled}

_CONSTANTS: dict[str, Callable[[RingFacts], int | str]] = {
    "type": lambda _: "ring",
    "ring_size": lambda facts: facts.ring_size,
    "n_buffers": lambda facts: facts.n_rings,
    "mode": lambda facts: native_ring.MODES[facts.mode],
    "buffers": lambda facts: native.BUFFERS[facts.buffers],
    "scheme": lambda facts: native_ring.SCHEMES[facts.scheme],
    "read": lambda facts: native.READS[facts.read],
    "framing": lambda facts: native_ring.FRAMINGS[facts.framing],
}

_OF_CONSUMERS = ("read_records", "read_bytes", "skipped")
# In mode overwrite it is not known either whether what was overwritten had been read.
_OF_CONSUMERS_THAT_MISS = (*_OF_CONSUMERS, "lost", "lost_overwritten")


def _is_unknown(name: str, facts: RingFacts) -> bool:
    names = _OF_CONSUMERS_THAT_MISS if facts.mode == native.MODE_OVERWRITE else _OF_CONSUMERS
    return facts.foreign_bytes > 0 and name in names


def _or_unknown_of_channel(name: str, show: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda channel: (
        b"unknown\n" if any(_is_unknown(name, stored.facts()) for stored in channel.buffers) else show(channel)
    )


def _or_unknown_of_buffer(name: str, show: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda stored: b"unknown\n" if _is_unknown(name, stored.facts()) else show(stored)


OF_CHANNEL = facts.of_channel(_CONSTANTS, COUNTERS, _LATEST)
OF_BUFFER = facts.of_buffer({**COUNTERS, **_LATEST})
for _name in _OF_CONSUMERS_THAT_MISS:
    OF_CHANNEL[_name] = _or_unknown_of_channel(_name, OF_CHANNEL[_name])
    OF_BUFFER[_name] = _or_unknown_of_buffer(_name, OF_BUFFER[_name])
