"""Traces in a mount: commands, the directories of processes, and how they come and go."""

import errno
import mmap
import os
import re
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from holding import holding
from making import N_CPUS, environment_of
from mounts import DEADLINE_S, KEPT_IN_STORE, NOBODY, Mount, User, shell, wait_until, watching
from traced import STEP, directory_of, processes, program, read_cpu_steps, read_steps, start_trace, traced

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import PERMS

pytestmark = pytest.mark.one_mount

SMALL = "subbuf_size=4K n_subbufs=8"
EVENT_WITH_PID = struct.Struct("<QiiQ")  # head, process, thread, number


def refused(mount: Mount, line: str) -> tuple[int, str]:
    """Have a command refused; return the errno and the entry of the error log."""
    before = mount.channels()
    with pytest.raises(OSError) as caught:  # the errno is what the caller looks at
        mount.command(f"{line}\n")
    assert mount.channels() == before
    return caught.value.errno or 0, mount.error_log.rpartition("[20")[2]


def wait_gone(path: Path) -> None:
    wait_until(lambda: not path.exists(), f"{path} is removed")


# --- commands ---


def test_reading_control_gives_commands_that_make_the_traces_again(mount: Mount) -> None:
    mount.create("app/log", "buffers=single")
    mount.command("trace create b subbuf_size=8K n_subbufs=4 mode=overwrite buffers=shared filter=pid:1,uid:2,ls*\n")
    mount.command("trace create a\ntrace enable a x:*\ntrace disable a x:y\ntrace start a\n")
    text = mount.channels()
    assert text.splitlines()[1:] == [
        "trace create a subbuf_size=64K n_subbufs=8 mode=no-overwrite buffers=perprocess clock=mono",
        "trace enable a x:*",
        "trace disable a x:y",
        "trace start a",
        "trace create b subbuf_size=8K n_subbufs=4 mode=overwrite buffers=shared clock=mono filter=pid:1,uid:2,ls*",
    ]
    mount.command("remove app/log\ntrace remove a\ntrace remove b\n")
    assert mount.channels() == ""
    mount.command(text)
    assert mount.channels() == text


