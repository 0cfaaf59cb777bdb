"""relayctl live under load: programs that write 100,000 events a second together, beside others that come and go."""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from mounts import DEADLINE_S
from showing import Shown, Talk, serving
from stress import is_long
from traced import Ledger, program

DURATION_S = 60 if is_long() else 4
N_PROGRAMS, BURST, PAUSE_US = 4, 260, 9600
N_STEPS = 100
DELAY_S = 2.0  # from an event to its line
STEP = re.compile(rb"\[(\d+)\.\d{9}\] \S+ (judge|test):step: \{[^}]*, pid = (\d+) \}, \{[^}]*\}, \{ seq = (\d+)")
SECOND = re.compile(rb"\[(\d+\.\d{6})")


class Counting(Shown):
    """Look at the lines as they come: there are too many to be kept."""

    def __init__(self, url: str) -> None:
        self.n_steps: Counter[int] = Counter()
        self.last: dict[int, int] = {}
        self.missing: Counter[int] = Counter()
        self.delays_s: list[float] = []
        self.wrong: list[bytes] = []
        super().__init__(url)

    def _said(self) -> str:
        return f"{self.n_steps} {self.missing} {self.warnings[-20:]}"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        descriptor, rest = self.process.stdout.fileno(), b""
        while data := os.read(descriptor, 1 << 20):
            lines, _, rest = (rest + data).rpartition(b"\n")
            now, first = time.time(), SECOND.search(lines)
            if first:
                self.delays_s.append(now - float(first[1]))
            found = STEP.findall(lines)
            if len(found) != lines.count(b"\n") + bool(lines):
                self.wrong.append(lines[:300])
            for _, _, pid_text, seq_text in found:
                pid, seq = int(pid_text), int(seq_text)
                self.n_steps[pid] += 1
                gap = seq - self.last.get(pid, -1) - 1
                if gap < 0:
                    self.wrong.append(b"%d after %d of %d" % (seq, self.last[pid], pid))
                self.missing[pid] += gap
                self.last[pid] = seq


@contextmanager
def flooding(ledger: Ledger, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [program("traced"), ledger.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(f"flood {BURST} {PAUSE_US}\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def come_and_go(environment: dict[str, str], shown: Shown) -> int:
    """Run a program after the other; return how many."""
    n, until = 0, time.monotonic() + DURATION_S
    while time.monotonic() < until:
        shown.check_runs()
        command = [program("traced"), "--steps", str(N_STEPS)]
        subprocess.run(command, env=environment, check=True, timeout=DEADLINE_S)
        n += 1
        time.sleep(0.2)  # the load is what is tested
    return n


@pytest.mark.stress
def test_each_of_100000_events_a_second_is_shown_once_and_soon(store, tmp_path):
    store.create("t", subbuf_size=1 << 16, n_subbufs=16)
    environment = {**os.environ, **store.environment}
    with ExitStack() as stack:
        server = stack.enter_context(serving("t", "--store", store.path))
        shown = stack.enter_context(server.showing("t", Counting))
        half = stack.enter_context(server.connect())
        half.sendall(Talk.command(1, bytes(20))[:30])
        ledgers = [Ledger(tmp_path / f"ledger{n}") for n in range(N_PROGRAMS)]
        writers = [stack.enter_context(flooding(ledger, environment)) for ledger in ledgers]
        n_short = come_and_go(environment, shown)
        for process in writers:
            process.kill()
            process.wait(DEADLINE_S)
        by_pid = {process.pid: ledger.written for process, ledger in zip(writers, ledgers, strict=True)}
        n_written = sum(by_pid.values()) + n_short * N_STEPS

        def is_all_there() -> bool:  # losses after a program's last event are told, too
            n_told = shown.n_steps.total() + shown.lost()
            return n_told >= n_written and len(shown.n_steps) == n_short + N_PROGRAMS

        shown.wait_for(is_all_there)
        shown.finish()
        assert half.recv(1) == b""  # the rest of its command has not come
        server.finish()
    assert not shown.wrong
    assert shown.missing.total() <= shown.lost() <= n_written + N_PROGRAMS - shown.n_steps.total()
    assert [shown.n_steps[pid] for pid in shown.n_steps.keys() - by_pid.keys()] == n_short * [N_STEPS]
    # An event may have been written when its program was killed, before it was counted.
    assert all(shown.n_steps[pid] + shown.missing[pid] <= n + 1 for pid, n in by_pid.items())
    # Others may use the machine: the short form wants no more than that events do not have to wait for anything.
    delays_s = sorted(shown.delays_s)
    assert delays_s[len(delays_s) // 2 if is_long() else 0] < DELAY_S
