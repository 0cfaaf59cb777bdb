"""The main loop of the process that evaluates triggers; fs/traces/triggers.py starts it, and says what it reads.

sys.argv: STORE MNT [run]
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.triggers.actions import Actions
from relayfs_fuse.triggers.watch import Watch

if TYPE_CHECKING:
    from relayfs_fuse.reading.source import Source

# The first and the longest pause after a round that has found no event.
PAUSE_FIRST_S, PAUSE_LAST_S = 0.025, 0.1


def main() -> None:
    """Evaluate triggers until the standard input is closed, or there are none."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the server has gone
    native.guard_install()
    permit_many_files()
    _Watcher(sys.argv[1], sys.argv[2], runs_programs="run" in sys.argv[3:]).run()
    # Threads that write snapshots are not waited for: the next process begins these anew.
    os._exit(0)


def _write(word: str, text: str) -> None:
    line = "".join(char if char.isprintable() else "?" for char in f"{word} {text}")
    os.write(1, f"{line}\n".encode(errors="replace"))


class _Watcher:
    """The triggers of all traces of a store.

    mount: where the store is mounted
    """

    def __init__(self, store: str, mount: str, *, runs_programs: bool) -> None:
        self._store = store
        self._mount = mount
        self._runs_programs = runs_programs
        self._watches: dict[str, Watch] = {}

    def run(self) -> None:
        """Run until the standard input is closed, or there are no triggers."""
        self._define()
        pause_s = PAUSE_FIRST_S
        while self._watches:
            if select.select([0], [], [], pause_s)[0]:
                if not os.read(0, select.PIPE_BUF):
                    return
                self._define()
            is_busy = [self._round(name, watch) for name, watch in list(self._watches.items())]
            pause_s = 0 if any(is_busy) else min(2 * pause_s or PAUSE_FIRST_S, PAUSE_LAST_S)

    def _round(self, name: str, watch: Watch) -> bool:
        """Evaluate what a trace's programs have written; return whether there is more."""
        try:
            is_behind = watch.look()
        except (OSError, RelayError, MemoryError) as error:
            _write("log", f"trace {name}: {reason(error) if isinstance(error, OSError) else error}")
            self._close(name)
            return False
        if watch.has_news:
            watch.has_news = False
            _write("told", name)
        if watch.is_over:
            self._close(name)
        return is_behind

    def _define(self) -> None:
        """Read the triggers of all traces again."""
        with closing(native_trace.Traces(control_in_store(self._store))) as control:
            boot = native_trace.boot_id()
            ids = {trace.name: trace.id for trace in control.all().values() if trace.boot == boot}
        for name, watch in list(self._watches.items()):
            if ids.get(name) != watch.source.trace.id:
                self._close(name)
        for name, number in ids.items():
            try:
                if name not in self._watches:
                    self._watches[name] = Watch(
                        self._store, name, number, self._actions, lambda text: _write("log", text)
                    )
                self._watches[name].define()
            except (OSError, RelayError) as error:
                _write("log", f"trace {name}: {error}")
                self._close(name)
                continue
            if not self._watches[name].commands:
                self._close(name)

    def _actions(self, source: Source) -> Actions:
        return Actions(source.name, source.trace.id, self._store, self._mount, runs_programs=self._runs_programs)

    def _close(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.close()
