"""relayctl check finds damage of traces: of the control file, and of declarations, buffers and packets of processes."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from checked import PAGE, check, control, get, put
from mounts import NOBODY, tmpfs_directory
from tracing import Program, Store

from relayfs_fuse import native
from relayfs_fuse.checking.finding import Place
from relayfs_fuse.checking.traces import _Declared, _wrong_packets
from relayfs_fuse.native.packets import Layouts
from relayfs_fuse.tracefiles.ctf import Origin
from relayfs_fuse.tracefiles.recorder_lock import RecorderLock

SLOT = 4096
TRACE = SLOT + 8
# Bytes of struct relay_packet.
HEAD = 72


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A store with a trace, in which a process has written to its first buffer, and has ended."""
    with tmpfs_directory() as path:
        store = Store(path / "store")
        trace = store.create("t")
        with Program(store, trace, "app") as app:
            app.write(300)
            app.flush()
            app.end()
        store.traces.close()
        yield store.path


def process_of(store: Path) -> Path:
    return next((store / "t").glob("app-*"))


def events_of(store: Path) -> Path:
    return process_of(store) / ".events"


def mem_of(store: Path) -> Path:
    return process_of(store) / "cpu/mem0"


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert text.count(old) >= 1
    path.write_bytes(text.replace(old, new, 1))


def repeat(path: Path) -> None:
    """Declare the first event once more."""
    text = path.read_bytes()
    at = text.index(b"event {")
    path.write_bytes(text + text[at : text.index(b"\n};\n", at) + 4])


# What is done, and the value, file and text of what is said of it.
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "magic": (lambda at: put(at / ".traces", 0, "Q", 1), "relay_trace_page.magic", ".traces", "allowed"),
    "version": (lambda at: put(at / ".traces", 8, "I", 1), "relay_trace_page.version", ".traces", "of this relayctl"),
    "size": (lambda at: os.truncate(at / ".traces", 8192), "the size of the file", ".traces", "at least 135168"),
    "id": (lambda at: put(at / ".traces", TRACE, "Q", 99), "the trace in slot 0", ".traces", "an id of at most 1"),
    "clock": (lambda at: put(at / ".traces", TRACE + 12, "I", 77), "relay_trace.clock", ".traces", "number of a clock"),
    "buffers": (lambda at: put(at / ".traces", TRACE + 16, "I", 3), "relay_trace.buffers", ".traces", "at most 2"),
    "mode": (lambda at: put(at / ".traces", TRACE + 20, "I", 2), "relay_trace.mode", ".traces", "0 or 1"),
    "name": (
        lambda at: put(at / ".traces", TRACE + 136, "B", 46),
        "relay_trace.name",
        ".traces",
        "name of a directory",
    ),
    "boot": (
        lambda at: put(at / ".traces", TRACE + 96, "40B", *[97] * 40),
        "relay_trace.boot",
        ".traces",
        "an end",
    ),
    "link": (lambda at: relink(at / ".traces"), "", ".traces", "a regular file"),
    "directory": (lambda at: shutil.rmtree(at / "t"), "", "t", "the directory of the trace"),
    "line": (lambda at: rewrite(events_of(at), b"relayfs", b"RELAYFS"), "its first line", ".events", "library writes"),
    "trace id": (lambda at: rewrite(events_of(at), b" id=1 ", b" id=2 "), "its first line", ".events", "another trace"),
    "declaration": (
        lambda at: rewrite(events_of(at), b"fields :=", b"fields ="),
        "a declaration",
        ".events",
        "event {",
    ),
    "rubbish": (lambda at: rewrite(events_of(at), b"event {", b"/**/event {"), "a declaration", ".events", "/**/"),
    "twice": (lambda at: repeat(events_of(at)), "the id of an event", ".events", "that no declaration before has"),
    "long": (lambda at: os.truncate(events_of(at), 5 << 20), "its size", ".events", "at most 4194304"),
    "no declarations": (lambda at: events_of(at).unlink(), "", ".events", "does not exist"),
    "no buffers": (lambda at: shutil.rmtree(process_of(at) / "cpu"), "", "cpu", "directory of the buffers"),
    "rights": (lambda at: events_of(at).chmod(0o666), "its mode", ".events", "at most 0640"),
    "memory's rights": (lambda at: mem_of(at).chmod(0o662), "its mode", "mem0", "at most 0640"),
    "undeclared": (lambda at: put(mem_of(at), HEAD, "H", 9), "an event", "mem0", "no event of id 9 is declared"),
    "times": (lambda at: put(mem_of(at), HEAD + 2, "HI", 0, 0), "an event", "mem0", "time"),
    "pid": (
        lambda at: put(mem_of(at), control(mem_of(at)) + 96, "I", 1),
        "relay_geometry.pid",
        "mem0",
        "in .events",
    ),
    "option": (
        lambda at: put(mem_of(at), control(mem_of(at)) + 48, "I", 1),
        "relay_geometry.mode",
        "mem0",
        "the trace",
    ),
    "count": (lambda at: fewer(mem_of(at)), "the number of events", "mem0", "by relay_subbuf"),
    "lost page": (lambda at: os.truncate(at / ".traces-lost", 100), "its size", ".traces-lost", "at least 4096"),
}


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def fewer(mem: Path) -> None:
    """Let an entry say that one record less was written before it."""
    at = 8 * PAGE + 64 + 8
    put(mem, at, "Q", get(mem, at) - 1)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_a_trace(copied: Path, kind: str) -> None:
    do, value, file, text = DAMAGE[kind]
    do(copied)
    said = check("--store", copied)
    found = [one for one in said.damaged if one["value"] == value and Path(one["file"]).name == file]
    assert found, said.findings
    assert text in f"{found[0]['found']} allowed {found[0]['allowed']}"
    assert said.status == 1


