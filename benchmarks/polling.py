"""Programs that poll relay files, and how soon they are told of a record."""

import os
import random
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from support import Mount, Samples

from relayfs_fuse import Channel
from relayfs_fuse.native import Buffer

WAKES = 500
# In so many turns, with so long a pause before each record.
ROUNDS = 10
PAUSE_S = 0.004
# To how many of all files records come.
WRITTEN = 20


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, len(values) * percent // 100)]


class Poller:
    """A program that polls one file, in a mount of its own or beside others."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        mount.command("create extra/wake buffers=single delivery=packet")
        self._file = mount.path / "extra/wake"

    def close(self) -> None:
        """Remove the channel."""
        self._mount.command("remove extra/wake")

    def wakes(self, n: int) -> list[float]:
        """Return how long after a record poll(2) returns, in ms, of so many records."""
        took = []
        with Channel(self._file) as channel, self._file.open("rb", buffering=0) as reader:
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            written = 0.0

            def write() -> None:
                nonlocal written
                time.sleep(PAUSE_S)
                written = time.perf_counter()
                channel.write(b"x")

            for _ in range(n):
                thread = threading.Thread(target=write)
                thread.start()
                if not poll.poll(10_000):
                    raise TimeoutError("poll(2) was not woken")
                took.append(1000 * (time.perf_counter() - written))
                thread.join()
                reader.read(4096)
        return took


class AllPoller:
    """A program that polls one file of each channel.

    cpu_s: returns the processor time that the server has taken
    server_us: what it took for each record, by turn
    """

    def __init__(self, mount: Mount, channels: Sequence[str], cpu_s: Callable[[], float]) -> None:
        self._cpu_s = cpu_s
        self._descriptors = [os.open(mount.path / f"{channel}0", os.O_RDONLY) for channel in channels]
        self._buffers = [Buffer(f"{mount.store}/{channel}/mem0") for channel in channels[:WRITTEN]]
        self._epoll = select.epoll()
        self._random = random.Random(1)
        self.server_us: list[float] = []

    def poll(self, first: int, end: int) -> None:
        """Poll files, too."""
        for descriptor in self._descriptors[first:end]:
            self._epoll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Close all files."""
        self._epoll.close()
        for buffer in self._buffers:
            buffer.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def wakes(self, n: int) -> list[float]:
        """Return how long after a record in one of WRITTEN files epoll_wait(2) returns, in ms, of so many records."""
        took = []
        before_s = self._cpu_s()
        for number in self._random.choices(range(len(self._buffers)), k=n):
            time.sleep(PAUSE_S)
            written = time.perf_counter()
            self._buffers[number].write(b"x")
            if self._epoll.poll(10) != [(self._descriptors[number], select.EPOLLIN)]:
                raise TimeoutError("epoll_wait(2) was not woken for this file alone")
            took.append(1000 * (time.perf_counter() - written))
            os.read(self._descriptors[number], 4096)
        self.server_us.append((self._cpu_s() - before_s) / n * 1e6)
        return took


def add_wakes(samples: Samples, what: str, pollers: Mapping[int, Poller | AllPoller]) -> None:
    """Measure by turns, since a busy machine is not as busy from one second to the next, by the number of channels."""
    took: dict[int, list[float]] = {n: [] for n in pollers}
    for _ in range(ROUNDS):
        for n, poller in pollers.items():
            took[n] += poller.wakes(WAKES // ROUNDS)
    for n, all_took in took.items():
        for percent in (50, 99):
            samples.add(f"{what} p{percent} {n}", percentile(sorted(all_took), percent))
