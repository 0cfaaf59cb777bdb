"""Three machines that pass a number round, and record it: each in a time namespace, with a clock of its own.

    python ping_pong.py DIRECTORY HOST NEXT         one of them, which machines() starts

Each writes an event `pong:got` when it gets the number, increases it, and writes `pong:sent` before it passes it on.
So the order of events is known: got 0, sent 1, got 1, sent 2 ... DIRECTORY/into/HOST/t is its recording.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forking import RELAYCTL
from mounts import DEADLINE_S, wait_until
from other_clock import OtherClock
from tracing import Store, catches

# CLOCK_MONOTONIC of each, in seconds ahead of this machine's.
NAMES = {"db": 0, "web-1": 100_000, "web-2": 7_000_000}


class Machine:
    """A machine: its name, its clock, and its recording."""

    def __init__(self, directory: Path, name: str, after: str, ahead_s: int) -> None:
        (directory / name).mkdir()
        self.name = name
        self.clock = OtherClock(directory / name)
        self.out = directory / "into" / name / "t"
        self._directory = directory
        # The name of the machine is said by its recordings, too.
        setup = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
        enter = ["unshare", "--uts", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child"]
        self.process = subprocess.Popen(
            [*enter, "sh", "-c", setup, name, sys.executable, __file__, directory, name, after],
            env={**os.environ, **self.clock.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, number: int) -> None:
        """Give it a number, with how often it is to be passed on behind it; 0: it ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(b"%d" % number, str(self._directory / self.name / "socket"))

    def end(self) -> None:
        self.send(-1)
        assert self.process.wait(DEADLINE_S) == 0


class Machines:
    """All of them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        names = list(NAMES)
        self.into = directory / "into"
        self.all = {
            name: Machine(directory, name, names[(n + 1) % len(names)], NAMES[name]) for n, name in enumerate(names)
        }
        for machine in self.all.values():
            stack.callback(machine.process.stdout.close)
            stack.callback(machine.process.wait)
            stack.callback(machine.process.kill)
        for machine in self.all.values():
            assert machine.process.stdout.readline() == "ready\n"
        self.n = 0

    def play(self, n: int) -> range:
        """Pass the number round, so often; return the numbers that it had."""
        before = self.n
        self.all["db"].send(before << 32 | before + n)
        self.n = before + n
        last = self.all[list(NAMES)[n % len(NAMES)]]
        assert last.process.stdout.readline() == f"{self.n}\n"
        return range(before, self.n)

    def end(self) -> None:
        for machine in self.all.values():
            machine.end()


@contextmanager
def machines(directory: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(directory, stack)


def main(directory: Path, name: str, after: str) -> None:
    """Be a machine, until a number is negative."""
    store = Store(directory / name / "store")
    store.create("t", n_subbufs=64)
    os.environ.update(store.environment)
    from relayfs_fuse import Event  # noqa: PLC0415  # it looks for the store then

    out = directory / "into" / name / "t"
    recorder = subprocess.Popen([RELAYCTL, "record", "t", "--store", store.path, "-o", out])
    wait_until(lambda: catches(recorder, signal.SIGTERM) and (out / ".clocks").exists(), "the recorder")
    got, sent = Event("pong", "got", {"n": "u32"}), Event("pong", "sent", {"n": "u32"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(str(directory / name / "socket"))
        print("ready", flush=True)
        while (number := int(own.recv(64))) >= 0:
            n, last = number >> 32, number & 0xFFFFFFFF
            got(n)
            if n == last:
                print(n, flush=True)
                continue
            sent(n + 1)
            own.sendto(b"%d" % ((n + 1) << 32 | last), str(directory / after / "socket"))
    recorder.send_signal(signal.SIGINT)
    recorder.wait(DEADLINE_S)
    assert recorder.returncode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
