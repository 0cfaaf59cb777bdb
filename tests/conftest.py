"""The fixtures of all tests, their order, and what programs inherit from them."""

import fcntl
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

# What pytest compiles of test files is kept, out of the clone: it is as much as the tests' imports and more.
sys.pycache_prefix, sys.dont_write_bytecode = f"{sys.prefix}/pycache", False

# How long a thread may take to end that has been told to.
ENDING_S = 30.0
# Threads that wait for work in a queue and are kept for later: those of trio's cache, and of fs/kinds/unmapper.py.
KEPT_THREADS = ("Trio thread", "unmapper")

pytest_plugins = ["c_tests", "mounts", "making", "mapping", "tracing"]

# Single tests of them take from 10 seconds to more than a minute, which nobody should wait for when all else is done.
LONGEST = (
    *("test_readme.py", "test_soak.py", "test_fuzz.py", "test_access.py", "test_forgotten.py", "test_ring_model.py"),
    *("test_thousand_buffers.py", "test_install.py", "test_libcs.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Let these signals end programs that tests start: a script's background jobs, and nohup(1)'s, ignore them."""
    gc.disable()  # until all tests are collected
    if hasattr(config, "workerinput"):
        import_module("hypothesis")  # when it is imported, it looks for garbage itself: now, and not at all tests
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Let garbage be collected from now on, without a look at the thousands of tests."""
    gc.freeze()
    gc.enable()


@contextmanager
def compiling() -> Iterator[None]:
    """Let one process at a time collect test files that have changed since all were; wait for nobody if none has."""
    stamp = Path(sys.pycache_prefix or sys.prefix, "collected")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    newest = str(max(path.stat().st_mtime_ns for path in Path(__file__).parent.rglob("*.py")))
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != newest:
            yield
            stamp.write_text(newest)
            return
    yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Have the first of several workers compile the test files, which is most of the work; the others find it done."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    with compiling():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: workers that have nothing left take over what stands behind them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that does not end its threads.

    One that sleeps in a call for a descriptor that was closed goes on with that of a later test, which has the same
    number. Threads that fixtures of a module or session have started are there before.
    """
    before = set(threading.enumerate())
    yield
    left = [one for one in threading.enumerate() if one not in before and not one.name.startswith(KEPT_THREADS)]
    for thread in left:
        thread.join(ENDING_S)
        assert not thread.is_alive(), f"{thread} was started by the test, and has not ended"
