"""A relay file to read."""

from collections.abc import Iterator

import pytest
from mounts import Mount
from traffic import PRELOADED, Stream, streaming


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    """A relay file with lines in it, and nobody who adds more."""
    with streaming(mount) as stream:
        stream.write(PRELOADED)
        yield stream
