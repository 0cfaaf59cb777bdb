"""The account of records balances after a storm, by cause and within each interval, in each mode and scheme."""

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest
from checked import account_of, drain, in_dead_process, reserve
from mounts import Mount

from relayfs_fuse import Channel, Ring, native
from relayfs_fuse.tracefiles.losses import Interval, parse

OPTIONS = {"relay": "subbuf_size=4K n_subbufs=4", "ring": "type=ring size=16K buffers=percpu"}
SCHEMES = [("relay", "rseq"), ("relay", "lockless"), ("relay", "locking"), ("ring", "rseq"), ("ring", "lockless")]
CAUSES = ("full", "too_large", "disabled", "overwritten", "torn")
REFUSALS = {errno.EAGAIN, errno.ENOSPC, errno.EMSGSIZE, errno.ECANCELED}
# How often each kind of phase comes.
ROUNDS = 3


class Storm:
    """Two threads write to the buffers of two CPUs; n_accepted: records that are in the buffers, or were."""

    def __init__(self, mount: Mount, kind: str, scheme: str, mode: str) -> None:
        self.mount, self.kind, self.mode = mount, kind, mode
        self.path = mount.create("app/cpu", f"{OPTIONS[kind]} scheme={scheme} mode={mode}")
        self.cpus = (0, native.n_possible_cpus() - 1)
        self.n_accepted = 0
        self._sums: Counter[str] = Counter()

    def write(self, n: int, length: int) -> int:
        """Have each thread write n records; return how many were refused."""
        refused: list[int] = []
        threads = [threading.Thread(target=self._write, args=(cpu, n, length, refused)) for cpu in self.cpus]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == len(threads)
        self.n_accepted += len(threads) * n - sum(refused)
        return sum(refused)

    def _write(self, cpu: int, n: int, length: int, refused: list[int]) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread
        n_refused = 0
        with closing(Channel(self.path) if self.kind == "relay" else Ring(self.path)) as writer:
            put = writer.write if isinstance(writer, Channel) else writer.output
            for _ in range(n):
                try:
                    put(bytes(length))
                except OSError as error:
                    assert error.errno in REFUSALS
                    n_refused += 1
        refused.append(n_refused)

    def fill(self) -> dict[str, int]:
        refused = self.write(300, 100)
        assert bool(refused) == (self.mode == "no-overwrite")
        return {"full": refused} if refused else {}

    def write_too_large(self) -> dict[str, int]:
        assert self.write(5, 20_000) == 10
        return {"too_large": 10}

    def write_disabled(self) -> dict[str, int]:
        self.mount.command("disable app/cpu")
        assert self.write(7, 10) == 14
        self.mount.command("enable app/cpu")
        return {"disabled": 14}

    def read(self) -> dict[str, int]:
        for cpu in range(native.n_possible_cpus()):
            drain(self.kind, self.mount.store / f"app/cpu/mem{cpu}")
        return {}

    def tear(self) -> dict[str, int]:
        """A process dies with a reservation; the next reader passes it."""
        self.read()
        in_dead_process(self._reserve)
        self.write(5, 10)
        self.read()
        self.n_accepted += 1
        return {"torn": 1}

    def _reserve(self) -> None:
        os.sched_setaffinity(0, {0})
        reserve(self.mount.store / "app/cpu/mem0", "relay_buf" if self.kind == "relay" else "relay_ring")

    def losses(self) -> set[tuple[str, Interval]]:
        text = (self.mount.path / ".channels/app/cpu/losses").read_text()
        return {(buffer, interval) for buffer, kept in parse(text.splitlines()).items() for interval in kept}

    def check(self, act: Callable[[], dict[str, int]]) -> None:
        """Compare what an act has lost, by cause, with how the intervals have grown."""
        self.losses()
        begun = time.time_ns()
        # The look at unchanged counts ends the intervals before.
        before = self.losses()
        expected = act()
        after = self.losses()
        ended = time.time_ns()
        sums: Counter[str] = Counter()
        for _, interval in after:
            sums[interval.cause] += interval.n_records
        grown = dict(sums - self._sums)
        grown.pop("overwritten", None)  # by the number that nobody has read, which statistics and account say
        assert grown == expected
        assert {interval.cause for _, interval in after - before} - {"overwritten"} == set(expected)
        for _, interval in after - before:
            assert begun <= interval.since_ns <= interval.until_ns <= ended
        self._sums = sums
        assert dict(sums) == {cause: n for cause in CAUSES if (n := int(self.mount.shown("app/cpu", f"lost_{cause}")))}


@pytest.mark.one_mount
@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
def test_what_a_storm_has_lost_is_within_the_intervals_of_its_causes(
    mount: Mount, kind: str, scheme: str, mode: str
) -> None:
    storm = Storm(mount, kind, scheme, mode)
    acts = [storm.fill, storm.write_too_large, storm.write_disabled, storm.read] * ROUNDS
    random.Random(f"{kind} {scheme} {mode}").shuffle(acts)
    for act in (storm.fill, *acts, storm.tear):
        storm.check(act)
    account = account_of(mount.store, "app/cpu")
    assert (account["reserved"], account["torn"], account["resident"]) == (storm.n_accepted, 1, 0)
    assert account["overwritten"] == int(mount.shown("app/cpu", "lost_overwritten"))
    assert bool(account["overwritten"]) == (mode == "overwrite")
