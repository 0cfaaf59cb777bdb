"""Programs of a round of attacks: some work until their input ends, some are run over and over, some read for ever."""

import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mounts import DEADLINE_S
from stress import is_long

# How long tools rest. Those in Python rest longer: their starts would take as much of the machine as the attack.
TOOL_PAUSE_S = 0.1 if is_long() else 0.5
PYTHON_PAUSE_S = 1.0 if is_long() else 3.0


def as_user(user: int | None) -> dict[str, object]:
    return {"user": user, "group": user, "extra_groups": None if user is None else []}


class Helper:
    """A program that works until its input ends, and then says what it did."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        user: int | None,
        environment: dict[str, str],
        own_session: bool = False,
    ) -> None:
        self.name = name
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd="/", env=environment, start_new_session=own_session, **as_user(user),
        )  # fmt: skip

    def wait_ready(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            _, err = self.process.communicate()
            raise AssertionError(f"{self.name}: {line!r} {err!r}")

    def tell_to_end(self) -> None:
        """End its input, and do not wait."""
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None  # otherwise communicate() would flush it

    def finish(self) -> str:
        """End it in order; a program that was killed, or stands still, is a victim."""
        self.tell_to_end()
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} stands still: {where_asleep(self.process.pid)}") from None
        assert self.process.returncode == 0, f"{self.name}: status {self.process.returncode}: {err}{out}"
        return out

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with suppress(ValueError):
            self.process.communicate()


def tell_to_end(helpers: Sequence[Helper]) -> None:
    """Let all of them end at once: those that are waited for last would work on meanwhile."""
    for helper in helpers:
        helper.tell_to_end()


def where_asleep(pid: int) -> str:
    """Tell where a process sleeps."""
    with suppress(OSError):
        return f"{Path(f'/proc/{pid}/syscall').read_text()}{Path(f'/proc/{pid}/wchan').read_text()}"
    return "it has gone"


class Tool:
    """A command that is run over and over; each run must end by itself, and well."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: dict[str, str],
        complaints: str = "",
        pause_s: float = PYTHON_PAUSE_S,
    ) -> None:
        self.command = list(map(str, command))
        self._pause_s = pause_s
        self._environment = environment
        self._complaints = complaints
        self.runs = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._run()
            self.runs += 1
            self._stop.wait(self._pause_s)

    def _run(self) -> None:
        process = subprocess.Popen(
            self.command,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            errors="surrogateescape",
        )
        try:
            _, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            where = where_asleep(process.pid)
            process.kill()
            process.communicate()
            self.failures.append(f"{self.command} stands still: {where}")
            return
        strange = [line for line in err.splitlines() if not (self._complaints and re.search(self._complaints, line))]
        if process.returncode < 0 or strange:
            self.failures.append(f"{self.command}: status {process.returncode}: {err}")

    def tell_to_end(self) -> None:
        """Let the run that goes on be the last, and do not wait."""
        self._stop.set()

    def finish(self) -> None:
        self.tell_to_end()
        self._thread.join()
        assert not self.failures, f"{len(self.failures)} of {self.runs}: {self.failures[0]}"
        assert self.runs > 0


class Reader:
    """A program that reads an attacker's file, as long as there is something; its end is no reason to stop."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", stdin=subprocess.DEVNULL
        )

    def _check(self, *statuses: int) -> None:
        assert self.process.returncode in statuses, f"{self._command}: {self.process.returncode}"

    def start_again(self) -> None:
        if self.process.poll() is not None:
            self._check(0, 1)
            self._start()

    def finish(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)
        self._check(0, 1, -signal.SIGTERM)
