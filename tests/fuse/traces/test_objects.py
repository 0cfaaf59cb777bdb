"""What a traced program has loaded, with build ids and addresses, is in recordings, snapshots and crash cards."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from babeltrace import babeltrace
from build import compile_c
from making import Maker, making
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from traced import relayctl, start_trace
from tracing import finish, recording

from relayfs_fuse.native.trace import OBJECTS_BYTES
from relayfs_fuse.tracefiles import objects

pytestmark = pytest.mark.one_mount

SOURCE = Path(__file__).parent / "trace_objects.c"


class Loaded(NamedTuple):
    base: int
    size: int
    bias: int
    build_id: str
    path: str


def parsed(lines: list[str]) -> list[Loaded]:
    found = [line.split(" ") for line in lines]
    return [Loaded(int(base, 16), int(size, 16), int(bias, 16), *rest) for base, size, bias, *rest in found]


def in_store(mount: Mount, pid: int) -> list[Loaded]:
    (file,) = (mount.store / "t").glob(f"*-{pid}/.objects")
    return parsed(file.read_text().splitlines())


def told_to_babeltrace(directory: Path) -> list[Loaded]:
    done = subprocess.run(
        ["babeltrace2", directory, "-c", "sink.text.details", "--params=color=\"never\""],
        capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    found = dict(re.findall(r"^\s+object_(\d+): (.+)$", done.stdout, re.MULTILINE))
    return parsed([found[str(number)] for number in range(len(found))])


def tool(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout


def symbol_of(address: int, loaded: list[Loaded]) -> str:
    """Return the function at an address, as addr2line finds it with what is told of the object there."""
    one = [one for one in loaded if one.base <= address < one.base + one.size][-1]
    assert one.build_id in tool("readelf", "-n", one.path)
    # The function itself is behind those that are compiled into it.
    return tool("addr2line", "-f", "-i", "-e", one.path, hex(address - one.bias)).splitlines()[-2]


def addresses_in(directory: Path) -> list[int]:
    return [event["address"] for event in babeltrace(directory).named("loaded:here")]


@contextmanager
def loading(mount: Mount, user: int | None = None, *flags: str) -> Iterator[Maker]:
    # The other tests compile programs without build ids and symbols of functions that are static.
    program = compile_c([SOURCE], None, "", "-g", "-Wl,--build-id", *flags)
    with making({"RELAYFS": str(mount.path)}, user, [program]) as maker:
        yield maker


def check_maps(pid: int, loaded: list[Loaded]) -> None:
    """Compare with what the kernel says of the process's mappings."""
    lowest: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and re.search(r"/[^/]*\.so[^/]*$|/trace_objects[^/]*$", words[5]):
            lowest.setdefault(os.path.realpath(words[5]), int(line.split("-")[0], 16))
    assert {os.path.realpath(one.path): one.base for one in loaded if one.path.startswith("/")} == lowest


