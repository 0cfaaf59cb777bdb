"""What /metrics tells: programs' counters, and figures of channels and traces, which are read in the store.

The counters below relayfs/channels/ are left out: the families of channels have the same numbers, by label, and also of
channels for which there were no counters left.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from relayfs_fuse.cli import openmetrics
from relayfs_fuse.cli.common import printable
from relayfs_fuse.cli.counters import shown
from relayfs_fuse.cli.objects import LATE, Objects
from relayfs_fuse.cli.openmetrics import Family
from relayfs_fuse.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.cli.figures import Figures
    from relayfs_fuse.native import CounterInfo

# How long channels and traces are read; those whose turn has not come by then are left out, and counted.
READ_S = 5.0
_OF_CHANNELS = "relayfs/channels/"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")

# Labels besides the name, and a value.
Samples: TypeAlias = "Iterator[tuple[dict[str, str], float | None]]"


class _Sort(NamedTuple):
    """A family of all channels, or of all traces; see openmetrics.Family.

    samples: of one of them; a value of None is not known, and is left out
    """

    name: str
    kind: str
    unit: str
    help: str
    samples: Callable[[Figures], Samples]


def _one(field: str) -> Callable[[Figures], Samples]:
    def samples(figures: Figures) -> Samples:
        yield {}, getattr(figures, field)

    return samples


def _size(figures: Figures) -> Samples:
    known = figures.buffers is not None and figures.size is not None
    yield {}, figures.buffers * figures.size if known else None  # type: ignore[operator]  # known


def _lost(figures: Figures) -> Samples:
    for cause, n in figures.lost_by_cause.items():
        if figures.kind == "trace" or cause != "no_buffers":  # a program that has no buffers writes to no channel
            yield {"cause": cause}, n


def _state(figures: Figures) -> Samples:
    # Behind the colon is what is damaged. Other texts say why a channel cannot be opened.
    state = (figures.state or "").partition(":")[0]
    yield {"state": state if state.isalpha() else "unreadable"}, 1


_FULLEST = "Of the fullest buffer, the part that nobody can write to before it is read, 0 to 1"
_UNREAD = "Bytes that wait to be read"
CHANNELS = (
    _Sort("relayfs_channel_records", "counter", "records", "Records written", _one("count")),
    _Sort(
        "relayfs_channel_written_bytes", "counter", "bytes", "Bytes written; of rings, with the headers of records",
        _one("bytes"),
    ),
    _Sort("relayfs_channel_lost_records", "counter", "records", "Records lost, by cause", _lost),
    _Sort("relayfs_channel_unread_bytes", "gauge", "bytes", _UNREAD, _one("unread_bytes")),
    _Sort("relayfs_channel_size_bytes", "gauge", "bytes", "Bytes that all buffers hold", _size),
    _Sort("relayfs_channel_fullest_buffer_ratio", "gauge", "ratio", _FULLEST, _one("fill")),
    _Sort("relayfs_channel_state", "gauge", "", "1: it is in this state", _state),
)  # fmt: skip
# Gauges, because a process's part of them goes with its buffers, as when they are recorded.
TRACES = (
    _Sort("relayfs_trace_present_events", "gauge", "", "Events written by processes that have buffers", _one("count")),
    _Sort(
        "relayfs_trace_present_lost_events", "gauge", "",
        "Events lost, by cause: by processes that have buffers, and, no_buffers, by those that never had any", _lost,
    ),
    _Sort("relayfs_trace_unread_bytes", "gauge", "bytes", _UNREAD, _one("unread_bytes")),
    _Sort("relayfs_trace_fullest_buffer_ratio", "gauge", "ratio", _FULLEST, _one("fill")),
    _Sort("relayfs_trace_processes", "gauge", "", "Running processes that have buffers", _one("writers")),
    _Sort("relayfs_trace_state", "gauge", "", "1: it is in this state", _state),
)  # fmt: skip


class Scrape:
    """What there was at one moment.

    store: the store's directory
    n_streams: how many clients follow a channel or trace

    OSError, RelayError: the store cannot be read
    """

    def __init__(self, store: str, n_streams: int) -> None:
        self._counters = list(_counters(store))
        # Nothing stays mapped until the next time, which may never come: memory of channels that are removed is free.
        with Objects(None, store) as objects:
            all_found = objects.read(time.monotonic() + READ_S)
        found = [one for one in all_found if one.state != LATE]
        n_skipped = len(all_found) - len(found)
        channels = [one for one in found if one.kind != "trace"]
        traces = [one for one in found if one.kind == "trace"]
        self._families = [
            *(_family(sort, "channel", channels) for sort in CHANNELS),
            *(_family(sort, "trace", traces) for sort in TRACES),
            _alone(
                "relayfs_serve_skipped", "Channels and traces that could not be read in time for this answer", n_skipped
            ),
            _alone("relayfs_serve_streams", "Clients that follow a channel or trace", n_streams),
        ]

    def text(self, content_type: str) -> str:
        """Return it in the format of one of the content types."""
        render = openmetrics.render if content_type == OPENMETRICS_TYPE else openmetrics.render_text
        return render(self._counters, self._families)


def choose_type(accept: str) -> str:
    """Return the content type for a request's header Accept: OpenMetrics if it is named, and not wanted less."""
    wanted: dict[str, float] = {}
    for part in accept.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        qualities = [found[1] for word in parameters if (found := _QUALITY.fullmatch(word))]
        if not name.startswith("application/openmetrics-text") or _is_known(parameters):
            wanted[name] = max(wanted.get(name, 0.0), float(qualities[0]) if qualities else 1.0)
    open_wanted = wanted.get("application/openmetrics-text", 0.0)
    text_wanted = wanted.get("text/plain", wanted.get("text/*", wanted.get("*/*", 0.0)))
    return OPENMETRICS_TYPE if open_wanted and open_wanted >= text_wanted else TEXT_TYPE


def _is_known(parameters: list[str]) -> bool:
    versions = [word.removeprefix("version=") for word in parameters if word.startswith("version=")]
    return versions in ([], ["1.0.0"], ["0.0.1"])


def _counters(store: str) -> Iterator[tuple[CounterInfo, int]]:
    try:
        opened = Counters(store)
    except FileNotFoundError:
        return  # nobody has counted
    with opened:
        for name, info in sorted(opened.infos().items()):
            if not name.startswith(_OF_CHANNELS):
                yield shown(info), opened.sum(info.instance)


def _family(sort: _Sort, label: str, found: list[Figures]) -> Family:
    samples = [
        ({label: _as_label(one.name), **labels}, value)
        for one in found
        for labels, value in sort.samples(one)
        if value is not None
    ]
    return Family(sort.name, sort.kind, sort.unit, sort.help, samples)


def _as_label(name: str) -> str:
    """Return a name; of one that is not UTF-8, a text with a blank, which no name has: no two have the same label."""
    shown = printable(name.replace("\\", "\\\\"))
    return name if shown == name.replace("\\", "\\\\") else f"{shown} (not UTF-8)"


def _alone(name: str, text: str, value: int) -> Family:
    return Family(name, "gauge", "", text, [({}, value)])
