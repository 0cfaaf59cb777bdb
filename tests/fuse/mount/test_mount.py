"""All ways to mount and to unmount."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mounts import DEADLINE_S, NOBODY, RELAYFS, wait_until
from traffic import wait_asleep

from relayfs_fuse.cli.mount import parse
from relayfs_fuse.errors import OptionError
from relayfs_fuse.fs.upkeep import FORGET_S

MNT_EXPIRE = 4  # <sys/mount.h>


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{RELAYFS.parent}:/usr/local/bin:{os.environ['PATH']}"}
    return subprocess.run(
        list(map(str, command)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,
    )


@pytest.fixture
def mountpoint(tmp_path):
    path = tmp_path / "a mount"
    path.mkdir()
    yield path
    subprocess.run(["fusermount3", "-u", "-z", "-q", path], check=False, capture_output=True)


@pytest.fixture
def root():
    if os.geteuid() != 0:
        pytest.skip("mount(8) needs root")


def works(mountpoint: Path) -> bool:
    (mountpoint / "control").write_text("create t/cpu buffers=single\n")
    (mountpoint / "t/cpu").write_text("hello\n")
    return (mountpoint / "t/cpu").read_text() == "hello\n"


def server_of(store: Path) -> int:
    return int((store / ".lock").read_text().split()[1].rstrip(","))


def has_ended(pid: int) -> bool:
    """Whether it has; the first process of the system may be slow to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def installed(root):
    """The programs where mount(8), which goes by a PATH of its own, finds them; under a name of this test."""
    name = f"relayfs-test-{os.getpid()}"
    places = [Path("/usr/local/bin", name), Path("/sbin", f"mount.{name}")]
    for place in places:
        place.symlink_to(RELAYFS)
    yield name
    for place in places:
        place.unlink()


