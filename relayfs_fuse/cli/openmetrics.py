r"""Counters as text for Prometheus, in one of two formats.

OpenMetrics 1.0, for servers that scrape:

    # TYPE disk_sda_write_io_requests counter
    # UNIT disk_sda_write_io_requests requests
    # HELP disk_sda_write_io_requests Finished writes
    disk_sda_write_io_requests_total{name="disk/sda/write_io"} 17
    # EOF

Prometheus's own text format 0.0.4, for collectors of text files. In this format a counter's family must have the name
of its samples, otherwise it counts as untyped; there are neither units nor an end mark:

    # HELP disk_sda_write_io_requests_total Finished writes
    # TYPE disk_sda_write_io_requests_total counter
    disk_sda_write_io_requests_total{name="disk/sda/write_io"} 17

A family's name is the counter's, with characters that are not allowed replaced by `_`, and ends with the unit. Counters
whose names become equal share a family, and the label `name` distinguishes them. No family's name ends with `_total` or
`_created`, because a counter family `x` also uses the names `x_total` and `x_created`.

Families that are not made of counters, as those of relayctl serve, have other labels, and keep their names: a counter
whose family would have the same name gets another one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relayfs_fuse.native import CounterInfo

_OF_COUNTERS = ("_total", "_created")


class Family(NamedTuple):
    """Samples of one kind and unit.

    name: without _total
    kind: counter or gauge
    unit: "": none; otherwise the name ends with it
    samples: the labels and the value of each
    """

    name: str
    kind: str
    unit: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def render(found: Iterable[tuple[CounterInfo, int]], others: Sequence[Family] = ()) -> str:
    """Write counters and their values, and other families, as OpenMetrics."""
    return "".join(map(_render_openmetrics, _all_families(found, others))) + "# EOF\n"


def render_text(found: Iterable[tuple[CounterInfo, int]], others: Sequence[Family] = ()) -> str:
    """Write counters and their values, and other families, in the text format 0.0.4."""
    return "".join(map(_render_text, _all_families(found, others)))


def _all_families(found: Iterable[tuple[CounterInfo, int]], others: Sequence[Family]) -> list[Family]:
    by_name: dict[str, list[tuple[CounterInfo, int]]] = {}
    taken = {family.name for family in others}
    for info, value in found:
        by_name.setdefault(_name(info, by_name, taken), []).append((info, value))
    return sorted([*others, *(_family(name, counters) for name, counters in by_name.items())])


def _family(name: str, counters: list[tuple[CounterInfo, int]]) -> Family:
    first = counters[0][0]
    # Counters wrap around as 64-bit numbers, and are never negative.
    values = ((info, value % (1 << 64) if info.kind == 0 else value) for info, value in counters)
    return Family(name, KINDS[first.kind], _unit(first), first.help, [({"name": info.name}, n) for info, n in values])


def _name(info: CounterInfo, families: Mapping[str, list[tuple[CounterInfo, int]]], taken: set[str]) -> str:
    name = _clean(info.name)
    while name.endswith("_total"):
        name = name.removesuffix("_total")
    unit = _unit(info)
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    if not name or name.endswith("_created"):
        name = f"{name}_{KINDS[info.kind]}"
    # A family is of one kind and unit.
    while name in taken or any(not _alike(info, other) for other, _ in families.get(name, [])[:1]):
        name = f"{KINDS[info.kind]}_{name}"
    return name


def _unit(info: CounterInfo) -> str:
    """Return the unit as a part of names; "" also for one that ends names as those of samples end."""
    unit = _clean(info.unit)
    return "" if f"_{unit}".endswith(_OF_COUNTERS) else unit


def _alike(one: CounterInfo, other: CounterInfo) -> bool:
    return (one.kind, _unit(one)) == (other.kind, _unit(other))


def _clean(text: str) -> str:
    cleaned = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{cleaned}" if cleaned[:1].isdigit() else cleaned


def _escape(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _escape_help(text: str) -> str:
    """Escape what the text format 0.0.4 has escaped in help: a quotation mark makes it refuse the whole file."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _samples(name: str, family: Family) -> str:
    return "".join(f"{name}{_labels(labels)} {value}\n" for labels, value in family.samples)


def _labels(labels: Mapping[str, str]) -> str:
    written = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{written}}}" if written else ""


def _sample_name(family: Family) -> str:
    return f"{family.name}_total" if family.kind == "counter" else family.name


def _render_openmetrics(family: Family) -> str:
    unit = f"# UNIT {family.name} {family.unit}\n" if family.unit else ""
    text = f"# HELP {family.name} {_escape(family.help)}\n" if family.help else ""
    return f"# TYPE {family.name} {family.kind}\n{unit}{text}{_samples(_sample_name(family), family)}"


def _render_text(family: Family) -> str:
    name = _sample_name(family)
    text = f"# HELP {name} {_escape_help(family.help)}\n" if family.help else ""
    return f"{text}# TYPE {name} {family.kind}\n{_samples(name, family)}"
