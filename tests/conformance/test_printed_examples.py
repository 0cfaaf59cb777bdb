"""The relay document's callbacks, compiled as they are printed, and what it says of programs that have them."""

import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from build import builds, compile_c, run_command, run_environment
from conformance.documents import CODE, RELAY, digest
from conformance.ring import CPU
from mounts import Mount

pytestmark = pytest.mark.one_mount

HERE = Path(__file__).parent
CPUS = sorted(os.sched_getaffinity(0))
SUBBUF_SIZE, N_SUBBUFS, HEADER = 64, 3, 4
# Two of them fit behind the header.
RECORDS = [f"{number:024d};" for number in range(20)]
PADDING = SUBBUF_SIZE - HEADER - 2 * len(RECORDS[0])
# One sub-buffer, as readers get it once it is finished.
FINISHED_BYTES = SUBBUF_SIZE - PADDING


class Client:
    """printed.c, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def __call__(self, line: str) -> str:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self.answer()

    def write_all(self, records: list[str]) -> list[str]:
        return [self(f"write {record}") for record in records]


@contextmanager
def client(mode: str | None, *arguments: object, sanitize: str = "") -> Iterator[Client]:
    """Start one with the subbuf_start of this mode."""
    flags = [f'-DSUBBUF_START="printed_{mode}.h"'] if mode else []
    program = compile_c([HERE / "printed.c"], None, sanitize, *flags)
    with subprocess.Popen(
        run_command(program, *arguments, sanitize=sanitize), env=run_environment(sanitize), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        running = Client(process)
        assert running.answer() == "0"
        assert running(f"cpu {CPU}") == "0"
        yield running
        process.communicate()
        assert process.returncode == 0


@pytest.fixture(params=builds())
def opened(request: pytest.FixtureRequest, mount: Mount) -> Iterator[object]:
    """Give a function that starts a client which opens the channel `cpu`."""
    with ExitStack() as stack:

        def start(mode: str | None) -> Client:
            arguments = ("open", mount.path, SUBBUF_SIZE, N_SUBBUFS)
            return stack.enter_context(client(mode, *arguments, sanitize=request.param))

        yield start


def read(mount: Mount, max_bytes: int = 65536, cpu: int = CPU) -> bytes:
    descriptor = os.open(mount.path / f"cpu{cpu}", os.O_RDONLY)
    try:
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)
        # The server notes what was read when it has been handed over, and before it answers anything else.
        mount.shown("cpu", "mode")


def memory(mount: Mount) -> mmap.mmap:
    """Map the sub-buffers, as a reader that uses no read(2) does."""
    path = os.getxattr(mount.path / f".channels/cpu/mem{CPU}", "user.relayfs.backing")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, SUBBUF_SIZE * N_SUBBUFS, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def shown(mount: Mount, name: str) -> int:
    return int(mount.shown("cpu", f"buffer{CPU}/{name}"))


def subbuf(padding: int, records: list[str]) -> bytes:
    return padding.to_bytes(HEADER, "little") + "".join(records).encode()


@pytest.mark.parametrize("mode", ["no_overwrite", "overwrite"])
def test_subbuf_start_is_as_printed(mode: str) -> None:
    code = CODE.search((HERE / f"printed_{mode}.h").read_text())
    assert code
    (entry,) = [entry for entry in RELAY.table() if entry.digest == digest(code[0])]
    assert f"tests/conformance/test_printed_examples.py::test_the_{mode}_example" in " ".join(entry.tests)


def test_the_handlers_make_and_remove_the_files(mount: Mount, opened) -> None:
    one = opened("no_overwrite")
    n_buffers = int(mount.shown("cpu", "n_buffers"))
    files = [mount.path / f"cpu{cpu}" for cpu in range(n_buffers)]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * n_buffers
    assert one("close") == "0"
    assert not any(file.exists() for file in files)


def test_the_no_overwrite_example_refuses_what_does_not_fit(mount: Mount, opened) -> None:
    one = opened("no_overwrite")
    assert one.write_all(RECORDS) == ["0"] * 6 + ["ENOSPC"] * 14
    assert [shown(mount, name) for name in ("produced", "consumed", "lost_full")] == [3, 0, 14]
    # Whoever consumes by read(2) says so; who maps the memory calls relay_subbufs_consumed().
    assert read(mount, FINISHED_BYTES) == subbuf(PADDING, RECORDS[:2])
    assert read(mount, 1) == b"\x0a", "and so has left the first sub-buffer"
    assert one.write_all(RECORDS[6:9]) == ["0", "0", "ENOSPC"]
    assert one(f"consumed {CPU} 1") == "0"
    assert one.write_all(RECORDS[9:12]) == ["0", "0", "ENOSPC"]
    expected = [subbuf(PADDING, RECORDS[at : at + 2]) for at in (4, 6, 9)]
    assert read(mount) == b"".join(expected)


def test_the_overwrite_example_keeps_the_newest(mount: Mount, opened) -> None:
    one = opened("overwrite")
    assert one.write_all(RECORDS[:10]) == ["0"] * 10
    assert one(f"consumed {CPU} 2") == "0", "which means nothing to writers"
    assert one.write_all(RECORDS[10:]) == ["0"] * 10
    assert shown(mount, "produced") == 9
    # The current one has the padding of the lap before, still.
    assert read(mount) == b"".join(subbuf(PADDING, RECORDS[at : at + 2]) for at in (14, 16, 18))
    assert shown(mount, "lost_full") == 0
    assert shown(mount, "lost_overwritten") > 0


@pytest.mark.parametrize("mode", ["no_overwrite", "overwrite"])
def test_readers_of_the_memory_find_the_paddings_in_the_headers(mode: str, mount: Mount, opened) -> None:
    one = opened(mode)
    lengths = [30, 31, 60, 1, 2, 3, 40]
    records = [chr(ord("a") + at) * length for at, length in enumerate(lengths)]
    assert one.write_all(records) == ["0"] * 3 + ["0" if mode == "overwrite" else "ENOSPC"] * 4
    assert one("flush") == "0"
    with memory(mount) as mapped:
        valid = []
        for at in range(0, len(mapped), SUBBUF_SIZE):
            padding = int.from_bytes(mapped[at : at + HEADER], "little")
            valid.append(mapped[at + HEADER : at + SUBBUF_SIZE - padding].decode())
    if mode == "no_overwrite":
        assert valid == records[:3]
    else:
        # The rest took the place of the first; that of the second is being written.
        assert [valid[0], valid[2]] == ["".join(records[3:]), records[2]]


def test_several_processes_run_the_callbacks_of_one_channel(mount: Mount, opened) -> None:
    first = opened("no_overwrite")
    with client("no_overwrite", "attach", mount.path / "cpu") as second:
        # By turns: each begins some sub-buffers and stores the padding of some.
        results = [(first, second)[at % 3 == 0](f"write {record}") for at, record in enumerate(RECORDS)]
        assert results == ["0"] * 6 + ["ENOSPC"] * 14
        assert read(mount) == b"".join(subbuf(PADDING, RECORDS[at : at + 2]) for at in (0, 2, 4))
        assert second(f"write {RECORDS[0]}") == "0"
        assert first(f"write {RECORDS[1]}") == "0"
        assert read(mount) == subbuf(PADDING, RECORDS[:2])


def test_who_has_no_callbacks_fills_what_has_begun_and_waits_for_who_has(mount: Mount, opened) -> None:
    one = opened("overwrite")
    descriptor = os.open(mount.path / f"cpu{CPU}", os.O_WRONLY)
    try:
        for record in RECORDS[:2]:
            assert os.write(descriptor, record.encode()) == len(record)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.write(descriptor, RECORDS[2].encode())
        assert [shown(mount, name) for name in ("produced", "lost_full")] == [1, 1], "it has finished one"
        assert one(f"write {RECORDS[3]}") == "0"
        assert os.write(descriptor, RECORDS[4].encode()) == len(RECORDS[4])
        mount.command("flush cpu")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.write(descriptor, RECORDS[5].encode())
        assert one("flush") == "0"
    finally:
        os.close(descriptor)
    assert read(mount)[: 2 * FINISHED_BYTES] == subbuf(PADDING, RECORDS[:2]) + subbuf(PADDING, RECORDS[3:5])


def test_without_subbuf_start_a_full_buffer_refuses(mount: Mount, opened) -> None:
    one = opened(None)
    assert mount.shown("cpu", "mode") == "no-overwrite"
    assert one.write_all(RECORDS) == ["0"] * 6 + ["ENOSPC"] * 14
    assert read(mount) == "".join(RECORDS[:6]).encode(), "and keeps no headers"


@pytest.mark.parametrize("function", ["write", "__write", "reserve"])
def test_each_function_writes_to_the_buffer_of_the_current_cpu(function: str, mount: Mount, opened) -> None:
    one = opened(None)
    for cpu in CPUS:
        assert one(f"cpu {cpu}") == "0"
        assert one(f"{function} on CPU {cpu}") == "0"
    assert [read(mount, cpu=cpu) for cpu in CPUS] == [b"on CPU %d" % cpu for cpu in CPUS]


def test_flush_finishes_the_last_sub_buffer_of_every_buffer(mount: Mount, opened) -> None:
    one = opened("no_overwrite")
    for cpu in CPUS:
        assert one(f"cpu {cpu}") == "0"
        assert one("write last") == "0"
    assert one("flush") == "0"
    n_buffers = int(mount.shown("cpu", "n_buffers"))
    assert [mount.shown("cpu", f"buffer{cpu}/produced") for cpu in range(n_buffers)] == ["1"] * n_buffers
    padding = SUBBUF_SIZE - HEADER - len("last")
    assert read(mount) == subbuf(padding, ["last"]) + bytes(HEADER), "and the next has begun"


def test_reset_is_the_initial_state_in_the_same_memory_and_mappings(mount: Mount, opened) -> None:
    one = opened("no_overwrite")
    with memory(mount) as mapped:
        one.write_all(RECORDS)
        assert one("reset") == "0"
        counts = ("produced", "consumed", "lost_full", "records")
        assert [shown(mount, name) for name in counts] == [0] * len(counts)
        assert one("write new") == "0"
        assert mapped[HEADER : HEADER + 3] == b"new", "behind a header that was reserved again"
    assert read(mount)[HEADER:] == b"new"
