"""Sequences of operations on a buffer: those whose outcome on a kernel was observed, and random ones."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conformance.model import Counters, Geometry

TABLE = Path(__file__).with_name("relay-sequences.jsonl.gz")


class Subject(Protocol):
    """A buffer to operate on: the model, the ring, a file of a mount."""

    def write(self, data: bytes) -> bool: ...
    def read(self, max_bytes: int) -> bytes: ...
    def flush(self) -> None: ...
    def consumed(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def counters(self) -> Counters: ...


@dataclass(frozen=True)
class Operation:
    """One step."""

    verb: str
    count: int = 0  # bytes to write or to read, sub-buffers consumed
    first: int = 0  # of a record: its first byte
    step: int = 0  # and by how much each byte differs from the one before it

    def perform(self, subject: Subject) -> bytes:
        """Do it; return what was read."""
        if self.verb == "write":
            subject.write(bytes((self.first + i * self.step) & 0xFF for i in range(self.count)))
        elif self.verb == "read":
            return subject.read(self.count)
        elif self.verb == "consumed":
            subject.consumed(self.count)
        else:
            getattr(subject, self.verb)()
        return b""


@dataclass(frozen=True)
class Outcome:
    """What an operation gave, and the buffer after it."""

    data: bytes
    counters: Counters


@dataclass(frozen=True)
class Observed:
    """A sequence of the table.

    outcomes: as the kernel had them; None where a defect of the kernel shows, and from there on
    """

    number: int
    geometry: Geometry
    operations: list[Operation]
    outcomes: list[Outcome | None]
    paddings: list[list[int]]  # by sub-buffer, as the kernel keeps them


def observed_sequences() -> list[Observed]:
    """Read the table."""
    with gzip.open(TABLE, "rt") as lines:
        entries = [(number, json.loads(line)) for number, line in enumerate(lines)]
    return [_observed(number, entry) for number, entry in entries]


def _observed(number: int, entry: dict[str, Any]) -> Observed:
    geometry = Geometry(entry["S"], entry["n"], bool(entry["overwrite"]), entry["hdr"], entry["hdr"] > 0)
    first_defect = entry["quirk_first_op"]
    operations = []
    outcomes: list[Outcome | None] = []
    size_at_reset = 0  # the kernel's st_size goes on growing
    for at, (words, result, state) in enumerate(entry["ops"]):
        fields = dict(zip(entry["fields"].split(","), state, strict=True))
        if words[0] == "reset":
            size_at_reset = fields["st_size"]
        counters = Counters(
            produced=fields["prod"],
            consumed=fields["cons"],
            lost_full=fields["full"],
            lost_too_large=fields["big"],
            padding=fields["prod"] * geometry.subbuf_size - (fields["st_size"] - size_at_reset),
            poll=fields["poll"],
        )
        data = bytes.fromhex(result) if words[0] == "read" else b""
        operations.append(_operation(words))
        outcomes.append(Outcome(data, counters) if first_defect is None or at < first_defect else None)
    return Observed(number, geometry, operations, outcomes, [state[7] for _, _, state in entry["ops"]])


def _operation(words: list[Any]) -> Operation:
    if words[0] in ("w", "res"):  # a reservation that is filled at once is a write
        return Operation("write", words[1], words[2] & 0xFF)
    return Operation(*words)


def random_sequence(seed: int, n_operations: int) -> tuple[Geometry, list[Operation]]:
    """Make up operations on a buffer of a geometry that is likely to be hard."""
    source = random.Random(seed)
    # Sizes around each other and around powers of two, and the smallest.
    subbuf_size = source.choice([1, 1, 2, 3, 7, 64, 97, 100, 200, 255, 256, 257, 1000, 4096, 5000])
    geometry = Geometry(subbuf_size, source.choice([1, 1, 2, 2, 3, 4, 5, 8, 13]), source.random() < 0.5)
    # Writers that are ahead, readers that are ahead, and both.
    weights = source.choice([(10, 2, 1), (5, 5, 1), (3, 8, 2), (8, 1, 0)])
    return geometry, list(_random_operations(source, geometry, weights, n_operations))


def _random_operations(
    source: random.Random, geometry: Geometry, weights: tuple[int, int, int], n_operations: int
) -> Iterator[Operation]:
    size = geometry.subbuf_size
    verbs = ("write", "read", "flush", "consumed", "reset")
    for verb in source.choices(verbs, weights=(*weights, 0.3, 0.03), k=n_operations):
        if verb == "write":
            length = source.choice(
                [source.randint(1, size), source.randint(1, -(-size // 4)), size, size + 1, size // 2]
            )
            yield Operation("write", length, source.randrange(256), source.randrange(256))
        elif verb == "read":
            whole = size * geometry.n_subbufs
            counts = [1, size - 1, size, size + 1, size // 2, source.randint(1, whole), whole, 65536]
            yield Operation("read", max(1, source.choice(counts)))
        elif verb == "consumed":
            yield Operation("consumed", source.randint(0, geometry.n_subbufs + 1))
        else:
            yield Operation(verb)
