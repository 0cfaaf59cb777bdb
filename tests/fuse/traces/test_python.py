"""Tracing from Python: events and log records, as babeltrace2 reads them."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import forking
import pytest
from mounts import DEADLINE_S
from traced import directories
from tracing import Store, shown
from traffic import drain

from relayfs_fuse import Event

N_THREADS, N_EVENTS = 8, 200
SUBBUF_BYTES = 1 << 16


@pytest.fixture
def store(store: Store) -> Store:
    store.create("t", subbuf_size=SUBBUF_BYTES)
    return store


def run(store: Store, code: str, **environment: str) -> str:
    return store.run(sys.executable, "-c", f"from relayfs_fuse.trace import *\n{code}", **environment)


def test_fields_of_all_types_arrive(store):
    run(
        store,
        """
numbers = {f"{sign}{bits}": f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "uix"}
values = [n for bits in (8, 16, 32, 64) for n in (2 ** bits - 1, -(2 ** (bits - 1)), 2 ** bits - 2)]
Event("all.types", "numbers", numbers)(*values)
Event("all.types", "others", {"f": "f32", "d": "f64", "s": "string", "b": "bytes", "empty": "bytes", "no": "string"})(
    0.5, -1e300, "gr\u00fc\u00dfe", memoryview(b"\\x00\\xff"), b"", "")
Event("all.types", "none")()
""",
    )
    numbers, others, none = store.events("t")
    assert numbers == (
        "all.types:numbers: { u8 = 255, i8 = -128, x8 = 0xFE, u16 = 65535, i16 = -32768, x16 = 0xFFFE, "
        "u32 = 4294967295, i32 = -2147483648, x32 = 0xFFFFFFFE, u64 = 18446744073709551615, "
        "i64 = -9223372036854775808, x64 = 0xFFFFFFFFFFFFFFFE }"
    )
    assert others == (
        'all.types:others: { f = 0.5, d = -1e+300, s = "grüße", _b_length = 2, b = [ [0] = 0x0, [1] = 0xFF ], '
        '_empty_length = 0, empty = [ ], no = "" }'
    )
    assert none == "all.types:none: { }"


def test_fields_are_given_in_order_or_by_name(store):
    run(
        store,
        """
event = Event("a", "b", {"x": "u8", "class": "string", "self": "u8"})
event(1, "one", 2)
event(1, self=2, **{"class": "two"})
event(self=2, x=1, **{"class": "three"})
""",
    )
    assert store.events("t") == [f'a:b: {{ x = 1, class = "{word}", self = 2 }}' for word in ("one", "two", "three")]


def test_fields_of_fixed_and_of_varying_length_stand_in_any_order(store):
    run(
        store,
        """
kinds = {"n": "u8", "m": "i64", "s": "string", "t": "string", "b": "bytes", "f": "f64", "a": "u16[2]"}
values = {"n": 7, "m": -9, "s": "one", "t": "", "b": b"xy", "f": 0.5, "a": (1, 2)}
for name in ("nm", "s", "st", "sn", "nsm", "nmst", "bsnmf", "fbm", "nas", "sa"):
    Event("mixed", name, {field: kinds[field] for field in name})(*(values[field] for field in name))
Event("mixed", "at", {"at": {"x": "i32"}})({"x": -1})
""",
    )
    texts = {"n": "n = 7", "m": "m = -9", "s": 's = "one"', "t": 't = ""', "f": "f = 0.5",
             "b": "_b_length = 2, b = [ [0] = 0x78, [1] = 0x79 ]", "a": "a = [ [0] = 1, [1] = 2 ]"}  # fmt: skip
    names = ("nm", "s", "st", "sn", "nsm", "nmst", "bsnmf", "fbm", "nas", "sa")
    expected = [f"mixed:{name}: {{ {', '.join(texts[field] for field in name)} }}" for name in names]
    assert store.events("t") == [*expected, "mixed:at: { at = { x = -1 } }"]


def test_declarations_tell_levels_and_places(store):
    code = """
