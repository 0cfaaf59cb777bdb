"""Buffer-only channels, relay_late_setup_files() and what is behind it: the command adopt."""

import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, THREADS, builds, compile_c, run_command, run_environment
from making import GEOMETRY, N_CPUS, SOURCE, USUAL, Maker, contents, environment_of, making, numbered, relay_files
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from traffic import drain

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

# relayfs which copies no memory while the file $SLOW exists.
SLOW = f"""#!{sys.executable}
import os, sys, time
from relayfs_fuse.cli import mount
from relayfs_fuse.fs.store import Store
really = Store.copy
def copy(*args, **options):
    while os.path.exists(os.environ["SLOW"]):
        time.sleep(0.01)
    return really(*args, **options)
Store.copy = copy
sys.exit(mount.main())
"""
N_THREADS = 4
# More often than this a writer does not look whether another one, which lives, has released the lock.
LOOKS_MAX = 12_000


def start_threads(maker: Maker, scheme: str, n_records: int) -> None:
    """Have N_THREADS threads write so many records each."""
    maker.ask(f"options scheme={scheme}")
    maker.ask("open - - 65536 64")
    maker.ask(f"threads {N_THREADS} {n_records}")


def check_records(maker: Maker, got: bytes, n_records: int) -> None:
    """Check that each record of these threads was written, and read once."""
    assert not [line for line in maker.told if line.startswith("lost")]
    written = (b"%d %08d" % (who, i) for who in range(N_THREADS) for i in range(n_records))
    assert sorted(got.splitlines()) == sorted(written)


def n_looks(maker: Maker) -> list[int]:
    """How often each thread but the first has slept: those that wait look again after each sleep."""
    found = []
    for task in Path(f"/proc/{maker.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if int(task.name) != maker.process.pid:
                status = (task / "status").read_text()
                found.append(int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]))
    return found


# --- without files, and files later ---


