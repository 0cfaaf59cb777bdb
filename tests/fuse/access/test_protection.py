"""Who may write to memory that others map cannot free its pages: not after kills or commands either."""

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mapping import WITHOUT_IMMUTABLE, unprotecting, why_unprotected
from mounts import NOBODY, Mount, User, wait_until
from traced import processes, start_trace, traced
from traffic import append

from relayfs_fuse import Channel, Ring, native
from relayfs_fuse.fs.kinds.channel import StoredChannel
from relayfs_fuse.fs.kinds.mapped import mapped

INTRUDER = Path(__file__).with_name("intruder.py")
FS_IOC_GETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x10
OPEN = "buffers=single perm=0666 subbuf_size=64K"


def is_protected(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        (flags,) = struct.unpack("ixxxx", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))
        return bool(flags & FS_IMMUTABLE_FL)
    finally:
        os.close(descriptor)


@pytest.fixture
def make_mount(make_mount: Callable[..., Mount], scratch_store: Path) -> Callable[..., Mount]:
    """Start servers where there is what is tested: a tmpfs that knows the flag, and the right to set it."""
    reason = why_unprotected(scratch_store.parent)
    if reason:
        pytest.skip(f"this machine's tmpfs makes no file immutable: {reason}")
    return make_mount


@pytest.fixture(autouse=True)
def is_mapped(request: pytest.FixtureRequest) -> None:
    """It is what a mount maps."""
    if "mount" in request.fixturenames:
        request.getfixturevalue("mapped_through")


def free_pages(user: User, file: Path) -> str:
    return user.run(sys.executable, INTRUDER, file, "remove").stderr.strip().rpartition("] ")[2]


def make_open_channel(mount: Mount, name: str = "open/log") -> tuple[Path, Path]:
    """Make one that everybody may write to, with a record; return its file in the mount and that in the store."""
    append(mount.create(name, OPEN), b"record\n")
    return mount.path / f".channels/{name}/mem0", mount.store / name / "mem0"


@pytest.mark.parametrize("file", ["memory", "relay file"])
def test_pages_of_a_channel_cannot_be_freed(mount: Mount, unprivileged: User, file: str) -> None:
    memory, stored = make_open_channel(mount)
    blocks = stored.stat().st_blocks
    target = memory if file == "memory" else mount.path / "open/log"
    assert free_pages(unprivileged, target) == "Operation not permitted"
    assert stored.stat().st_blocks == blocks
    with Channel(mount.path / "open/log") as channel:
        channel.write(b"more\n")
    assert (mount.path / "open/log").read_bytes() == b"record\nmore\n"


def test_pages_of_a_ring_cannot_be_freed(mount: Mount, unprivileged: User) -> None:
    path = mount.create("ring", "type=ring buffers=single perm=0666 framing=line")
    with Ring(path) as ring:
        ring.output(b"record")
        assert free_pages(unprivileged, mount.path / ".channels/ring/mem0") == "Operation not permitted"
        ring.output(b"more")
    assert path.read_bytes() == b"record\nmore\n"


@pytest.mark.parametrize("kind", ["perprocess", "shared"])
def test_pages_of_a_trace_cannot_be_freed(mount: Mount, unprivileged: User, kind: str) -> None:
    start_trace(mount, "t", f"subbuf_size=64K n_subbufs=4 buffers={kind}")
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 10")
        (process,) = processes(mount.path / "t")
        memory = mount.path / f".channels/t/{process}/cpu/mem0"
        assert free_pages(unprivileged, memory) == "Operation not permitted"
        # Its buffers get memory when they are first written to: of both CPUs, whichever it runs on now.
        program.ask("threads 4 100")
        buffers = (mount.path / f".channels/t/{process}/cpu").glob("buffer[0-9]*")
        # On a busy machine an event may be lost: another thread is preempted while it begins a sub-buffer.
        counts = [path / name for path in buffers for name in ("records", "lost")]
        wait_until(lambda: sum(int(count.read_text()) for count in counts) == 410, "written or counted as lost")
    mount.command("trace remove t\n")
    wait_until(lambda: not (mount.store / "t").exists(), "the trace is removed")


def test_what_becomes_open_to_others_is_protected(mount: Mount, unprivileged: User) -> None:
    relay_file = mount.create("log", "buffers=single perm=0600")
    stored = mount.store / "log/mem0"
    with Channel(relay_file):
        assert not is_protected(stored)  # nobody else may write to it
        os.chmod(relay_file, 0o666)
        assert is_protected(stored)
        os.chown(relay_file, NOBODY, NOBODY)
        os.chmod(relay_file, 0o600)
        assert (stored.stat().st_uid, stored.stat().st_mode & 0o777) == (NOBODY, 0o600)
        assert is_protected(stored)
        assert free_pages(unprivileged, relay_file) == "Operation not permitted"


def test_what_is_no_longer_open_to_others_stays_protected(mount: Mount, unprivileged: User) -> None:
    """Somebody may have it mapped from before."""
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    os.chmod(mount.path / "open/log", 0o600)
    assert stored.stat().st_mode & 0o777 == 0o600
    assert is_protected(stored)


