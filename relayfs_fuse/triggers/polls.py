"""What triggers wait for besides events: full buffers, counters, ends of processes, crash cards, some losses.

These are looked at every POLL_S. A trigger fires when what it waits for begins: a buffer that stays full fires once.
Of several deaths that one look finds, only that they came since the look before is known. So each has a time of its own
in between, for the limits of triggers, which count what comes at one time as one.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse.counters import Counters
from relayfs_fuse.fs.store import CRASHED_NAME
from relayfs_fuse.inotify import MOVED_TO, ONLY_DIRECTORIES, Inotify
from relayfs_fuse.native.library import Closing
from relayfs_fuse.tracefiles.trigger_files import lives, processes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.commands.trigger_control import TriggerCommand
    from relayfs_fuse.reading.live import Live
    from relayfs_fuse.reading.source import Source

    Fire = Callable[[int, str, int], None]

POLL_S = 0.2
# How much is read of a file of a card.
_CARD_TEXT_MAX = 4096


class Polls(Closing):
    """What the triggers of a trace wait for besides events.

    source: the trace
    store: its store, which has the counters, too
    state: of the process before; see state()
    """

    def __init__(self, source: Source, store: str, state: Mapping[str, Any]) -> None:
        self._source = source
        self._store = store
        self._commands: Mapping[int, TriggerCommand] = {}
        self._living: Mapping[str, int] = {}
        self._polled = 0.0
        self._elapsed_ns = 0  # since the look before this one
        self._above: dict[str, bool] = dict(state.get("above", {}))
        # By the name of a process's directory: its inode, and whether triggers were told of the end of the process.
        self._processes: dict[str, list[int]] | None = state.get("processes")
        self._n_unbuffered: int | None = state.get("unbuffered")
        # The cards that were there at the last look; None: no trigger waits for them.
        self._cards: list[str] | None = state.get("cards")
        self._counters: Counters | None = None
        self._inotify = Inotify()
        self._inotify.add(source.directory, MOVED_TO | ONLY_DIRECTORIES)

    def close(self) -> None:
        """Close everything."""
        self._inotify.close()
        if self._counters is not None:
            self._counters.close()

    def define(self, commands: Mapping[int, TriggerCommand], living: Mapping[str, int]) -> None:
        """Set the triggers, by the time when each was added.

        living: the processes that lived when triggers were added that wait for the ends of processes
        """
        self._commands = commands
        self._living = living
        self._above = {since: is_above for since, is_above in self._above.items() if int(since) in commands}
        self._polled = 0.0

    def state(self) -> dict[str, Any]:
        """Return what the next process has to know."""
        return {
            "above": dict(self._above), "processes": self._processes, "unbuffered": self._n_unbuffered,
            "cards": self._cards,
        }  # fmt: skip

    def poll(self, live: Live, fire: Fire) -> None:
        """Look, if the last look was POLL_S ago; `fire` is called with a trigger, the reason, and how long ago, ns."""
        now = time.monotonic()
        if now - self._polled < POLL_S:
            return
        self._elapsed_ns = int(1e9 * (now - self._polled if self._polled else POLL_S))
        self._polled = now
        by_kind: dict[str, list[int]] = {}
        for since, command in self._commands.items():
            by_kind.setdefault(command.when, []).append(since)
        for since in by_kind.get("fill", ()):
            self._check_fill(since, live, fire)
        for since in by_kind.get("counter", ()):
            self._check_counter(since, fire)
        self._check_deaths(by_kind.get("death", ()), fire)
        self._check_cards(by_kind.get("crash", ()), fire)
        self._check_unbuffered(by_kind.get("lost", ()), fire)

    def _note(self, since: int, *, is_above: bool, text: str, fire: Fire) -> None:
        """Fire a trigger if its value was not beyond the limit at the last look, or this is the first one."""
        was_above = self._above.get(str(since), False)
        self._above[str(since)] = is_above
        if is_above and not was_above:
            fire(since, text, 0)

    def _fire_each(self, since: int, texts: list[str], fire: Fire) -> None:
        """Fire a trigger for each of what has happened, in this order, since the last look."""
        for number, text in enumerate(texts, 1):
            fire(since, text, self._elapsed_ns * (len(texts) - number) // len(texts))

    # --- buffers ---

    def _check_fill(self, since: int, live: Live, fire: Fire) -> None:
        most = 0.0
        for followed in live.followed:
            for consumer in followed.process.buffers.values():
                with suppress(OSError):  # damaged, which Live says
                    stats = consumer.buffer.stats()
                    most = max(most, stats.used_bytes / (stats.subbuf_size * stats.n_subbufs))
        number = self._commands[since].number
        self._note(since, is_above=100 * most > number, text=f"a buffer is filled to {most:.0%}", fire=fire)

    def _check_unbuffered(self, triggers: list[int] | tuple[()], fire: Fire) -> None:
        own, by_user = self._source.lost_without_buffers()
        n = own + sum(by_user.values())
        if self._n_unbuffered is not None and n > self._n_unbuffered:
            for since in triggers:
                fire(since, f"lost {n - self._n_unbuffered} events of programs that could get no buffers", 0)
        self._n_unbuffered = n

    # --- counters ---

    def _check_counter(self, since: int, fire: Fire) -> None:
        command = self._commands[since]
        with suppress(OSError):  # there is no such counter yet
            if self._counters is None:
                self._counters = Counters(self._store)
            value = self._counters.value(command.counter)
            is_above = value > command.number if command.is_above else value < command.number
            self._note(since, is_above=is_above, text=f"counter {command.counter} is {value}", fire=fire)

    # --- processes ---

    def _check_deaths(self, triggers: list[int] | tuple[()], fire: Fire) -> None:
        """Find out which processes have ended, also those that have come and gone since the last look."""
        born = [name for _, _, name in self._inotify.events() if _is_process(name)]
        if not triggers:
            self._processes = None
            return
        directory = self._source.directory
        present = {name: inode for name, inode in processes_in(directory).items() if _is_process(name)}
        known = self._processes
        if known is None:  # processes that had ended before fire no trigger
            known = {name: [inode, int(not lives(directory, name))] for name, inode in present.items()}
            known |= {name: [inode, 0] for name, inode in self._living.items()}
        for name in born:
            known.setdefault(name, [0, 0])
        for name, inode in present.items():
            if known.get(name, [0])[0] in (0, inode):
                known.setdefault(name, [inode, 0])[0] = inode
        ended = []
        for name, (inode, is_told) in list(known.items()):
            is_gone = present.get(name) != inode
            if not is_told and (is_gone or not lives(directory, name)):
                known[name][1] = 1
                ended.append(f"{name} has ended")
            if is_gone:
                del known[name]
        for since in triggers:
            self._fire_each(since, ended, fire)
        self._processes = known

    # --- crash cards ---

    def _check_cards(self, triggers: list[int] | tuple[()], fire: Fire) -> None:
        """Find the trace's cards that were made since the last look; at the first, since a trigger was added."""
        directory = os.path.join(self._store, CRASHED_NAME)
        if not triggers:
            self._cards = None
            return
        found: list[str] = []
        with suppress(OSError):  # no cards are made
            found = sorted(name for name in os.listdir(directory) if not name.startswith("."))
        cards = []
        for name in set(found) - set(self._cards or ()):
            with suppress(OSError):  # it was removed
                made_ns, text = self._card(os.path.join(directory, name))
                cards += [(made_ns, f"crash card {name}: {text}")] if text else []
        for since in triggers:
            made = [text for made_ns, text in sorted(cards) if self._cards is not None or made_ns >= since]
            self._fire_each(since, made, fire)
        self._cards = found

    def _card(self, path: str) -> tuple[int, str]:
        """Return when a card was made, and why; "": it is of another trace."""
        about, cause = (_words(os.path.join(path, name)) for name in ("process", "cause"))
        why = cause.get("signal") or f"{cause.get('cause', 'unknown')} {cause.get('status', '')}".rstrip()
        return os.stat(path).st_mtime_ns, why if about.get("trace") == self._source.name else ""


def _words(path: str) -> dict[str, str]:
    """Return the KEY=VALUE lines of a card's file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_CARD_TEXT_MAX)
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines()) if value.isprintable()}


def _is_process(name: str) -> bool:
    """Return whether a name in a trace's directory is that of another process's directory."""
    return bool(name) and not name.startswith(".") and not name.endswith(f"-{os.getpid()}")
