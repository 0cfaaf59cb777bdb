"""The files of .channels/PATH/: one fact each, as a number or a word and a newline.

.channels/PATH/NAME           what holds for the channel, and sums over its buffers
.channels/PATH/bufferN/NAME   the counters of one buffer

    produced, consumed          sub-buffers
    records, bytes              ever written; read_records, read_bytes: ever read; unread_bytes: what is left
    padding                     unused bytes of finished sub-buffers
    lost, lost_bytes            all records that were not or will not be read, and by cause:
    lost_full, lost_too_large, lost_disabled, lost_overwritten, lost_torn, each also as _bytes
    discarded, discarded_bytes  reservations that their producer took back
    offset                      bytes used of the current sub-buffer (of a buffer only)
    switch_time_ns              when a sub-buffer was last finished, in nanoseconds since 1970
    state                       ok, disabled, closed, or `damaged: memN: ` and what is wrong (of a channel only)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from relayfs_fuse import native

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from relayfs_fuse.fs.store import StoredChannel

# File names, and what makes the text of a channel's or a buffer's.
Shown: TypeAlias = "dict[str, Callable[[Any], bytes]]"

_CAUSES = ("full", "too_large", "disabled", "overwritten", "torn")

# Each of one buffer; a channel's is the sum.
COUNTERS: dict[str, Callable[[native.Facts], int]] = {
    "produced": lambda facts: facts.produced,
    "consumed": lambda facts: facts.consumed,
    "records": lambda facts: facts.records,
    "bytes": lambda facts: facts.bytes,
    "padding": lambda facts: facts.padding,
    "read_records": lambda facts: facts.read_records,
    "read_bytes": lambda facts: facts.read_bytes,
    "unread_bytes": lambda facts: facts.unread_bytes,
    "discarded": lambda facts: facts.discarded_records,
    "discarded_bytes": lambda facts: facts.discarded_bytes,
    "reads": lambda facts: facts.reads,
    "wakeups": lambda facts: facts.wakeups,
    "file_bytes": lambda facts: facts.file_bytes,
    "lost": lambda facts: sum(getattr(facts, f"lost_{cause}_records") for cause in _CAUSES),
    "lost_bytes": lambda facts: sum(getattr(facts, f"lost_{cause}_bytes") for cause in _CAUSES),
}
for _cause in _CAUSES:
    COUNTERS[f"lost_{_cause}"] = lambda facts, name=f"lost_{_cause}_records": int(getattr(facts, name))  # type: ignore[misc]
    COUNTERS[f"lost_{_cause}_bytes"] = lambda facts, name=f"lost_{_cause}_bytes": int(getattr(facts, name))  # type: ignore[misc]

# Those whose sum over buffers would say nothing.
_LATEST: dict[str, Callable[[native.Facts], int]] = {
    "disabled": lambda facts: facts.disabled,
    "suspended": lambda facts: facts.suspended,
    "switch_time_ns": lambda facts: facts.switch_time_ns,
}

# The same for all buffers and for ever.
_CONSTANTS: dict[str, Callable[[native.Facts], int | str]] = {
    "type": lambda _: "relay",
    "subbuf_size": lambda facts: facts.subbuf_size,
    "n_subbufs": lambda facts: facts.n_subbufs,
    "n_buffers": lambda facts: facts.n_buffers,
    "mode": lambda facts: native.MODES[facts.mode],
    "buffers": lambda facts: native.BUFFERS[facts.buffers],
    "scheme": lambda facts: native.SCHEMES[facts.scheme],
    "delivery": lambda facts: native.DELIVERIES[facts.delivery],
    "read": lambda facts: native.READS[facts.read],
    "reserve": lambda facts: native.RESERVES[facts.reserve],
    "start_reserve": lambda facts: facts.start_reserve,
    "end_reserve": lambda facts: facts.end_reserve,
    "channel_start_reserve": lambda facts: facts.channel_start_reserve,
    "timestamp": lambda facts: native.TIMESTAMPS[facts.timestamp],
    "flush_interval": lambda facts: facts.flush_interval_ms,
}


def _line(value: int | str) -> bytes:
    return f"{value}\n".encode()


def _over_buffers(
    combine: Callable[[Sequence[int]], int], count: Callable[[Any], int]
) -> Callable[[StoredChannel], bytes]:
    return lambda channel: _line(combine([count(stored.facts()) for stored in channel.buffers]))


def _constant(show: Callable[[Any], int | str]) -> Callable[[StoredChannel], bytes]:
    return lambda channel: _line(show(channel.facts))


def _of_buffer(count: Callable[[Any], int]) -> Callable[[Any], bytes]:
    return lambda stored: _line(count(stored.facts()))


def of_channel(
    constants: Mapping[str, Callable[[Any], int | str]],
    counters: Mapping[str, Callable[[Any], int]],
    latest: Mapping[str, Callable[[Any], int]],
) -> Shown:
    """Make what is shown of a channel: what always holds, sums over its buffers, the largest of its buffers'."""
    return {
        "state": lambda channel: _line(channel.state()),
        **{name: _constant(show) for name, show in constants.items()},
        **{name: _over_buffers(sum, count) for name, count in counters.items()},
        **{name: _over_buffers(max, count) for name, count in latest.items()},
    }


def of_buffer(counts: Mapping[str, Callable[[Any], int]]) -> Shown:
    """Make what is shown of one buffer."""
    return {name: _of_buffer(count) for name, count in counts.items()}


OF_CHANNEL = of_channel(_CONSTANTS, COUNTERS, _LATEST)
OF_BUFFER = of_buffer({**COUNTERS, **_LATEST, "offset": lambda facts: facts.offset})
