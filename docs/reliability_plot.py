"""Draw docs/pictures/reliability.svg from the samples in docs/pictures/reliability.csv.

RELAYFS_SOAK=$PWD/docs/pictures/reliability.csv ./dev stress tests/fuse/handover/test_soak.py    takes samples
python3 docs/reliability_plot.py                                                                draws them
"""

from __future__ import annotations

import csv
from math import log
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).resolve().parent / "pictures"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP = 830, 100, 60, 160, 30, 42
COLOURS = ("#1f6fb2", "#c2571a")
STYLE = "text{font:12px sans-serif;fill:#333}.t{font-weight:bold}.n{text-anchor:end}.x{text-anchor:middle}"

Samples = dict[str, list[float]]


class Panel(NamedTuple):
    """A diagram of one or two columns.

    title: what it shows, with the unit
    lines: column and label of each line
    factor: of the numbers
    low: where the scale begins, which is logarithmic then; 0: a linear one
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    factor: float = 1.0
    low: float = 0.0

    def part(self, value: float, most: float) -> float:
        """Return how far up a number is, from 0 to 1."""
        value *= self.factor
        return log(max(value, self.low) / self.low) / log(most / self.low) if self.low else value / most


PANELS = (
    Panel(
        "Memory of the processes, MB", (("server_anon_kb", "server"), ("supervisor_anon_kb", "supervisor")), 1 / 1024
    ),
    Panel("Open descriptors", (("server_descriptors", "server"), ("supervisor_descriptors", "supervisor"))),
    Panel("Memory of the store and of the notes, MB", (("store_kb", "store"), ("notes_kb", "notes")), 1 / 1024),
    Panel("stat(2) of control, ms", (("stat_us", "shortest of many"), ("stat_median_us", "median")), 1e-3, low=0.1),
    Panel("stat(2) of control, as a multiple of that of an idle mount", (("stat_ratio", "shortest of many"),), low=1),
    Panel("Longest wait for an answer, ms", (("pause_ms", "between two samples"),), low=10),
)


def read(path: Path) -> Samples:
    """Return the columns."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def deaths(samples: Samples) -> list[tuple[float, float]]:
    """Return the times between two samples in which servers died, joined."""
    found: list[tuple[float, float]] = []
    times, died = samples["at_s"], samples["n_died"]
    for i in range(1, len(times)):
        if died[i] > died[i - 1]:
            joins = bool(found) and found[-1][1] == times[i - 1]
            found[-1:] = [(found[-1][0], times[i])] if joins else [*found[-1:], (times[i - 1], times[i])]
    return found


def draw_panel(panel: Panel, samples: Samples, top: float) -> list[str]:
    """Return the elements of a panel."""
    times, end = samples["at_s"], samples["at_s"][-1]
    most = max(max(samples[column]) for column, _ in panel.lines) * panel.factor or 1.0
    wide, bottom = WIDTH - LEFT - RIGHT, top + HEIGHT
    drawn = [f'<text class="t" x="{LEFT}" y="{top - 8}">{panel.title}</text>']
    for begin, until in deaths(samples):
        x, length = LEFT + wide * begin / end, wide * (until - begin) / end
        drawn.append(f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{HEIGHT}" fill="#f3e9e2"/>')
    most = max(most, 10 * panel.low)
    for value, y in ((most, top), (panel.low, bottom)):
        drawn.append(f'<path d="M{LEFT} {y}h{wide}" stroke="#ccc"/>')
        text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        drawn.append(f'<text class="n" x="{LEFT - 6}" y="{y + 4}">{text}</text>')
    for i, (column, label) in enumerate(panel.lines):
        points = " ".join(
            f"{LEFT + wide * time / end:.1f},{bottom - HEIGHT * panel.part(value, most):.1f}"
            for time, value in zip(times, samples[column], strict=True)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.5"/>')
        y = top + 16 + 18 * i
        drawn.append(f'<path d="M{WIDTH - RIGHT + 10} {y - 4}h14" stroke="{COLOURS[i]}" stroke-width="2"/>')
        drawn.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y}">{label}</text>')
    return drawn


def draw(samples: Samples) -> str:
    """Return the picture."""
    height = TOP + len(PANELS) * (HEIGHT + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    drawn = [head, f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for i, panel in enumerate(PANELS):
        drawn += draw_panel(panel, samples, TOP + i * (HEIGHT + GAP))
    wide, end = WIDTH - LEFT - RIGHT, samples["at_s"][-1]
    unit, name = (60, "min") if end >= 180 else (1, "s")
    drawn += [
        f'<text class="x" x="{LEFT + wide * part / 3:.0f}" y="{height - 22}">{end * part / 3 / unit:.0f} {name}</text>'
        for part in range(4)
    ]
    return "\n".join([*drawn, "</svg>", ""])


if __name__ == "__main__":
    (PICTURES / "reliability.svg").write_text(draw(read(PICTURES / "reliability.csv")))
