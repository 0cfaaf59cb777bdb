"""Sequences of operations on a buffer: those whose outcome on a kernel was observed, and random ones."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from conformance.model import Counters, Geometry

TABLE = Path(__file__).with_name("relay-sequences.jsonl.gz")


class Subject(Protocol):
    """A buffer to operate on: the model, the ring, a file of a mount."""

    @property
    def n_reserved(self) -> int: ...
    def write(self, data: bytes) -> bool: ...
    def reserve(self, data: bytes) -> bool: ...
    def commit(self, number: int) -> None: ...
    def discard(self, number: int) -> None: ...
    def read(self, max_bytes: int) -> bytes: ...
    def flush(self) -> None: ...
    def consumed(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def counters(self) -> Counters: ...


@dataclass(frozen=True)
class Operation:
    """One step."""

    verb: str
    count: int = 0  # bytes to write or to read, sub-buffers consumed, which reservation
    first: int = 0  # of a record: its first byte
    step: int = 0  # and by how much each byte differs from the one before it

    def perform(self, subject: Subject) -> bytes:
        """Do it; return what was read."""
        if self.verb == "read":
            return subject.read(self.count)
        if self.verb in ("commit", "discard"):
            if subject.n_reserved:
                getattr(subject, self.verb)(self.count % subject.n_reserved)
        elif self.verb == "write":
            subject.write(self.data)
        elif self.verb == "reserve":
            subject.reserve(self.data)
        elif self.verb == "res":  # and fill, at once
            if subject.reserve(self.data) and self.count:
                subject.commit(subject.n_reserved - 1)
        else:
            self._manage(subject)
        return b""

    @property
    def data(self) -> bytes:
        """The record."""
        return bytes((self.first + i * self.step) & 0xFF for i in range(self.count))

    def _manage(self, subject: Subject) -> None:
        if self.verb == "flush":
            subject.flush()
        elif self.verb == "consumed":
            subject.consumed(self.count)
        else:
            # It would wait for them, and give up.
            while subject.n_reserved:
                subject.commit(0)
            subject.reset()


@dataclass(frozen=True)
class Outcome:
    """What an operation gave, and the buffer after it."""

    data: bytes
    counters: Counters


@dataclass(frozen=True, eq=False)
class Observed:
    """A sequence of the table.

    outcomes: as the kernel had them; None where a defect of the kernel shows, and from there on
    """

    number: int
    geometry: Geometry
    operations: list[Operation]
    outcomes: list[Outcome | None]
    paddings: list[list[int]]  # by sub-buffer, as the kernel keeps them

    def by(self, geometry: Geometry) -> "Observed":
        """Return the same of a channel that is made in another way."""
        return replace(self, geometry=geometry)


def observed_sequences() -> list[Observed]:
    """Read the table."""
    with gzip.open(TABLE, "rt") as lines:
        entries = [(number, json.loads(line)) for number, line in enumerate(lines)]
    return [_observed(number, entry) for number, entry in entries]


def _observed(number: int, entry: dict[str, Any]) -> Observed:
    geometry = Geometry(entry["S"], entry["n"], bool(entry["overwrite"]), entry["hdr"], callbacks=True)
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
    if words[0] in ("w", "res"):
        return Operation("write" if words[0] == "w" else "res", words[1], words[2] & 0xFF)
    return Operation(*words)


@dataclass(frozen=True)
class Habits:
    """How often what is done, in a random sequence."""

    write: float
    read: float
    flush: float
    reserve: float = 0
    commit: float = 0
    discard: float = 0
    consumed: float = 0.3
    reset: float = 0.03


# Writers that are ahead, readers that are ahead, and both.
HABITS = [Habits(10, 2, 1), Habits(5, 5, 1), Habits(3, 8, 2), Habits(8, 1, 0)]
# Reservations that are soon done with, and such as pile up.
RESERVING = [Habits(4, 4, 0.5, 3, 3, 1), Habits(6, 2, 0.3, 2, 1, 0.5), Habits(2, 3, 0.2, 6, 3, 4)]


def random_sequence(seed: int, n_operations: int, *, callbacks: bool) -> tuple[Geometry, list[Operation]]:
    """Make up operations on a buffer of a geometry that is likely to be hard.

    callbacks: subbuf_start decides, often with a header
    """
    source = random.Random(seed)
    # Sizes around each other and around powers of two, and the smallest.
    subbuf_size = source.choice([1, 1, 2, 3, 7, 64, 97, 100, 200, 255, 256, 257, 1000, 4096, 5000])
    n_subbufs = source.choice([1, 1, 2, 2, 3, 4, 5, 8, 13])
    headers = [header for header in (0, 1, 3, 4, 4, 5, 8, 60, subbuf_size - 1) if header < subbuf_size]
    # All of it, or more; but then there must be room for the padding, if there is a header for it.
    headers += [subbuf_size] if subbuf_size == 3 else [subbuf_size, subbuf_size + 1]
    geometry = Geometry(
        subbuf_size,
        n_subbufs,
        overwrite=source.random() < 0.5,
        header=source.choice(headers) if callbacks else 0,
        callbacks=callbacks,
        visible=source.random() < 0.2,
    )
    habits = source.choice(HABITS if source.random() < 0.5 else RESERVING)
    return geometry, list(_random_operations(source, geometry, habits, n_operations))


def _random_operations(
    source: random.Random, geometry: Geometry, habits: Habits, n_operations: int
) -> Iterator[Operation]:
    size = geometry.subbuf_size
    weights = asdict(habits)
    for verb in source.choices(list(weights), weights=list(weights.values()), k=n_operations):
        if verb in ("write", "reserve"):
            length = source.choice(
                [source.randint(1, size), source.randint(1, -(-size // 4)), size, size + 1, size // 2]
            )
            yield Operation(verb, length, source.randrange(256), source.randrange(256))
        elif verb == "read":
            whole = size * geometry.n_subbufs
            counts = [1, size - 1, size, size + 1, size // 2, source.randint(1, whole), whole, 65536]
            yield Operation("read", max(1, source.choice(counts)))
        elif verb == "consumed":
            yield Operation("consumed", source.randint(0, geometry.n_subbufs + 1))
        else:
            yield Operation(verb, source.randrange(100))
