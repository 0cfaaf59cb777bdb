"""The server dies at each step of a request: the request is carried out once."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import forking
import pytest
from build import PLAIN, compile_c
from mounts import DEADLINE_S, Mount, opened, serving, stop_process, tmpfs_directory, wait_until
from noted import noted
from traffic import append, lines, n_asleep

from relayfs_fuse import Channel
from relayfs_fuse.fs.notes import OPEN_DIRECTORY

HERE = Path(__file__).parent
DIED = "WARNING: the server before, process .* has died"

# relayfs which dies before or after a function, when the file $STRIKE says so: its servers at its lines, one each.
STRUCK = f"""#!{sys.executable}
import functools, importlib, os, signal, sys
from relayfs_fuse.cli import mount

def strike(step):
    try:
        with open(os.environ["STRIKE"]) as file:
            now, _, then = file.read().partition("\\n")
    except FileNotFoundError:
        return
    if now == step:
        if then:
            with open(os.environ["STRIKE"], "w") as file:
                file.write(then)
        else:
            os.unlink(os.environ["STRIKE"])
        os.kill(os.getpid(), signal.SIGKILL)

def make(name, really):
    @functools.wraps(really)
    def stepped(*args, **options):
        strike(f"before {{name}}")
        result = really(*args, **options)
        strike(f"after {{name}}")
        return result
    return stepped

for word in sys.argv.pop().split(","):
    module, owner, name = word.split(":")
    place = getattr(importlib.import_module(f"relayfs_fuse.{{module}}"), owner)
    setattr(place, name, make(name, getattr(place, name)))