FORMS = {
    "relayfs MNT": ["{name}", "{mnt}", "-o", "store={store}"],
    "relayfs SOURCE MNT": ["{name}", "source", "{mnt}", "-o", "rw,nosuid", "-o", "store={store}"],
    "mount -t fuse": ["mount", "-t", "fuse", "{name}", "{mnt}", "-o", "store={store}"],
    "mount -t fuse.relayfs": ["mount", "-t", "fuse.{name}", "source", "{mnt}", "-o", "noexec,store={store}"],
    "mount -t relayfs": ["mount", "-t", "{name}", "source", "{mnt}", "-o", "nosuid,nofail,store={store}"],
    "mount -v -s -t relayfs": ["mount", "-v", "-s", "-t", "{name}", "source", "{mnt}", "-o", "store={store}"],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("end", [["umount"], ["fusermount3", "-u"]], ids=["umount", "fusermount3"])
def test_each_form_mounts_and_each_end_ends_it(installed, form, end, mountpoint, scratch_store):
    done = run(*[word.format(name=installed, mnt=mountpoint, store=scratch_store) for word in form])
    assert (done.returncode, done.stderr) == (0, "")
    assert works(mountpoint)
    assert " fuse.relayfs " in Path("/proc/self/mountinfo").read_text()
    server = server_of(scratch_store)
    assert run(*end, mountpoint).returncode == 0
    wait_until(lambda: has_ended(server), "the server ends")
    assert list(mountpoint.iterdir()) == []


def test_helper_takes_minus_f_as_fake(mountpoint, scratch_store, tmp_path):
    helper = tmp_path / "mount.relayfs"
    helper.symlink_to(RELAYFS)
    assert run(helper, "relayfs", mountpoint, "-f", "-o", f"store={scratch_store}").returncode == 0
    assert not scratch_store.exists()


def test_fstab_line_mounts(installed, mountpoint, scratch_store, tmp_path):
    fstab = tmp_path / "fstab"
    escaped = str(mountpoint).replace(" ", "\\040")
    fstab.write_text(
        f"relayfs {escaped} fuse.{installed} noauto,x-systemd.automount,nofail,store={scratch_store} 0 0\n"
    )
    done = run("mount", "--fstab", fstab, mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert works(mountpoint)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(make_mount, signum):
    mount = make_mount()
    assert mount.stop(signum) == 0
    assert list(mount.path.iterdir()) == []


# relayfs to which a signal is sent when trio has closed the socket to which signals are written.
SIGNALLED = f"""#!{sys.executable}
import os, signal, sys
from trio._core._wakeup_socketpair import WakeupSocketpair
from relayfs_fuse.cli import mount

def close(sockets, really=WakeupSocketpair.close):
    sockets.write_sock.close()
    os.kill(os.getpid(), signal.SIGTERM)
    really(sockets)

WakeupSocketpair.close = close
sys.exit(mount.main())
"""


def test_a_signal_that_arrives_while_it_ends_changes_nothing(make_mount, tmp_path):
    program = tmp_path / "relayfs"
    program.write_text(SIGNALLED)
    program.chmod(0o755)
    mount = make_mount(start=False)
    mount.program = program
    mount.start()
    assert mount.stop() == 0
    mount.check_log()


# With MNT_EXPIRE, umount2(2) finds out whether the mount is in use, and does not unmount the first time.
EXPIRE = """
import ctypes, errno, os, sys, time

path, seconds, mnt_expire = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
umount2 = ctypes.CDLL(None, use_errno=True).umount2


def command(line):
    with open(f"{path}/control", "w") as control:
        control.write(line)


for _ in range(3):
    for name in ("a", "b", "c", "d"):
        command(f"create {name} buffers=single")
        os.stat(f"{path}/{name}")
        command(f"remove {name}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.stat(path)  # takes back that it is not in use
        assert umount2(os.fsencode(path), mnt_expire) == -1
        assert ctypes.get_errno() == errno.EAGAIN, os.strerror(ctypes.get_errno())
"""


@pytest.mark.usefixtures("root")
def test_the_server_is_not_what_keeps_umount_from_unmounting(mountpoint, scratch_store):
    """In a mount namespace of its own, because programs elsewhere that look at all mounts would use this one, too."""
    script = 'relayfs "$3" -o "store=$1" && shift && "$0" -c "$@"; status=$?; umount "$2"; exit $status'
    words = [scratch_store, EXPIRE, mountpoint, 1.1 * FORGET_S, MNT_EXPIRE]
    done = run("unshare", "--mount", "sh", "-c", script, sys.executable, *words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_ends_a_server_with_sleeping_readers(make_mount):
    mount = make_mount()
    path = mount.create("w", "buffers=single read=wait")
    reader = subprocess.Popen(["cat", path], stderr=subprocess.PIPE)
    wait_asleep(reader, path)
    assert mount.stop() == 0
    assert reader.wait(DEADLINE_S) != 0
    reader.stderr.close()


def test_a_dead_mount_is_cleared(mountpoint, scratch_store):
    assert run("relayfs", mountpoint, "-o", f"store={scratch_store}").returncode == 0
    assert works(mountpoint)
    for _ in range(3):
        os.kill(server_of(scratch_store), signal.SIGKILL)
        done = run("relayfs", mountpoint, "-o", f"store={scratch_store}")
        assert (done.returncode, done.stderr) == (0, "")
    assert "\ncreate t/cpu " in (mountpoint / "control").read_text()
    assert run("fusermount3", "-u", mountpoint).returncode == 0
    assert list(mountpoint.iterdir()) == [], "dead mounts do not pile up"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("nonsense", "unknown mount option 'nonsense'"),
        ("trusted=no", "trusted=no: trusted has no value; leave out =no"),
        ("size=lots", "size=lots"),
        ("size=0", "size=0: a number of bytes above 0"),
        ("user_size=-1", "or none, for no limit"),
        ("user_files=0", "user_files=0: a number from 1"),
        ("control_mode=rw", "control_mode=rw"),
        ("store=", "store="),
        ("store=/proc/x", "cannot use /proc/x as a store"),
        ("store=/etc/passwd", "it is no directory"),
        ("log=/no/such/dir/log", "log=/no/such/dir/log"),
    ],
)
def test_a_mount_that_fails_says_why(mountpoint, options, says, scratch_store):
    store = "" if "store" in options else f",store={scratch_store}"
    done = run("relayfs", mountpoint, "-o", options + store)
    assert done.returncode == 1
    assert says in done.stderr
    assert list(mountpoint.iterdir()) == []


def test_a_mountpoint_must_be_a_directory(tmp_path, scratch_store):
    for path in (tmp_path / "missing", Path("/etc/passwd")):
        done = run("relayfs", path, "-o", f"store={scratch_store}")
        assert done.returncode == 1
        assert str(path) in done.stderr


def test_a_store_that_others_can_write_is_refused(mountpoint, scratch_store):
    scratch_store.mkdir()
    scratch_store.chmod(0o777)
    done = run("relayfs", mountpoint, "-o", f"store={scratch_store}")
    assert done.returncode == 1
    assert "writable to nobody else" in done.stderr


def test_a_store_below_another_users_directory_is_refused(mountpoint, scratch_store):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    theirs = scratch_store.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    done = run("relayfs", mountpoint, "-o", f"store={theirs}/store")
    assert done.returncode == 1
    assert f"{theirs} belongs to user {NOBODY}, who can replace {theirs}/store" in done.stderr
    assert list(theirs.iterdir()) == []


def test_a_store_has_one_server(mount, mountpoint):
    done = run("relayfs", mountpoint, "-o", f"store={mount.store}")
    assert done.returncode == 1
    assert f"already served (process {mount.process.pid}, mounted at {mount.path})" in done.stderr


def test_the_log_goes_where_it_is_told(mountpoint, scratch_store, tmp_path):
    log = tmp_path / "log"
    assert run("relayfs", mountpoint, "-o", f"store={scratch_store},log={log}").returncode == 0
    with pytest.raises(OSError):
        (mountpoint / "control").write_text("nonsense\n")
    # The server does not wait for its log.
    wait_until(lambda: "unknown command 'nonsense'" in log.read_text(), "the refused command is logged")
    assert f"{mountpoint} is mounted" in log.read_text()


def test_a_user_mounts_without_privileges(make_mount, unprivileged, open_fuse_device):
    mount = make_mount(user=unprivileged.uid)
    mount.expect("fusermount3")
    with pytest.raises(PermissionError):
        mount.channels()  # not even root, without allow_other
    script = """
import os, sys, mmap, errno
os.chdir(sys.argv[1])
open("control", "w").write("create u/cpu buffers=single\\n")
open("u/cpu", "w").write("hello\\n")
assert os.stat("u/cpu").st_uid == os.getuid()
fd = os.open(".channels/u/cpu/mem0", os.O_RDWR)
try:
    mmap.mmap(fd, 4096)
except OSError as error:
    assert error.errno == errno.ENODEV
else:
    raise AssertionError("mapped without privileges")
with open(os.getxattr(".channels/u/cpu/mem0", "user.relayfs.backing"), "r+b") as file:
    assert mmap.mmap(file.fileno(), 4096)[:6] == b"hello\\n"
print(open("u/cpu").read(), end="")
"""
    done = unprivileged.python(script, mount.path)
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_relayfs_store_names_the_default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYFS_STORE", "/dev/shm/elsewhere")
    assert parse(["/mnt"]).settings.store == "/dev/shm/elsewhere"
    assert parse(["/mnt", "-o", "store=/dev/shm/given"]).settings.store == "/dev/shm/given"


def test_the_default_store_is_named_after_the_user(mountpoint, monkeypatch):
    monkeypatch.delenv("RELAYFS_STORE", raising=False)
    expected = "/dev/shm/relayfs" if os.geteuid() == 0 else f"/dev/shm/relayfs-{os.geteuid()}"
    assert parse([str(mountpoint)]).settings.store == expected


def test_options_come_in_any_order_and_number():
    arguments = parse(["-o", "size=1M,allow_other", "src", "-o", "ro", "/mnt", "-f"])
    assert (arguments.settings.limits.size, arguments.settings.mountpoint) == (1 << 20, "/mnt")
    assert {"allow_other", "ro", "fsname=src", "subtype=relayfs"} <= arguments.settings.fuse_options
    assert arguments.foreground
    with pytest.raises(OptionError, match="size"):
        parse(["/mnt", "-o", "size=1X"])