Event("a", "plain")()
Event("a", "grave", level="crit")()
log = Event
log("a", "detail", {"n": "u8"}, level="debug")(1)
"""
    run(store, code)
    assert store.events("t") == ["a:plain: { }", "a:grave: { }", "a:detail: { n = 1 }"]
    declared = (store.processes("t")[0] / ".events").read_text()
    levels = re.findall(r'name = "a:(\w+)";\n.*\n.*\n(?:\tloglevel = (\d+);\n)?\tmodel\.emf\.uri = "(.*)";\n', declared)
    assert levels == [("plain", "", "<string>:3"), ("grave", "2", "<string>:4"), ("detail", "14", "<string>:6")]
    with pytest.raises(ValueError, match="level 'loud' is not one of emerg, alert, "):
        Event("a", "b", level="loud")


def test_events_whose_declaration_is_refused_are_lost_until_there_is_room_for_it(store):
    """Nobody could read them."""
    code = """
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from relayfs_fuse.trace import *
limits = getrlimit(RLIMIT_FSIZE)
first = Event("a", "first", {"n": "u8"})
first(1)
setrlimit(RLIMIT_FSIZE, (1 << 20, limits[1]))
late = Event("a", "late", {"n": "u8"})
late(2), first(3), late(4)
setrlimit(RLIMIT_FSIZE, limits)
print("room", flush=True)
input()
late(5), first(6)
"""
    environment = {**os.environ, **store.environment}
    with forking.start(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "room\n"
        # Programs try again when traces have changed.
        slot, trace = next(iter(store.traces.all().items()))
        for is_started in (False, True):
            store.traces.set(slot, replace(trace, is_started=is_started))
        program.communicate("\n", timeout=DEADLINE_S)
        assert program.returncode == 0
    (process,) = store.processes("t")
    declared = re.findall(r'name = "(.*)"', (process / ".events").read_text())
    assert (store.written(process), store.lost(process), declared) == (4, 2, ["a:first", "a:late"])


def test_what_does_not_fit_is_refused_and_not_written(store):
    said = run(
        store,
        """
import json
event = Event("a", "b", {"n": "u8", "x": "f32", "text": "string", "data": "bytes"})
given = [(256, 0, "", b""), (-1, 0, "", b""), ("1", 0, "", b""), (1.5, 0, "", b""), (0, 1e300, "", b""),
         (0, "1", "", b""), (0, 0, b"", b""), (0, 0, "a\\0b", b""), (0, 0, "", "text"), (0, 0, ""), (0, 0, "", b"", 0)]
errors = []
for values in given:
    try:
        event(*values)
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
for named in ({"n": 1}, {"n": 1, "x": 0, "text": "", "data": b"", "other": 0}):
    try:
        event(**named)
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
event(255, 0.5, "ok", b"")
print(json.dumps(errors))
""",
    )
    errors = json.loads(said)
    kinds = ["ValueError"] * 2 + ["TypeError"] + ["ValueError"] * 2 + ["TypeError"] * 2 + ["ValueError"]
    assert [kind for kind, _ in errors] == [*kinds, *["TypeError"] * 5]
    assert [text.partition("=")[0] for _, text in errors[:9]] == [
        f"a:b: {name}" for name in ("n", "n", "n", "n", "x", "x", "text", "text", "data")
    ]
    assert {text for _, text in errors[9:]} == {"a:b takes the fields n, x, text, data"}
    assert store.events("t") == ['a:b: { n = 255, x = 0.5, text = "ok", _data_length = 0, data = [ ] }']


@pytest.mark.parametrize(
    ("provider", "name", "fields"),
    [
        ("", "b", {}),
        ("a b", "c", {}),
        ("a", "b.c", {}),
        ("a", "ü", {}),
        ("a", "x" * 128, {}),
        ("a", "b", {"": "u8"}),
        ("a", "b", {"n m": "u8"}),
        ("a", "b", {"n": "u12"}),
        ("a", "b", {f"n{i}": "u8" for i in range(65)}),
    ],
)
def test_what_cannot_be_declared_is_refused(provider, name, fields):
    with pytest.raises(ValueError, match=r"not one of|: a name has 1 to 127 letters|an event has at most 64"):
        Event(provider, name, fields)


def test_a_declaration_may_be_repeated_and_changed(store):
    run(
        store,
        """
for i in range(3):
    Event("a", "b", {"n": "u8"})(i)
Event("a", "b", {"n": "u16"})(1000)
""",
    )
    assert store.events("t") == [f"a:b: {{ n = {n} }}" for n in (0, 1, 2, 1000)]
    assert store.processes("t")[0].joinpath(".events").read_text().count("event {") == 2


def test_64_fields_arrive(store):
    run(store, 'Event("a", "b", {f"n{i}": "u16" for i in range(64)})(*range(64))')
    assert store.events("t") == [f"a:b: {{ {', '.join(f'n{i} = {i}' for i in range(64))} }}"]


def test_nothing_is_looked_at_while_no_trace_wants_it(store):
    said = run(
        store,
        """
event = Event("a", "b", {"n": "u8"})
event("nonsense", 7, other=5)
print(event.wanted)
""",
        RELAYFS_TRACE="off",
    )
    assert said == "False\n"
    assert store.events("t") == []


def test_a_program_runs_the_same_without_a_store(tmp_path, store):
    code = 'event = Event("a", "b", {"n": "u8"})\nevent(1)\nprint(event.wanted, log("x"), log_is_heard())\nprepare()'
    assert run(store, code, RELAYFS_STORE=str(tmp_path / "none")) == "False False False\n"


def test_an_event_that_is_too_large_is_counted_as_lost(store):
    store.create("large", subbuf_size=1 << 20, n_subbufs=2)
    run(store, 'event = Event("a", "b", {"data": "bytes"})\nevent(bytes(1 << 20))\nevent(b"x")')
    for name in ("t", "large"):
        directory = store.processes(name)[0]
        assert store.lost(directory) == 1
        assert store.written(directory) == 1


def test_prepare_makes_the_buffers_before_the_first_event(store):
    run(store, 'event = Event("a", "b")\nprepare()')
    assert len(store.processes("t")) == 1
    assert store.events("t") == []


def test_events_of_threads_and_children_are_there_once_or_counted_as_lost(store):
    run(
        store,
        f"""
