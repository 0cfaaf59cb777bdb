"""A NATS server for the tests of a file, with a new stream for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nats_server import NatsServer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def nats(running: NatsServer) -> Iterator[NatsServer]:
    running.make_stream()
    yield running
    running.remove_stream()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a recording goes."""
    return tmp_path / "out"