def test_a_buffer_only_channel_takes_records_and_has_no_files(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("write one")
    maker.ask("flush")
    maker.ask("fork two")
    assert mount.channels() == ""
    assert relay_files(mount.path) == []
    maker.ask("close")


def test_late_files_hold_everything_that_was_written_before(mount: Mount, maker: Maker) -> None:
    maker.ask("options delivery=packet perm=0644")
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("write one")
    maker.ask("fork two")
    maker.ask(f"late cpu {mount.path}/app/deep")
    assert relay_files(mount.path / "app/deep") == numbered("cpu")
    assert (mount.path / "app/deep/cpu0").stat().st_mode & 0o777 == 0o644
    maker.ask("write three")
    assert sorted(contents(mount.path / "app/deep/cpu").splitlines()) == [b"one", b"three", b"two"]
    assert mount.shown("app/deep/cpu", "delivery") == "packet"
    mount.command("reset app/deep/cpu\n")
    with Channel(mount.path / "app/deep/cpu") as other:
        other.write(b"other\n")
    assert contents(mount.path / "app/deep/cpu") == b"other\n"
    maker.ask("close")
    assert relay_files(mount.path) == []


@pytest.mark.parametrize("scheme", ["rseq", "lockless", "locking"])
@pytest.mark.parametrize("sanitize", builds(PLAIN, MEMORY, THREADS))
def test_late_setup_amid_writing_threads_loses_nothing(mount: Mount, scheme: str, sanitize: str) -> None:
    n_records = 20_000
    command = run_command(compile_c([SOURCE], sanitize=sanitize), sanitize=sanitize)
    with making({**run_environment(sanitize), **environment_of(mount)}, command=command) as maker:
        maker.ask("watch")
        start_threads(maker, scheme, n_records)
        maker.ask("late cpu -")
        got = b""
        done = threading.Event()
        waiter = threading.Thread(target=lambda: (maker("join"), done.set()))
        waiter.start()
        while not done.is_set():
            got += contents(mount.path / "cpu")
        waiter.join()
        got += contents(mount.path / "cpu")
        check_records(maker, got, n_records)
        maker.ask("close")
        maker.end()
        assert maker.process.returncode == 0


@pytest.mark.parametrize("scheme", ["rseq", "lockless", "locking"])
def test_moving_another_users_memory_amid_writing_threads_loses_nothing(
    make_mount: Callable[..., Mount], unprivileged: User, scheme: str
) -> None:
    mount = make_mount("control_mode=0666")
    n_records = 20_000
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        start_threads(maker, scheme, n_records)
        maker.ask("late cpu -")
        got = b""
        maker.start("join")
        mapped = Path(f"/proc/{maker.process.pid}/maps").read_text()
        assert all(f"{mount.path}/.channels/cpu/mem{cpu}" in mapped for cpu in range(N_CPUS))
        deadline = time.monotonic() + DEADLINE_S
        while got.count(b"\n") < N_THREADS * n_records and time.monotonic() < deadline:
            got += contents(mount.path / "cpu")
        assert maker.answer() == "0"
        check_records(maker, got, n_records)
        assert mount.shown("cpu", "lost") == "0"
        maker.ask("close")


@pytest.mark.parametrize("scheme", ["rseq", "lockless", "locking"])
def test_moving_another_users_memory_may_take_long(
    make_mount: Callable[..., Mount], unprivileged: User, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = make_mount("control_mode=0666", start=False, is_forked=False)
    mount.program = tmp_path / "relayfs"
    mount.program.write_text(SLOW)
    mount.program.chmod(0o755)
    slow = tmp_path / "slow"
    slow.touch()
    monkeypatch.setenv("SLOW", str(slow))
    mount.start()
    n_records = 40_000
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        start_threads(maker, scheme, n_records)
        maker.start("late cpu -")
        wait_until(lambda: all(n > LOOKS_MAX for n in n_looks(maker)), "nobody would wait for another writer any more")
        slow.unlink()
        assert maker.answer() == "0"
        assert maker("join") == "0"
        check_records(maker, contents(mount.path / "cpu"), n_records)
        maker.ask("close")


def test_another_users_memory_is_not_moved_under_an_open_reservation(
    make_mount: Callable[..., Mount], unprivileged: User
) -> None:
    mount = make_mount("control_mode=0666")
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask("options scheme=lockless buffers=single")
        maker.ask("open - - 4096 4")
        maker.ask("reserve 100")
        assert maker("late log -") == "EBUSY"
        assert mount.channels() == ""
        maker.ask("write behind")


def test_a_limit_on_the_length_of_files_is_an_error_and_no_signal(mount: Mount) -> None:
    command = ["prlimit", "--fsize=100000", compile_c([SOURCE])]
    with making(environment_of(mount), command=command) as maker:
        assert maker("open - - 65536 64") == "EFBIG"
        maker.ask("open - - 4096 2")
        maker.ask("write one")


@pytest.mark.parametrize(
    "namespace", [[], ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]], ids=["here", "PID namespace"]
)
def test_a_producer_that_dies_in_a_record_is_found_dead(mount: Mount, namespace: list[str]) -> None:
    if namespace and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a PID namespace")
    with making(environment_of(mount), command=[*namespace, compile_c([SOURCE])]) as maker:
        maker.ask("options scheme=lockless buffers=single")
        maker.ask("open - - 4096 4")
        maker.ask("write before")
        maker.ask("late log -")
        maker.ask("reserve 100")
        maker.ask("write behind")
        assert drain(mount.path / "log") == b"before\n"
        maker.process.kill()
        maker.process.wait()
    got: list[bytes] = []
    wait_until(
        lambda: got.append(drain(mount.path / "log")) or b"".join(got) == b"behind\n", "the dead one's is given up"
    )
    assert mount.shown("log", "lost_torn") == "1"


def test_the_mounts_own_names_work_on_late_files(mount: Mount, maker: Maker) -> None:
    maker.ask("options buffers=single")
    maker.ask("open - - 4096 4")
    maker.ask("late log -")
    (mount.path / "log").write_bytes(b"by write(2)\n")
    assert drain(mount.path / "log") == b"by write(2)\n"
    line = mount.channels()
    mount.command("remove log\n")
    assert maker("write more") == "EPIPE"
    mount.command(line)
    maker.ask("close")
    assert mount.channels() == line


def test_late_files_survive_the_server(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("late cpu -")
    maker.ask("write one")
    mount.kill()
    maker.ask("write two")
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    mount.start()
    assert sorted(contents(mount.path / "cpu").splitlines()) == [b"one", b"two"]


def test_late_files_without_a_mount_are_shown_by_the_next(nowhere: Path, late_mount: Mount, early: Maker) -> None:
    early.ask(USUAL)
    early.ask(f"open - - {GEOMETRY}")
    early.ask("write one")
    told = early.ask("late cpu -")
    assert told == [f"create cpu{cpu} - 600 {cpu} private" for cpu in range(N_CPUS)]
    assert (nowhere.parent / "store/cpu/mem0").stat().st_mode & 0o777 == 0o600
    late_mount.start()
    assert contents(late_mount.path / "cpu") == b"one\n"
    early.ask("close")
    assert relay_files(late_mount.path) == []


@pytest.mark.parametrize(("base", "buffers"), [("=", "global"), ("trace", "single")])
def test_create_buf_file_decides_before_there_are_files_whether_one_buffer_is_global(
    mount: Mount, maker: Maker, base: str, buffers: str
) -> None:
    maker.ask(f"files = {base} 600 1")
    assert maker.ask(f"open - - {GEOMETRY}") == ["create - - 600 0 private"]
    maker.ask("write one")
    assert maker.ask("late cpu -") == ["create cpu0 - 600 0 private"]
    assert f"buffers={buffers}" in mount.channels()
    assert drain(mount.path / ("cpu0" if base == "=" else base)) == b"one\n"


def test_a_late_setup_that_fails_can_be_tried_again(mount: Mount, maker: Maker) -> None:
    mount.create("taken")
    maker.ask(USUAL)
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("write one")
    assert maker("late - -") == "EINVAL"
    assert maker("late cpu /nowhere") == "ENOENT"
    maker.ask("refuse 0")
    assert maker("late cpu -") == "ENOTTY"
    maker.ask("refuse -1")
    maker.ask("files = = 600 0")
    before = mount.channels()
    assert maker("late control/cpu -") == "ENOTDIR"
    assert mount.channels() == before
    maker.ask("write two")
    maker.ask("late cpu -")
    assert maker("late cpu -") == "EEXIST"
    assert sorted(contents(mount.path / "cpu").splitlines()) == [b"one", b"two"]


def test_a_channel_that_has_files_gets_no_others(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open cpu - {GEOMETRY}")
    assert maker("late other -") == "EEXIST"
    assert relay_files(mount.path) == numbered("cpu")


def test_memory_of_another_file_system_is_refused_and_explained(mount: Mount, tmp_path: Path) -> None:
    other = tmp_path / "store"
    assert os.stat(tmp_path).st_dev != os.stat(mount.store).st_dev, "this test needs two file systems"
    with making({"RELAYFS": str(mount.path), "RELAYFS_STORE": str(other)}) as maker:
        maker.ask(f"open - - {GEOMETRY}")
        assert maker("late cpu -") == "EXDEV"
        assert "another file system than this mount's store" in mount.error_log
        maker.ask("write still works")
    assert mount.channels() == ""


def test_a_limit_counts_adopted_memory(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("size=64K")
    with making(environment_of(mount)) as maker:
        maker.ask("open - - 65536 4")
        assert maker("late cpu -") == "ENOSPC"
        assert "left of the limit" in mount.error_log


def test_a_user_without_privileges_sets_up_files_in_roots_mount(
    make_mount: Callable[..., Mount], unprivileged: User, scratch_store: Path
) -> None:
    mount = make_mount("control_mode=0666")
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask(f"open - - {GEOMETRY}")
        maker.ask("write one")
        maker.ask("late cpu -")
        # With a descriptor of a store file it could truncate what others have mapped.
        held = {os.stat(link)[1:3] for link in Path(f"/proc/{maker.process.pid}/fd").iterdir() if link.exists()}
        assert not held & {file.stat()[1:3] for file in (mount.store / "cpu").iterdir()}
        status = (mount.path / "cpu0").stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (NOBODY, NOBODY, 0o640)
        assert contents(mount.path / "cpu") == b"one\n"
        maker.ask("write two")
        assert contents(mount.path / "cpu") == b"two\n"
        maker.ask("close")
        assert relay_files(mount.path) == []


# --- adopt, by those who know what they do and those who do not ---


def unnamed(store: Path, n: int = N_CPUS) -> list[int]:
    """Buffers as the library makes them, taken from a channel's files: copies without a name."""
    descriptors = []
    for cpu in range(n):
        descriptor = os.open(store.parent, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(descriptor, (store / f"model/mem{cpu}").read_bytes())
        descriptors.append(descriptor)
    return descriptors


@pytest.fixture
def buffers(mount: Mount) -> Iterator[list[int]]:
    """The open files of a channel's buffers."""
    mount.create("model", "subbuf_size=4K n_subbufs=2")
    descriptors = unnamed(mount.store)
    mount.command("remove model\n")
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def words(descriptors: list[int]) -> str:
    return ",".join(map(str, descriptors))


def refusal(mount: Mount, line: str) -> tuple[int, str]:
    """What a command fails with, and what error_log says of it; nothing has changed."""
    before = mount.channels(), sorted(mount.store.rglob("*"))
    (mount.path / "error_log").write_text("")
    with pytest.raises(OSError) as error:
        mount.command(f"{line}\n")
    assert (mount.channels(), sorted(mount.store.rglob("*"))) == before
    assert error.value.errno is not None
    return error.value.errno, mount.error_log


def test_adopt_makes_an_ordinary_channel(mount: Mount, buffers: list[int]) -> None:
    mount.command(f"adopt app/cpu {words(buffers)} perm=0600\n")
    line = mount.channels()
    assert line.startswith("create app/cpu subbuf_size=4K n_subbufs=2 ")
    assert "perm=0600" in line
    with Channel(mount.path / "app/cpu") as channel:
        channel.write(b"hello\n")
    assert contents(mount.path / "app/cpu") == b"hello\n"
    mount.command("remove app/cpu\n")
    assert not (mount.store / "app/cpu").exists()
    assert refusal(mount, f"adopt app/cpu {words(buffers)}")[0] == errno.EINVAL  # they are closed


@pytest.mark.parametrize(
    ("rest", "code", "reason"),
    [
        ("", errno.EINVAL, "the descriptors are missing"),
        ("one", errno.EINVAL, "numbers of descriptors"),
        ("1,", errno.EINVAL, "numbers of descriptors"),
        ("1,-2", errno.EINVAL, "numbers of descriptors"),
        ("99999", errno.EBADF, "descriptor 99999 of process"),
        ("{all} mode=overwrite", errno.EINVAL, "unknown key 'mode'; there are: perm=, uid=, gid="),
        ("{all} perm=0777", errno.EINVAL, "perm=0777: not allowed"),
        ("{all},{all}", errno.EINVAL, "a channel has at most"),
        ("{first},{first}", errno.EINVAL, "is not buffer"),
        ("{first}", errno.EINVAL, "1 buffers of"),
        ("{first},{null}", errno.EINVAL, "is not a file without a name"),
        ("{null}", errno.EINVAL, "is not a file without a name"),
        ("{pipe}", errno.EINVAL, "is not a file without a name"),
        ("{named}", errno.EINVAL, "is not a file without a name"),
        ("{empty}", errno.EINVAL, "is not a buffer of this layout"),
        ("{unlinked}", errno.ENOENT, "could not be made: No such file"),
        ("{elsewhere}", errno.EXDEV, "lies in another file system"),
    ],
)
def test_what_cannot_be_adopted_is_refused_and_explained(  # each is a word of the table
    mount: Mount, buffers: list[int], tmp_path: Path, rest: str, code: int, reason: str
) -> None:
    if N_CPUS == 1 and "{first}" in rest:
        rest, reason = "{all},{all}", "a channel has at most"
    named, gone = mount.store.parent / "named", mount.store.parent / "gone"
    named.write_bytes(os.pread(buffers[0], 1 << 20, 0))
    opened = {
        "null": os.open(os.devnull, os.O_RDWR),
        "pipe": os.pipe()[0],
        "named": os.open(named, os.O_RDWR),
        "empty": os.open(mount.store.parent, os.O_TMPFILE | os.O_RDWR),
        "elsewhere": os.open(tmp_path, os.O_TMPFILE | os.O_RDWR),
    }
    try:
        if "{unlinked}" in rest:
            rest = words([linked_once(descriptor, gone) for descriptor in buffers])
        line = f"adopt cpu {rest.format(all=words(buffers), first=buffers[0], **opened)}"
        assert refusal(mount, line)[0] == code
        assert reason in mount.error_log
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def linked_once(descriptor: int, path: Path) -> int:
    """A descriptor of the same contents, in a file that had a name and lost it."""
    path.write_bytes(os.pread(descriptor, 1 << 20, 0))
    copy = os.open(path, os.O_RDWR)
    path.unlink()
    os.dup2(copy, descriptor)
    os.close(copy)
    return descriptor


def test_names_that_are_taken_are_refused(mount: Mount, buffers: list[int]) -> None:
    mount.create("dir/cpu")
    for path, code in (("dir/cpu", errno.EEXIST), ("dir", errno.EEXIST), ("dir/cpu/x", errno.ENOTDIR)):
        assert refusal(mount, f"adopt {path} {words(buffers)}")[0] == code
    (mount.store / "hidden").mkdir()
    assert refusal(mount, f"adopt new/deep/../hidden {words(buffers)}")[0] == errno.EINVAL
    assert refusal(mount, f"adopt hidden {words(buffers)}")[0] == errno.EEXIST
    mount.command(f"adopt new/deep/cpu {words(buffers)}\n")


def test_damaged_buffers_are_refused_and_those_that_differ(mount: Mount, buffers: list[int]) -> None:
    whole = os.fstat(buffers[0]).st_size
    os.ftruncate(buffers[0], 4096)
    assert refusal(mount, f"adopt cpu {words(buffers)}")[0] == errno.EINVAL
    os.ftruncate(buffers[0], whole)
    assert refusal(mount, f"adopt cpu {words(buffers)}")[0] == errno.EINVAL
    mount.create("model", "subbuf_size=4K n_subbufs=2 mode=overwrite")
    others = unnamed(mount.store)
    mount.command("remove model\n")
    try:
        mixed = [others[0], *buffers[1:]] if N_CPUS > 1 else [others[0], others[0]]
        assert refusal(mount, f"adopt cpu {words(mixed)}")[0] == errno.EINVAL
    finally:
        for descriptor in others:
            os.close(descriptor)


def test_memory_that_is_not_allocated_is_refused(mount: Mount, buffers: list[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, punch_hole = 1, 2
    hole = (ctypes.c_long(0), ctypes.c_long(4096))
    assert libc.fallocate(buffers[0], keep_size | punch_hole, *hole) == 0, os.strerror(ctypes.get_errno())
    code, reason = refusal(mount, f"adopt cpu {words(buffers)}")
    assert (code, f"descriptor {buffers[0]} has holes" in reason) == (errno.EINVAL, True)


def test_nobody_adopts_what_belongs_to_another(
    make_mount: Callable[..., Mount], unprivileged: User, scratch_store: Path
) -> None:
    mount = make_mount("control_mode=0666")
    mount.create("model", "subbuf_size=4K n_subbufs=2")
    descriptors = unnamed(mount.store)
    code = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY), sys.argv[2].encode())"
    try:
        # Root's files, open in nobody's process.
        done = unprivileged.run(
            sys.executable, "-c", code, mount.control, f"adopt cpu {words(descriptors)}", pass_fds=descriptors
        )
        assert "PermissionError" in done.stderr
        assert f"belongs to user 0, not to you, {unprivileged.uid}" in mount.error_log
        # And his own, for somebody else.
        for descriptor in descriptors:
            os.fchown(descriptor, unprivileged.uid, unprivileged.gid)
        done = unprivileged.run(
            sys.executable, "-c", code, mount.control, f"adopt cpu {words(descriptors)} uid=0", pass_fds=descriptors
        )
        assert "only root makes channels for others" in mount.error_log
        assert "create cpu " not in mount.channels()
        done = unprivileged.run(
            sys.executable, "-c", code, mount.control, f"adopt cpu {words(descriptors)}", pass_fds=descriptors
        )
        assert done.returncode == 0, done.stderr
        assert (mount.path / "cpu0").stat().st_uid == unprivileged.uid
        # They are copied: who keeps such a descriptor may do with its file whatever he likes.
        for descriptor in descriptors:
            os.ftruncate(descriptor, 0)
        assert drain(mount.path / "cpu0") == b""
        assert mount.shown("cpu", "records") == "0"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_an_unprivileged_server_adopts_its_users_buffers(
    make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None
) -> None:
    del open_fuse_device
    mount = make_mount(user=unprivileged.uid)
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask(f"open - - {GEOMETRY}")
        maker.ask("write one")
        maker.ask("late cpu -")
        maker.ask("write two")
        maker.ask("flush")
        files = [mount.path / f"cpu{cpu}" for cpu in range(N_CPUS)]
        assert sorted(unprivileged.run("cat", *files).stdout.split()) == ["one", "two"]
        maker.ask("close")
        assert not (mount.store / "cpu").exists()
