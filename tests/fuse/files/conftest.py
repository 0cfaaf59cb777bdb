"""A relay file to read."""

from collections.abc import Iterator

import pytest
from mounts import Mount
from traffic import PRELOADED, Stream


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    """A relay file with lines in it, and nobody who adds more."""
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel)
    stream.write(PRELOADED)
    yield stream
    stream.kill()
