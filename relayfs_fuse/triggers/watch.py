"""The triggers of one trace: evaluating them, and noting what they have done.

A round looks at the buffers and evaluates the events that are DELAY_NS old, in the order of their times; it does so
again until there are no more, or ROUND_NS have passed. It writes what has fired to the journal. Then it writes the
state, as a whole, which says how far events are evaluated, how long the journal is, and which actions are not carried
out yet; and only then these actions begin. So whenever this process is killed, the next one finds a state from which
it can go on: no event is evaluated twice, and none is left out but those that are written meanwhile and were older
than DELAY_NS by then.

The state has the time up to which all events are evaluated ("reached"); the time of the last one, and how many were of
this time ("latest"), because more of them may follow; and the clocks by which times are converted ("clocks").
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.commands.condition import compile_conditions
from relayfs_fuse.fs.commands.trigger_control import parse
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER
from relayfs_fuse.native.trace import N_TRACES, Clocks
from relayfs_fuse.native.triggers import Kind, Spec, Triggers, TriggerState
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source
from relayfs_fuse.tracefiles.trigger_files import Journal, read_definitions, read_state, write_state
from relayfs_fuse.triggers.actions import Action, due_of
from relayfs_fuse.triggers.polls import Polls

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.trigger_control import TriggerCommand
    from relayfs_fuse.triggers.actions import Actions

# As `relayctl view --delay`: how old an event is when it is evaluated.
DELAY_NS = 200_000_000
# The longest time whose events are evaluated at once, if this process has much to catch up with.
STEP_NS = 1_000_000_000
# How long a round goes on before it writes the state, if there is more.
ROUND_NS = 10_000_000
# The most lines that wait because the store has no room for them. Further ones are lost; the log says how many.
LINES_MAX = 10_000
_NS = 1_000_000_000


class Watch(Closing):
    """The triggers of a trace; RelayError: there is no such trace.

    make_actions: makes what carries out the triggers' actions
    say: called with a line for the log
    source: the trace
    commands: the triggers, by the time when each was added
    has_news: whether the journal has grown; the caller sets it back
    is_over: whether the trace was removed
    """

    def __init__(
        self, store: str, name: str, number: int, make_actions: Callable[[Source], Actions], say: Callable[[str], None]
    ) -> None:
        self.commands: dict[int, TriggerCommand] = {}
        self.has_news = self.is_over = False
        self._say = say
        self._lines = b""
        self._has_said_full = False
        self._n_lost = 0
        self._pending: dict[tuple[int, int], Action] = {}
        self._new: list[Action] = []
        self._states: dict[int, TriggerState] = {}
        self._triggers: Triggers | None = None
        self._live: Live | None = None
        with ExitStack() as stack:
            self.source = stack.enter_context(closing(Source(name, store, number)))
            self._journal = stack.enter_context(closing(Journal(self.source.directory)))
            self._state = read_state(self.source.directory)
            self._journal.cut(int(self._state.get("journal", 0)))
            self._reached = int(self._state.get("reached", 0))
            self._clocks: list[int] = self._state.get("clocks", [])
            self._latest: list[int] = self._state.get("latest", [0, 0])
            self._polls = stack.enter_context(closing(Polls(self.source, store, self._state)))
            self._actions = stack.enter_context(closing(make_actions(self.source)))
            self._written = self._state
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of everything; the state stays."""
        if self._triggers is not None:
            self._triggers.close()
        if self._live is not None:
            self._live.close()
        self._stack.close()

    def define(self) -> None:
        """Read the triggers again; OSError, RelayError."""
        definitions = read_definitions(self.source.directory)
        found = {one.since: parse(one.line) for one in definitions}
        commands = {since: command for since, command in found.items() if command is not None}
        if commands == self.commands:
            return
        self._take_states()
        is_first = not self.commands
        self.commands = commands
        self._pending = {key: action for key, action in self._pending.items() if key[0] in commands}
        if not commands:
            self._commit()
            return
        if is_first:
            self._restore()
            self._begin()
        assert self._live is not None
        if self._triggers is not None:
            self._triggers.close()
        self._triggers = Triggers(self._live.merged, [self._spec(since) for since in commands])
        self._polls.define(commands, {name: inode for one in definitions for name, inode in one.living.items()})
        self._commit()

    def _begin(self) -> None:
        """Begin to follow the trace's processes."""
        self._reached = max(self._reached, min(self.commands) - 1)
        # By other clocks, times of a clock whose frequency is measured would differ from those of the process before.
        clocks = Clocks(*self._clocks) if self._clocks else None
        wanted = Wanted(since=self._reached + 1, share=N_TRACES, clocks=clocks)
        self._live = Live(self.source, wanted, self._say, consumes=False)
        self._clocks = list(self._live.conversion)
        if self._latest[0] > self._reached:
            self._live.merged.skip(*self._latest)

    def _spec(self, since: int) -> Spec:
        command = self.commands[since]
        has_events = command.kind in (Kind.EVENT, Kind.RATE, Kind.QUIET)
        return Spec(
            command.name,
            command.does == "notify",
            command.kind,
            command.glob if has_events else None,
            compile_conditions([command.condition]) if command.condition else b"",
            since,
            command.number if command.kind == Kind.RATE else 0,
            command.quiet,
            command.limit,
            self._states.get(since, TriggerState(last=since)),
        )

    # --- rounds ---

    def look(self) -> bool:
        """Evaluate what was written; return whether there is more. OSError, RelayError, MemoryError."""
        if self._live is None or self._triggers is None:
            return False
        end = time.monotonic_ns() + ROUND_NS
        while (is_behind := self._evaluate(self._live, self._triggers)) and time.monotonic_ns() < end:
            pass
        stats = self._live.merged.stats()
        self._latest = [stats.time, stats.n_at_time]
        self._triggers.reach(self._reached)
        self._take_firings()
        self._polls.poll(self._live, self._fire)
        self._take_done()
        self._commit()
        self.is_over = not self._live.tick()
        return is_behind

    def _evaluate(self, live: Live, triggers: Triggers) -> bool:
        """Look at the buffers, and evaluate what may be evaluated then; return whether there is more."""
        looked = live.look()
        merged = live.merged
        limit = (self.source.now() if looked == EVER else looked) - DELAY_NS
        is_behind = limit > self._reached + STEP_NS
        limit = min(limit, self._reached + STEP_NS)
        merged.limit(limit)
        is_all = False
        while not is_all:
            is_all = triggers.gather()
            self._take_firings()
        self._reached = max(self._reached, min(limit, merged.reached))
        return is_behind or merged.is_behind_limit

    def _fire(self, since: int, text: str, ago_ns: int) -> None:
        """Fire a trigger that does not wait for events, for what has happened so long ago."""
        assert self._triggers is not None
        time_ns = max(since, self.source.now() - ago_ns)
        self._triggers.fire(list(self.commands).index(since), time_ns, text)
        self._take_firings()

    def _take_firings(self) -> None:
        assert self._triggers is not None
        ids = list(self.commands)
        lines, firings = self._triggers.take()
        self._lines += lines
        for firing in firings:
            since = ids[firing.trigger]
            command = self.commands[since]
            action = Action(due_of(command, firing.time), since, firing.number, firing.time, command)
            self._pending[since, firing.number] = action
            self._new.append(action)

    def _take_done(self) -> None:
        self._actions.reap()
        while self._actions.done:
            action, text = self._actions.done.popleft()
            self._pending.pop((action.since, action.number), None)
            if text:
                self._add_line(action, text)

    def _add_line(self, action: Action, text: str) -> None:
        line = f"[{stamp(time.time_ns())}] {action.command.name} {action.number}: {text}\n"
        self._lines += line.encode(errors="replace")

    # --- the state ---

    def _take_states(self) -> None:
        if self._triggers is not None:
            self._states = dict(zip(self.commands, self._triggers.states(), strict=True))

    def _restore(self) -> None:
        """Take over the state of the process before."""
        for since, numbers in self._state.get("triggers", {}).items():
            self._states[int(since)] = TriggerState(*numbers)
        for since, number, moment in self._state.get("pending", []):
            command = self.commands.get(since)
            if command is None:
                continue
            action = Action(due_of(command, moment), since, number, moment, command)
            if action.is_repeatable:
                self._pending[since, number] = action
                self._new.append(action)
            else:
                what = f"{command.does}: whether it was done is not known, because the server was ended"
                self._add_line(action, what)

    def _commit(self) -> None:
        """Write lines and state, and let the new actions begin."""
        self._take_states()
        has_lines = bool(self._lines)
        try:
            if has_lines:
                self._journal.append(self._lines)
                self._lines = b""
                self.has_news = True
            self._write_state()
            if has_lines and self._journal.shorten():
                self._write_state()
            self._end_full()
        except FileNotFoundError:
            pass  # the trace is being removed
        except OSError as error:
            self._keep_lines(error)
        for action in self._new:
            self._actions.put(action)
        self._new.clear()

    def _write_state(self) -> None:
        """Write the state if it says something new; that no trigger had an event meanwhile is written once a second."""
        state: dict[str, Any] = {
            "reached": self._reached,
            "latest": self._latest,
            "clocks": self._clocks,
            "journal": self._journal.size,
            "triggers": {str(since): list(self._states[since]) for since in self.commands if since in self._states},
            "pending": [[one.since, one.number, one.time] for one in self._pending.values()],
            **self._polls.state(),
        }
        is_recent = self._reached - int(self._written.get("reached", 0)) < _NS
        place: dict[str, Any] = {"reached": 0, "latest": []}
        if not is_recent or state | place != self._written | place:
            write_state(self.source.directory, state)
            self._written = state

    def _keep_lines(self, error: OSError) -> None:
        """Keep the lines until the store has room for them, unless they are too many."""
        if not self._has_said_full:
            self._say(f"trace {self.source.name}: what triggers have done cannot be written: {error.strerror}")
        self._has_said_full = True
        *_, more = self._lines.split(b"\n", LINES_MAX)
        self._n_lost += more.count(b"\n")
        self._lines = self._lines[: len(self._lines) - len(more)]

    def _end_full(self) -> None:
        """Say how many lines are lost, now that the store has room again."""
        if self._n_lost:
            self._say(f"trace {self.source.name}: {self._n_lost} lines of what triggers have done are lost")
        self._has_said_full, self._n_lost = False, 0


def stamp(time_ns: int) -> str:
    """Return a local time with its date, as in the lines of events."""
    second = datetime.fromtimestamp(time_ns // _NS).astimezone()
    return f"{second:%Y-%m-%d %H:%M:%S}.{time_ns % _NS:09}"
