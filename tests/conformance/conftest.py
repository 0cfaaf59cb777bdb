"""One mount for all tests of a file: they make a channel each; and one program that writes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.ring import SCHEMES, Ring, ring
from mounts import Mount


@pytest.fixture(scope="module")
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def one_mount(shm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    scratch = tmp_path_factory.mktemp("mount")
    mount = Mount(scratch / "mnt", shm / "store", scratch / "log")
    mount.path.mkdir()
    mount.start()
    yield mount
    mount.close()


@pytest.fixture(scope="module", params=SCHEMES)
def producer(request: pytest.FixtureRequest, shm: Path) -> Iterator[Ring]:
    with ring(request.param, "", shm) as subject:
        yield subject
