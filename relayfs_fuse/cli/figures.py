"""What relayctl list and stat show of a channel, trace or counter: one form for all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

# Why records or events are lost. The last is of traces: programs got no buffers. Forwarders tell `any` of them.
CAUSES = ("full", "too_large", "disabled", "overwritten", "torn", "no_buffers")


@dataclass
class Figures:
    """What is known of a channel, trace or counter, or of a part of one; None: it does not have this, or nobody knows.

    name: PATH of a channel, NAME of a trace or counter; of a part, PATH of the relay file, or NAME/PART
    kind: relay, ring, trace, forwarder, counter or gauge; of a part buffer, process or user
    state: as in .channels/PATH/state, or suspended; started or stopped; alive, dead or damaged
    buffers: how many there are now
    size: bytes of data that each buffer holds
    memory: bytes that the buffers take
    writers: of a trace, how many living processes write to it; who writes to a channel cannot be told from who reads it
    count: records or events that were written, or the counter's value
    bytes: that were written
    unread_bytes: by how much readers are behind
    fill: of the fullest buffer, the part that nobody can write to before it is read, from 0 to 1
    lost_by_cause: lost records or events, by cause; empty: it does not lose any
    rate, byte_rate: of count and bytes, per second; see add_rates()
    parts: buffers of a channel, processes of a trace, and users whose programs got no buffers
    identity: differs from that of an earlier object of the same name
    at: when it was read, in seconds of CLOCK_MONOTONIC
    """

    name: str
    kind: str | None
    state: str | None = None
    buffers: int | None = None
    size: int | None = None
    memory: int | None = None
    writers: int | None = None
    count: int | None = None
    bytes: int | None = None
    unread_bytes: int | None = None
    fill: float | None = None
    lost_by_cause: dict[str, int | None] = field(default_factory=dict)
    rate: float | None = None
    byte_rate: float | None = None
    parts: list[Figures] = field(default_factory=list)
    identity: Hashable = None
    at: float = field(default_factory=time.monotonic)

    @property
    def lost(self) -> int | None:
        """Lost records or events."""
        return total(self.lost_by_cause.values()) if self.lost_by_cause else None

    @property
    def causes(self) -> str:
        """Why records or events were lost, and how many: full:3,torn:1; ?: nobody knows how many."""
        return ",".join(f"{cause}:{'?' if n is None else n}" for cause, n in self.lost_by_cause.items() if n != 0)

    def add_up(self, parts: Sequence[Figures]) -> None:
        """Set the figures that are sums over buffers or processes, and the largest `fill`."""
        self.memory = total(part.memory for part in parts)
        self.count = total(part.count for part in parts)
        self.bytes = total(part.bytes for part in parts)
        self.unread_bytes = total(part.unread_bytes for part in parts)
        self.fill = max((part.fill for part in parts if part.fill is not None), default=None)
        self.lost_by_cause = {cause: total(part.lost_by_cause.get(cause) for part in parts) for cause in CAUSES}

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "buffers": self.buffers,
            "size": self.size,
            "memory": self.memory,
            "writers": self.writers,
            "count": self.count,
            "bytes": self.bytes,
            "rate": self.rate,
            "byte_rate": self.byte_rate,
            "unread_bytes": self.unread_bytes,
            "fill": self.fill,
            "lost": self.lost,
            "lost_by_cause": {cause: self.lost_by_cause.get(cause) for cause in CAUSES},
        }


def total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the numbers is not known."""
    known = list(numbers)
    return None if None in known else sum(cast("list[int]", known))


def add_rates(now: Sequence[Figures], before: Sequence[Figures], since: float) -> None:
    """Set the rates, from the figures of an earlier time.

    since: when reading `before` began. What is not in it was made later, and so was all that was written to it.
    """
    then = {(one.kind, one.name, one.identity): one for one in before}
    # What could not be read then was not necessarily made since.
    unread = {one.name for one in before if one.count is None}
    for one in now:
        earlier = then.get((one.kind, one.name, one.identity))
        if earlier is None and one.kind not in ("counter", "gauge") and one.name not in unread:
            earlier = Figures(one.name, one.kind, count=0, bytes=0, at=since)
        if earlier is None:
            continue
        # Processes whose memory is damaged have no figures.
        parts = [part for part in one.parts if part.count is not None]
        if parts:
            add_rates(parts, earlier.parts, since)
            one.rate = _sum(part.rate for part in parts)
            one.byte_rate = _sum(part.byte_rate for part in parts)
        else:
            seconds = one.at - earlier.at
            one.rate = _rate(one.count, earlier.count, seconds, one.kind)
            one.byte_rate = _rate(one.bytes, earlier.bytes, seconds, one.kind)


def _rate(now: int | None, before: int | None, seconds: float, kind: str | None) -> float | None:
    """Return the change per second; None: unknown, also after the counts of a channel were reset."""
    if now is None or before is None or (now < before and kind != "gauge"):
        return None
    return (now - before) / seconds


def _sum(rates: Iterable[float | None]) -> float | None:
    known = list(rates)
    return None if None in known else sum(cast("list[float]", known))
