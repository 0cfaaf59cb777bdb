"""Programs that reach less of the machine than others: what they write is recorded or counted, never silently gone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from babeltrace import babeltrace
from making import making
from mounts import DEADLINE_S, NOBODY, Mount, User, tmpfs_directory
from traced import environment_of, lost_without_buffers, program, record_stopped, start_trace, traced
from tracing import RELAYCTL

pytestmark = pytest.mark.one_mount

N = 100
SOMEBODY = 60_003
MADE_BY = [None, NOBODY]

# A mount of nobody's whose server answers nothing, alone in a mount namespace; then a program of SOMEBODY.
SILENT = """
import ctypes, os, sys
source, place, user, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/self/mountinfo") as mounts:
    others = [line.split()[4] for line in mounts if " - fuse.relayfs " in line]
for other in others:
    libc.umount2(other.encode(), 2)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40755,user_id=65534,group_id=65534,allow_other"
if libc.mount(source.encode(), place.encode(), b"fuse.relayfs", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
os.set_inheritable(device, True)
os.execvp("setpriv", ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command])
"""


def lost_of_both(mount: Mount) -> tuple[int, int]:
    return lost_without_buffers(mount), lost_without_buffers(mount, NOBODY)


# --- user namespaces ---


@pytest.mark.parametrize("store_mode", [0o700, 0o711])
@pytest.mark.parametrize("options", ["-U", "-Ur"])
@pytest.mark.parametrize("user", MADE_BY)
def test_events_of_another_user_namespace_are_recorded_in_roots_mount(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None, options: str, store_mode: int
) -> None:
    mount.store.chmod(store_mode)
    start_trace(mount, "t")
    with making({"RELAYFS": str(mount.path)}, user, ["unshare", options, program("traced")]) as maker:
        maker.ask(f"emit {N}")
        pid = maker.process.pid
        counted = lost_of_both(mount)
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert (trace.by_pid(), counted) == ({pid: list(range(N))}, (0, 0))


def test_a_user_who_is_root_in_a_user_namespace_is_traced_in_that_users_own_mount(
    make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None
) -> None:
    mount = make_mount(user=NOBODY)
    out = mount.store.parent / "out"

    def as_owner(*command: str | Path) -> None:
        done = subprocess.run(
            command, env=environment_of(mount), user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True,
            text=True, check=False, cwd="/", timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    for command in ("create", "start"):
        as_owner("sh", "-c", f"echo trace {command} t >{mount.control}")
    with making({"RELAYFS": str(mount.path)}, NOBODY, ["unshare", "-Ur", program("traced")]) as maker:
        maker.ask(f"emit {N}")
        pid = maker.process.pid
    as_owner("sh", "-c", f"echo trace stop t >{mount.control}")
    as_owner(RELAYCTL, "record", "t", "-o", out, "--until-stopped")
    assert babeltrace(out).by_pid() == {pid: list(range(N))}


def test_a_user_without_a_number_does_not_ask_nobodys_server(unprivileged: User) -> None:
    """Linux shows all such users as nobody, of whom this one is another."""
    with tmpfs_directory() as place:
        command = ["unshare", "--mount", sys.executable, "-c", SILENT, "relayfs", place, str(SOMEBODY)]
        command += ["unshare", "-U"]
        with making({"RELAYFS": "", "RELAYFS_STORE": "/nowhere"}, None, [*command, program("traced")]) as maker:
            maker.ask(f"emit {N}")


def test_what_a_user_calls_the_source_of_a_mount_does_not_make_it_roots(unprivileged: User) -> None:
    with tmpfs_directory() as place:
        shown = [sys.executable, "-c", "from relayfs_fuse import native; print(native.find_mount())"]
        command = ["unshare", "--mount", sys.executable, "-c", SILENT, "x,user_id=0", place, str(SOMEBODY), *shown]
        environment = {"RELAYFS": "", "PATH": os.environ["PATH"]}
        assert subprocess.check_output(command, text=True, timeout=DEADLINE_S, env=environment, cwd="/") == "None\n"


# --- what is out of reach ---


@pytest.mark.parametrize("user", MADE_BY)
def test_a_program_that_does_not_see_the_store_is_recorded(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    start_trace(mount, "t")
    who = f"setpriv --reuid {user} --regid {user} --clear-groups" if user else ""
    script = f"mount -t tmpfs tmpfs {mount.store.parent} && exec {who} {program('traced')}"
    with making({"RELAYFS": str(mount.path)}, None, ["unshare", "--mount", "sh", "-c", script]) as maker:
        maker.ask(f"emit {N}")
        counted = lost_of_both(mount)
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert (trace.numbers(), counted) == (list(range(N)), (0, 0))


@pytest.mark.parametrize("user", MADE_BY)
@pytest.mark.parametrize("n_free", [1, 2, 3, 5, 8])
def test_events_of_a_program_with_few_descriptors_are_recorded_or_counted(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None, n_free: int
) -> None:
    start_trace(mount, "t")
    limit = 3 + n_free
    command: list[str | Path] = ["prlimit", f"--nofile={limit}:{limit}", program("traced")]
    with making({"RELAYFS": str(mount.path)}, user, command) as maker:
        maker.ask(f"emit {N}")
        counted = sum(lost_of_both(mount))
        made = [path.name for path in (mount.store / "t").iterdir() if path.is_dir()]
    # A program of another user may join before it has too few: it has a directory, without events.
    assert set(made) <= {f"traced-{maker.process.pid}"}
    seen = record_stopped(mount, "t", tmp_path / "out").numbers() if made and not counted else []
    assert len(seen) + counted == N


def test_events_behind_chroot_are_counted(mount: Mount, tmp_path: Path) -> None:
    with traced(mount) as maker:
        maker.ask(f"chroot {tmp_path}")
        start_trace(mount, "t")
        maker.ask(f"emit {N}")
        assert lost_without_buffers(mount) == N


@pytest.mark.parametrize("user", MADE_BY)
def test_what_was_joined_before_chroot_goes_on(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    start_trace(mount, "t")
    # Only root of some user namespace may change its root directory.
    command = [*(["unshare", "-Ur"] if user else []), program("traced")]
    with tmpfs_directory() as root, making({"RELAYFS": str(mount.path)}, user, command) as maker:
        maker.ask(f"emit {N}")
        maker.ask(f"chroot {root}")
        maker.ask(f"emit {N}")
        counted = lost_of_both(mount)
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert (trace.numbers(), trace.lost, counted) == (list(range(2 * N)), 0, (0, 0))
