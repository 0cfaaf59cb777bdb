"""Short-lived traced programs, many a second: nothing is lost and nothing is left.

A recorder of a few lines stands in for `relayctl record`: it reads the store, as that does.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from making import N_CPUS, environment_of
from mounts import DEADLINE_S, Mount, wait_until
from traced import processes, program, start_trace, steps_in

from relayfs_fuse import native
from relayfs_fuse.fs import tap

pytestmark = pytest.mark.measured

IS_LONG = os.environ.get("RELAYFS_STRESS") == "long"
A_SECOND = 200
DURATION_S = 60 if IS_LONG else 2
N_STEPS = 20
READ_BYTES = 1 << 16
# At once: a slow machine is not to be buried under them.
RUNNING_MAX = 16
GROWTH_KIB = 16 << 10


class Recorder:
    """Consume what all processes of a trace write, as it becomes readable; count the events of each."""

    def __init__(self, directory: Path) -> None:
        self.events: Counter[str] = Counter()
        self.lost = 0
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for name in os.listdir(self._directory):
                if not name.startswith("."):
                    for cpu in range(N_CPUS):
                        self._drain(name, cpu)

    def _drain(self, name: str, cpu: int) -> None:
        with contextlib.suppress(OSError):  # it has gone meanwhile: then it was empty
            buffer = native.Buffer(str(self._directory / name / f"cpu/mem{cpu}"))
            try:
                while buffer.state() & native.HAS_FINISHED:
                    data, end = tap.peek(buffer.address, 0, READ_BYTES)
                    buffer.consume_to(end)
                    steps, lost = steps_in(data)
                    self.events[name] += len(steps)
                    self.lost += lost
            finally:
                buffer.close()


def rss_kib(mount: Mount) -> int:
    assert mount.process is not None
    status = Path(f"/proc/{mount.server}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def n_descriptors(mount: Mount) -> int:
    assert mount.process is not None
    return len(os.listdir(f"/proc/{mount.server}/fd"))


def buffers_mapped(mount: Mount, trace: str) -> list[str]:
    assert mount.process is not None
    maps = Path(f"/proc/{mount.server}/maps").read_text()
    return [line for line in maps.splitlines() if f"{mount.store}/{trace}/" in line]


def churn(mount: Mount, duration_s: float, user: int | None = None) -> int:
    """Start programs at an even rate, as far as the machine can; return how many, all of which have ended."""
    stepper = program("traced")
    environment = {**os.environ, **environment_of(mount)}
    begun, running, started = time.monotonic(), [], 0
    while (now := time.monotonic() - begun) < duration_s:
        running = [process for process in running if process.poll() is None]
        if started < now * A_SECOND and len(running) < RUNNING_MAX:
            running.append(
                subprocess.Popen(
                    [stepper, "--steps", str(N_STEPS)],
                    env=environment,
                    user=user,
                    extra_groups=None if user is None else [],
                )
            )
            started += 1
        else:
            time.sleep(0.001)  # the rate is what is tested
    for process in running:
        process.wait(DEADLINE_S)
    return started


def check_nothing_is_lost_or_left(mount: Mount, user: int | None = None) -> None:
    trace = start_trace(mount, options="subbuf_size=4K n_subbufs=2")
    directory = mount.store / "t"
    recorder = Recorder(directory)
    try:
        churn(mount, 1, user)
        wait_until(lambda: not os.listdir(directory), "the first have gone")
        before, descriptors = rss_kib(mount), n_descriptors(mount)
        recorder.events.clear()
        started = churn(mount, DURATION_S, user)
        wait_until(lambda: not os.listdir(directory), lambda: f"{os.listdir(directory)} go")
    finally:
        recorder.end()
    assert recorder.lost == 0
    assert len(recorder.events) == started
    assert set(recorder.events.values()) == {N_STEPS}
    wait_until(lambda: not processes(trace), lambda: f"{processes(trace)} go")
    wait_until(lambda: not (mount.path / ".channels/t").exists(), "stats go")
    wait_until(lambda: n_descriptors(mount) <= descriptors, lambda: f"{n_descriptors(mount)} of {descriptors}")
    wait_until(lambda: not buffers_mapped(mount, "t"), lambda: "\n".join(buffers_mapped(mount, "t")))
    # Python's and malloc's own memory has settled then; at full length what leaks with each would be seen.
    assert rss_kib(mount) - before < GROWTH_KIB


@pytest.mark.stress
def test_programs_that_make_their_directories_themselves(mount: Mount) -> None:
    check_nothing_is_lost_or_left(mount)


@pytest.mark.stress
def test_programs_that_ask_the_server_for_theirs(mount: Mount, unprivileged: object) -> None:
    check_nothing_is_lost_or_left(mount, 65534)
