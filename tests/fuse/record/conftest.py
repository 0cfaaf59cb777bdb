"""Recordings of a store that nobody serves, and where they go."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tracing import Store, recording


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def record(store: Store, out: Path) -> Callable[..., object]:
    """Record trace t to `out`."""
    return lambda *arguments, **options: recording("t", "--store", store.path, "-o", out, *arguments, **options)