class WritingMeanwhile(_Declared):
    """The declarations, while a program finishes a packet of undeclared events whenever one is checked."""

    memory: native.Buffer
    n_calls = 0

    def now(self) -> Layouts:
        self.n_calls += 1
        assert self.n_calls < 1000, "the check does not end"
        self.memory.write(b"x" * 100)
        self.memory.flush()
        return super().now()


def test_packets_that_are_finished_faster_than_checked(copied: Path) -> None:
    put(mem_of(copied), control(mem_of(copied)) + 48, "I", 1)  # mode=overwrite
    with closing(native.Buffer(str(mem_of(copied)))) as memory, events_of(copied).open("rb") as events:
        declared = WritingMeanwhile(Origin.of(events.readline()), events.fileno())
        declared.memory = memory
        found = list(_wrong_packets(Place("t", "mem0", ""), memory, declared))
        assert 0 < len(found) < declared.n_calls <= memory.stats().n_subbufs


def test_declarations_that_are_appended_are_seen(copied: Path) -> None:
    text = events_of(copied).read_bytes()
    at = text.index(b"event {")
    events_of(copied).write_bytes(text[: at + 20])
    with events_of(copied).open("rb") as events, closing(native.Buffer(str(mem_of(copied)))) as memory:
        declared = _Declared(Origin.of(events.readline()), events.fileno())
        found = list(_wrong_packets(Place("t", "mem0", ""), memory, declared))
        assert found
        assert all("is declared" in one.found for one in found)
        events_of(copied).write_bytes(text)
        assert not list(_wrong_packets(Place("t", "mem0", ""), memory, declared))


def test_sound_trace_and_its_parts(copied: Path) -> None:
    said = check("--store", copied)
    assert (said.status, said.findings) == (0, [])
    # The store, the control file, the trace and its process.
    assert said.summary == {"checked": 4, "damaged": 0, "warnings": 0}
    assert check("t", "--store", copied).summary["checked"] == 2
    assert check(f"t/{process_of(copied).name}", "--store", copied).summary["checked"] == 1
    assert check("nothing", "--store", copied).status == 3


def test_what_the_dead_have_left_of_a_trace(copied: Path) -> None:
    dead = 4_100_000  # no process has such a number
    (copied / f"t/.new-{dead}-1").mkdir()
    (copied / "t/notes").touch()
    (process_of(copied) / "notes").touch()
    put(copied / ".traces", SLOT, "Q", 3)  # its server has died in a change
    with events_of(copied).open("ab") as file:
        file.write(b"event {\n\tname = ")
    lock = RecorderLock(str(copied / "t"))
    (copied / "t/.recorder").write_text(f"pid {dead} of root on here\n")
    said = check("--store", copied)
    lock.close()
    assert said.status == 0
    assert sorted(Path(one["file"]).name for one in said.findings) == [
        ".events", f".new-{dead}-1", ".recorder", ".traces", "notes", "notes", "t",
    ]  # fmt: skip
    assert {one["level"] for one in said.findings} == {"warning"}
    assert "its process has died" in next(one["found"] for one in said.findings if one["file"].endswith(".events"))
    assert "server completes it" in next(one["advice"] for one in said.findings if one["file"].endswith(".traces"))


def test_files_of_another_user_in_a_trace(copied: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(events_of(copied), NOBODY, NOBODY)
    os.chown(process_of(copied), NOBODY, NOBODY)
    found = check("--store", copied).damaged
    assert [(one["value"], one["found"]) for one in found] == [("its owner", f"user {NOBODY}")] * 2
