"""What one writer can make the server do is bounded, however hard it tries."""

import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack.arena import HIGHEST
from attack.test_seen import PAGE, scribble
from build import compile_c
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until_quick
from traced import environment_of
from traffic import drain

pytestmark = pytest.mark.measured

OWNED = f"uid={NOBODY} gid={NOBODY} perm=0666"
WAKER = Path(__file__).parent / "waker.c"
# struct relay_control, which is the last page.
WRITE_LOCK_AT = 896
# An owner word as of a thread in another pid namespace: nobody here can tell whether it lives.
NOBODYS = b"\xa5" * 8
# How long the server is watched.
WATCHED_S = 1.5
# A buffer that rests as long as it may is looked at 16 times a second; the server has other things to do, too.
SLEEPS_MAX = 300
# A sub-buffer that is full of discarded records, of which the server keeps a list, but for two lines.
DISCARDS = "buffers=single scheme=lockless subbuf_size=4M n_subbufs=2"
N_DISCARDED = (4 << 20) // 16 - 2
# Their lists would take 72 MiB, or twice that, as the server looks from two places. All lists have 64 MiB.
N_LISTS = 24
LISTS_KB = 80 << 10
# Who hears of data only when the server looks again by itself was not woken: that takes a second.
WAKE_MEDIAN_S = 0.3


def memory(mount: Mount) -> Path:
    return mount.path / ".channels/victim/mem0"


@contextmanager
def attacking(command: Sequence[str | Path], mount: Mount) -> Iterator[None]:
    """Run an attacker, another user's, until the end of the block; both sides get all the time that they want."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        env=environment_of(mount), user=NOBODY, group=NOBODY, extra_groups=[],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "attacking\n"
        assert mount.process is not None
        for pid in (process.pid, mount.server):
            hurry(pid)
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def hurry(pid: int) -> None:
    """Let a process come before whatever else the machine does."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(task), HIGHEST)


def sleeps_a_second(mount: Mount) -> float:
    """Return how often threads of the server go to sleep: some few times for each wake-up."""
    assert mount.process is not None
    tasks = Path(f"/proc/{mount.server}/task")

    def n_sleeps() -> int:
        lines = [line for task in tasks.iterdir() for line in (task / "status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    begun, before = time.monotonic(), n_sleeps()
    time.sleep(WATCHED_S)
    return (n_sleeps() - before) / (time.monotonic() - begun)


# A wait is many short sleeps, which a busy machine makes longer and not more.
WRITE = """
import resource, sys
from relayfs_fuse import Channel

def n_sleeps():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

with Channel(sys.argv[1]) as channel:
    for _ in range(int(sys.argv[2])):
        before = n_sleeps()
        try:
            channel.write(b"record")
            result = 0
        except OSError as error:
            result = error.errno
        print(result, n_sleeps() - before)
"""


def written(mount: Mount, n: int) -> list[str]:
    """Write so many records as root; return the result of each, and how often the writer slept."""
    command = ["nice", "-n", str(HIGHEST), sys.executable, "-c", WRITE, mount.path / "victim", str(n)]
    done = User(0, 0).run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextmanager
def polled(file: Path) -> Iterator[select.epoll]:
    """Wait for a file, edge by edge: unlike poll(2) with no time to wait, that has the server look at it by itself."""
    with file.open("rb", buffering=0) as opened, select.epoll() as poll:
        poll.register(opened, select.EPOLLIN | select.EPOLLET)
        yield poll


def check_wakes(file: Path) -> None:
    """Be woken by records of an honest writer."""
    with polled(file) as poll, file.open("wb", buffering=0) as writer:

        def delay_s() -> float:
            assert poll.poll(0) == []
            begun = time.monotonic()
            writer.write(b"honest\n")
            assert poll.poll(DEADLINE_S)
            delay = time.monotonic() - begun
            assert drain(file) == b"honest\n"
            return delay

        wait_until_quick(delay_s, 9, WAKE_MEDIAN_S)


@pytest.mark.parametrize("kind", ["buffers=single scheme=lockless", "type=ring buffers=single size=64K"])
def test_wake_ups_that_bring_nothing_cost_the_server_little(mount: Mount, unprivileged: object, kind: str) -> None:
    file = mount.create("victim", f"{kind} {OWNED}")
    honest = mount.create("honest", "buffers=single delivery=packet")
    with polled(file) as poll:
        assert poll.poll(0) == []
        with attacking([compile_c([WAKER]), memory(mount)], mount):
            assert sleeps_a_second(mount) < SLEEPS_MAX
            check_wakes(honest)


def test_a_lock_that_nobody_holds_costs_a_writer_one_wait(mount: Mount, unprivileged: User) -> None:
    mount.create("victim", f"buffers=single scheme=locking {OWNED}")
    scribble(unprivileged, mount, "victim", WRITE_LOCK_AT - PAGE + os.stat(memory(mount)).st_size, NOBODYS)
    results = [line.split() for line in written(mount, 4)]
    assert [int(result) for result, _ in results] == 4 * [errno.ENOSPC]
    first, *others = (int(sleeps) for _, sleeps in results)
    assert sum(others) < first
    # Each is counted as lost.
    assert mount.shown("victim", "lost_full") == "4"
    # The lock is free again, so the next writer gets it.
    scribble(unprivileged, mount, "victim", WRITE_LOCK_AT - PAGE + os.stat(memory(mount)).st_size, bytes(8))
    assert written(mount, 1)[0].startswith("0 ")


def discard(user: User, channels: Sequence[Path]) -> None:
    done = user.run(compile_c([WAKER.with_name("discarder.c")]), str(N_DISCARDED), *channels)
    assert done.returncode == 0, done.stderr


def looks_behind(descriptor: int) -> int:
    """Look at the line behind the discarded records until it is there; return how often it was not."""
    deadline = time.monotonic() + DEADLINE_S
    tries = 0
    while True:
        try:
            assert os.pread(descriptor, 100, len("first\n")) == b"last\n"
        except BlockingIOError:
            assert time.monotonic() < deadline
            tries += 1
        else:
            return tries


def own_kb(mount: Mount) -> int:
    """Count the server's own memory, but for that which it maps."""
    assert mount.process is not None
    status = Path(f"/proc/{mount.server}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def test_lists_of_discarded_records_take_limited_memory_and_nobody_elses_place(
    mount: Mount, unprivileged: User
) -> None:
    honest = mount.create("honest", DISCARDS)
    attackers = [mount.create(f"attacker{n}", f"{DISCARDS} {OWNED}") for n in range(N_LISTS)]
    discard(User(0, 0), [mount.path / "honest"])
    discard(unprivileged, [mount.path / f"attacker{n}" for n in range(N_LISTS)])
    descriptors = {file: os.open(file, os.O_RDONLY | os.O_NONBLOCK) for file in (honest, *attackers)}
    try:
        # The list is collected in pieces, and then known.
        assert looks_behind(descriptors[honest]) > 1
        assert looks_behind(descriptors[honest]) == 0
        before = own_kb(mount)
        for file in [*attackers, *attackers[:3]]:
            looks_behind(descriptors[file])
            assert own_kb(mount) - before < LISTS_KB
        # Who keeps little has lost nothing meanwhile.
        assert looks_behind(descriptors[honest]) == 0
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
