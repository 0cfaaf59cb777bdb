"""Draw docs/pictures/benchmarks.svg from what bench peers has found, docs/pictures/benchmarks.csv.

./dev bench peers 15 $PWD/docs/pictures/benchmarks.csv    takes samples
python3 docs/benchmarks_plot.py                          draws them
"""

from __future__ import annotations

import csv
import math
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).resolve().parent / "pictures"
WIDTH, LEFT, RIGHT, BAR, TOP, GAP = 830, 230, 170, 20, 30, 50
OURS, OTHERS = "#1f6fb2", "#b9a28f"
STYLE = "text{font:12px sans-serif;fill:#333}.t{font-weight:bold}.n{text-anchor:end}.x{text-anchor:middle}"

# What the CSV has, by its name there without the length, and how it is called here; True: it is ours.
FLOWS = {
    "spins": ("relayfs channel, reader spins", True),
    "sleeps": ("relayfs channel, reader sleeps", True),
    "ring-spins": ("relayfs ring, reader spins", True),
    "ring-sleeps": ("relayfs ring, reader sleeps", True),
    "percpu-spins": ("relayfs channel, a buffer per CPU", True),
    "percpu-ring-spins": ("relayfs ring, one per CPU", True),
    "bare": ("bare shared memory, both spin", False),
    "boost-spsc": ("Boost spsc_queue, both spin", False),
    "boost-queue": ("Boost message_queue", False),
    "zeromq": ("ZeroMQ, ipc", False),
    "pipe": ("pipe of 1 MiB", False),
    "fifo": ("FIFO of 1 MiB", False),
    "stream": ("unix stream socket", False),
    "datagram": ("unix datagram socket", False),
    "mq": ("POSIX message queue", False),
    "file": ("file on tmpfs, appended to", False),
    "bpf-ring": ("BPF ring of the kernel, libbpf", False),
}
COSTS = {
    "event-relayfs": ("event, relayfs", True),
    "event-lttng": ("event, LTTng-UST", False),
    "logging-relay": ("logging, RelayHandler", True),
    "logging-file": ("logging, FileHandler on tmpfs", False),
    "logging-syslog": ("logging, SysLogHandler", False),
    "lines-relayctl": ("line of relayctl write", True),
    "lines-logger": ("line of logger(1)", False),
}

Row = dict[str, str]


class Panel(NamedTuple):
    """A diagram with a bar for each row that the CSV has, on a logarithmic scale.

    suffix: what follows the names in the CSV
    column: of the CSV
    is_sorted: the largest one is above; otherwise in the order of the names
    """

    title: str
    names: dict[str, tuple[str, bool]]
    suffix: str
    column: str
    is_sorted: bool


PANELS = (
    Panel("From one process to another, records of 64 bytes: MB/s", FLOWS, "-64", "most", is_sorted=True),
    Panel("From one process to another, records of 4096 bytes: MB/s", FLOWS, "-4096", "most", is_sorted=True),
    Panel("What it costs the program: ns", COSTS, "", "median", is_sorted=False),
)


def read(path: Path) -> dict[str, Row]:
    """Return the rows by their names."""
    with path.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def rows_of(panel: Panel, found: dict[str, Row]) -> list[tuple[str, bool, Row]]:
    """Return label, whether it is ours, and row of each bar."""
    rows = [
        (label, is_ours, found[name + panel.suffix])
        for name, (label, is_ours) in panel.names.items()
        if name + panel.suffix in found
    ]
    return sorted(rows, key=lambda row: -float(row[2][panel.column])) if panel.is_sorted else rows


def note_of(value: float, row: Row) -> str:
    """Say what stands behind a bar: the value, what was lost, and the time of a cache line."""
    lost, records = int(row["lost"]), int(row["records"])
    share = f", {100 * lost / (lost + records):.0f} % lost" if lost else ""
    line = f" (line {row['line_ns']} ns)" if row["line_ns"] else ""
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number}{share}{line}"


def draw_panel(panel: Panel, found: dict[str, Row], top: float) -> tuple[list[str], float]:
    """Return the elements of a panel, and where it ends."""
    rows = rows_of(panel, found)
    values = [float(row[panel.column]) for _, _, row in rows]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    wide, bottom = WIDTH - LEFT - RIGHT, top + BAR * len(rows)
    drawn = [f'<text class="t" x="{LEFT}" y="{top - 8}">{panel.title}</text>']
    for decade in range(low, high + 1):
        x = LEFT + wide * (decade - low) / (high - low)
        drawn.append(f'<path d="M{x:.1f} {top}V{bottom}" stroke="#ccc"/>')
        drawn.append(f'<text class="x" x="{x:.1f}" y="{bottom + 14}">{10**decade:,}</text>')
    for i, (label, is_ours, row) in enumerate(rows):
        length = wide * (math.log10(values[i]) - low) / (high - low)
        y = top + BAR * i
        drawn.append(f'<text class="n" x="{LEFT - 6}" y="{y + 14}">{escape(label)}</text>')
        colour = OURS if is_ours else OTHERS
        drawn.append(f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{BAR - 6}" fill="{colour}"/>')
        drawn.append(f'<text x="{LEFT + length + 5:.1f}" y="{y + 14}">{note_of(values[i], row)}</text>')
    return drawn, bottom


def draw(found: dict[str, Row]) -> str:
    """Return the picture."""
    parts: list[str] = []
    bottom = 0.0
    for panel in PANELS:
        drawn, bottom = draw_panel(panel, found, bottom + (GAP if parts else TOP))
        parts += drawn
    height = bottom + 46
    machine = escape(next(iter(found.values()))["machine"])
    parts.append(f'<text x="{LEFT}" y="{height - 10}">{machine}; logarithmic scales</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    background = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", background, *parts, "</svg>", ""])


if __name__ == "__main__":
    (PICTURES / "benchmarks.svg").write_text(draw(read(PICTURES / "benchmarks.csv")))
