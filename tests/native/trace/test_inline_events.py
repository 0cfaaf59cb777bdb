"""Events that <relayfs/producer.h> compiles into programs: the same as those that the library writes."""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from build import PLAIN, PROGRAMS, ROOT, compile_c, native_prefix
from mounts import Mount
from traced import environment_of, record_stopped
from tracing import Store

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import CLOCKS

TRACED, FORMS = PROGRAMS / "traced.c", ROOT / "tests/fuse/traces/trace_forms.c"
COUNTING = Path(__file__).with_name("count_emit.c")
# Optimized, as the compiler then decides where the assembly is and what is in its registers.
INLINE = ("-O2", "-D_GNU_SOURCE=", "-include", "relayfs/producer.h", "-Wl,--wrap=relay_trace_emit")
LARGE = 1 << 18
EVENTS = 2000
# The first event joins the trace, and each sub-buffer begins in the library. What else runs on this machine may
# interrupt a few.
FEW = 60


def inline(program: Path, *flags: str) -> Path:
    return compile_c([program, COUNTING], None, PLAIN, *INLINE, *flags)


def called(said: str) -> int:
    return int(said.rpartition("called ")[2])


def steps(store: Store, name: str = "t") -> list[str]:
    return [re.sub(r"\{ vpid = \d+ \}, ", "", event) for event in store.events(name)]


def numbered(n: int) -> list[str]:
    return [f"test:step: {{ seq = {i} }}" for i in range(n)]


@pytest.mark.parametrize("clock", ["mono", "tsc"])
def test_events_are_written_without_calling_the_library(store: Store, clock: str) -> None:
    store.create("t", clock=CLOCKS[clock].number, subbuf_size=LARGE)
    assert called(store.run(inline(TRACED), "--steps", EVENTS)) < FEW
    assert steps(store) == numbered(EVENTS)


def test_events_of_all_forms_are_those_of_the_library(store: Store, tmp_path: Path) -> None:
    store.create("t", subbuf_size=LARGE)
    store.run(inline(FORMS))
    other = Store(tmp_path / "other")
    other.create("t", subbuf_size=LARGE)
    other.run(compile_c([FORMS]))
    assert store.events("t") == other.events("t")


def test_the_library_writes_what_several_traces_or_processes_share(store: Store) -> None:
    for name in ("t", "u"):
        store.create(name, subbuf_size=LARGE)
    assert called(store.run(inline(TRACED), "--steps", 100)) == 100
    assert steps(store) == steps(store, "u") == numbered(100)


def test_buffers_of_several_processes_are_the_librarys(store: Store) -> None:
    store.create("t", buffers=native_trace.BUFFERS_SHARED, subbuf_size=LARGE)
    assert called(store.run(inline(TRACED), "--steps", 100)) == 100
    assert steps(store) == numbered(100)


def test_a_condition_is_evaluated(mount: Mount, tmp_path: Path) -> None:
    mount.command("trace create t\ntrace enable t test:step if seq >= 90\ntrace start t\n")
    command = [inline(TRACED), "--steps", "100"]
    said = subprocess.run(command, env=environment_of(mount), check=True, stdout=subprocess.PIPE, text=True).stdout
    assert called(said) == 100
    assert [event["seq"] for event in record_stopped(mount, "t", tmp_path / "out").events] == list(range(90, 100))


def test_an_event_without_room_is_counted_as_lost(store: Store) -> None:
    store.create("t", n_subbufs=2)
    store.run(inline(TRACED), "--steps", EVENTS)
    (process,) = store.processes("t")
    assert store.lost(process) > 0
    assert store.written(process) + store.lost(process) == EVENTS


def test_threads_signal_handlers_and_children_write_each_event_once(store: Store) -> None:
    # All fit into one sub-buffer: what a handler writes while its thread begins another one is lost.
    store.create("t", subbuf_size=1 << 24, n_subbufs=2)
    commands = "threads 4 500\nsignals 50\nfork 200\nemit 1\n"
    done = subprocess.run([inline(TRACED)], input=commands, capture_output=True, text=True, check=True,
                          env={**os.environ, **store.environment})  # fmt: skip
    assert done.stderr == ""
    found: dict[str, list[int]] = defaultdict(list)
    for event in store.events("t"):
        match = re.search(r"judge:step: \{ seq = (\d+), who = (\d+), text = \"\.*\" \}", event)
        assert match
        found[match[2]].append(int(match[1]))
    assert [found[who] for who in "1234"] == [list(range(500))] * 4
    # Those of the signal handler, and of the program and its child, which begins anew.
    assert found["1000"] == list(range(len(found["1000"])))
    assert len(found["1000"]) >= 100
    assert sorted(found["0"])[:400:2] == sorted(found["0"])[1:400:2] == list(range(200))
    assert sorted(found["0"])[400:] == list(range(200, len(found["0"]) - 200))


def test_a_program_of_another_version_calls_the_library(store: Store, tmp_path: Path) -> None:
    include = tmp_path / "include"
    shutil.copytree(native_prefix().include, include)
    version = include / "relayfs/inline/version.h"
    text = version.read_text()
    version.write_text(re.sub("RELAY_INLINE_VERSION = .,", "RELAY_INLINE_VERSION = 7,", text))
    assert version.read_text() != text
    store.create("t", subbuf_size=LARGE)
    assert called(store.run(inline(TRACED, f"-I{include}"), "--steps", EVENTS)) == EVENTS
    assert steps(store) == numbered(EVENTS)