@pytest.mark.parametrize("flags", [(), ("-no-pie",)], ids=["pie", "no-pie"])
@pytest.mark.one_mount(False)
def test_addresses_become_symbols_with_a_crash_card(mount: Mount, tmp_path: Path, flags: tuple[str, ...]) -> None:
    library = compile_c(
        [SOURCE], tmp_path / "a library.so", "", "-g", "-Wl,--build-id", "-shared", "-fPIC", "-DLIBRARY"
    )
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=16 mode=overwrite")
    with loading(mount, None, *flags) as maker:
        pid = maker.process.pid
        maker("here")
        first = in_store(mount, pid)
        assert first[0].path == os.readlink(f"/proc/{pid}/exe")
        check_maps(pid, first)
        maker(f"load {library}")
        # Nothing tells of a library without tracepoints; it is found out when a sub-buffer begins.
        for _ in range(4096 // 8):
            maker("here")
            if (found := in_store(mount, pid)) != first:
                break
        assert found[: len(first)] == first
        assert [one.path for one in found[len(first) :]] == [str(library).replace(" ", "%20")]
        with recording("t", "-m", mount.path, "-o", tmp_path / "recorded") as recorder:
            finish(recorder)
        assert relayctl(mount, "snapshot", "t", "-o", tmp_path / "out").returncode == 0
        assert told_to_babeltrace(tmp_path / "recorded") == told_to_babeltrace(tmp_path / "out") == found
        maker.start("die")
        wait_until(lambda: os.listdir(mount.path / ".crashed"), "there is a card")
        (card,) = (mount.path / ".crashed").iterdir()
    assert parsed((card / "objects").read_text().splitlines()) == told_to_babeltrace(card / "ctf") == found
    plain = [one._replace(path=one.path.replace("%20", " ")) for one in found]
    of_program, of_library, *others = addresses_in(tmp_path / "recorded")
    assert [symbol_of(address, plain) for address in (of_program, of_library)] == [
        "function_of_program", "function_of_library",
    ]  # fmt: skip
    assert set(others) <= {of_program}


def test_a_child_has_its_own(mount: Mount) -> None:
    start_trace(mount)
    with loading(mount) as maker:
        maker("fork")
        files = list((mount.store / "t").glob("*/.objects"))
        assert [str(maker.process.pid) in file.parent.name for file in files] == [False]
        maker("here")
        maker("fork")
        texts = {file.read_text() for file in (mount.store / "t").glob("*/.objects")}
        assert (len(list((mount.store / "t").iterdir())), len(texts)) == (3, 1)
        check_maps(maker.process.pid, in_store(mount, maker.process.pid))


def test_a_program_of_another_user_tells_the_server(mount: Mount, unprivileged: User) -> None:
    start_trace(mount)
    with loading(mount, NOBODY) as maker:
        maker("here")
        check_maps(maker.process.pid, in_store(mount, maker.process.pid))


def test_programs_that_share_buffers_have_none(mount: Mount) -> None:
    start_trace(mount, "t", "buffers=peruser")
    with loading(mount) as maker:
        maker("here")
    assert not list((mount.store / "t").glob("*/.objects"))


def test_what_the_library_does_not_write_is_left_out() -> None:
    good = "0x1000 0x2000 0x0 0a1b /usr/bin/x"
    bad = (
        "0x1000 0x2000 0x0 0a1b", "1000 0x2000 0x0 - /x", "0x1000 0x2000 0x0 - /a b", '0x1 0x2 0x0 - /"x',
        "0x1 0x2 0x0 - /\\x", "0x1 0x2 0x0 xy /x", "0x11111111111111111 0x2 0x0 - /x", "0x1 0x2 0x0 - /\u00e4",
    )  # fmt: skip
    text = "".join(f"{line}\n" for line in (*bad, good)).encode()
    assert objects.parse(text + b"0x1 0x2 0x0 - /cut") == [good]
    assert objects.text_of([good]) == f"{good}\n".encode()
    assert len(objects.parse(f"{good}\n".encode() * 10_000)) == OBJECTS_BYTES // (len(good) + 1)


def test_the_server_takes_no_other_lines(mount: Mount) -> None:
    start_trace(mount)
    descriptor = os.open(mount.path / ".traces/join", os.O_RDWR)
    try:
        os.pwrite(descriptor, b"t program\nimage 1\n", 0)
        line = b"0x1000 0x2000 0x0 - /usr/bin/x\n"
        os.pwrite(descriptor, b"objects\n" + line, 0)
        for wrong in (b"", b"anything\n", line + b"x\n", line[:-1]):
            with pytest.raises(OSError, match="Invalid argument"):
                os.pwrite(descriptor, b"objects\n" + wrong, 0)
        (file,) = (mount.store / "t").glob("*/.objects")
        most = OBJECTS_BYTES // len(line)
        os.pwrite(descriptor, b"objects\n" + line * (most - 1), 0)
        with pytest.raises(OSError, match="No space left"):
            os.pwrite(descriptor, b"objects\n" + line, 0)
        assert file.read_bytes() == line * most
    finally:
        os.close(descriptor)
