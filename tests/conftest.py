"""The fixtures of all tests, their order, and what programs inherit from them."""

import signal
import sys

import pytest

# What pytest compiles of test files is kept, out of the clone: it is as much as the tests' imports and more.
sys.pycache_prefix, sys.dont_write_bytecode = f"{sys.prefix}/pycache", False

pytest_plugins = ["c_tests", "mounts", "making", "mapping", "tracing"]

# They take a minute and more, which nobody should wait for when all else is done.
LONGEST = ("test_readme.py",)


def pytest_configure() -> None:
    """Let these signals end programs that tests start: a script's background jobs, and nohup(1)'s, ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: workers that have nothing left take over what stands behind them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
