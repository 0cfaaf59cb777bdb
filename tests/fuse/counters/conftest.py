"""Counters of a mount, and mounts in which everybody may add some."""

from collections.abc import Callable, Iterator

import pytest
from mounts import Mount

from relayfs_fuse import native


@pytest.fixture
def counters(mount: Mount) -> Iterator[native.CountersHandle]:
    handle = native.CountersHandle(str(mount.path))
    yield handle
    handle.close()


@pytest.fixture
def open_mount(make_mount: Callable[..., Mount]) -> Mount:
    return make_mount("control_mode=0666")
