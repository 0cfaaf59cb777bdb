"""A process that evaluates triggers goes on exactly where the one before has ended."""

import os
import re
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from itertools import count, takewhile
from pathlib import Path

import pytest
from mounts import wait_until
from tracing import Program, Store

from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import Trace
from relayfs_fuse.reading.source import Source
from relayfs_fuse.tracefiles import trigger_files
from relayfs_fuse.tracefiles.trigger_files import JOURNAL, STATE, Definition, Journal, read_state, write_definitions
from relayfs_fuse.triggers import watch
from relayfs_fuse.triggers.actions import Actions
from relayfs_fuse.triggers.watch import DELAY_NS, Watch

# Several times what one look at a buffer copies.
N_EVENTS = 20_000
# Each of so many triggers fires at each event, if the one before is older than 1 ms.
N_TRIGGERS = 20
MS = 1_000_000


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


def killed_at(n: int, act: Callable[[], object]) -> bool:
    """Do something in a child that is killed at call n of those that change a file; return whether it was killed."""
    child = os.fork()
    if not child:
        left = iter(range(n))

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def killed_or_called(*arguments: object) -> object:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)

            return killed_or_called

        try:
            for name in ("write", "ftruncate", "rename"):
                setattr(os, name, counted(getattr(os, name)))
            act()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or not status
    return os.WIFSIGNALED(status)


def write_and_wait(app: Program, source: Source, n: int) -> None:
    """Have each trigger fire n times, as soon as the events are evaluated."""
    for _ in range(n):
        assert app.write(1) == 0
        written = source.now()
        wait_until(lambda: source.now() > written + MS, "the next event is later by a millisecond")  # noqa: B023
    wait_until(lambda: source.now() > written + DELAY_NS, "the events are old enough")


def numbers_in(journal: Path) -> dict[str, list[int]]:
    """The numbers of the firings that the journal has, by trigger."""
    found = defaultdict(list)
    for line in journal.read_text().splitlines():
        match = re.match(r"\[[^]]+\] (\S+) (\d+): ", line)
        assert match, line
        found[match[1]].append(int(match[2]))
    return found


def test_whenever_a_process_is_killed_that_shortens_the_journal_each_line_is_there_once(store, tmp_path, monkeypatch):
    trace = store.create("t", clock=CLOCKS["mono"].number)
    directory = Path(store.path) / "t"
    journal = directory / JOURNAL
    with Program(store, trace, "app") as app, closing(Source("t", str(store.path))) as source:
        now = source.now()
        write_definitions(str(directory), [
            Definition(now + n, f"trigger add a{n} on t test:* do notify limit=1ms", {}) for n in range(N_TRIGGERS)
        ])  # fmt: skip
        write_and_wait(app, source, 20)
        evaluate(store, trace, 2)
        whole = journal.stat().st_size
        monkeypatch.setattr(trigger_files, "JOURNAL_MAX", whole)
        monkeypatch.setattr(trigger_files, "JOURNAL_KEPT", whole // 2)
        write_and_wait(app, source, 1)
        for name in (JOURNAL, STATE):
            shutil.copy(directory / name, tmp_path / name)
        for n in count():
            for name in (JOURNAL, STATE):
                shutil.copy(tmp_path / name, directory / name)
            was_killed = killed_at(n, lambda: evaluate(store, trace, 2))
            assert journal.stat().st_size > whole // 3
            evaluate(store, trace, 2)
            found = numbers_in(journal)
            assert len(found) == N_TRIGGERS
            assert all(them == list(range(them[0], 22)) for them in found.values())
            if not was_killed:
                break
        assert whole // 3 < journal.stat().st_size < whole
    assert n > 3


def test_a_process_that_waits_for_a_journal_which_is_shortened_meanwhile_gets_the_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(trigger_files, "JOURNAL_MAX", 100)
    monkeypatch.setattr(trigger_files, "JOURNAL_KEPT", 50)
    lines = [b"line %04d\n" % n for n in range(20)]
    with closing(Journal(str(tmp_path))) as journal:
        journal.append(b"".join(lines))
        child = os.fork()
        if not child:
            try:
                journal.close()  # otherwise the child has the lock, too
                Journal(str(tmp_path)).append(b"last\n")
                os._exit(0)
            finally:
                os._exit(1)
        locks = Path("/proc/locks")
        wait_until(lambda: re.search(rf"-> FLOCK .* {child} ", locks.read_text()), "the child waits for the lock")
        assert journal.shorten()
        assert not journal.shorten()
    assert os.waitpid(child, 0) == (child, 0)
    assert (tmp_path / JOURNAL).read_bytes() == b"".join([*lines[-4:], b"last\n"])
