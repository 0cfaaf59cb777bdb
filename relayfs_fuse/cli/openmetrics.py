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
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from relayfs_fuse.native import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayfs_fuse.native import CounterInfo

    Families = dict[str, list[tuple[CounterInfo, int]]]

_OF_COUNTERS = ("_total", "_created")


def render(found: Iterable[tuple[CounterInfo, int]]) -> str:
    """Write counters and their values as OpenMetrics."""
    return "".join(_render_openmetrics(*family) for family in _families(found)) + "# EOF\n"


def render_text(found: Iterable[tuple[CounterInfo, int]]) -> str:
    """Write counters and their values in the text format 0.0.4."""
    return "".join(_render_text(*family) for family in _families(found))


def _families(found: Iterable[tuple[CounterInfo, int]]) -> list[tuple[str, list[tuple[CounterInfo, int]]]]:
    families: Families = {}
    for info, value in found:
        families.setdefault(_family(info, families), []).append((info, value))
    return sorted(families.items())


def _family(info: CounterInfo, families: Families) -> str:
    name = _clean(info.name)
    while name.endswith("_total"):
        name = name.removesuffix("_total")
    unit = _unit(info)
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    if not name or name.endswith("_created"):
        name = f"{name}_{KINDS[info.kind]}"
    # A family is of one kind and unit.
    while any(not _alike(info, other) for other, _ in families.get(name, [])[:1]):
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


def _samples(name: str, found: list[tuple[CounterInfo, int]]) -> str:
    # Counters wrap around as 64-bit numbers, and are never negative.
    values = ((info, value % (1 << 64) if info.kind == 0 else value) for info, value in found)
    return "".join(f'{name}{{name="{_escape(info.name)}"}} {value}\n' for info, value in values)


def _sample_name(name: str, info: CounterInfo) -> str:
    return f"{name}_total" if info.kind == 0 else name


def _render_openmetrics(name: str, found: list[tuple[CounterInfo, int]]) -> str:
    first = found[0][0]
    unit = f"# UNIT {name} {_unit(first)}\n" if _unit(first) else ""
    text = f"# HELP {name} {_escape(first.help)}\n" if first.help else ""
    return f"# TYPE {name} {KINDS[first.kind]}\n{unit}{text}{_samples(_sample_name(name, first), found)}"


def _render_text(family: str, found: list[tuple[CounterInfo, int]]) -> str:
    first = found[0][0]
    name = _sample_name(family, first)
    text = f"# HELP {name} {_escape_help(first.help)}\n" if first.help else ""
    return f"{text}# TYPE {name} {KINDS[first.kind]}\n{_samples(name, found)}"
