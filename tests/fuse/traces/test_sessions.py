"""Traced programs of other users than the store's: they open none of its files, and yet are traced as all others."""

import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest
from babeltrace import babeltrace
from making import Maker
from mounts import NOBODY, Mount, User, wait_until
from traced import check_threads, processes, record_stopped, start_trace, traced
from tracing import finish, recording

from relayfs_fuse.native import trace as native_trace

pytestmark = pytest.mark.one_mount

ROOM = "subbuf_size=64K n_subbufs=16"
BUFFERS = ["perprocess", "peruser", "shared"]
EVENT = """event {
\tname = "test:%s";
\tid = %d;
\tstream_id = 0;
\tfields := struct {
\t\tuint64_t _seq;
\t};
};
"""


@pytest.fixture(autouse=True)
def closed_store(mount: Mount) -> None:
    """Nobody but its own user reaches the store."""
    mount.store.chmod(0o700)


def store_files_of(program: Maker, mount: Mount) -> list[str]:
    """Name the files of the store that a program holds, open or mapped."""
    process = Path(f"/proc/{program.process.pid}")
    held = [os.readlink(path) for path in (process / "fd").iterdir()]
    held += [line.split(maxsplit=5)[5] for line in (process / "maps").read_text().splitlines() if line.count("/")]
    return [name for name in held if name.startswith(str(mount.store))]


@pytest.mark.parametrize("buffers", BUFFERS)
def test_a_program_of_another_user_holds_no_file_of_the_store(
    mount: Mount, unprivileged: User, tmp_path: Path, buffers: str
) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 100")
        program.ask("threads 4 100")
        assert store_files_of(program, mount) == []
        pid = program.process.pid
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers(who=0) == list(range(100))
    assert {event.pid for event in trace.events} == {pid}
    check_threads(trace, pid, 4, 100, lost=trace.lost)


