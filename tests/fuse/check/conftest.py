"""Stores that tests damage: each its own copy of what the fixture template of its file has made."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import tmpfs_directory


@pytest.fixture
def copied(template: Path) -> Iterator[Path]:
    with tmpfs_directory() as path:
        shutil.copytree(template, path / "store")
        yield path / "store"
