"""Where a store may lie: see relayfs_fuse/fs/own_path.py."""

import os
from pathlib import Path

import pytest

from relayfs_fuse.fs.own_path import stranger_above

STRANGER = 65533


@pytest.fixture(autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give directories to others")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that nobody else can replace."""
    assert stranger_above(str(tmp_path)) is None
    return tmp_path


def test_root_and_the_user_may_own_what_is_above(place: Path) -> None:
    (place / "a/b").mkdir(parents=True)
    assert stranger_above(str(place / "a/b/store")) is None
    assert stranger_above("/dev/shm/relayfs-no-such-store") is None  # sticky


def test_another_users_directory_is_refused_however_deep(place: Path) -> None:
    (place / "theirs/mine").mkdir(parents=True)
    os.chown(place / "theirs", STRANGER, STRANGER)
    for path in ("theirs/store", "theirs/mine/store", "theirs/mine"):
        reason = stranger_above(str(place / path))
        assert reason is not None
        assert f"{place}/theirs belongs to user {STRANGER}, who can replace" in reason


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o775, f"group {STRANGER}")])
def test_a_directory_that_others_write_is_refused_unless_it_is_sticky(place: Path, mode: int, who: str) -> None:
    (place / "open").mkdir()
    os.chown(place / "open", 0, STRANGER)
    (place / "open").chmod(mode)
    reason = stranger_above(str(place / "open/store"))
    assert reason is not None
    assert f"has mode {mode:04o}: {who} can replace" in reason
    (place / "open").chmod(mode | 0o1000)
    assert stranger_above(str(place / "open/store")) is None
    (place / "open/store").mkdir()
    assert stranger_above(str(place / "open/store")) is None
    os.chown(place / "open/store", STRANGER, STRANGER)
    reason = stranger_above(str(place / "open/store/inner"))
    assert reason is not None
    assert "who can replace" in reason


@pytest.mark.parametrize("target", ["{place}/theirs", "theirs", "sub/../theirs"])
def test_links_are_followed_to_where_others_can_change_them(place: Path, target: str) -> None:
    (place / "theirs").mkdir()
    (place / "sub").mkdir()
    (place / "link").symlink_to(target.format(place=place))
    assert stranger_above(str(place / "link/store")) is None
    os.chown(place / "theirs", STRANGER, STRANGER)
    reason = stranger_above(str(place / "link/store"))
    assert reason is not None
    assert f"belongs to user {STRANGER}" in reason


def test_a_loop_of_links_ends(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError):
        stranger_above(str(place / "a/store"))
