"""relayctl check --account: each record that was reserved is somewhere, once."""

import os
from collections.abc import Iterator

import pytest
from checked import (
    RELAY,
    RINGS,
    CheckedStore,
    account_of,
    checked_store,
    drain,
    in_dead_process,
    output,
    reserve,
    write,
)
from mounts import Mount
from traced import relayctl, start_trace, traced

KINDS = [("relay", options) for options in RELAY] + [("ring", options) for options in RINGS]


@pytest.fixture
def store() -> Iterator[CheckedStore]:
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})  # the CPU of mem0
    with checked_store() as made:
        yield made
    os.sched_setaffinity(0, affinity)


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_what_was_written_is_consumed_torn_or_resident(store: CheckedStore, number: int) -> None:
    kind, options = KINDS[number]
    mem = getattr(store, kind)("a", **options)
    put = write if kind == "relay" else output
    zero = dict.fromkeys(("reserved", "committed", "discarded", "torn", "consumed", "overwritten", "resident"), 0)
    assert account_of(store.path, "a") == zero
    put(mem, [10] * 5)
    assert account_of(store.path, "a") == {**zero, "reserved": 5, "committed": 5, "resident": 5}
    in_dead_process(lambda: reserve(mem, "relay_buf" if kind == "relay" else "relay_ring"))
    put(mem, [10] * 5)
    drain(kind, mem)
    assert account_of(store.path, "a") == {**zero, "reserved": 11, "committed": 10, "torn": 1, "consumed": 10}
    put(mem, [100] * 200)
    account = account_of(store.path, "a")
    assert (account["torn"], account["consumed"]) == (1, 10)
    assert account["resident"] > 10
    assert bool(account["overwritten"]) == bool(options["mode"])
    drain(kind, mem)
    assert account_of(store.path, "a")["resident"] == 0


def test_the_account_of_a_process_in_a_trace(mount: Mount) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=4")
    with traced(mount) as program:
        program.ask("emit 20")
        name = f"t/traced-{program.process.pid}"
        account = account_of(mount.store, name)
        assert (account["reserved"], account["resident"]) == (20, 20)
        line = relayctl(mount, "check", "--account", name).stdout.splitlines()[0]
        assert line == (
            f"account  {name}: 20 reserved = 20 committed + 0 discarded + 0 torn; "
            "20 committed = 0 consumed + 0 overwritten + 20 resident"
        )
