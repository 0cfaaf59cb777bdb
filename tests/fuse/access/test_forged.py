"""Mounts whose server lies: what another program shows in .channels/ and control is refused, and harms nothing else.

A directory is all that readers take for a mount of whose store they may see nothing.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forking import RELAYCTL, run
from mounts import DEADLINE_S, Mount

import relayfs_fuse
from relayfs_fuse import errors

pytestmark = pytest.mark.one_mount

# What files have, each in a channel of its own. None: a FIFO; a number: so many bytes, without a newline.
LIES: dict[str, list[bytes | int | None]] = {
    "type": [b"", b"\n", b"rely\n", b"relay\nring\n", b"\xff\xfe", b"relay\0", 1 << 40, None],
    "n_buffers": [b"0\n", b"-1\n", b"1.5\n", b"\xd9\xa3\n", b"9" * 100, b"18446744073709551616\n", b"unknown\n", 5000],
    # Of these two, figures need nothing.
    "buffers": [b"two\n"],
    "times": [b"sundial\n"],
    # And these are read for figures only.
    "records": [b"many\n", b"1e9\n", b"18446744073709551616\n"],
    "subbuf_size": [b"4K\n"],
    "state": [b"\x1b]0;title\x07\n", b"fine\n", None],
}
LISTED = LIES.keys() - {"buffers", "times"}
OPENED = LIES.keys() - {"records", "subbuf_size", "state"}


@pytest.fixture
def lying(mount: Mount, tmp_path: Path) -> Path:
    """A directory like a mount, with channel good of the real one."""
    mount.create("good", "buffers=single")
    shown = tmp_path / ".channels/good"
    shown.mkdir(parents=True)
    for file in (mount.path / ".channels/good").iterdir():
        if file.is_file() and not file.name.startswith(("merged", "peek", "mem", "triggered")):
            shutil.copyfile(file, shown / file.name)
    (shown / "mem0").touch()
    (tmp_path / "error_log").touch()
    (tmp_path / ".traces").mkdir()
    shutil.copyfile(mount.store / ".traces", tmp_path / ".traces/control")
    os.setxattr(tmp_path / ".traces/control", "user.relayfs.backing", b"/nonexistent/.traces")
    return tmp_path


def forge(path: Path, lie: bytes | int | None) -> None:
    if lie is None:
        path.unlink()
        os.mkfifo(path)
    elif isinstance(lie, int):
        os.truncate(path, lie)
    else:
        path.write_bytes(lie)


def listing(lying: Path) -> subprocess.CompletedProcess[str]:
    """Have relayctl list the channels in a GiB of memory."""
    command = ["prlimit", f"--as={1 << 30}", RELAYCTL, "list", "--json", "--mount", lying]
    return run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def listed(lying: Path) -> dict[str, dict]:
    done = listing(lying)
    assert (done.returncode, done.stderr) == (0, "")
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_what_no_server_writes_is_named_and_other_channels_are_listed(lying: Path) -> None:
    channels = lying / ".channels"
    names = {f"{name}-{i}": name for name, lies in LIES.items() for i in range(len(lies))}
    for channel, name in names.items():
        shutil.copytree(channels / "good", channels / channel)
        forge(channels / channel / name, LIES[name][int(channel.rpartition("-")[2])])
    (lying / "control").write_text("".join(f"create {channel} \n" for channel in ("good", *names)))
    found = listed(lying)
    assert (found["good"]["kind"], found["good"]["state"]) == ("relay", "ok")
    for channel, name in names.items():
        says = f"{channels}/{channel}/{name}: "
        assert found[channel]["state"].startswith(says if name in LISTED else "ok")
        if name in OPENED:
            with pytest.raises(errors.MountError) as raised:
                relayfs_fuse.open(lying / channel)
            assert str(raised.value).startswith(says)
    done = run([RELAYCTL, "cat", "type-2", "--mount", lying], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"relayctl: {channels}/type-2/type: 'rely' is not one of relay, ring")


def test_names_that_lead_out_of_the_mount_are_not_followed(lying: Path) -> None:
    control = lying / "control"
    control.write_bytes(b"create ../../etc \ncreate good \ncreate /etc \ncreate a/\x07b \n")
    found = listed(lying)
    assert found.pop("good")["state"] == "ok"
    assert len(found) == 3
    assert all(one["state"].startswith(f"{control}: ") for one in found.values())
    os.truncate(control, 1 << 40)
    done = listing(lying)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"relayctl: {control} has a line longer than ")
