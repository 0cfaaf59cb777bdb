"""relayctl doctor: what it says where something is missing, and of mounts that are in trouble."""

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from forking import RELAYCTL, RELAYFS, run
from mounts import DEADLINE_S, NO_MOUNTS, NOBODY, Mount, User, stop_process

from relayfs_fuse import native
from relayfs_fuse.cli import mounted
from relayfs_fuse.cli.relayctl import relayctl

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take rights away")


def findings(text: str) -> list[dict]:
    return json.loads(text)["findings"]


def of_mount(mount: Mount) -> tuple[int, list[dict]]:
    done = CliRunner().invoke(relayctl, ["doctor", "--json", "-m", str(mount.path)], catch_exceptions=False)
    return done.exit_code, [one for one in findings(done.output) if one["subject"] == str(mount.path)]


def levels(found: list[dict]) -> list[str]:
    return [one["level"] for one in found]


def elsewhere(prepare: str, begin: str, *namespaces: str) -> tuple[int, dict[str, dict]]:
    """Run it in namespaces of its own, in which no relayfs is mounted; return the findings by subject."""
    script = f"""set -e
        {NO_MOUNTS}
        {prepare}
        {begin} "$@" """
    command = ["unshare", "--mount", *namespaces, "sh", "-c", script, "sh", RELAYCTL, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.stderr, done.returncode in {0, 1}) == ("", True), done.returncode
    return done.returncode, {one["subject"]: one for one in findings(done.stdout)}


def test_a_mount_in_order(mount: Mount, mapped_through: None) -> None:
    status, found = of_mount(mount)
    assert (status, levels(found)) == (0, ["OK", "OK", "OK"]), found
    assert f"its version is {native.VERSION}" in found[0]["meaning"]
    assert [one["meaning"] for one in found[1:]] == ["programs of all users map its files", "error_log is empty"]
    done = run([RELAYCTL, "doctor", "-m", mount.path], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0
    assert f"OK       {mount.path}: error_log is empty\n" in done.stdout


def test_refused_commands_and_damaged_channels(mount: Mount) -> None:
    mount.expect("is damaged")
    mount.create("app/hurt", "buffers=single")
    with (mount.store / "app/hurt/mem0").open("r+b") as file:
        file.truncate(4096)
    assert mount.shown("app/hurt", "state").startswith("damaged")
    with pytest.raises(OSError, match="nvalid"):
        mount.command("create app/x n_subbufs=0\n")
    status, found = of_mount(mount)
    assert (status, levels(found)) == (1, ["OK", "OK", "problem", "note"]), found
    assert found[2]["meaning"].startswith("app/hurt is damaged: mem0: ")
    where = f"-m {mount.path} app/hurt"
    assert found[2]["advice"] == f"relayctl check {where} tells more; relayctl remove {where}"
    assert "n_subbufs=0: not allowed" in found[3]["meaning"]


def test_servers_that_are_dead_or_stopped(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounted, "ANSWER_S", 0.1)
    stop_process(mount.server)
    try:
        status, found = of_mount(mount)
    finally:
        os.kill(mount.server, signal.SIGCONT)
    assert (status, levels(found)) == (1, ["problem"])
    assert "does not answer within 0.1 s" in found[0]["meaning"]
    assert "is replaced, and open files go on" in found[0]["advice"]
    monkeypatch.undo()
    mount.kill()
    status, found = of_mount(mount)
    assert (status, levels(found)) == (1, ["problem"])
    assert "the server has ended" in found[0]["meaning"]
    assert f"umount {mount.path}" in found[0]["advice"]


def test_a_server_of_another_version_is_to_be_upgraded(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", "99.0")
    status, found = of_mount(mount)
    assert (status, found[0]["level"]) == (0, "note")
    assert found[0]["advice"].startswith(f"relayctl upgrade {mount.path} has a server of this version take over; ")


@as_root
def test_a_mount_of_a_user_maps_no_files(
    make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None
) -> None:
    mount = make_mount(user=NOBODY)
    done = unprivileged.run(RELAYCTL, "doctor", "--json", "-m", mount.path)
    assert (done.returncode, done.stderr) == (0, "")
    by_subject = {(one["subject"], one["level"]): one["meaning"] for one in findings(done.stdout)}
    assert "maps no files" in by_subject[str(mount.path), "note"]
    assert "other users" not in by_subject[str(mount.path), "note"]  # it is for its user alone
    assert "only root has it" in by_subject["CAP_SYS_ADMIN", "note"]
    # Root does not touch it.
    status, found = of_mount(mount)
    assert (status, levels(found)) == (0, ["OK"])
    assert f"a mount of user {NOBODY}" in found[0]["meaning"]


@as_root
@pytest.mark.parametrize(
    ("prepare", "place", "said"),
    [
        (
            "chmod 600 /mnt/fuse",
            "own",
            "/dev/fuse: it cannot be opened (Permission denied): this user cannot mount; chmod",
        ),
        ("chmod 666 /mnt/fuse", "others", "fusermount3 mounts only on directories to which this user may write"),
    ],
)
def test_who_cannot_mount_is_told_what_is_missing(prepare: str, place: str, said: str) -> None:
    """Of libfuse it is only told that it has failed."""
    script = f"""set -e
        {NO_MOUNTS}
        mount -t tmpfs tmpfs /mnt
        mknod /mnt/fuse c 10 229
        {prepare}
        mount --bind /mnt/fuse /dev/fuse
        mkdir /mnt/own /mnt/others
        chown {NOBODY} /mnt/own
        exec setpriv --reuid {NOBODY} --clear-groups "$@" """
    command = ["unshare", "--mount", "sh", "-c", script, "sh", RELAYFS, f"/mnt/{place}", "-o", "store=/mnt/own/store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert f"\nrelayfs: cannot mount at /mnt/{place}: {said}" in done.stderr
    assert done.stderr.endswith(". `relayctl doctor` checks what this machine has\n")


@as_root
def test_what_is_missing_in_a_container() -> None:
    """Namespaces, capabilities and a small tmpfs as containers have them; no mount is seen there."""
    prepare = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    begin = "exec setpriv --bounding-set=-sys_admin,-linux_immutable --inh-caps=-all"
    status, found = elsewhere(prepare, begin, "--pid", "--fork", "--kill-child", "--mount-proc")
    assert status == 1
    problems = {subject for subject, one in found.items() if one["level"] == "problem"}
    assert problems == {"CAP_SYS_ADMIN", "memory of /dev/shm"}
    assert "the smallest channel" in found["memory of /dev/shm"]["meaning"]
    assert found["immutable files"]["level"] == found["PID namespace"]["level"] == "note"
    assert "no CAP_LINUX_IMMUTABLE" in found["immutable files"]["meaning"]


@as_root
def test_a_device_that_is_missing() -> None:
    prepare = "mount -t tmpfs tmpfs /mnt; mkdir /mnt/shm; mknod /mnt/null c 1 3; mount --move /mnt /dev"
    status, found = elsewhere(prepare, "exec")
    assert (status, found["/dev/fuse"]["level"]) == (1, "problem")
    assert "it is not there" in found["/dev/fuse"]["meaning"]
    mounts = found["mounts"]
    assert (mounts["level"], mounts["meaning"]) == ("note", "no relayfs is mounted")
    assert mounts["advice"] == "mount one with: relayfs DIR"
