"""relay_open() in programs of their own: where files come to be, and what callbacks say."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import builds, compile_c, run_command, run_environment
from making import GEOMETRY, N_CPUS, SOURCE, USUAL, Maker, contents, environment_of, making, numbered, relay_files
from mounts import NOBODY, RELAYFS, Mount, tmpfs_directory, wait_until
from traffic import drain

from relayfs_fuse.native.tables import PERMS

pytestmark = pytest.mark.one_mount

# --- where ---


def test_without_a_parent_files_are_in_the_root_of_the_mount_that_relayfs_names(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open cpu - {GEOMETRY}")
    assert relay_files(mount.path) == numbered("cpu")
    maker.ask("write hello")
    assert contents(mount.path / "cpu") == b"hello\n"


# In a mount namespace of its own: take all relayfs away but one.
CLEAR = r"""
import os, re, subprocess, sys
keep, program = sys.argv[1:]
for line in open("/proc/self/mountinfo"):
    path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4])
    if " fuse.relayfs " in line and path != keep:
        # It has gone already if its mount point was removed elsewhere.
        subprocess.run(["umount", "-l", path], check=False)
"""
# Then run a program; or first become another user, with a /dev/shm of his own.
ALONE = f"{CLEAR}os.execv(program, [program])"
WITH_DEFAULTS = f"""{CLEAR}
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
user = int(keep)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.execv(program, [program])
"""


@contextmanager
def making_alone(keep: Path, environment: dict[str, str]) -> Iterator[Maker]:
    """A program that sees one relayfs at most."""
    command = ["unshare", "--mount", sys.executable, "-c", ALONE, keep, compile_c([SOURCE])]
    with making(environment, command=command) as maker:
        yield maker


@pytest.fixture
def root_only() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a mount namespace")


@pytest.mark.usefixtures("root_only")
@pytest.mark.parametrize("name", ["plain", "a strange\\mount\tpoint"])
def test_without_relayfs_the_first_mount_that_there_is_is_the_default(
    make_mount: Callable[..., Mount], name: str
) -> None:
    mount = make_mount(start=False)
    mount.path = mount.path.parent / name
    mount.path.mkdir()
    mount.start()
    with making_alone(mount.path, {"RELAYFS": ""}) as maker:
        maker.ask(f"open cpu - {GEOMETRY}")
        assert relay_files(mount.path) == numbered("cpu")
        maker.ask("write hello")
        assert contents(mount.path / "cpu") == b"hello\n"
        maker.ask("close")
        assert relay_files(mount.path) == []


@pytest.mark.usefixtures("root_only")
def test_a_dead_mount_is_no_default(make_mount: Callable[..., Mount], scratch_store: Path) -> None:
    mount = make_mount()
    mount.kill()
    with making_alone(mount.path, {"RELAYFS": "", "RELAYFS_STORE": str(scratch_store.parent / "other")}) as maker:
        maker.ask(f"open cpu - {GEOMETRY}")
        assert (scratch_store.parent / "other/cpu/mem0").exists()
        maker.ask("close")
        assert not (scratch_store.parent / "other/cpu").exists()


@pytest.mark.usefixtures("root_only")
def test_tools_without_relayfs_use_the_first_mount_that_there_is(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(start=False)
    mount.path = mount.path.parent / "a strange\\mount\tpoint"
    mount.path.mkdir()
    mount.start()
    mount.command("trace create seen\n")
    listing = f"{CLEAR}os.execv(program, [program, 'list'])"
    for keep, code, said in ((mount.path, 0, "seen  trace "), ("nothing", 1, "no relayfs is mounted")):
        command = ["unshare", "--mount", sys.executable, "-c", listing, keep, RELAYFS.with_name("relayctl")]
        environment = {**os.environ, "RELAYFS": "", "RELAYFS_STORE": "/nowhere/store"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert said in done.stdout + done.stderr


@pytest.mark.usefixtures("root_only")
@pytest.mark.parametrize(("user", "name"), [(0, "relayfs"), (NOBODY, f"relayfs-{NOBODY}")])
def test_the_default_store_is_that_of_the_users_server(user: int, name: str) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", WITH_DEFAULTS, str(user), compile_c([SOURCE])]
    with making({"RELAYFS": "", "RELAYFS_STORE": ""}, command=command) as maker:
        maker.ask(f"open app/cpu - {GEOMETRY}")
        store = Path(f"/proc/{maker.process.pid}/root/dev/shm/{name}")
        status = (store / "app/cpu/mem0").stat()
        assert (status.st_uid, status.st_mode & 0o777) == (user, PERMS["BUFFER"])
        assert store.stat().st_mode & 0o777 == PERMS["STORE"]
        maker.ask("close")
        maker.ask(f"open - - {GEOMETRY}")
        maker.ask("late cpu -")
        assert sorted(path.name for path in store.iterdir()) == [".lock", "cpu"]


def test_a_parent_is_a_directory_of_any_mount_and_made_if_missing(
    make_mount: Callable[..., Mount], maker: Maker
) -> None:
    with tmpfs_directory() as path:
        other = make_mount(store=path / "store")
        maker.ask(f"open cpu {other.path}/app/deep {GEOMETRY}")
        maker.ask("write hello")
        assert contents(other.path / "app/deep/cpu") == b"hello\n"
        other.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("cpu - 0 1", "EINVAL"),
        ("cpu - 1 0", "EINVAL"),
        ("cpu - 4294967296 1", "EINVAL"),
        ("cpu - 2147483648 1024", "EINVAL"),
        ("- {mount} 4096 4", "EINVAL"),
        ("cpu /nowhere 4096 4", "ENOENT"),
        (".cpu - 4096 4", "EINVAL"),
        ("cpu - 1073741824 1000", "ENOSPC"),
        ("control/cpu - 4096 4", "ENOTDIR"),
    ],
)
def test_what_cannot_be_opened_is_refused_and_leaves_nothing(
    mount: Mount, maker: Maker, arguments: str, error: str
) -> None:
    assert maker("open " + arguments.format(mount=mount.path)) == error
    assert mount.channels() == ""
    assert relay_files(mount.path) == []


def test_a_name_that_is_taken_is_refused(mount: Mount, maker: Maker) -> None:
    mount.create("cpu")
    assert maker(f"open cpu - {GEOMETRY}") == "EEXIST"


def test_options_are_those_of_create(mount: Mount, maker: Maker) -> None:
    words = "delivery=packet read=wait perm=0604 mode=overwrite buffers=single flush_interval=50"
    maker.ask(f"options {words}")
    maker.ask("open log - 8192 2")
    mount.command(f"create same subbuf_size=8K n_subbufs=2 {words}\n")
    lines = mount.channels().splitlines()
    assert lines[0].replace(" log ", " same ") == lines[1]


def test_poll_on_a_channel_of_relay_open_tells_of_finished_sub_buffers_as_in_the_kernel(
    mount: Mount, maker: Maker
) -> None:
    maker.ask(f"open cpu - {GEOMETRY}")
    assert mount.shown("cpu", "delivery") == "bulk"


def n_descriptors(maker: Maker) -> int:
    maker.ask("stray -1")  # it has started, and changes nothing
    return len(os.listdir(f"/proc/{maker.process.pid}/fd"))


@pytest.fixture(params=["a mount", "a store"])
def anywhere(request: pytest.FixtureRequest, make_mount: Callable[..., Mount]) -> Iterator[Maker]:
    with making(environment_of(make_mount(start=request.param == "a mount"))) as maker:
        yield maker


def test_a_channel_keeps_no_descriptors_and_closes_none_of_the_programs(anywhere: Maker) -> None:
    before = n_descriptors(anywhere)
    anywhere.ask(f"open cpu - {GEOMETRY}")
    assert n_descriptors(anywhere) == before
    anywhere.ask("closefrom 100")
    anywhere.ask("write hello")
    anywhere.ask("close")
    anywhere.ask("own 100")
    anywhere.ask(f"open cpu - {GEOMETRY}")
    anywhere.ask("close")
    anywhere.ask("own 100")


def test_a_channel_without_files_keeps_descriptors_until_it_has_files(anywhere: Maker) -> None:
    before = n_descriptors(anywhere)
    anywhere.ask(f"open - - {GEOMETRY}")
    assert n_descriptors(anywhere) == before + N_CPUS
    anywhere.ask("write hello")
    anywhere.ask("late cpu -")
    assert n_descriptors(anywhere) == before
    anywhere.ask("closefrom 100")
    anywhere.ask("close")
    anywhere.ask("own 100")


def test_late_files_of_a_channel_whose_descriptors_the_program_has_closed_are_refused(
    mount: Mount, maker: Maker
) -> None:
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("closefrom 100")
    assert maker("late cpu -") == "EBADF"
    maker.ask("write hello")
    maker.ask("close")
    maker.ask("own 100")
    assert mount.channels() == ""


def test_memory_files_that_no_descriptor_holds_open_are_let_go_of_with_their_program(
    mount: Mount, maker: Maker
) -> None:
    maker.ask("watch")
    maker.ask(f"open cpu - {GEOMETRY}")
    maker.told.clear()
    with making(environment_of(mount)) as other:
        other.ask(f"attach {mount.path}/cpu")
        other.ask("closefrom 100")
        wait_until(lambda: len(maker.told) == N_CPUS, "all buffers are mapped")
        other.ask("fork hello")  # a child that ends takes nothing with it
        other.ask("reserve 8")
        other.ask("write behind")
        assert [line.split()[0] for line in maker.told] == ["mapped"] * N_CPUS
        other.kill()
    wait_until(lambda: len(maker.told) == 2 * N_CPUS, "all buffers are unmapped")
    assert sorted(contents(mount.path / "cpu").splitlines()) == [b"behind", b"hello"]


def test_nobody_else_can_hold_a_memory_file_open(mount: Mount) -> None:
    mount.create("cpu", "perm=0666")
    path = mount.path / ".channels/cpu/mem0"
    descriptor = os.open(path, os.O_RDWR)
    token = int.from_bytes(os.pread(descriptor, 8, os.fstat(descriptor).st_size), "little")
    hold = Path(f"{path}.{token:016x}")
    assert subprocess.run(["cat", hold], user=NOBODY, extra_groups=[], check=False).returncode == 1
    os.close(os.open(hold, os.O_RDONLY))
    assert hold.name not in os.listdir(hold.parent)
    assert not path.with_name(f"mem1.{token:016x}").exists()
    os.close(descriptor)
    wait_until(lambda: not hold.exists(), "the memory file is closed")


def test_a_relay_open_that_has_too_few_descriptors_leaves_nothing_behind(mount: Mount, maker: Maker) -> None:
    maker.ask("watch")
    before, said = n_descriptors(maker), ""
    _, most = resource.prlimit(maker.process.pid, resource.RLIMIT_NOFILE)
    for n in range(before, before + 2 * N_CPUS + 10):
        resource.prlimit(maker.process.pid, resource.RLIMIT_NOFILE, (n, most))
        said = maker(f"open log - {GEOMETRY}")
        if said == "0":
            break
        assert (said, mount.channels(), n_descriptors(maker)) == ("EMFILE", "", before), n
    assert said == "0"


CREATOR = """
import errno, os, resource, sys
from relayfs_fuse import Channel

