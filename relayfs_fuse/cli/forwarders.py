"""What a `relayctl forward` tells of itself: counters of the mount, and how they are shown.

forward/NAME@HOST:PORT/messages   counter: sent
                       bytes      counter: of files, sent
                       lost       counter: events or records that were lost, as what was sent says
                       behind     gauge: bytes that can be sent and are not sent yet
                       waited     gauge: seconds since the oldest of these was seen
                       updated    gauge: when these were set, in seconds since 1970

NAME is that of the source at the receivers, without the time that a spool adds, and HOST:PORT the server. Whoever
starts again adds to the counters.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.cli.figures import Figures
from relayfs_fuse.cli.names import FORWARDERS
from relayfs_fuse.cli.spans import format_age
from relayfs_fuse.counters import Counters
from relayfs_fuse.native.library import Closing
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from relayfs_fuse.counters import Counter

_SPECS = {
    "messages": ("counter", "messages", "Messages sent"),
    "bytes": ("counter", "bytes", "Bytes of files sent"),
    "lost": ("counter", "events", "Events or records that were lost, as what was sent says"),
    "behind": ("gauge", "bytes", "Bytes that can be sent and are not sent yet"),
    "waited": ("gauge", "seconds", "How long the oldest of these has waited"),
    "updated": ("gauge", "seconds", "When this was told last, since 1970"),
}
_INTERVAL_S = 1.0
# Who has told nothing for so long does not run any more, or cannot.
_SILENT_S = 10


class Told(NamedTuple):
    """What is told, in the order of the counters.

    messages, bytes, lost: since this forwarder has started
    behind: bytes
    waited: whole seconds
    updated: seconds since 1970
    """

    messages: int = 0
    bytes: int = 0
    lost: int = 0
    behind: int = 0
    waited: int = 0
    updated: int = 0


class ForwarderCounters(Closing):
    """The counters of one forwarder; where there are none, nothing is told.

    place: the mount or store; None: there is none
    name: NAME@HOST:PORT
    say: called with a line if they cannot be used
    """

    def __init__(self, place: str | None, name: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._name = f"{FORWARDERS}{name}"
        self._opened: Counters | None = None
        self._counters: list[Counter] = []
        self._before = Told()
        self._due_s = 0.0
        if place is not None:
            try:
                with suppress(FileNotFoundError):
                    self._open(place)
            except OSError as error:
                self._give_up(error)

    def _open(self, place: str) -> None:
        self._opened = opened = Counters(place)
        self._counters = [
            opened.add(f"{self._name}/{one}", kind=kind, unit=unit, help=text)
            for one, (kind, unit, text) in _SPECS.items()
        ]

    def close(self) -> None:
        """Close them."""
        self._counters = []
        if self._opened:
            self._opened.close()
            self._opened = None

    def tell(self, get: Callable[[], Told], *, is_last: bool = False) -> None:
        """Set the counters, at most once a second.

        get: returns what is told
        is_last: do it in any case
        """
        if not self._counters or (time.monotonic() < self._due_s and not is_last):
            return
        self._due_s = time.monotonic() + _INTERVAL_S
        now = get()._replace(updated=int(time.time()))
        try:
            self._set(now)
        except OSError as error:
            self._give_up(error)

    def _set(self, now: Told) -> None:
        assert self._opened
        for one, before, value, counter in zip(_SPECS, self._before, now, self._counters, strict=True):
            # A forwarder that was killed has left its gauges.
            is_gauge = _SPECS[one][0] == "gauge"
            counter.adjust(value - (self._opened.sum(counter.number) if is_gauge else before))
        self._before = now

    def _give_up(self, error: OSError) -> None:
        self._say(f"counters {self._name}: {reason(error)}; they do not tell how far this is")
        self.close()


def forwarders_in(values: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return by name what forwarders tell in counters.

    values: of all counters, by name
    """
    names = {name.rpartition("/")[0] for name in values if name.startswith(FORWARDERS)}
    found = {name: {one: values.get(f"{name}/{one}") for one in _SPECS} for name in sorted(names)}
    return {name: told for name, told in found.items() if None not in told.values()}  # type: ignore[misc]  # checked


def figures_of(forwarders: Mapping[str, Mapping[str, int]], numbers: Mapping[str, int]) -> Iterator[Figures]:
    """Yield what stat shows of forwarders.

    numbers: of counters, by name
    """
    for name, told in forwarders.items():
        silent_s = time.time() - told["updated"]
        silent = f"silent for {format_age(silent_s)}" if told["updated"] else "has told nothing yet"
        state = silent if silent_s > _SILENT_S else "sends"
        if state == "sends" and told["behind"]:
            state = f"behind by {format_age(told['waited'])}"
        yield Figures(
            name, "forwarder", state, count=told["messages"], bytes=told["bytes"], unread_bytes=told["behind"],
            lost_by_cause={"any": told["lost"]}, identity=numbers[f"{name}/messages"],
        )  # fmt: skip