import os, threading
event = Event("a", "b", {{"who": "u32", "n": "u32"}})
def work(who):
    for n in range({N_EVENTS}):
        event(who, n)
def everybody(first):
    threads = [threading.Thread(target=work, args=(first + i,)) for i in range({N_THREADS})]
    for thread in threads: thread.start()
    return threads
mine = everybody(0)
children = []
for child in range(2):
    pid = os.fork()
    if not pid:
        for thread in everybody(100 * (child + 1)): thread.join()
        os._exit(0)
    children.append(pid)
for thread in mine: thread.join()
for pid in children: assert os.waitpid(pid, 0)[1] == 0
""",
    )
    processes = store.processes("t")
    assert len(processes) == 3
    events = store.events("t", may_lose=True)
    expected = {
        f"a:b: {{ who = {first + thread}, n = {n} }}"
        for first in (0, 100, 200)
        for thread in range(N_THREADS)
        for n in range(N_EVENTS)
    }
    # A thread that the kernel interrupts while it begins a sub-buffer has others on its CPU lose events.
    lost = sum(map(store.lost, processes))
    assert lost <= len(expected) // 10
    assert len(events) == len(set(events)) == len(expected) - lost
    assert set(events) <= expected


def test_what_is_logged_becomes_events(store):
    run(
        store,
        """
import logging, threading
logging.getLogger().addHandler(TraceHandler(level=logging.INFO))
logging.getLogger().setLevel(logging.DEBUG)
logging.debug("not this")
def work():
    logging.getLogger("app.part").warning("%s of %d\\0", "one", 5)
thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("oh")
""",
    )
    one, oh = store.events("t")
    assert one == (
        'python:log: { level = "WARNING", logger = "app.part", message = "one of 5\\\\0", file = "<string>", '
        'line = 8, function = "work", thread = "worker" }'
    )
    assert 'message = "oh\\nTraceback (most recent call last):\\n' in oh
    assert "ZeroDivisionError: division by zero" in oh


def test_threads_log_without_losing_anything(store):
    run(
        store,
        f"""
import logging, threading
logger = logging.getLogger()
logger.addHandler(TraceHandler())
logger.setLevel(logging.INFO)
def work(who):
    for n in range({N_EVENTS}): logger.info("%d %d", who, n)
threads = [threading.Thread(target=work, args=(who,)) for who in range({N_THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    messages = [event.partition('message = "')[2].partition('"')[0] for event in store.events("t")]
    assert sorted(messages) == sorted(f"{who} {n}" for who in range(N_THREADS) for n in range(N_EVENTS))


def test_a_faulty_log_call_ends_no_program(store):
    code = """
import logging
logging.raiseExceptions = False
logging.getLogger().addHandler(TraceHandler())
logging.warning("%d", "no number")
logging.warning("on")
"""
    run(store, code)
    assert [event.partition('message = "')[2].partition('"')[0] for event in store.events("t")] == ["on"]


def test_lines_of_log_go_to_the_channel_log_and_nowhere_without_one(mount):
    code = """
import logging
from relayfs_fuse.trace import *
print(log("nobody listens"), log_is_heard(), flush=True)
input()
print(log("to the log\\n"), log_is_heard())
logging.getLogger().addHandler(LogHandler())
logging.warning("also %s", "this")
"""
    with forking.start(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "RELAYFS": str(mount.path)},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "False False\n"
        log = mount.create("log", "buffers=single")
        said, _ = program.communicate("\n", DEADLINE_S)
    assert (program.returncode, said) == (0, "True True\n")
    head = rf"\[ *\d+\.\d{{6}}\] python\S*\[{program.pid}\]: "
    assert re.fullmatch(f"{head}to the log\n{head}also this\n", drain(log).decode())


def test_a_mount_shows_what_a_program_traces(mount, tmp_path):
    for line in ("trace create t", "trace disable t *:hidden", "trace start t"):
        mount.command(f"{line}\n")
    code = """
from relayfs_fuse import Event
for name in ("seen", "hidden"):
    event = Event("app", name, {"n": "u32"})
    for n in range(3): event(n)
"""
    environment = {"RELAYFS": str(mount.path), "RELAYFS_STORE": str(tmp_path)}
    forking.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})
    mount.command("trace stop t\n")
    (process,) = directories(mount.path / "t")
    for file in process.iterdir():
        tmp_path.joinpath(file.name).write_bytes(drain(file) if file.name != "metadata" else file.read_bytes())
    assert shown(tmp_path) == [f"app:seen: {{ n = {n} }}" for n in range(3)]