before = len(os.listdir("/proc/self/fd")) - 1
for n in range(before, before + 2 * os.cpu_count() + 10):
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        Channel.create(sys.argv[1])
        break
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert not os.path.exists(sys.argv[1] + "0"), n
    assert len(os.listdir("/proc/self/fd")) - 1 == before, n
else:
    raise SystemExit("it never works")
"""


def test_a_relay_create_that_has_too_few_descriptors_leaves_nothing_behind(mount: Mount) -> None:
    forking.run([sys.executable, "-c", CREATOR, mount.path / "log"], check=True)


# --- create_buf_file and remove_buf_file ---


def test_create_buf_file_is_asked_for_each_buffer_and_remove_buf_file_is_called_for_each(
    mount: Mount, maker: Maker
) -> None:
    maker.ask(USUAL)
    directory = mount.path / "app"
    told = maker.ask(f"open cpu {directory} {GEOMETRY}")
    assert told == [f"create cpu{cpu} {directory} 600 {cpu} private" for cpu in range(N_CPUS)]
    assert (directory / "cpu0").stat().st_mode & 0o777 == 0o600
    assert maker.ask("close") == [f"remove {directory}/cpu{cpu}" for cpu in range(N_CPUS)]
    assert not directory.exists()


def test_create_buf_file_may_choose_directory_name_and_mode(mount: Mount, maker: Maker) -> None:
    maker.ask(f"files {mount.path}/other mine 644 0")
    maker.ask(f"open cpu - {GEOMETRY}")
    assert relay_files(mount.path) == ["other"]
    assert relay_files(mount.path / "other") == numbered("mine")
    assert (mount.path / "other/mine0").stat().st_mode & 0o777 == 0o644
    maker.ask("write hello")
    assert contents(mount.path / "other/mine") == b"hello\n"


def test_keys_of_options_go_before_what_create_buf_file_says_of_the_mode(mount: Mount, maker: Maker) -> None:
    maker.ask(USUAL)
    maker.ask("options perm=0604")
    maker.ask(f"open cpu - {GEOMETRY}")
    assert (mount.path / "cpu0").stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize(
    ("base", "files", "buffers"),
    [("=", ["cpu0"], "global"), ("trace", ["trace"], "single"), ("trace0", ["trace0"], "global")],
)
def test_a_global_file_may_have_any_name(mount: Mount, maker: Maker, base: str, files: list[str], buffers: str) -> None:
    maker.ask(f"files = {base} 600 1")
    assert len(maker.ask(f"open cpu - {GEOMETRY}")) == 1
    assert relay_files(mount.path) == files
    (channel,) = (line.split()[1] for line in mount.channels().splitlines())
    assert mount.shown(channel, "buffers") == buffers
    maker.ask("write hello")
    assert drain(mount.path / files[0]) == b"hello\n"
    assert maker.ask("close") == [f"remove {mount.path}/{files[0]}"]
    assert relay_files(mount.path) == []


@pytest.mark.parametrize("bad", range(N_CPUS))
@pytest.mark.parametrize(("how", "error"), [("refuse", "ENOTTY"), ("stray", "EINVAL")])
def test_a_file_that_is_refused_or_strays_leaves_nothing_behind(
    mount: Mount, maker: Maker, how: str, error: str, bad: int
) -> None:
    maker.ask("files = mine 600 0")
    maker.ask(f"{how} {bad}")
    maker.told.clear()
    assert maker(f"open cpu - {GEOMETRY}") == error
    accepted = bad if how == "refuse" else N_CPUS
    assert sum(line.startswith("remove") for line in maker.told) == accepted
    assert mount.channels() == ""
    assert relay_files(mount.path) == []
    maker.ask(f"{how} -1")
    maker.ask(f"open cpu - {GEOMETRY}")


def test_what_the_mount_refuses_is_taken_back_from_the_callbacks_and_from_nobody_else(
    mount: Mount, maker: Maker
) -> None:
    mount.create("cpu")
    (mount.path / "cpu0").write_bytes(b"of others\n")
    maker.ask(USUAL)
    maker.told.clear()
    assert maker(f"open cpu - {GEOMETRY}") == "EEXIST"
    assert [line.split()[0] for line in maker.told] == ["create"] * N_CPUS + ["remove"] * N_CPUS
    maker.ask(f"open - - {GEOMETRY}")
    assert maker("late cpu -") == "EEXIST"
    maker.ask("close")
    assert drain(mount.path / "cpu0") == b"of others\n"


def test_a_channel_without_a_mount_has_callbacks_too(nowhere: Path, early: Maker) -> None:
    early.ask(USUAL)
    assert len(early.ask(f"open app/cpu - {GEOMETRY}")) == N_CPUS
    mem = nowhere.parent / "store/app/cpu/mem0"
    assert mem.stat().st_mode & 0o777 == 0o600
    assert early.ask("close") == [f"remove {nowhere}/app/cpu{cpu}" for cpu in range(N_CPUS)]
    assert not mem.exists()


# --- subbuf_start ---


@pytest.mark.parametrize("where", ["in a mount", "before a mount", "late"])
def test_subbuf_start_begins_each_buffers_first_sub_buffer_in_relay_open(
    mount: Mount, maker: Maker, early: Maker, late_mount: Mount, where: str
) -> None:
    program, shown = (early, late_mount) if where == "before a mount" else (maker, mount)
    program.ask("start 8")
    program.ask("options delivery=packet")
    told = program.ask("open - - 64 4" if where == "late" else "open cpu - 64 4")
    assert told == [f"start {cpu} first 0 private" for cpu in range(N_CPUS)]
    if where == "late":
        assert program.ask("late cpu -") == []
    program.ask("write " + "x" * 39)
    told = program.ask("flush")
    program.ask("write after")
    # Of the buffers that were flushed, those that are written to begin their next sub-buffer, with their padding.
    begun = [line.split()[:4] for line in [*told, *program.told]]
    assert all(kind == "next" and padding in ("16", "56") for _, _, kind, padding in begun)
    assert begun
    if where == "before a mount":
        shown.start()
    assert shown.shown("cpu", "mode") == "callback"
    # What was kept at the head of a sub-buffer is data, too.
    assert sorted(contents(shown.path / "cpu").replace(b"H" * 8, b"").splitlines()) == [b"after", b"x" * 39]


def test_another_program_with_callbacks_begins_sub_buffers_too(mount: Mount, maker: Maker) -> None:
    maker.ask("start 0")
    maker.ask("options buffers=single")
    maker.ask("open log - 64 4")
    maker.ask("write " + "x" * 62)
    with making(environment_of(mount)) as other:
        other.ask(f"attach {mount.path}/log")
        assert other("write without subbuf_start") == "ENOSPC"
        other.ask("start 0")
        other.ask("close")
        # The one that nobody could begin before begins at once.
        assert other.ask(f"attach {mount.path}/log") == ["start 0 next 1 private"]
        assert other.ask("write with it") == []
        other.ask("write " + "y" * 60)
        assert other.told == ["start 0 next 56 private"]
    assert drain(mount.path / "log") == b"x" * 62 + b"\n" + b"with it\n" + b"y" * 60 + b"\n"


# --- all of it, sanitized ---


@pytest.mark.parametrize("sanitize", builds())
def test_no_memory_is_lost_or_misused(mount: Mount, nowhere: Path, sanitize: str) -> None:
    mount.create("taken")
    command = run_command(compile_c([SOURCE], sanitize=sanitize), sanitize=sanitize)
    environment = {**run_environment(sanitize), **environment_of(mount)}
    elsewhere = {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}
    for settings in (environment, {**environment, **elsewhere}):
        with making(settings, command=command) as maker:
            if maker(f"open taken - {GEOMETRY}") == "0":
                maker.ask("close")
            maker.ask("watch")
            for files in ("files = = 600 0", "files = log 600 1", "files = own 640 0"):
                maker.ask(files)
                maker.ask("refuse 0")
                assert maker(f"open app/cpu - {GEOMETRY}") == "ENOTTY"
                maker.ask("refuse -1")
                maker.ask(f"open app/cpu - {GEOMETRY}")
                maker.ask("write one")
                maker.ask("close")
                maker.ask(f"open - - {GEOMETRY}")
                maker.ask("write one")
                assert maker("late cpu /nowhere/at/all") in ("ENOENT", "0")
                maker("late app/cpu -")
                maker.ask("flush")
                maker.ask("close")
            maker.end()
            assert maker.process.returncode == 0
