"""What a kernel was observed to do, done to the ring and to files of a mount.

Where no rule tells the two apart, the expected value is the kernel's own, from the table. Where one does (model.Rules),
and from the first defect of the kernel on, it is what relayfs does by its rules.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from build import MEMORY, builds
from conformance.model import KERNEL, RELAYFS, Counters, Model, Unseen
from conformance.relay_file import ProducedFile, RelayFile
from conformance.ring import SCHEMES, Ring, ring
from conformance.sequences import Observed, Outcome, observed_sequences
from mounts import Mount

LONG = os.environ.get("RELAYFS_STRESS") == "long"
# Scheme locking is the lock around what lockless does, which is enough to try sanitized.
VARIANTS = [(scheme, build) for scheme in SCHEMES for build in builds() if (scheme, build) != ("locking", MEMORY)]
OBSERVED = observed_sequences()
# The kernel's channels all had a subbuf_start. Where it reserved nothing, those without do the same.
WITHOUT_CALLBACKS = [seen.by(replace(seen.geometry, callbacks=False)) for seen in OBSERVED if not seen.geometry.header]
VISIBLE = [seen.by(replace(seen.geometry, visible=True)) for seen in OBSERVED]
SEQUENCES = {"callbacks": OBSERVED, "default": WITHOUT_CALLBACKS, "visible": VISIBLE}


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def the_ring(request: pytest.FixtureRequest, shm: Path) -> Iterator[Ring]:
    scheme, sanitize = request.param
    with ring(scheme, sanitize, shm) as subject:
        yield subject


@functools.cache
def expected(observed: Observed) -> list[tuple[Outcome, Unseen, int]]:
    """Return for each operation what it must give, what readers have lost after it, and the bytes ever written."""
    steps = []
    ours = Model(observed.geometry, rules=RELAYFS)
    kernel = Model(observed.geometry, rules=KERNEL)
    for operation, outcome in zip(observed.operations, observed.outcomes, strict=True):
        by_rules = Outcome(operation.perform(ours), ours.counters())
        of_kernel = Outcome(operation.perform(kernel), kernel.counters())
        steps.append((as_observed(outcome, by_rules, of_kernel), ours.unseen(), ours.n_bytes))
    return steps


def as_observed(outcome: Outcome | None, by_rules: Outcome, of_kernel: Outcome) -> Outcome:
    """Put in what was observed, field by field, where both models agree."""
    if outcome is None:
        return by_rules
    same = [
        field.name
        for field in fields(Counters)
        if getattr(by_rules.counters, field.name) == getattr(of_kernel.counters, field.name)
    ]
    counters = replace(by_rules.counters, **{name: getattr(outcome.counters, name) for name in same})
    return Outcome(outcome.data if by_rules.data == of_kernel.data else by_rules.data, counters)


# Many sequences are one test: each takes a few milliseconds, as pytest does for a test.
@pytest.mark.parametrize("kind", SEQUENCES)
def test_the_ring_does_as_observed(kind: str, the_ring: Ring) -> None:
    for observed in SEQUENCES[kind]:
        the_ring.make(observed.geometry)
        for at, (outcome, unseen, _) in enumerate(expected(observed)):
            data = observed.operations[at].perform(the_ring)
            assert (data, the_ring.counters(), the_ring.unseen()) == (
                outcome.data, outcome.counters, unseen
            ), (f"sequence {observed.number}", at, observed.operations[at])  # fmt: skip


def shared_out(sequences: list[Observed], scheme: str) -> list[Observed]:
    """Return every third: the ring does each in all schemes, and a mount shows all of them alike. Long: all."""
    return sequences if LONG else sequences[SCHEMES.index(scheme) :: len(SCHEMES)]


def follow(observed: Observed, file: RelayFile | ProducedFile) -> None:
    for at, (outcome, unseen, size) in enumerate(expected(observed)):
        data = observed.operations[at].perform(file)
        assert (data, file.counters(), file.unseen(), file.size()) == (
            outcome.data, outcome.counters, unseen, size
        ), (f"sequence {observed.number}", at, observed.operations[at])  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize("scheme", SCHEMES)
def test_relay_files_do_as_observed(scheme: str, one_mount: Mount) -> None:
    for observed in shared_out(WITHOUT_CALLBACKS, scheme):
        with closing(RelayFile(one_mount, f"{scheme}/cpu", observed.geometry, scheme)) as relay_file:
            follow(observed, relay_file)


@pytest.mark.stress
def test_relay_files_of_a_producer_with_callbacks_do_as_observed(producer: Ring, one_mount: Mount) -> None:
    for observed in shared_out(OBSERVED, producer.scheme):
        with closing(ProducedFile(one_mount, "produced/cpu", observed.geometry, producer)) as relay_file:
            follow(observed, relay_file)


def test_most_of_the_table_is_expected_as_it_stands() -> None:
    steps = [
        (outcome.counters, wanted.counters, outcome.data == wanted.data)
        for observed in OBSERVED
        for outcome, (wanted, _, _) in zip(observed.outcomes, expected(observed), strict=True)
        if outcome is not None
    ]
    # The kernel's count of losses is of another kind, and nearly always another number in overwrite mode.
    as_it_stands = [same and replace(want, lost_full=seen.lost_full) == seen for seen, want, same in steps]
    assert len(steps) > 4000
    assert sum(as_it_stands) > 0.9 * len(steps)
