"""Events as long as a sub-buffer: strings of C and Python programs arrive whole, what does not fit is counted."""

import sys
from pathlib import Path

import forking
import pytest
from babeltrace import Trace
from making import N_CPUS
from mounts import DEADLINE_S, NOBODY, Mount, User
from traced import environment_of, program, record_stopped, start_trace

pytestmark = pytest.mark.one_mount

KIB = 1024
SUBBUF = 256 * KIB
ROOM = f"subbuf_size={SUBBUF} n_subbufs=8"
# Of a packet's head, an event's, its thread, its two numbers, and a string's null byte.
LONGEST = SUBBUF - 72 - 8 - 4 - 2 * 4 - 1
LENGTHS = [0, 3, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 200 * KIB, LONGEST - 1, LONGEST]
TOO_LONG = [LONGEST + 1, LONGEST + 2, 4 * SUBBUF]
IN_PYTHON = """
import sys
from relayfs_fuse import Event
event = Event("long", "text", {"n": "u32", "text": "string", "after": "u32"})
for n, length in enumerate(map(int, sys.argv[1:])):
    event(n, chr(ord("a") + n % 26) * length, ~n & 0xFFFFFFFF)
"""
# The same, each event on a CPU of its own: CPU LENGTH CPU LENGTH ...
ON_CPUS = """
import os, sys
from relayfs_fuse import Event
event = Event("long", "text", {"n": "u32", "text": "string", "after": "u32"})
numbers = list(map(int, sys.argv[1:]))
for n, (cpu, length) in enumerate(zip(numbers[::2], numbers[1::2])):
    os.sched_setaffinity(0, {cpu})
    event(n, chr(ord("a") + n % 26) * length, ~n & 0xFFFFFFFF)
"""
COMMANDS = {"c": lambda: [program("traced"), "--texts"], "python": lambda: [sys.executable, "-c", IN_PYTHON]}


def emit(mount: Mount, command: list[str | Path], *words: object, user: int | None = None) -> None:
    forking.run(
        [*command, *map(str, words)], env=environment_of(mount), user=user, group=user,
        extra_groups=None if user is None else [], cwd="/", timeout=DEADLINE_S, check=True,
    )  # fmt: skip


def check(trace: Trace, lengths: dict[int, int], lost: int) -> None:
    """Exactly these strings, by number, each whole; and so many events are said to be lost."""
    found = sorted((event["n"], event.fields["text"], event["after"]) for event in trace.named("long:text"))
    expected = [(n, f'"{chr(ord("a") + n % 26) * length}"', ~n & 0xFFFFFFFF) for n, length in sorted(lengths.items())]
    # Not compared as they are: pytest would describe the difference of strings that are as long as these.
    assert [(n, len(text), after) for n, text, after in found] == [(n, len(text), after) for n, text, after in expected]
    assert found == expected or pytest.fail("a string is not what was written")
    assert trace.lost == lost


@pytest.mark.parametrize("language", list(COMMANDS))
@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
def test_a_string_may_fill_a_sub_buffer(mount: Mount, tmp_path: Path, language: str, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    # Where several processes write, an event has its process's number, too.
    lengths = [length - 4 * (length >= LONGEST - 1) for length in LENGTHS] if buffers == "shared" else LENGTHS
    emit(mount, COMMANDS[language](), *TOO_LONG[:1], *lengths, *TOO_LONG)
    trace = record_stopped(mount, "t", tmp_path / "out")
    check(trace, dict(enumerate(lengths, 1)), 1 + len(TOO_LONG))


@pytest.mark.skipif(N_CPUS < 2, reason="the machine has one CPU")
@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
def test_what_a_cpu_without_events_has_lost_is_said(mount: Mount, tmp_path: Path, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    emit(mount, [sys.executable, "-c", ON_CPUS], 1, 4 * SUBBUF, 0, 10, 1, 4 * SUBBUF)
    check(record_stopped(mount, "t", tmp_path / "out"), {1: 10}, 2)


def test_each_trace_takes_what_fits_there(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "small", "subbuf_size=64K n_subbufs=8")
    start_trace(mount, "large", ROOM)
    lengths = [10, 64 * KIB, 200 * KIB, 4 * SUBBUF, 20]
    emit(mount, COMMANDS["c"](), *lengths)
    check(record_stopped(mount, "small", tmp_path / "small"), {0: 10, 4: 20}, 3)
    check(record_stopped(mount, "large", tmp_path / "large"), {n: lengths[n] for n in (0, 1, 2, 4)}, 1)


def test_threads_and_other_users_write_long_events(mount: Mount, unprivileged: User, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM.replace("n_subbufs=8", "n_subbufs=16"))
    emit(mount, [program("traced"), "--texts-in-threads"], 100 * KIB, 6, user=NOBODY)
    check(record_stopped(mount, "t", tmp_path / "out"), dict.fromkeys(range(12), 100 * KIB), 0)
