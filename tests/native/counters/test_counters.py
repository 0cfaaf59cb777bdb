"""Counters of a store: many threads that count, are moved and killed."""

import functools
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import PLAIN, compile_c
from mounts import wait_until

HERE = Path(__file__).resolve().parent
DEADLINE = 900
N_PROCESSES, N_THREADS = 8, 4
PROGRESS_BYTES = 64
IS_LONG = os.environ.get("RELAYFS_STRESS") == "long"
ADJUSTS = 1_000_000_000 // (N_PROCESSES * N_THREADS) if IS_LONG else 200_000
KILLS = 3
NO_RSEQ = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}


@functools.cache
def program() -> Path:
    return compile_c([HERE / "stress_counters.c"], None, PLAIN, "-O2")


@pytest.fixture
def scratch() -> Iterator[Path]:
    # On tmpfs, as a store is; others may enter it.
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def store(scratch: Path) -> Path:
    """A store in which there will be counters."""
    (scratch / ".lock").touch()
    return scratch


def stress(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program(), *map(str, arguments)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def has_begun(progress: Path, thread: int) -> bool:
    return any(progress.read_bytes()[thread * PROGRESS_BYTES :][:8])


@pytest.mark.stress
@pytest.mark.parametrize("kills", [0, KILLS])
def test_sums_are_exact_and_readers_see_no_value_torn_or_going_back(kills: int, store: Path) -> None:
    n_threads = N_PROCESSES * N_THREADS
    progress = store / "progress"
    progress.write_bytes(bytes(256 * PROGRESS_BYTES))
    deadline = 3600 if IS_LONG else DEADLINE
    with stress("read", store) as reader:
        # Some without restartable sequences, beside the others.
        workers = [
            stress("add", store, progress, n * N_THREADS, N_THREADS, ADJUSTS, **(NO_RSEQ if n % 4 == 3 else {}))
            for n in range(N_PROCESSES)
        ]
        for n in random.Random(kills).sample(range(N_PROCESSES), kills):
            wait_until(lambda n=n: has_begun(progress, n * N_THREADS), "a worker counts")
            workers[n].kill()
        statuses = [worker.wait(deadline) for worker in workers]
        reader.terminate()
        looks, _ = reader.communicate(timeout=DEADLINE)
        assert reader.returncode == 0
    assert all(status in ((0, -signal.SIGKILL) if kills else (0,)) for status in statuses)
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.close()
    with stress("account", store, progress, n_threads) as account:
        completed, _ = account.communicate(timeout=DEADLINE)
    assert account.returncode == 0
    assert int(looks) > 0
    assert int(completed) >= (N_PROCESSES - kills) * N_THREADS * ADJUSTS
