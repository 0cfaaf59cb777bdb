"""The supervisor's part of `relayctl upgrade`: another version of the server takes over the mount.

    relayctl          supervisor          its server    another child
    --- program --->  forks ------------------------->  checks the program, and executes it
                      <------------------------ READY   has imported what a server needs
                      --- REPLACED ---->  finishes what it does, and ends
                      --- about the server before --->  takes over: ANSWERS
                      executes the program, too, after TRIAL_S
    <-- what happened

Until the supervisor executes the program, it can go back: if the new server dies, or does not answer in time, the
supervisor forks a server of its own version.

A supervisor reads nothing of what is asked: the other child does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.cli.child import SIGNALS, fork, wait
from relayfs_fuse.cli.program import execute, refusal
from relayfs_fuse.cli.upgrade_socket import listen
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.store_lock import SOCKET_NAME
from relayfs_fuse.fs.versions import MESSAGE_MAX, READY, REFUSED, REPLACED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relayfs_fuse.fs.handover import Handover

# What each step may take, in seconds: to tell the program, to check and load it, to finish what the old server does,
# until the new one answers; and how long that one has to live until the supervisor follows it.
REQUEST_S, LOAD_S, DRAIN_S, ANSWER_S, TRIAL_S = 10.0, 120.0, 5.0, 30.0, 2.0
# How long a process that is given up may take to be gone; meanwhile the supervisor does nothing else.
GONE_S = 5.0

_NOTHING, _LOADS, _DRAINS, _TRIES = range(4)
_CREDENTIALS = struct.Struct("@3i")


class Upgrades:
    """What a supervisor is asked, one at a time.

    handover: what each server gets
    words: the command line of this mount, for the other program
    program: the path of this program; empty: unknown
    inherited: what another version has left to this one

    dead: processes that were killed and have not ended
    """

    def __init__(self, handover: Handover, words: list[str], program: str, inherited: Mapping[str, Any] | None) -> None:
        self.inherited = inherited
        self.dead: set[int] = set()
        self._handover = handover
        self._words = words
        self._program = program
        self._listener: socket.socket | None = None
        try:
            self._listener = (
                listen(handover.settings.store) if inherited is None else socket.socket(fileno=inherited["listener"])
            )
        except OSError as error:  # such as a full store
            handover.findings.append(f"this server cannot be upgraded: {SOCKET_NAME} of its store: {error.strerror}")
        self._asker: socket.socket | None = None
        self._candidate = 0
        self._connection: socket.socket | None = None
        self._about: dict[str, str] = {}
        self._pause_ms: float | None = None
        self._since = 0.0  # the pause
        self._stage, self._deadline, self._is_late = _NOTHING, 0.0, False
        if inherited is not None:
            self._asker = socket.socket(fileno=inherited["asker"])
            self._answer("done", before=inherited["before"], pause_ms=inherited["pause_ms"])

    def sockets(self) -> list[socket.socket]:
        """Return what to poll for attend()."""
        return [one for one in (self._listener, self._connection) if one is not None]

    def wait_s(self) -> float | None:
        """Return after how many seconds attend() has something to do; None: not before something is ready."""
        return None if self._stage == _NOTHING else max(0.0, self._deadline - time.monotonic())

    def attend(self, ready: Iterable[int], server: int) -> bool:
        """Do what is to be done; True: it is time for the supervisor to become() the other version.

        ready: descriptors of sockets()
        server: the process that serves
        """
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)
        if self._connection is not None and self._connection.fileno() in ready:
            self._hear(self._connection)
        if self._stage == _NOTHING or time.monotonic() < self._deadline:
            return False
        if self._stage == _LOADS:
            self._give_up("refused", f"the program was not ready within {LOAD_S:g} s")
        elif self._stage == _TRIES and self._pause_ms is not None:
            return True
        else:
            # The server that is to end, or to answer.
            self._is_late, self._deadline = True, self._deadline + ANSWER_S
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
        return False

    # ---------------------------------------------------------------- steps

    def _accept(self, listener: socket.socket) -> None:
        asker, _ = listener.accept()
        _, uid, _ = _CREDENTIALS.unpack(asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        refused = ""
        if uid not in (0, os.geteuid()):
            refused = f"only root and user {os.geteuid()} may upgrade this server"
        elif self._stage != _NOTHING:
            refused = "another upgrade is under way"
        elif not self._handover.has_answered or not tap.can_hand_over():
            refused = "this kernel cannot send requests again (Linux 6.9 can): umount, and mount with the new version"
        if refused:
            _tell(asker, {"outcome": "refused", "reason": refused})
            asker.close()
            return
        self._asker, self._pause_ms = asker, None
        state = {"role": "server", "words": self._words, **self._handover.state()}
        self._candidate, self._connection = fork()
        if not self._candidate:
            _load(asker, self._connection, self._program, state, self._handover.descriptors())
        self._go_to(_LOADS, LOAD_S)

    def _hear(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(MESSAGE_MAX)
        except ConnectionResetError:
            message = b""
        if message.startswith(READY) and self._stage == _LOADS:
            self._about = json.loads(message.removeprefix(READY))
            self._since = time.monotonic()
            assert self._handover.supervisor is not None
            with suppress(OSError):  # it has just died, and is replaced all the same
                self._handover.supervisor.send(REPLACED)
            self._go_to(_DRAINS, DRAIN_S)
        elif message.startswith(REFUSED):
            self._give_up("refused", message.removeprefix(REFUSED).decode())
        elif self._stage == _LOADS:
            self._give_up("refused", "the program ended before it was ready; the server's log may tell why")
        else:
            self._give_up("back", "the new server died before it took over")

    def successor(self) -> int:
        """Have the other version's server take over, if it is ready, from one that has ended; its process, or 0."""
        if self._stage != _DRAINS or self._connection is None:
            return 0
        about = {"died": self._handover.died, "generation": self._handover.generation, "replaced": native.VERSION}
        try:
            self._connection.send(json.dumps(about).encode())
        except OSError:
            self._give_up("back", "the new server died before it took over")
            return 0
        self._handover.supervisor, self._connection = self._connection, None
        self._go_to(_TRIES, ANSWER_S)
        return self._candidate

    def note_answer(self) -> None:
        """Note that a server answers."""
        if self._stage == _TRIES and self._pause_ms is None:
            self._pause_ms = 1000 * (time.monotonic() - self._since)
            self._go_to(_TRIES, TRIAL_S)

    def note_death(self) -> None:
        """Note that a server has died: if it is the new one, its successor is of this version."""
        if self._stage == _TRIES:
            when = f"within {TRIAL_S:g} s" if self._pause_ms is not None else "before it answered"
            what = f"did not answer within {ANSWER_S:g} s" if self._is_late else f"died {when}"
            self._give_up("back", f"the server of version {self._about['version']} {what}")

    def become(self, server: int, connection: socket.socket, rest: Mapping[str, Any]) -> None:
        """Have this process, in which SIGNALS are blocked, go on as the other version.

        If it cannot, they are unblocked, and that version's server dies, too.

        rest: what the supervisor knows besides
        """
        assert self._asker is not None
        assert self._listener is not None
        used = [self._listener, self._asker, connection]
        state = {
            "role": "supervisor", "words": self._words, **self._handover.state(), **rest,
            "server": server, "connection": connection.fileno(), "listener": self._listener.fileno(),
            "asker": self._asker.fileno(), "before": native.VERSION, "pause_ms": self._pause_ms,
        }  # fmt: skip
        descriptors = [*self._handover.descriptors(), *(one.fileno() for one in used)]
        try:
            execute(self._about["program"], {**state, "descriptors": descriptors}, descriptors)
        except OSError as error:
            self._give_up("back", f"{self._about['program']}: {error.strerror}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.kill(server, signal.SIGKILL)

    def close(self) -> None:
        """Give up what is under way, because the mount ends."""
        if self._stage != _NOTHING:
            self._give_up("refused", "the mount has ended")
        if self._listener is not None:
            self._listener.close()

    # ---------------------------------------------------------------- helpers

    def _go_to(self, stage: int, most_s: float) -> None:
        self._stage, self._deadline, self._is_late = stage, time.monotonic() + most_s, False

    def _give_up(self, outcome: str, reason: str) -> None:
        """Answer why the other version does not serve, and forget it; its process dies, if it has not taken over."""
        if outcome == "back":
            self._handover.findings.append(f"{reason}: this is version {native.VERSION} again")
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with suppress(ProcessLookupError):
                os.kill(self._candidate, signal.SIGKILL)
            if wait(self._candidate, GONE_S) is None:
                self.dead.add(self._candidate)
        self._answer(outcome, reason=reason)

    def _answer(self, outcome: str, **more: Any) -> None:
        if self._asker is not None:
            _tell(self._asker, {"outcome": outcome, "after": native.VERSION, **more})
            self._asker.close()
        self._asker, self._stage = None, _NOTHING


def _tell(asker: socket.socket, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):  # it has gone, or does not read
        asker.send(json.dumps(answer).encode()[:MESSAGE_MAX], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _load(
    asker: socket.socket, connection: socket.socket, own: str, state: Mapping[str, Any], descriptors: Iterable[int]
) -> None:
    """In a child: check the program that is asked for, and execute it; own: the one if none is named."""
    refused: str | None = "it cannot be loaded"
    try:
        asker.settimeout(REQUEST_S)
        program = str(json.loads(asker.recv(MESSAGE_MAX))["program"]) or own
        refused = refusal(program)
        if refused is None:
            inherited = [*descriptors, connection.fileno()]
            state = {**state, "program": program, "connection": connection.fileno(), "descriptors": inherited}
            execute(program, state, inherited)
    except (OSError, ValueError, TypeError, KeyError) as error:
        refused = str(error)
    finally:
        with suppress(OSError):
            if refused is not None:
                connection.send(REFUSED + refused.encode(errors="replace"))
        os._exit(1)
