"""The supervisor of a mount: the process that the user has started. It forks the server, and another one if that dies.

    supervisor --- fork ---> server            serves requests
        |  <-- descriptor of /dev/fuse --
        |  <-- "answers", "ends" --------
        |      end of the connection: all threads that run have ended; it died unless it said "ends"
        `--- fork ---> successor

A server of another version that takes over is executed and not forked (upgrades.py).

It has imported all that a server needs, so a server begins at once. It keeps the descriptor of /dev/fuse, the notes and
the store's lock (fs/handover.py), has one thread, reads nothing that other programs write, and passes signals on.

It does not wait until the dead server's process is gone: a thread of it may sleep until a request is answered that it
has made to its own mount, which the successor does (fs/requests/announcements.py). After the last server nobody does;
then the kernel ends that sleep when the supervisor closes /dev/fuse, too.

A server may die before it has acted upon a signal, so its successor gets that signal again.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.cli.child import SIGNALS, fork, wait
from relayfs_fuse.cli.upgrades import Upgrades
from relayfs_fuse.cli.watchdog import Watchdog
from relayfs_fuse.fs import mounts, tap
from relayfs_fuse.fs.handover import ANSWERS, ENDS, MOUNTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.handover import Handover

# If so many servers in a row have lived no longer than this together, not counting the time that they took to begin, it
# is no use to start another one.
DEATHS_MAX = 10
LIVES_S = 1.0
# How long the process of the last server may take to be gone.
GONE_S = 30.0


class Supervisor:
    """The supervisor.

    handover: what each server gets
    serve: is called in the process of a server, and returns its exit status
    answers: is called once, when the mount answers
    ends: is called when the server begins to end
    upgrades: what it is asked, and what a supervisor of another version has left to this one
    """

    def __init__(
        self,
        handover: Handover,
        serve: Callable[[Handover], int],
        answers: Callable[[], None],
        ends: Callable[[], None],
        upgrades: Upgrades,
    ) -> None:
        self._handover = handover
        self._upgrades = upgrades
        self._watchdog = Watchdog(handover.heartbeat, handover.settings.watchdog)
        self._serve = serve
        self._answers = answers
        self._ends = ends
        self._is_ending = False
        self._asked = 0  # the signal of SIGNALS that came last
        self._stuck: list[str] = []  # what is to be said of the last server if it was killed while it ended
        self._answered_at = 0.0
        self._lives_s: deque[float] = deque(maxlen=DEATHS_MAX)
        self._dead = upgrades.dead
        self._server = 0
        if upgrades.inherited is not None:
            left = upgrades.inherited
            self._answered_at, self._server = time.monotonic(), left["server"]
            self._dead.update(left["dead"])
            self._asked = left.get("asked", 0)
            handover.supervisor = socket.socket(fileno=left["connection"])
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)

    def run(self) -> int:
        """Have servers serve until one ends in order; return its exit status.

        RuntimeError: one after the other has died; the mount is unmounted.
        """
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for signum in (*SIGNALS, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        gc.freeze()  # what was imported is shared with the servers, and a collection would write to it
        while True:
            server = self._server or self._upgrades.successor() or self._start()
            self._server = 0
            self._attend(server)
            if self._is_ending or not self._handover.has_answered or not tap.can_hand_over():
                self._upgrades.close()
                return self._wait_for(server)
            self._upgrades.note_death()
            self._bury(server)
            if len(self._lives_s) == DEATHS_MAX and sum(self._lives_s) < LIVES_S:
                self._unmount()
                raise RuntimeError(
                    f"{DEATHS_MAX} servers in a row have died within {sum(self._lives_s):.1f} s of their service: "
                    f"{self._handover.place} is unmounted"
                )

    def _start(self) -> int:
        """Fork a server; return its process id."""
        server, self._handover.supervisor = fork()
        if not server:
            self._woken.close()
            self._wakes.close()
            self._be_server()
        self._handover.findings.clear()  # this server says them
        return server

    def _be_server(self) -> None:
        status = 1
        try:
            status = self._serve(self._handover)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            os._exit(status)

    def _attend(self, server: int) -> None:
        """Pass signals on to a server, and take its messages, until it has closed the connection."""
        connection = self._handover.supervisor
        assert connection is not None
        self._watchdog.begin(server)
        self._ask_to_end(server)
        with connection:
            while True:
                poll = select.poll()
                for one in (connection, self._woken, *self._upgrades.sockets()):
                    poll.register(one, select.POLLIN)
                waits_s = [
                    wait_s for wait_s in (self._upgrades.wait_s(), self._watchdog.wait_s()) if wait_s is not None
                ]
                ready = [descriptor for descriptor, _ in poll.poll(1000 * min(waits_s) if waits_s else None)]
                if self._woken.fileno() in ready:
                    self._pass_on(server)
                if connection.fileno() in ready and not self._take_message(connection, server):
                    return
                if not self._watch(server):
                    return
                if self._upgrades.attend(ready, server):
                    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they wait for the other version
                    if select.select([self._woken], [], [], 0)[0]:
                        self._pass_on(server)
                    self._upgrades.become(server, connection, {"dead": sorted(self._dead), "asked": self._asked})

    def _watch(self, server: int) -> bool:
        """Kill a server that is stuck, if it is to end or there can be another one; False: that has not ended it."""
        found = self._watchdog.look()
        can_be_last = self._is_ending or self._asked != 0
        if found and (can_be_last or (self._handover.has_answered and tap.can_hand_over())):
            if self._stuck:
                return False
            if self._is_ending:
                self._stuck = found
            self._handover.findings += found
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
        return True

    def _ask_to_end(self, server: int) -> None:
        if self._asked:
            with suppress(ProcessLookupError):
                os.kill(server, self._asked)

    def _pass_on(self, server: int) -> None:
        for signum in self._woken.recv(4096):
            if signum in SIGNALS:
                self._asked = signum
                self._ask_to_end(server)
        for process in list(self._dead):
            if os.waitpid(process, os.WNOHANG)[0]:
                self._dead.discard(process)

    def _take_message(self, connection: socket.socket, server: int) -> bool:
        """Take a message from a server; False: it has closed the connection."""
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, 64, 1)
        except ConnectionResetError:
            return False
        if message == MOUNTED:
            if self._handover.device < 0:
                self._handover.device = descriptors[0]
            else:  # the same again
                os.close(descriptors[0])
        elif message.startswith(ANSWERS):
            self._answered_at = time.monotonic()
            self._handover.number = int(message.removeprefix(ANSWERS))
            self._upgrades.note_answer()
            if not self._handover.has_answered:
                self._handover.has_answered = True
                self._answers()
        elif message == ENDS and not self._is_ending:
            self._is_ending = True
            self._watchdog.begin(server)  # its loop does not turn any more
            self._ends()
        return bool(message)

    def _bury(self, server: int) -> None:
        """Note that a server died, and how, for its successor's log."""
        now = time.monotonic()
        self._lives_s.append(now - self._answered_at if self._answered_at else 0.0)
        self._answered_at = 0.0
        process, status = os.waitpid(server, os.WNOHANG)
        if not process:
            self._dead.add(server)
        how = "it was killed" if not process else _how(os.waitstatus_to_exitcode(status))
        self._handover.died = server, how
        self._handover.generation += 1

    def _wait_for(self, server: int) -> int:
        """Wait until the process of the last server is gone; return its exit status. RuntimeError: it was stuck."""
        if self._handover.device >= 0:
            os.close(self._handover.device)
        status = wait(server, GONE_S)
        code = 1 if status is None else os.waitstatus_to_exitcode(status)
        if code and self._is_ending:
            self._unmount()
            if self._stuck:
                raise RuntimeError("\n".join(self._stuck))
        return code if code >= 0 else 128 - code

    def _unmount(self) -> None:
        is_ours = self._handover.settings.device is None
        if is_ours and mounts.is_on_top(self._handover.place, self._handover.number):
            mounts.unmount(self._handover.place)


def _how(code: int) -> str:
    return f"it ended with status {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
