"""A process that evaluates triggers goes on exactly where the one before has ended."""

from contextlib import closing
from itertools import count, takewhile

import pytest
from mounts import wait_until
from tracing import Program, Store

from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import Trace
from relayfs_fuse.reading.source import Source
from relayfs_fuse.tracefiles.trigger_files import Definition, read_state, write_definitions
from relayfs_fuse.triggers import watch
from relayfs_fuse.triggers.actions import Actions
from relayfs_fuse.triggers.watch import DELAY_NS, Watch

# Several times what one look at a buffer copies.
N_EVENTS = 20_000


def evaluate(store: Store, trace: Trace, n_looks: int) -> dict:
    """Go on with a trace's triggers, for so many looks at its buffers; return the state after that."""

    def actions(source: Source) -> Actions:
        return Actions(trace.name, trace.id, str(store.path), str(store.path), runs_programs=False)

    with Watch(str(store.path), trace.name, trace.id, actions, print) as evaluated:
        evaluated.define()
        for _ in range(n_looks):
            evaluated.look()
    return read_state(str(store.path / trace.name))


@pytest.mark.parametrize("clock", ["mono", "tsc"])
def test_each_event_is_counted_once_by_processes_that_end_before_they_have_read_all(store, clock, monkeypatch):
    monkeypatch.setattr(watch, "ROUND_NS", 0)  # a round is one look at the buffers
    trace = store.create("t", clock=CLOCKS[clock].number, subbuf_size=256 << 10, n_subbufs=8)
    with Program(store, trace, "app") as app, closing(Source("t", str(store.path))) as source:
        definition = Definition(source.now(), "trigger add all on t test:* do notify limit=1h", {})
        write_definitions(str(store.path / "t"), [definition])
        assert app.write(N_EVENTS) == 0
        written = source.now()
        wait_until(lambda: source.now() > written + DELAY_NS, "the events are old enough")
        states = [evaluate(store, trace, 1)]
        for n_looks in takewhile(lambda _: states[-1]["reached"] <= written, count(1)):
            states.append(evaluate(store, trace, n_looks))
    counted = [state["triggers"][str(definition.since)][0] for state in states]
    assert counted == sorted(counted)
    assert counted[-1] == N_EVENTS
    # Else all of them had read what there was.
    assert len({n for n in counted if 0 < n < N_EVENTS}) > 1
