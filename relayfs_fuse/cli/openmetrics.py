r"""Counters as OpenMetrics text, which Prometheus reads.

    # TYPE disk_sda_write_io_requests counter
    # UNIT disk_sda_write_io_requests requests
    # HELP disk_sda_write_io_requests Finished writes
    disk_sda_write_io_requests_total{name="disk/sda/write_io"} 17
    # EOF

A family's name is that of the counter with what is not allowed replaced by `_`, and ends with the unit. Counters whose
names become the same share a family, and the label `name` tells them apart.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from relayfs_fuse.native import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayfs_fuse.native import CounterInfo


def render(found: Iterable[tuple[CounterInfo, int]]) -> str:
    """Write counters and their values."""
    families: dict[str, list[tuple[CounterInfo, int]]] = {}
    for info, value in found:
        families.setdefault(_family(info, families), []).append((info, value))
    return "".join(_render_family(*family) for family in sorted(families.items())) + "# EOF\n"


def _family(info: CounterInfo, families: dict[str, list[tuple[CounterInfo, int]]]) -> str:
    unit = _clean(info.unit)
    name = _clean(info.name).removesuffix("_total")
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    # A family is of one kind and unit, and counters bring a name with `_total` along.
    while any(not _alike(info, other) for other, _ in families.get(name, [])[:1]):
        name = f"{KINDS[info.kind]}_{name}"
    return name


def _alike(one: CounterInfo, other: CounterInfo) -> bool:
    return (one.kind, _clean(one.unit)) == (other.kind, _clean(other.unit))


def _clean(text: str) -> str:
    cleaned = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{cleaned}" if cleaned[:1].isdigit() else cleaned


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _render_family(name: str, found: list[tuple[CounterInfo, int]]) -> str:
    first = found[0][0]
    lines = [f"# TYPE {name} {KINDS[first.kind]}"]
    if first.unit:
        lines.append(f"# UNIT {name} {_clean(first.unit)}")
    if first.help:
        lines.append(f"# HELP {name} {_escape(first.help)}")
    for info, value in found:
        # Counters wrap around as 64-bit numbers, and are never negative.
        sample = (f"{name}_total", value % (1 << 64)) if info.kind == 0 else (name, value)
        lines.append(f'{sample[0]}{{name="{_escape(info.name)}"}} {sample[1]}')
    return "".join(f"{line}\n" for line in lines)
