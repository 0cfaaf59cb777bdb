"""relay-observed.txt: what was seen of a kernel, by section and label."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("relay-observed.txt")

# Section and label of each line that a test answers for.
COVERED: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Observation:
    """One line: what was done, and what came of it. A state that was looked at once more has no label."""

    section: str
    label: str
    result: str


def observations() -> list[Observation]:
    """Read the table, whose results stand in a column of their own."""
    found = []
    section, column = "", 63
    for line in TABLE.read_text().splitlines():
        if line.startswith("## "):
            section = line.split()[1].rstrip(".")
            column = 59 if section.isdigit() else 63
        elif line and not line.startswith("#"):
            found.append(Observation(section, line[:column].strip(), line[column:].strip()))
    return found


def section(name: str) -> list[Observation]:
    """Return the lines of one section, in order."""
    return [observation for observation in observations() if observation.section == name]


def observed(section: str, *labels: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say which lines a test answers for."""
    COVERED.update((section, label) for label in labels)
    return lambda test: test