sys.exit(mount.main())
"""
# So many threads read a record each, by one descriptor.
SHARING = """
import os, sys, threading
descriptor = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=lambda: os.write(1, os.read(descriptor, 4096))).start()
"""
# By the name of a function, where it is.
PLACES = {
    "begin_write": "fs.taking:Taking",
    "end_write": "fs.taking:Taking",
    "note": "fs.requests.open_files:OpenFiles",
    "add": "fs.requests.open_files:OpenFiles",
    "close": "fs.requests.open_files:OpenFiles",
    "_take_at_once": "fs.kinds.records:RecordHandle",
    "take": "fs.kinds.records:StoredRecords",
    "_give_part": "fs.kinds.records:RecordHandle",
    "consume": "fs.kinds.records:Keeping",
    "room": "fs.kinds.records:Keeping",
    "create": "fs.store:Store",
    "remove": "fs.store:Store",
    "make_directory": "fs.store:Store",
    "remove_directory": "fs.store:Store",
    "hide": "fs.store:Store",
    "_make_directory": "fs.traces.registry:Traces",
    "change": "fs.counters:Counters",
    "add_channel": "fs.tree:Tree",
    "resend": "fs:tap",
    "read": "fs.requests.files:Operations",
    "put": "fs.notes:Notes",
    "poll": "fs.requests.files:Operations",
}


@dataclass
class Struck:
    """A mount whose server dies where it is told to."""

    mount: Mount
    file: Path

    def at(self, step: str) -> None:
        """Have the server die at a step, once; ten that live no longer than a second together would be too many."""
        time.sleep(0.11 * (1 + step.count("\n")))
        self.file.with_suffix(".new").write_text(step)
        self.n_before = self._n_successors()
        self.file.with_suffix(".new").rename(self.file)

    def check(self) -> None:
        """It has died there."""
        wait_until(lambda: self._n_successors() > self.n_before, "it has a successor")
        assert not self.file.exists()

    def _n_successors(self) -> int:
        return self.mount.log.read_text().count("this one has taken over")


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Struck]:
    directory = tmp_path_factory.mktemp("struck")
    file, program = directory / "step", directory / "relayfs"
    places = ",".join(f"{place}:{name}" for name, place in PLACES.items())
    program.write_text(STRUCK.replace("sys.argv.pop()", repr(places)))
    program.chmod(0o755)
    library = compile_c([HERE / "strike.c"], directory / "strike.so", PLAIN, "-shared", "-fPIC", "-Wl,--as-needed")
    with tmpfs_directory() as above, serving(above / "store") as make, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("STRIKE", str(file))
        # Without a watchdog: a test stops the server until five threads sleep, for which a busy machine may need long.
        mount = make("counters=64,watchdog=0", start=False, is_forked=False)
        mount.program = program
        mount.expect(DIED)
        mount.start()
        patch.undo()
        yield Struck(mount, file)


@pytest.fixture
def at(struck: Struck) -> Iterator[Callable[[str], None]]:
    yield struck.at
    struck.mount.clear()


@contextmanager
def stopped(server: int) -> Iterator[None]:
    """Stop a server meanwhile."""
    stop_process(server)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


def both(*names: str) -> list[str]:
    return [f"{when} {name}" for name in ("writev", *names) for when in ("before", "after")]


@pytest.mark.parametrize("step", both("note", "close", "add", "eventfd_write"))
@pytest.mark.parametrize("wait", ["wait", "nowait"])
def test_bytes_are_read_once(struck: Struck, at: Callable[[str], None], step: str, wait: str) -> None:
    path = struck.mount.create("log", f"buffers=single read={wait} subbuf_size=64K n_subbufs=4")
    got = b""
    path.write_bytes(lines(3))
    if step.endswith("add"):
        at(step)
    for n in range(3):
        descriptor = os.open(path, os.O_RDONLY)
        if n == 1 and not step.endswith("add"):
            at(step)
        got += os.read(descriptor, 20)
        got += os.read(descriptor, len(lines(1)) - 20)
        os.close(descriptor)
    if wait == "wait" and step.endswith("note"):
        struck.file.unlink(missing_ok=True)  # a stream has nothing to be noted
    else:
        struck.check()
    assert got == lines(3)
    assert struck.mount.shown("log", "unread_bytes") == "0"


@pytest.mark.parametrize("step", both("relay_consume_begin_behind", "relay_consume_end", "epoll_pwait"))
@pytest.mark.parametrize("options", ["read=wait", "read=nowait", "mode=overwrite"])
def test_bytes_are_read_once_where_the_tap_answers(
    struck: Struck, at: Callable[[str], None], step: str, options: str
) -> None:
    """All but the first read of a descriptor that reads on; what it can read again goes on behind that."""
    path = struck.mount.create("log", f"buffers=single subbuf_size=64K n_subbufs=4 {options}")
    for n in range(4):
        append(path, lines(1, n))
    with opened(path) as descriptor:
        got = os.read(descriptor, 30) + os.read(descriptor, 30)
        at("before read")  # the handler's
        got += os.read(descriptor, 30)
        assert struck.file.exists()
        at(step)
        got += os.read(descriptor, 30)
        struck.check()
        assert got == lines(4)[:120]
        if options != "read=wait":
            for back in (120, 75, 1):
                os.lseek(descriptor, -back, os.SEEK_CUR)
                assert os.read(descriptor, back) == got[-back:]
        got += os.read(descriptor, 4096)
    assert got == lines(4)
    assert struck.mount.shown("log", "unread_bytes") == "0"
    assert struck.mount.shown("log", "read_bytes") == str(len(got))
    assert struck.mount.shown("log", "read_records") == "4"


def test_a_handler_answers_while_a_program_polls_to_write(struck: Struck, at: Callable[[str], None]) -> None:
    """It tells the program that there is room."""
    path = struck.mount.create("log", "buffers=single subbuf_size=4K n_subbufs=2 read=wait")
    path.write_bytes(bytes(4096))
    with opened(path) as reader, opened(path, os.O_WRONLY) as writer, select.epoll() as epoll:
        assert len(os.read(reader, 10)) == len(os.read(reader, 10)) == 10
        os.write(writer, bytes(4096))
        epoll.register(writer, select.EPOLLOUT)
        assert not epoll.poll(0)
        at("before read")  # the handler's
        assert len(os.read(reader, 4096)) == 4096
        assert not struck.file.exists()
        struck.check()
        assert epoll.poll(DEADLINE_S)


@pytest.mark.parametrize("step", both("relay_wait_set_sleep", "nanosleep", "relay_buf_ready"))
@pytest.mark.parametrize("edge", [0, select.EPOLLET], ids=["level", "edge"])
def test_who_polls_is_told_of_each_record(struck: Struck, at: Callable[[str], None], step: str, edge: int) -> None:
    """The steps are those of the tap: it is woken, notifies the kernel, and answers what that asks then."""
    path = struck.mount.create("log", "buffers=single read=wait")
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll, Channel(path) as channel:
        epoll.register(descriptor, select.EPOLLIN | edge)
        assert not epoll.poll(0)

        def tell(n: int) -> None:
            channel.write(lines(1, n))
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert os.read(descriptor, 4096) == lines(1, n)

        for n in range(3):
            tell(n)
        at("before poll")  # the handler's
        tell(3)
        tell(4)
        assert struck.file.exists()
        at(step)
        numbers = count(5)

        def has_died() -> bool:
            """A record that comes before the server has armed the buffer again takes none of these steps."""
            tell(next(numbers))
            return not struck.file.exists()

        wait_until(has_died, "it has died there")
        tell(next(numbers))
        struck.check()


def test_a_handler_answers_while_the_file_has_no_room(struck: Struck, at: Callable[[str], None]) -> None:
    """It notes that a program waits for room."""
    path = struck.mount.create("log", "buffers=single subbuf_size=4K n_subbufs=2 read=wait")
    with opened(path, os.O_WRONLY) as writer, select.epoll() as epoll:
        epoll.register(writer, select.EPOLLOUT)
        assert epoll.poll(0) == epoll.poll(0) == [(writer, select.EPOLLOUT)]
        os.write(writer, bytes(4096))
        os.write(writer, bytes(4096))
        at("before poll")
        assert not epoll.poll(0)
        struck.check()


@pytest.mark.parametrize("step", both("_take_at_once", "take", "_give_part", "consume", "room", "note"))
@pytest.mark.parametrize("options", ["type=ring size=64K", "times=mono"])
def test_records_are_read_once(struck: Struck, at: Callable[[str], None], step: str, options: str) -> None:
    path = struck.mount.create("log", f"buffers=single {options}")
    for n in range(4):
        path.write_bytes(lines(1, n))
    with path.open("rb", buffering=0) as file:
        at(step)
        got = file.read(len(lines(1)))
        pieces = [file.read(7)]
        while pieces[-1] and len(b"".join(pieces)) < len(lines(1)):
            pieces.append(file.read(7))
        rest = file.read(4096)
    struck.check()
    assert got + b"".join(pieces) + rest == lines(4)
    assert struck.mount.shown("log", "unread_bytes") == "0"


@pytest.mark.parametrize("step", both("records", "epoll_pwait"))
@pytest.mark.parametrize(
    ("options", "function"),
    [
        ("type=ring size=64K", "relay_ring_read_framed"),
        ("type=ring size=64K mode=overwrite", "relay_ring_read_framed"),
        ("times=mono", "relay_buf_read_records"),
    ],
)
def test_records_are_read_once_where_the_tap_answers(
    struck: Struck, at: Callable[[str], None], step: str, options: str, function: str
) -> None:
    """All but the first read of a descriptor, until a record is longer than the read; st_size counts all of them."""
    path = struck.mount.create("log", f"buffers=single {options}")
    append(path, lines(1))
    size = len(lines(1))
    with opened(path) as descriptor:
        got = os.read(descriptor, 2 * size)
        for n in range(1, 6):
            append(path, lines(1, n))
        got += os.read(descriptor, size) + os.read(descriptor, size)
        at("before read")  # the handler's
        got += os.read(descriptor, size)
        assert struck.file.exists()
        at(step.replace("records", function))
        got += os.read(descriptor, size)
        struck.check()
        assert got == lines(5)
        assert os.fstat(descriptor).st_size == 5 * size + int(struck.mount.shown("log", "unread_bytes"))
        got += os.read(descriptor, size - 1) + os.read(descriptor, size)
        assert os.fstat(descriptor).st_size == 6 * size
    assert got == lines(6)
    assert struck.mount.shown("log", "unread_bytes") == "0"
    assert struck.mount.shown("log", "read_records") == "6"


def test_the_rest_of_a_record_is_read_before_what_the_tap_would_give(struck: Struck, at: Callable[[str], None]) -> None:
    """Also by another descriptor, when the one is closed that has begun to read it."""
    path = struck.mount.create("log", "buffers=single type=ring size=64K")
    append(path, lines(1))
    size = len(lines(1))
    with opened(path) as first, opened(path) as second:
        for n in range(1, 7):
            append(path, lines(1, n))
        assert os.read(first, size) == lines(1)
        assert os.read(second, size) == lines(1, 1)
        at("before read")  # the handler's
        assert os.read(second, size) == lines(1, 2)
        assert struck.file.exists()
        struck.file.unlink()
        assert os.read(first, 7) + os.read(first, size) == lines(1, 3)
        assert os.read(first, 7) == lines(1, 4)[:7]
        assert os.read(second, size) == lines(1, 5)
        shown = os.fstat(second).st_size
        os.dup2(second, first)  # closes it
        wait_until(lambda: os.fstat(second).st_size == shown + size, "the record was returned")
        assert os.read(second, size) == lines(1, 4)
        assert os.read(second, size) == lines(1, 6)


@pytest.mark.parametrize("step", both("begin_write", "end_write", "note"))
@pytest.mark.parametrize("options", ["", "type=ring size=64K", "scheme=locking"])
def test_a_record_is_written_once(struck: Struck, at: Callable[[str], None], step: str, options: str) -> None:
    path = struck.mount.create("log", f"buffers=single {options}")
    with path.open("wb", buffering=0) as file:
        at(step)
        for n in range(3):
            file.write(lines(1, n))
    if step.endswith("note"):
        struck.file.unlink(missing_ok=True)  # not of all files
    else:
        struck.check()
    assert path.read_bytes() == lines(3)


@pytest.mark.parametrize("options", ["", "type=ring size=64K"])
def test_a_record_is_written_once_also_if_others_write_meanwhile(
    struck: Struck, at: Callable[[str], None], options: str
) -> None:
    """The kernel sends requests again in an order of its own."""
    path = struck.mount.create("log", f"buffers=single {options}")
    paths = [path, *(struck.mount.create(f"other{n}", "buffers=single") for n in range(4))]
    with ExitStack() as stack, ThreadPoolExecutor(len(paths)) as pool:
        descriptors = [stack.enter_context(opened(one, os.O_WRONLY)) for one in paths]
        for n in range(3):
            at("before end_write")
            with stopped(struck.mount.server):
                writes = [pool.submit(os.write, descriptor, lines(1, n)) for descriptor in descriptors]
                wait_until(lambda: sum(n_asleep(os.getpid(), one) for one in paths) == len(paths), "all sleep")
            for write in writes:
                assert write.result(DEADLINE_S) == len(lines(1))
            struck.check()
    for one in paths:
        assert one.read_bytes() == lines(3)


@pytest.mark.parametrize("options", ["type=ring size=64K", "times=mono"])
def test_who_shares_a_descriptor_reads_each_record_once(
    struck: Struck, at: Callable[[str], None], options: str
) -> None:
    """Each of them has a request of its own, which the kernel sends again in an order of its own."""
    path = struck.mount.create("log", f"buffers=single read=wait {options}")
    with forking.start([sys.executable, "-c", SHARING, path, "6"], stdout=subprocess.PIPE) as readers:
        assert readers.stdout is not None
        try:
            for n in range(6):
                wait_until(lambda: n_asleep(readers.pid, path) == 6 - n, "they sleep")  # noqa: B023
                if n < 4:
                    at("after take")
                append(path, lines(1, n))
            struck.check()
            got = readers.stdout.read()
        finally:
            readers.kill()
    assert b"".join(sorted(got.splitlines(keepends=True))) == lines(6)


@pytest.mark.parametrize("step", ["before resend", "after resend"])
@pytest.mark.parametrize(
    ("first", "does"),
    [
        ("before end_write", "write"), ("after writev", "write"), ("after take", "read"), ("before writev", "read"),
        ("after create", "create"),
    ],
)  # fmt: skip
def test_a_successor_that_dies_before_it_is_asked_changes_nothing(
    struck: Struck, at: Callable[[str], None], first: str, does: str, step: str
) -> None:
    """What the kernel was to send it again, its own successor gets."""
    mount = struck.mount
    path = mount.create("log", "buffers=single type=ring size=64K")
    path.write_bytes(lines(1))
    with opened(path, os.O_RDWR) as descriptor:
        at(f"{first}\n{step}")
        if does == "write":
            os.write(descriptor, lines(1, 1))
            assert os.read(descriptor, 4096) == lines(2)
        elif does == "read":
            assert os.read(descriptor, 4096) == lines(1)
            assert os.read(descriptor, 4096) == b""
        else:
            mount.command("create other buffers=single\n")
    struck.check()
    assert mount.error_log == ""


@pytest.mark.parametrize(
    ("step", "command"),
    [
        *((step, "create") for step in both("create", "add_channel")),
        *((step, "remove") for step in both("remove", "hide")),
        *((step, "trace create") for step in both("_make_directory")),
        *((step, "trace remove") for step in both("hide")),
    ],
)  # fmt: skip
def test_a_command_is_carried_out_once(struck: Struck, at: Callable[[str], None], step: str, command: str) -> None:
    mount = struck.mount
    is_trace, makes = command.startswith("trace"), command.endswith("create")
    name = "t" if is_trace else "a/b"
    if not makes:
        mount.command(f"{command.replace('remove', 'create')} {name}")
    at(step)
    mount.command(f"create other buffers=single\n{command} {name}\ncreate another buffers=single\n")
    struck.check()
    assert {"other", "another"} <= {path.name for path in mount.path.iterdir()}
    assert ((mount.path / name).exists() if is_trace else (mount.path / f"{name}0").exists()) == makes
    assert mount.error_log == ""
    if is_trace and makes:
        mount.command("trace remove t")


@pytest.mark.parametrize("step", both("make_directory", "remove_directory"))
def test_a_directory_is_made_and_removed_once(struck: Struck, at: Callable[[str], None], step: str) -> None:
    directory = struck.mount.path / "directory"
    at(step)
    directory.mkdir(mode=0o700)
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.rmdir()
    struck.check()
    assert not directory.exists()


@pytest.mark.parametrize("step", both("change"))
def test_a_counter_is_changed_once(struck: Struck, at: Callable[[str], None], step: str) -> None:
    mount = struck.mount
    at(step)
    name = step.replace(" ", "_")
    (mount.path / "counters.names").write_text(f"add {name}\n")
    struck.check()
    assert (mount.path / "counters.names").read_text().count(name) == 1


def test_a_directory_whose_opening_was_not_answered_leaves_no_note(struck: Struck, at: Callable[[str], None]) -> None:
    mount = struck.mount
    mount.create("log")
    before = noted(mount)[OPEN_DIRECTORY]
    at("after put")
    assert "log0" in os.listdir(mount.path)
    struck.check()
    wait_until(lambda: noted(mount)[OPEN_DIRECTORY] == before, lambda: f"{noted(mount)}")
