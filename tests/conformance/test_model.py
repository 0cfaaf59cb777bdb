"""The model against what a kernel was observed to do, then the ring and a mount against the model."""

import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from build import MEMORY, builds
from conformance.model import KERNEL, RELAYFS, Geometry, Model, Rules
from conformance.relay_file import ProducedFile, RelayFile
from conformance.ring import SCHEMES, Ring, ring
from conformance.sequences import Observed, Operation, Outcome, observed_sequences, random_sequence
from mounts import Mount

LONG = os.environ.get("RELAYFS_STRESS") == "long"
# Of all sequences together: 100,000 in every run of the tests.
N_OPERATIONS = 1_000_000 if LONG else 92_000
N_OPERATIONS_MOUNTED = 60_000 if LONG else 6_000
# Scheme locking is the lock around what lockless does, which is enough to try sanitized.
VARIANTS = [(scheme, kind) for scheme in SCHEMES for kind in builds() if (scheme, kind) != ("locking", MEMORY)]
# Short: each is another geometry.
SEQUENCE_LENGTH = 200
DRAIN = Operation("read", 1 << 20)
SHORT_SUBBUF_SIZE = 64
SHORT_LENGTH = 5 if LONG else 4
WHOLE = Operation("write", SHORT_SUBBUF_SIZE, ord("a"))
SHORT_OPERATIONS = [
    WHOLE,
    Operation("write", SHORT_SUBBUF_SIZE - 7, ord("b")),
    Operation("flush"),
    Operation("consumed", 1),
    Operation("read", SHORT_SUBBUF_SIZE),
    Operation("read", 1),
]


def matches_the_table(observed: Observed, rules: Rules) -> bool:
    # The rules alone tell the two apart; callbacks change one of them.
    model = Model(replace(observed.geometry, callbacks=False), rules=rules)
    for operation, outcome in zip(observed.operations, observed.outcomes, strict=True):
        got = Outcome(operation.perform(model), model.counters())
        if outcome is not None and got != outcome:
            return False
    return True


def check_model(observed: Observed) -> None:
    """The model has done it so, up to the first defect of the kernel."""
    model = Model(observed.geometry, rules=KERNEL)
    for at, (operation, outcome) in enumerate(zip(observed.operations, observed.outcomes, strict=True)):
        got = Outcome(operation.perform(model), model.counters())
        if outcome is None:
            return
        where = f"sequence {observed.number}", at, operation
        assert got == outcome, where
        for number in model.finished():
            padding = observed.paddings[at][number % model.n_subbufs]
            assert padding == model.subbuf_size - len(model.subbufs[number].data), (*where, number)


def test_the_model_does_what_the_kernel_was_observed_to_do() -> None:
    for observed in observed_sequences():
        check_model(observed)


@pytest.mark.parametrize("rule", ["count_full_switches", "consumed_keeps_offset", "consumed_counts_overwritten"])
def test_each_rule_is_needed_to_tell_the_kernel_apart(rule: str) -> None:
    without = replace(KERNEL, **{rule: getattr(RELAYFS, rule)})
    assert not all(matches_the_table(observed, without) for observed in observed_sequences())


def seeds(n_operations: int) -> Iterator[int]:
    """Yield a seed for each sequence; RELAYFS_SEED gives the one that failed."""
    given = os.environ.get("RELAYFS_SEED")
    if given is not None:
        yield int(given)
        return
    for _ in range(n_operations // SEQUENCE_LENGTH):
        yield random.SystemRandom().randrange(1 << 32)


@contextmanager
def explained(seed: int, geometry: Geometry, done: list[Operation]) -> Iterator[None]:
    """Tell how to see a failure again."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"RELAYFS_SEED={seed}: {geometry}, the last of {len(done)} operations:")
        for operation in done[-10:]:
            error.add_note(str(operation))
        raise


def check_sequence(
    seed: int, geometry: Geometry, operations: list[Operation], subject: Ring | RelayFile | ProducedFile
) -> None:
    """Perform a sequence on the subject and on the model."""
    model = Model(geometry)
    done: list[Operation] = []
    with explained(seed, geometry, done):
        for operation in (*operations, DRAIN):
            done.append(operation)
            assert operation.perform(subject) == operation.perform(model)
            assert subject.counters() == model.counters()
            assert subject.unseen() == model.unseen()


@pytest.mark.stress
@pytest.mark.parametrize(("scheme", "sanitize"), VARIANTS)
@pytest.mark.parametrize("callbacks", [False, True], ids=["default", "callbacks"])
def test_the_ring_does_what_the_model_does(scheme: str, callbacks: bool, sanitize: str, scratch_store: Path) -> None:
    scratch_store.mkdir()
    with ring(scheme, sanitize, scratch_store) as subject:
        for seed in seeds(N_OPERATIONS // 10):
            geometry, operations = random_sequence(seed, SEQUENCE_LENGTH, callbacks=callbacks)
            subject.make(geometry)
            check_sequence(seed, geometry, operations, subject)


@pytest.mark.parametrize("n_subbufs", [1, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_short_sequence_on_a_full_buffer_ends_as_the_models(
    scheme: str, n_subbufs: int, scratch_store: Path
) -> None:
    geometry = Geometry(SHORT_SUBBUF_SIZE, n_subbufs, overwrite=False)
    scratch_store.mkdir()
    with ring(scheme, "", scratch_store) as subject:
        subject.make(geometry)
        for sequence in product(SHORT_OPERATIONS, repeat=SHORT_LENGTH):
            model = Model(geometry)
            done: list[Operation] = []
            for operation in (Operation("reset"), *[WHOLE] * (n_subbufs + 1), *sequence, DRAIN):
                done.append(operation)
                assert operation.perform(subject) == operation.perform(model), done
                assert subject.counters() == model.counters(), done


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reset_waits_for_open_reservations_and_gives_up(scheme: str, scratch_store: Path) -> None:
    scratch_store.mkdir()
    with ring(scheme, "", scratch_store) as subject:
        subject.make(Geometry(100, 4, overwrite=False))
        subject.write(b"unread")
        subject.reserve(b"open")
        assert not subject.reset()
        assert subject.read(100) == b"unread", "nothing has happened"
        subject.commit(0)
        assert subject.reset()
        assert subject.read(100) == b""


@pytest.mark.stress
@pytest.mark.parametrize("scheme", SCHEMES)
def test_relay_files_do_what_the_model_does(scheme: str, one_mount: Mount) -> None:
    for seed in seeds(N_OPERATIONS_MOUNTED // 4):
        geometry, operations = random_sequence(seed, SEQUENCE_LENGTH, callbacks=False)
        with closing(RelayFile(one_mount, "random/cpu", geometry, scheme)) as relay_file:
            check_sequence(seed, replace(geometry, visible=True), operations, relay_file)


@pytest.mark.stress
@pytest.mark.parametrize("scheme", SCHEMES)
def test_relay_files_of_a_producer_do_what_the_model_does(scheme: str, one_mount: Mount, scratch_store: Path) -> None:
    scratch_store.mkdir()
    with ring(scheme, "", scratch_store) as producer:
        for seed in seeds(N_OPERATIONS_MOUNTED // 4):
            geometry, operations = random_sequence(seed, SEQUENCE_LENGTH, callbacks=True)
            with closing(ProducedFile(one_mount, "produced/cpu", geometry, producer)) as relay_file:
                check_sequence(seed, geometry, operations, relay_file)