def test_there_are_sixteen_at_once(mount: Mount) -> None:
    for number in range(16):
        mount.command(f"trace create t{number}\ntrace start t{number}\n")
    code, entry = refused(mount, "trace create more")
    assert code == errno.ENOSPC
    assert "there are 16 traces" in entry
    assert "`trace remove` frees one: t0, t1, t10" in entry
    mount.command("trace remove t3\ntrace create more\n")
    assert processes(mount.path / "more") == []
    with traced(mount) as program:
        program.ask("step 1")
        started = [f"t{number}" for number in range(16) if number != 3]
        for name in started:
            directory_of(mount.path / name, program)
        assert processes(mount.path / "more") == []


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("trace start no", errno.ENOENT, "no trace no; there are: t"),
        ("trace create t", errno.EEXIST, "trace t exists; remove it, or choose another name"),
        ("trace create app", errno.EEXIST, "app exists"),
        ("trace create control", errno.EEXIST, "control exists"),
        ("trace create big subbuf_size=1G n_subbufs=1023", errno.ENOSPC, "each process would take"),
        ("create t/cpu", errno.EPERM, "t is a trace"),
        ("create t", errno.EEXIST, "t is a directory"),
        ("remove t", errno.ENOENT, "no channel t"),
        ("trace enable t " + "x:" + "y" * 2050, errno.ENOSPC, "longer than 2047 bytes"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(mount: Mount, line: str, code: int, said: str) -> None:
    mount.create("app/log", "buffers=single")
    mount.command("trace create t\n")
    got, entry = refused(mount, line)
    assert got == code
    assert said in entry


def test_a_geometry_is_reduced_where_memory_is_scarce_and_that_is_said(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("size=2M")
    mount.expect("reduced to")
    mount.command("trace create t\n")
    assert "subbuf_size=4K" in mount.channels()
    assert "reduced to 8 sub-buffers of 4K" in mount.error_log


def test_traces_are_for_root_and_whose_mount_it_is(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount("control_mode=0666")
    for line in ("trace create t", "trace remove t", "trace start t"):
        assert unprivileged.run("sh", "-c", f"echo {line} >{mount.control}").returncode != 0
        assert "traces are for root" in mount.error_log
    assert mount.channels() == ""


def test_nobody_makes_or_removes_anything_in_a_trace(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 1")
        process = directory_of(trace, program)
        acts: list[Callable[[], object]] = [
            (trace / "x").mkdir,
            trace.rmdir,
            process.rmdir,
            (process / "metadata").unlink,
            (process / "cpu0").unlink,
            lambda: (trace / "file").write_text(""),
        ]
        for act in acts:
            with pytest.raises(PermissionError):
                act()
        assert processes(trace) == [process.name]


# --- events ---


def test_events_of_a_program_are_read_from_its_files(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 300")
        process = directory_of(trace, program)
        assert sorted(path.name for path in process.iterdir()) == [*(f"cpu{cpu}" for cpu in range(N_CPUS)), "metadata"]
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(300))
        metadata = (process / "metadata").read_text()
        assert metadata.startswith("/* CTF 1.8 */\n")
        assert 'name = "test:step";' in metadata
        program.ask("step 5")  # nobody wants them
        mount.command("trace start t\n")
        program.ask("step 5")
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(305, 310))
        stats = mount.path / ".channels" / "t" / process.name / "cpu"
        assert (stats / "records").read_text() == "305\n"


def test_a_trace_gets_the_events_that_are_enabled(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    mount.command("trace enable t other:*\n")
    with traced(mount) as program:
        program.ask("step 3")
        program.ask("other 3")
        mount.command("trace disable t other:s*\n")
        program.ask("other 3")
        mount.command("trace enable t test:step\n")
        program.ask("step 2")
        mount.command("trace stop t\n")
        assert read_steps(directory_of(trace, program)) == [0, 1, 2, 3, 4]


def test_an_event_goes_to_each_trace_that_wants_it(mount: Mount) -> None:
    first, second = start_trace(mount, "first", SMALL), start_trace(mount, "second", "subbuf_size=8K")
    start_trace(mount, "third", "filter=somebody*,pid:1")
    with traced(mount) as program:
        program.ask("step 10")
        mount.command("trace stop first\ntrace stop second\ntrace stop third\n")
        for trace in (first, second):
            assert read_steps(directory_of(trace, program)) == list(range(10))
        assert processes(mount.path / "third") == []


@pytest.mark.parametrize(("buffers", "name"), [("peruser", f"user-{os.geteuid()}"), ("shared", "shared")])
def test_processes_share_buffers(mount: Mount, buffers: str, name: str) -> None:
    trace = start_trace(mount, options=f"subbuf_size=4K n_subbufs=8 buffers={buffers}")
    with traced(mount) as one, traced(mount) as other:
        one.ask("step 10")
        other.ask("step 10")
        mount.command("trace stop t\n")
        assert processes(trace) == [name]
        assert read_steps(trace / name, EVENT_WITH_PID) == sorted([*range(10), *range(10)])


@pytest.mark.one_mount(False)
def test_the_control_file_is_mapped_but_cannot_be_written(mount: Mount) -> None:
    file = mount.path / ".traces/control"
    with pytest.raises(PermissionError):
        os.open(file, os.O_RDWR)
    assert os.getxattr(file, "user.relayfs.backing").decode() == str(mount.store / ".traces")
    assert file.read_bytes() == (mount.store / ".traces").read_bytes()
    with file.open("rb") as opened:
        if "maps no files" not in mount.log.read_text():
            with pytest.raises(PermissionError):
                mmap.mmap(opened.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            with mmap.mmap(opened.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ) as page:
                start_trace(mount, options=SMALL)
                assert struct.unpack_from("<I", page, 12) == (1,)


def test_a_line_is_logged_while_there_is_a_channel_for_it(mount: Mount) -> None:
    with traced(mount) as program:
        assert program("log nobody listens") == "0"
        for _ in range(2):
            mount.create("log", "buffers=single")
            assert program("log somebody does") == "1"
            assert re.search(r"^\[ *\d+\.\d{6}\] traced\[\d+\]: somebody does\n$", (mount.path / "log").read_text())
            mount.command("remove log\n")
            assert program("log nobody listens") == "0"


# --- processes come and go ---


def test_inotify_tells_of_each_process(mount: Mount, tmp_path: Path) -> None:
    trace = start_trace(mount, options=SMALL)
    told = tmp_path / "told"
    with watching(trace, told):
        with traced(mount) as program:
            program.ask("step 10")
            process = directory_of(trace, program)
            wait_until(lambda: told.read_text() == f"CREATE,ISDIR {process.name}\n", told.read_text)
        read_until_gone(process, list(range(10)))
        wait_until(lambda: f"DELETE,ISDIR {process.name}\n" in told.read_text(), told.read_text)


def test_inotify_tells_of_each_trace(mount: Mount, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with watching(mount.path, told):
        mount.command("trace create t")
        assert (mount.path / "t").is_dir()
        wait_until(lambda: told.read_text() == "CREATE,ISDIR t\n", told.read_text)
        mount.command("trace remove t")
        assert not (mount.path / "t").exists()
        wait_until(lambda: told.read_text() == "CREATE,ISDIR t\nDELETE,ISDIR t\n", told.read_text)


def test_traces_come_and_go_although_somebody_keeps_the_mounts_names_from_changing(
    mount: Mount, tmp_path: Path
) -> None:
    before, told = set(os.listdir(mount.path)), tmp_path / "told"
    with mount.control.open("wb", buffering=0) as control, holding(mount.path):
        for command in (b"trace create t\n", b"trace create other\n", b"trace remove t\n"):
            control.write(command)

    def is_told() -> bool:
        mount.command("trace remove other\n")
        mount.command("trace create other\n")
        return "CREATE,ISDIR other\n" in told.read_text()

    # What the announcing thread was to do comes now, too late, and must not make a directory.
    with watching(mount.path, told):
        wait_until(is_told, "inotify tells of traces again")
    assert set(os.listdir(mount.path)) == {*before, "other"}


def wait_looked(mount: Mount, n: int) -> None:
    """Wait until the server has looked so often, from now on, for programs that have ended."""
    control = mount.store / ".traces"
    # It notes the clocks before it looks: the last time says that the one before is over.
    for _ in range(n + 1):
        before = control.read_bytes()
        wait_until(lambda before=before: control.read_bytes() != before, "the server looks for what has ended")


def read_until_gone(process: Path, steps: list[int]) -> None:
    """Read all that a process that has ended wrote; its directory goes then, and not before."""
    found: list[int] = []

    def read() -> bool:
        try:
            # Each file by itself: once the last event is read, the directory may go before the other files are opened.
            for cpu in range(N_CPUS):
                found.extend(read_cpu_steps(process, cpu))
        except FileNotFoundError:
            return True
        assert process.exists() or sorted(found) == steps
        return False

    wait_until(read, lambda: f"{process} is removed; {len(found)} events were read")
    assert sorted(found) == steps


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_dead_process_wrote_stays_until_it_is_read(mount: Mount, signum: int) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 100")
        process = directory_of(trace, program)
        program.process.send_signal(signum)
        program.process.wait(DEADLINE_S)
    wait_looked(mount, 2)
    assert processes(trace) == [process.name]
    read_until_gone(process, list(range(100)))
    assert list((mount.store / "t").iterdir()) == []


def test_what_may_be_overwritten_stays_until_somebody_has_read_it(mount: Mount) -> None:
    trace = start_trace(mount, options="subbuf_size=4K n_subbufs=2 mode=overwrite")
    with traced(mount) as program:
        program.ask("step 10")
        process = directory_of(trace, program)
    wait_looked(mount, 2)
    read_until_gone(process, list(range(10)))


def test_a_process_that_writes_nothing_leaves_nothing(mount: Mount) -> None:
    start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("log nothing")  # anything but an event
    assert list((mount.store / "t").iterdir()) == []


def test_removing_a_trace_takes_everything_and_programs_go_on(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 100")
        process = directory_of(trace, program)
        with (process / "cpu0").open("rb") as reader:
            mount.command("trace remove t\n")
            assert not trace.exists()
            assert not (mount.path / ".channels/t").exists()
            reader.read()
        program.ask("step 100")
        # The kernel tells the server that the reader has closed its file after close(2) has returned.
        wait_until(lambda: sorted(os.listdir(mount.store)) == KEPT_IN_STORE, "the store to be empty")
        # The same name once more is another trace.
        trace = start_trace(mount, options=SMALL)
        program.ask("step 100")
        mount.command("trace stop t\n")
        assert read_steps(directory_of(trace, program)) == list(range(200, 300))


def test_stopping_and_removing_never_wait_for_a_stopped_process(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 100")
        process = directory_of(trace, program)
        program.process.send_signal(signal.SIGSTOP)
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(100))
        mount.command("trace start t\ntrace stop t\ntrace remove t\n")
        assert not trace.exists()
        program.process.send_signal(signal.SIGCONT)
        program.ask("step 1")


SCRIBBLER = """
import fcntl, mmap, os, random, struct, sys
name, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
for cpu in range(len(os.listdir(f"{name}/cpu"))):
    with open(f"{name}/cpu/mem{cpu}", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        memory[-4096 + 128:] = random.randbytes(4096 - 128)
        for _ in range(1000):
            at = random.randrange(0, len(memory) - 8)
            memory[at:at + 8] = random.randbytes(8)
"""


@pytest.mark.parametrize("seed", range(4))
def test_who_spoils_his_memory_holds_up_nobody(mount: Mount, seed: int) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as good, traced(mount) as bad:
        good.ask("step 100")
        bad.ask("step 100")
        process, spoiled = directory_of(trace, good), directory_of(trace, bad)
        # Whoever may write to its own buffers may write this.
        directory = mount.store / "t" / spoiled.name
        forking.run([sys.executable, "-c", SCRIBBLER, directory, str(seed)], check=True)
        for cpu in range(N_CPUS):
            shell(f"timeout 10 cat {spoiled}/cpu{cpu} | head -c 100000 >/dev/null; ls -l {spoiled}", mount.path)
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(100))
        bad.kill()
        mount.command("trace remove t\n")
        assert not trace.exists()


# --- other users ---


@pytest.fixture
def open_mount(make_mount: Callable[..., Mount], unprivileged: User) -> Mount:
    del unprivileged  # only root can become it
    return make_mount()


def test_a_users_process_gets_files_of_its_own(open_mount: Mount, unprivileged: User) -> None:
    trace = start_trace(open_mount, options=SMALL)
    with traced(open_mount, user=unprivileged.uid) as program, traced(open_mount) as roots:
        program.ask("step 100")
        roots.ask("step 100")
        process = directory_of(trace, program)
        mem = (open_mount.store / "t" / process.name / "cpu/mem0").stat()
        assert (mem.st_uid, stat.S_IMODE(mem.st_mode)) == (unprivileged.uid, PERMS["PERPROCESS"])
        roots_file = open_mount.store / "t" / directory_of(trace, roots).name / "cpu/mem0"
        assert unprivileged.run("cat", roots_file).returncode != 0
        open_mount.command("trace stop t\n")
        assert read_steps(process) == list(range(100))
    read_until_gone(process, [])


def join(user: User, mount: Mount, line: str) -> str:
    """Have a user write to `join`; return what is answered, or the errno's name."""
    code = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    os.write(fd, sys.argv[2].encode())
    print(os.getpid(), os.pread(fd, 4096, 0).decode(), end="")
except OSError as error:
    print(errno.errorcode[error.errno], end="")
"""
    return user.python(code, str(mount.path / ".traces/join"), line).stdout


def test_a_name_in_join_is_only_a_name(open_mount: Mount, unprivileged: User) -> None:
    start_trace(open_mount, options=SMALL)
    open_mount.command("trace create stopped\n")
    for word in ("a b/../..", "../../etc", "", "x" * 300, "\\xff*/"):
        pid, name = join(unprivileged, open_mount, f"t {word}\n").split()
        assert re.fullmatch(rf"[\w.-]{{1,63}}-{pid}", name)
        assert (open_mount.store / "t" / name).is_dir()
    assert join(unprivileged, open_mount, "no program\n") == "ENOENT"
    assert join(unprivileged, open_mount, "stopped program\n") == "ENOENT"
    assert join(unprivileged, open_mount, "../t program\n") == "ENOENT"


def test_who_asks_again_gets_the_same_place(open_mount: Mount, unprivileged: User) -> None:
    start_trace(open_mount, options=SMALL)
    code = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for _ in range(3):
    os.write(fd, b"t program\\n")
    print(os.pread(fd, 4096, 0).decode(), end="", flush=True)  # the fork copies what is buffered
if not os.fork():
    os.write(fd, b"t program\\n")  # a descriptor is its opener's
    fd = os.open(sys.argv[1], os.O_RDWR)
    os.write(fd, b"t program\\n")
    print(os.pread(fd, 4096, 0).decode(), end="")
else:
    os.wait()
"""
    names = unprivileged.python(code, str(open_mount.path / ".traces/join")).stdout.split()
    assert len(names) == 4
    assert len(set(names)) == 2
    assert sorted(set(names)) == processes(open_mount.path / "t")


def test_joining_counts_against_the_limit(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount("size=1M,user_size=1M")
    start_trace(mount, options="subbuf_size=16K n_subbufs=8 memory=1M")
    each = native.buf_file_bytes(16 << 10, 8) * N_CPUS
    answers = [join(unprivileged, mount, "t program\n") for _ in range((1 << 20) // each + 2)]
    assert answers[-1] == "ENOSPC"
    assert sum(answer != "ENOSPC" for answer in answers) == (1 << 20) // each


def test_who_was_told_and_does_not_come_loses_his_place(open_mount: Mount, unprivileged: User) -> None:
    start_trace(open_mount, options=SMALL)
    _, name = join(unprivileged, open_mount, "t program\n").split()
    directory = open_mount.store / "t" / name
    assert native_trace.trace_is_alive(str(directory))
    os.utime(directory / ".events", (0, 0))
    wait_gone(open_mount.path / "t" / name)


def test_a_user_traces_in_a_mount_of_his_own(
    make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None
) -> None:
    mount = make_mount(user=unprivileged.uid)
    commands = "trace create t subbuf_size=4K n_subbufs=8\ntrace start t\n"
    assert unprivileged.run("sh", "-c", f"printf '{commands}' >{mount.control}").returncode == 0
    stepper = program("traced")
    environment = {**os.environ, **environment_of(mount)}
    with subprocess.Popen(
        [stepper, "--steps", "50"], env=environment, user=NOBODY, group=NOBODY, extra_groups=[]
    ) as process:
        assert process.wait(DEADLINE_S) == 0
    directory = f"{mount.path}/t/traced-{process.pid}"
    wait_until(lambda: unprivileged.run("ls", directory).returncode == 0, "the directory appears")
    wait_until(
        lambda: int(unprivileged.run("sh", "-c", f"cat {directory}/cpu* | wc -c").stdout) > 50 * STEP.size, "it is read"
    )
    wait_until(lambda: unprivileged.run("ls", directory).returncode != 0, "the directory goes")


# --- servers come and go ---


@pytest.mark.one_mount(False)
def test_a_killed_servers_successor_has_the_same_traces_and_events(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    start_trace(mount, "other", "subbuf_size=4K n_subbufs=2 filter=nobody")
    mount.command("trace enable t test:*\n")
    text = mount.channels()
    with traced(mount) as program, traced(mount) as late:
        program.ask("step 50")
        process = directory_of(trace, program)
        late.ask("step 0")  # it has found the mount
        mount.kill()
        program.ask("step 50")
        late.ask("step 7")
        mount.start()
        assert mount.channels() == text
        program.ask("step 50")
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(150))
        assert read_steps(directory_of(trace, late)) == list(range(7))
        mount.command("trace start t\n")
        program.ask("step 5")
        mount.command("trace stop t\n")
        assert read_steps(process) == list(range(150, 155))


@pytest.mark.one_mount(False)
def test_what_dead_makers_left_is_removed(mount: Mount) -> None:
    start_trace(mount, options=SMALL)
    mount.kill()
    for name in (".new-1-1", ".removed-1-1"):
        (mount.store / "t" / name / "cpu").mkdir(parents=True)
        os.utime(mount.store / "t" / name, (0, 0))
    fresh = mount.store / "t/.new-1-2"
    fresh.mkdir()
    mount.start()
    wait_until(lambda: list((mount.store / "t").iterdir()) == [fresh], "what is old is removed")


@pytest.mark.one_mount(False)
def test_a_trace_without_its_directory_is_none(mount: Mount) -> None:
    start_trace(mount, options=SMALL)
    mount.kill()
    (mount.store / "t").rmdir()
    mount.start()
    assert mount.channels() == ""
    start_trace(mount, options=SMALL)


@pytest.mark.one_mount(False)
def test_a_trace_of_another_boot_can_be_read_and_removed_only(mount: Mount) -> None:
    trace = start_trace(mount, options=SMALL)
    with traced(mount) as program:
        program.ask("step 10")
        process = directory_of(trace, program)
    mount.kill()
    file = mount.store / ".traces"
    boot = native_trace.boot_id().encode()
    file.write_bytes(file.read_bytes().replace(boot, b"0" * len(boot)))
    mount.start()
    assert "trace start" not in mount.channels()
    code, entry = refused(mount, "trace start t")
    assert code == errno.ESTALE
    assert "before the last reboot" in entry
    read_until_gone(process, list(range(10)))
    mount.command("trace remove t\n")


@pytest.mark.one_mount(False)
def test_a_spoiled_control_file_costs_only_the_traces(mount: Mount) -> None:
    mount.create("app/log", "buffers=single")
    mount.kill()
    (mount.store / ".traces").write_bytes(bytes(100))
    mount.expect("cannot be used")
    mount.start()
    assert (mount.path / "app/log").exists()
    assert refused(mount, "trace create t")[0] == errno.EIO