def test_what_is_removed_stays_protected_while_it_is_mapped(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    with open(stored, "rb") as kept:
        mount.command("remove open/log\n")
        assert not stored.exists()
        assert is_protected(Path(f"/proc/self/fd/{kept.fileno()}"))


def test_its_owner_cannot_lift_the_protection_by_chmod(mount: Mount, unprivileged: User) -> None:
    relay_file = mount.create("theirs", f"buffers=single uid={NOBODY} perm=0644")
    memory = mount.path / ".channels/theirs/mem0"
    assert unprivileged.run("chmod", "600", relay_file).returncode == 0
    assert free_pages(unprivileged, memory) == "Operation not permitted"
    assert "Device or resource busy" in unprivileged.run("chmod", "644", relay_file).stderr
    assert relay_file.stat().st_mode & 0o777 == 0o600
    os.chmod(relay_file, 0o644)
    assert is_protected(mount.store / "theirs/mem0")


def test_the_stores_own_user_opens_protected_files(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    assert is_protected(stored)
    buffer = native.Buffer(str(stored))
    assert buffer.stats().records == 1
    buffer.close()
    assert is_protected(stored)


def test_a_trusting_mount_protects_nothing(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount("trusted")
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    assert not is_protected(stored)
    assert unprivileged.run("sh", "-c", f": >> {stored}").returncode == 0


# --- how it ends ---


def test_a_server_that_ends_leaves_a_store_that_can_be_removed(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    assert is_protected(stored)
    assert mount.stop() == 0
    assert not is_protected(stored)
    subprocess.run(["rm", "-r", mount.store / "open"], check=True)


def test_a_trusting_server_lifts_what_a_killed_one_protected(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    mount.kill()
    assert is_protected(stored)
    mount.options.append("trusted")
    mount.start()
    assert not is_protected(stored)


@pytest.mark.parametrize("ends", ["its command", "its server"])
def test_after_a_kill_the_next_server_protects_and_removes(mount: Mount, unprivileged: User, ends: str) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    mount.kill()
    assert is_protected(stored)
    assert subprocess.run(["rm", "-f", stored], capture_output=True, check=False).returncode != 0
    mount.start()
    assert is_protected(stored)
    assert free_pages(unprivileged, memory) == "Operation not permitted"
    if ends == "its command":
        mount.command("remove open/log\n")
        assert not stored.parent.exists()
    else:
        mount.stop()
        assert not is_protected(stored)


def test_what_a_killed_server_left_in_the_middle_of_a_removal_goes(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    mount.kill()
    hidden = mount.store / ".removed-1-1"
    stored.parent.rename(hidden)
    mount.start()
    assert not hidden.exists()


def test_the_library_removes_what_a_killed_server_left(mount: Mount) -> None:
    memory, stored = make_open_channel(mount)
    os.close(os.open(memory, os.O_RDWR))
    mount.kill()
    assert is_protected(stored)
    native.file_unlink(str(stored))
    assert not stored.exists()


def test_who_lacks_the_right_is_told_why_a_protected_file_cannot_be_opened(mount: Mount, tmp_path: Path) -> None:
    memory, stored = make_open_channel(mount)
    mount.create("mine", "buffers=single")
    os.close(os.open(memory, os.O_RDWR))
    code = "import sys; from relayfs_fuse import native; native.Buffer(sys.argv[1])"
    done = subprocess.run(
        [*WITHOUT_IMMUTABLE, sys.executable, "-c", code, stored], capture_output=True, text=True, check=False
    )
    assert done.stderr.rstrip().endswith(f"PermissionError: [Errno 1] Operation not permitted: '{stored}'")
    # Through the mount it is opened as by any other user.
    code = "import sys; from relayfs_fuse import Channel; Channel(sys.argv[1]).write(b'more')"
    subprocess.run([*WITHOUT_IMMUTABLE, sys.executable, "-c", code, mount.path / "open/log"], check=True)
    mount.kill()
    mount.program = unprotecting(mount.program, tmp_path)
    mount.expect("it is immutable, and to open it nevertheless takes CAP_LINUX_IMMUTABLE")
    mount.start()
    mount.wait_for_log(f"{stored} cannot be used: it is immutable")
    assert (mount.path / "mine").exists()
    assert not (mount.path / "open/log").exists()
    assert is_protected(stored)


def test_what_is_immutable_stays_mapped_until_it_is_no_more(mount: Mount) -> None:
    mount.create("log", OPEN)
    assert mount.stop() == 0
    [stored] = StoredChannel("log", str(mount.store / "log")).buffers
    native.file_protect(stored.descriptor)

    def is_mapped() -> bool:
        mapped.rest()  # the first time, it was used just before
        mapped.rest()
        return stored.backing.descriptor >= 0

    assert is_mapped()
    native.file_unprotect(stored.backing.descriptor)
    assert not is_mapped()