def test_its_directory_lives_as_long_as_the_program(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 1")
        directory = str(mount.store / "t" / f"traced-{program.process.pid}")
        assert native_trace.trace_is_alive(directory)
    wait_until(lambda: not native_trace.trace_is_alive(directory), "its death is known")


def test_children_have_directories_of_their_own(mount: Mount, unprivileged: User, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 10")
        child = int(program("fork 100"))
        pid = program.process.pid
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.by_pid() == {pid: list(range(110)), child: list(range(100))}


@pytest.mark.parametrize("buffers", BUFFERS)
@pytest.mark.one_mount(False)
def test_it_outlives_servers(mount: Mount, unprivileged: User, tmp_path: Path, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 10")
        (name,) = processes(mount.path / "t")
        for n in range(1, 4):
            mount.kill()
            program.ask("emit 10")
            mount.start()
            mount.store.chmod(0o700)
            # Before its next event it knows of no new server; the server knows of it.
            assert native_trace.trace_is_alive(str(mount.store / "t" / name))
            program.ask("emit 10")
            program.ask(f"threads 1 {n}")
        assert processes(mount.path / "t") == [name]
    directory = str(mount.store / "t" / name)
    wait_until(lambda: not native_trace.trace_is_alive(directory), "its death is known")
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers(who=0) == list(range(70))
    assert trace.lost == 0


@pytest.mark.one_mount(False)
def test_it_is_dead_for_the_next_server_if_it_dies_before_that(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=NOBODY) as program:
        program.ask("emit 1")
        name = f"traced-{program.process.pid}"
        mount.kill()
    mount.start()
    assert not native_trace.trace_is_alive(str(mount.store / "t" / name))


def test_it_is_recorded_while_it_runs(mount: Mount, unprivileged: User, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=256")
    out = tmp_path / "out"
    with recording("t", "-m", mount.path, "-o", out) as recorder, traced(mount, user=NOBODY) as program:
        program.ask("emit 1000")
        wait_until(lambda: list(out.rglob(f"traced-{program.process.pid}")), "it is recorded")
        program.ask("emit 1000")
        mount.command("trace stop t")
        finish(recorder)
    assert babeltrace(out).numbers() == list(range(2000))


@pytest.mark.parametrize("size", [1, 200])
def test_the_answer_of_join_begins_behind_the_request_or_at_0(mount: Mount, size: int) -> None:
    start_trace(mount, "t", ROOM)
    descriptor = os.open(mount.path / ".traces/join", os.O_RDWR)
    try:
        os.write(descriptor, b"t program-of-a-name-that-is-long\n")
        (name,) = processes(mount.path / "t")
        read = b"".join(iter(lambda: os.read(descriptor, size), b""))
        assert read == f"{name}\n".encode()
        assert os.pread(descriptor, 200, 0) == read
        assert os.pread(descriptor, 200, 5) == read[5:]
    finally:
        os.close(descriptor)


SAY = """
import os, sys
joined = os.open(sys.argv[1], os.O_RDWR)
os.write(joined, b"t program\\n")
name = os.pread(joined, 200, 0).decode().strip()
for text in sys.argv[2:]:
    try:
        os.pwrite(joined, text.encode(), 0)
        print("done", end=" ")
    except OSError as error:
        print(os.strerror(error.errno).replace(" ", "_"), end=" ")
print(name)
"""


def say(user: User, mount: Mount, *texts: str) -> list[str]:
    """Take part in a trace, say these texts; return what came of each, and the directory's name."""
    done = user.python(SAY.replace("\\\\", "\\"), str(mount.path / ".traces/join"), *texts)
    assert done.returncode == 0, done.stderr
    words: list[str] = done.stdout.split()
    return words


def test_only_declarations_get_into_the_metadata(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    one, other = EVENT % ("one", 1), EVENT % ("other", 2)
    wrong = [
        one + "\n/* x */\n",
        one.replace("uint64_t", "no_type"),
        one.replace("stream_id = 0", "stream_id = 1"),
        one + "};\n",
        one + one,
        "event {\n" + "x" * 20_000,
    ]
    *said, name = say(unprivileged, mount, one, *wrong, one, other)
    assert said == ["done", *len(wrong) * ["Invalid_argument"], "done", "done"]
    _, declared = (mount.store / "t" / name / ".events").read_text().split("\n", 1)
    assert declared == one + other


DECLARE_MANY = """
import os, sys

join = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(join, b"t many\\n", 0)
name = os.pread(join, 200, 0).decode().strip()
for i in range(100):
    os.pwrite(join, "".join(sys.argv[2] % (f"e{i}_{j}", 300 * i + j) for j in range(300)).encode(), 0)
print(name, flush=True)
sys.stdin.read()
"""


@pytest.mark.one_mount(False)
def test_who_looks_at_the_length_of_long_metadata_does_not_have_them_described(
    mount: Mount, unprivileged: User
) -> None:
    start_trace(mount, "t", ROOM)
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    process = forking.start(
        [sys.executable, "-c", DECLARE_MANY, mount.path / ".traces/join", EVENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", **user,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        metadata = mount.path / "t" / process.stdout.readline().strip() / "metadata"
        begun = mount.cpu_s()
        text = metadata.read_bytes()
        read = mount.cpu_s()
        lengths = {os.stat(metadata).st_size for _ in range(20)}
        reading, looking = read - begun, mount.cpu_s() - read
        process.communicate()
    assert text.count(b"\nevent {") == 30_000
    assert min(lengths) >= len(text)
    assert looking < reading, f"{looking} s, {reading} s"


def test_a_request_has_a_length(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    events = "".join(EVENT % (f"event_{n}", n) for n in range(1, 400))
    said, name = say(unprivileged, mount, events)
    assert said == "Message_too_long"
    assert (mount.store / "t" / name / ".events").read_text().count("\n") == 1


@pytest.mark.one_mount(False)
def test_a_user_takes_part_only_so_often(mount: Mount, unprivileged: User) -> None:
    mount.expect("take part")
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=2")
    code = """
import os, sys
open_ = []
try:
    for n in range(1100):
        open_.append(os.open(sys.argv[1], os.O_RDWR))
        os.write(open_[-1], b"t program")
except OSError as error:
    print(n, error.errno)
"""
    done = unprivileged.python(code, str(mount.path / ".traces/join"))
    assert done.stdout.split() == ["1024", "28"]
    assert subprocess.run(["ls", mount.path / "t"], check=False, capture_output=True).returncode == 0
