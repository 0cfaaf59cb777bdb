"""The examples do what they say, on a real mount: users copy them."""

import errno
import itertools
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from build import ROOT, compile_c
from mounts import COUNTERS, DEADLINE_S, RELAYFS, Mount, wait_until
from trace_processor import trace_processor

pytestmark = pytest.mark.one_mount

EXAMPLES = ROOT / "examples"
TRACES = ROOT / "tests/fuse/traces"
# Empty lines, a long one, bytes that are no text.
LINES = (
    b"first\n\n" + b"x" * 3000 + b"\n\xff\xfe\0 bytes\n" + b"".join(b"line %d\n" % i for i in range(20000)) + b"end\n"
)


def c_program(name: str) -> list[str]:
    return [str(compile_c([EXAMPLES / f"{name}.c"]))]


def python_program(name: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py")]


def spawn(command: list[str], *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command, *map(str, arguments)], **options)


def succeed(process: subprocess.Popen[bytes]) -> bytes | None:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert not err
    return out


def produce(command: list[str], channel: Path, text: bytes) -> None:
    done = subprocess.run([*command, channel], input=text, capture_output=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


TEXTS = {
    errno.ENOENT: b"none: no such channel or file, or no relayfs is mounted there",
    errno.EMSGSIZE: b"the record is longer than the channel allows",
}


def check_fails(command: list[str], channel: Path, text: bytes, code: int) -> None:
    """Run a program that ends with status 1 and says the text of an errno, which the library has one of, too."""
    done = subprocess.run([*command, channel], input=text, capture_output=True, check=False)
    assert done.returncode == 1
    assert os.strerror(code).encode() in done.stderr or TEXTS[code] in done.stderr


def relay_files(mount: Mount, path: str) -> list[Path]:
    return [mount.path / f"{path}{cpu}" for cpu in range(int(mount.shown(path, "n_buffers")))]


def sorted_lines(text: bytes) -> list[bytes]:
    return sorted(text.splitlines(keepends=True))


PRODUCERS = pytest.mark.parametrize("producer", [c_program, python_program], ids=["c", "python"])
READERS = pytest.mark.parametrize("reader", [c_program, python_program], ids=["c", "python"])
Program = Callable[[str], list[str]]


@PRODUCERS
def test_each_line_becomes_a_record(mount, producer: Program):
    channel = mount.create("app/cpu", "subbuf_size=64K n_subbufs=16")
    produce(producer("producer"), channel, LINES)
    out = subprocess.run(["cat", *relay_files(mount, "app/cpu")], capture_output=True, check=True).stdout
    assert sorted_lines(out) == sorted_lines(LINES)
    assert int(mount.shown("app/cpu", "records")) == len(LINES.split(b"\n")) - 1
    assert mount.shown("app/cpu", "lost") == "0"


@PRODUCERS
def test_producer_waits_while_the_buffer_is_full(mount, producer: Program):
    channel = mount.create("log", "subbuf_size=4K n_subbufs=2 buffers=single")
    with spawn(producer("producer"), channel, stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(LINES[:20000])
        process.stdin.close()
        wait_until(lambda: mount.shown("log", "produced") == "2", "the producer fills both sub-buffers")
        out = b""
        while process.poll() is None:
            out += channel.read_bytes()
        assert process.returncode == 0
    assert out + channel.read_bytes() == LINES[:20000]
    assert mount.shown("log", "lost") == "0"


@PRODUCERS
def test_producer_tells_why_it_cannot(mount, producer: Program):
    check_fails(producer("producer"), mount.path / "none", b"", errno.ENOENT)
    check_fails(producer("producer"), mount.create("small", "subbuf_size=16"), b"x" * 17, errno.EMSGSIZE)


@READERS
def test_reader_prints_all_until_the_channel_is_removed(mount, tmp_path, reader: Program):
    channel = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=16")
    printed = tmp_path / "printed"
    with printed.open("wb") as out:
        process = spawn(reader("reader"), channel, stdout=out, stderr=subprocess.PIPE)
    try:
        produce(c_program("producer"), channel, LINES)
        wait_until(lambda: mount.shown("log", "unread_bytes") == "0", "the reader has read")
        mount.command("remove log\n")
        succeed(process)
        assert printed.read_bytes() == LINES
    finally:
        process.kill()


@READERS
def test_reader_follows(mount, reader: Program):
    channel = mount.create("log", "buffers=single")
    process = spawn(reader("reader"), channel, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        for line in (b"one\n", b"two\n", b"three\n"):
            channel.write_bytes(line)
            assert process.stdout.readline() == line
    finally:
        process.kill()
        process.communicate()


@READERS
def test_reader_tells_why_it_cannot(mount, reader: Program):
    check_fails(reader("reader"), mount.path / "none", b"", errno.ENOENT)


# --- traces ---

TRACED = re.compile(
    r"(?P<process>\S+):\(\d+\) (?P<name>\w+:\w+): "
    r"\{ cpu_id = \d+, pid = \d+ \}, \{ vtid = \d+ \}, \{ (?P<fields>.*) \}"
)


def test_programs_of_two_languages_are_traced_and_recorded(mount):
    programs = [f"{shlex.join(map(str, command))} 30" for command in (c_program("traced"), python_program("traced"))]
    path = f"{RELAYFS.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [EXAMPLES / "record.sh", mount.path, *programs], env={**os.environ, "PATH": path}, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("27") == 2
    found = [match for line in lines if (match := TRACED.search(line))]
    assert len(found) == len(lines) - 2 == 2 * 60 + 1, done.stdout
    for process in ("traced", "python"):
        events = [event for event in found if event["process"].split(":")[-1].startswith(process)]
        numbers = [event["fields"] for event in events if event["name"] == "collatz:begin"]
        assert numbers == [f"number = {n}" for n in range(1, 31)]
        ends = [event["fields"] for event in events if event["name"] == "collatz:end"]
        assert ends[26] == 'number = 27, steps = 111, steps_per_digit = 55.5, verdict = "a record"'
    (logged,) = (event["fields"] for event in found if event["name"] == "python:log")
    assert 'level = "WARNING", logger = "root", message = "27 takes 111 steps"' in logged
    assert "trace" not in mount.channels()


def test_two_programs_that_work_together_are_on_one_timeline(mount, tmp_path):
    mount.command("trace create t\ntrace start t\n")
    environment = {**os.environ, "RELAYFS": str(mount.path)}
    (drawer,) = c_program("mandelbrot")
    with spawn([drawer], 3, 2, stdout=subprocess.PIPE, env=environment) as pictures:
        succeed(spawn(python_program("png"), tmp_path, stdin=pictures.stdout, stderr=subprocess.PIPE, env=environment))
    assert pictures.returncode == 0
    for number in range(3):
        picture = (tmp_path / f"{number}.png").read_bytes()
        assert picture[12:24] == b"IHDR" + struct.pack(">II", 640, 480)
        start = picture.index(b"IDAT")
        (length,) = struct.unpack(">I", picture[start - 4 : start])
        rows = zlib.decompress(picture[start + 4 : start + 4 + length])
        assert len(rows) == 480 * 641
        # The middle is on the edge of the set: there are points inside and outside.
        assert 0 < rows.count(0) < len(rows) - 480 * 640 // 10
    for words in (["snapshot", "t", "-m", mount.path, "-o"], ["export", "--perfetto", "-o", tmp_path / "out"]):
        command = [RELAYFS.with_name("relayctl"), *words, tmp_path / "recording"]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
    with trace_processor(tmp_path / "out") as query:
        found = query(
            "select slice.name || ' in ' || coalesce(parent.name, '') as nested, count(*) as n from slice "
            "left join slice parent on slice.parent_id = parent.id where slice.dur > 0 group by nested order by nested"
        )
        assert {row["nested"]: row["n"] for row in found} == {
            "compress in png:picture": 3, "filter in png:picture": 3, "mandel:band in ": 36,
            "mandel:draw in mandel:picture": 3, "mandel:iterate in mandel:band": 36, "mandel:picture in ": 3,
            "mandel:shade in mandel:band": 36, "mandel:write in mandel:picture": 3, "png:picture in ": 3,
            "read in ": 3, "write in png:picture": 3,
        }  # fmt: skip


# --- rings ---


@READERS
@pytest.mark.parametrize("options", ["", "buffers=percpu"])
def test_ring_consumer_prints_all_until_the_ring_is_removed(mount, reader: Program, options: str):
    channel = mount.create("app/events", f"type=ring size=64K {options}")
    consumer = spawn(reader("ring_consumer"), channel, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out: list[bytes | None] = []
    collector = threading.Thread(target=lambda: out.append(succeed(consumer)))
    collector.start()
    try:
        produce(c_program("ring_producer"), channel, LINES)
        wait_until(lambda: mount.shown("app/events", "unread_bytes") == "0", "the consumer has read")
        # However often the producer had to wait for room.
        assert mount.shown("app/events", "lost") == "0"
        mount.command("remove app/events\n")
        collector.join(DEADLINE_S)
    finally:
        consumer.kill()
    assert out[0] is not None
    assert out[0] == LINES if not options else sorted_lines(out[0]) == sorted_lines(LINES)


def test_ring_programs_tell_why_they_cannot(mount):
    for command in (c_program("ring_producer"), c_program("ring_consumer"), python_program("ring_consumer")):
        check_fails(command, mount.path / "none", b"", errno.ENOENT)
    check_fails(c_program("ring_producer"), mount.create("small", "type=ring size=4K"), b"x" * 4081, errno.EMSGSIZE)


# --- the pairs ---


@contextmanager
def running(name: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a C example; it does not outlive the context."""
    process = spawn(c_program(name), *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said_by(name: str, *arguments: object) -> bytes:
    with running(name, *arguments) as process:
        return succeed(process) or b""


def numbers_of(text: bytes, pattern: bytes) -> list[int]:
    """The numbers in lines of this form; there are no others."""
    found = re.findall(rb"(?:" + pattern + rb")\n", text)
    assert len(found) == text.count(b"\n") > 0
    return list(map(int, found))


def outputs(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def test_stream_reader_writes_what_the_producers_log_to_disk(mount, tmp_path):
    channel = mount.path / "app/cpu"
    with running("stream_reader", channel, tmp_path / "out") as reader:
        assert reader.stderr.readline() == b"stream_reader: running, end it with ^C\n"
        with running("stream_producer", channel, 200_000) as one, running("stream_producer", channel, 200_000) as two:
            said = [succeed(producer).split() for producer in (one, two)]
        reader.send_signal(signal.SIGINT)
        report = succeed(reader).decode()
    n_written = [int(words[0]) for words in said]
    assert [int(words[2]) + n for words, n in zip(said, n_written, strict=True)] == [200_000] * 2
    out = outputs(tmp_path)
    lines = numbers_of(b"".join(out), rb"line (\d+) of 200000")
    assert len(lines) == sum(n_written)
    assert max(Counter(lines).values()) <= 2
    stats = re.findall(r"cpu (\d+): (\d+) bytes, at most \d+ sub-buffers behind, (\d+) records lost\n", report)
    assert [(int(cpu), int(n)) for cpu, n, _ in stats] == [(cpu, len(text)) for cpu, text in enumerate(out)]
    assert sum(int(lost) for _, _, lost in stats) == 400_000 - sum(n_written)


def test_stream_reader_ends_when_the_channel_is_removed(mount, tmp_path):
    channel = mount.create("app/cpu")
    with running("stream_reader", channel, tmp_path / "out") as reader:
        assert b"running" in reader.stderr.readline()
        said_by("stream_producer", channel, 100)
        mount.command("remove app/cpu\n")
        succeed(reader)
    assert sorted(numbers_of(b"".join(outputs(tmp_path)), rb"line (\d+) of 100")) == list(range(100))


def test_a_flight_recorder_holds_the_last_events_of_a_program_that_crashed(mount, tmp_path):
    n, channel = 100_000, mount.path / "app/flight"
    with running("flight_producer", channel, n) as producer:
        assert producer.wait(DEADLINE_S) == -signal.SIGABRT
    said = said_by("flight_reader", channel, tmp_path / "out")
    out = outputs(tmp_path)
    assert said == b"%d bytes of history\n" % sum(map(len, out))
    # Each buffer is in order, together they end with the end.
    events = [numbers_of(text, rb"\d+\.\d{9} event (\d+)") for text in out if text]
    assert all(numbers == sorted(numbers) for numbers in events)
    assert max(map(max, events)) == n
    assert sum(map(len, events)) == n - int(mount.shown("app/flight", "lost_overwritten"))
    in_order = sorted(b"".join(out).splitlines())
    assert numbers_of(b"\n".join([*in_order, b""]), rb"[\d.]+ event (\d+)") == sorted(itertools.chain(*events))


def test_a_flight_recorder_is_read_while_programs_go_on(mount, tmp_path):
    channel = mount.create("app/flight", "mode=overwrite buffers=global")
    for name in (b"first\n", b"second\n"):
        (mount.path / "app/flight0").write_bytes(name)
        said_by("flight_reader", channel, tmp_path / "out")
        assert outputs(tmp_path) == [name]


def test_reserved_records_are_read_with_as_much_text_as_was_counted(mount):
    channel = mount.path / "app/cpu"
    with running("reserve_producer", mount.path / "app", "cpu", 20_000) as producer:
        wait_until((mount.path / "app/cpu0").exists, "the channel is there")
        with running("reserve_reader", channel) as reader:
            out = succeed(reader)
        succeed(producer)
    assert out is not None
    expected = [b"thread %d event %d\n" % (who, i) for who in range(3) for i in range(20_000)]
    assert sorted_lines(out) == sorted(expected)


@pytest.mark.parametrize("clock", [[], ["clock"]], ids=["tsc", "clock"])
def test_a_trace_is_read_with_the_times_of_its_events(mount, monkeypatch, clock: list[str]):
    monkeypatch.setenv("RELAYFS", str(mount.path))
    monkeypatch.setenv("TZ", "UTC")
    n, started = 20_000, time.time()
    with running("tracer", "/xlog/9", n, *clock) as tracer:
        wait_until((mount.path / "xlog/9").exists, "the channel is there")
        with running("trace_reader", mount.path / "xlog/9") as reader:
            out = succeed(reader)
        succeed(tracer)
    assert out is not None
    lines = [re.fullmatch(r"(\S+ \S+) thread (\d) has done (\d+) of 20000", line) for line in out.decode().splitlines()]
    events = [(datetime.fromisoformat(line[1] + "+00:00").timestamp(), int(line[2]), int(line[3])) for line in lines]
    for thread in (0, 1):
        assert [i for _, who, i in events if who == thread] == list(range(1, n + 1))
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert started <= times[0] <= times[-1] <= time.time()


def test_a_trace_reader_finds_what_is_not_as_it_should_be(mount, monkeypatch, tmp_path):
    monkeypatch.setenv("RELAYFS", str(mount.path))
    # More than fits: it waits for its reader.
    with running("tracer", "/xlog/9", 10_000) as tracer:
        wait_until((mount.path / "xlog/9").exists, "the channel is there")
        trace = (mount.path / "xlog/9").read_bytes()
        succeed(tracer)
    cuts = [
        (trace[8:], rb"sub-buffer 0, byte 0: there is .* where its header was expected\n"),
        (trace[:-8], rb"sub-buffer \d+, byte \d+: the file ends before the end of the footer\n"),
        (
            trace[:33] + trace[34:],
            rb"sub-buffer 0, byte 32: there is 0x\w+ where an event or the footer was expected\n",
        ),
    ]
    for cut, complaint in cuts:
        (tmp_path / "trace").write_bytes(cut)
        with running("trace_reader", tmp_path / "trace") as reader:
            _, error = reader.communicate(timeout=DEADLINE_S)
        assert reader.returncode == 1
        assert re.search(complaint, error), error


def test_klog_statements_log_while_there_is_a_channel(mount):
    channel = mount.path / "app/log"
    with running("klog_producer", channel) as producer:
        for _ in range(3):
            with running("klog_reader", channel) as reader:
                assert reader.stdout
                lines = [reader.stdout.readline() for _ in range(200)]
                mount.command("remove app/log\n")
                # Not communicate(): some is in the buffer of readline().
                out = b"".join(lines) + reader.stdout.read()
                assert reader.wait(DEADLINE_S) == 0
            assert {line.split()[1] for line in out.splitlines()} == {b"0", b"1", b"is"}
            for who in (b"0", b"1"):
                done = [int(n) for n in re.findall(rb"thread " + who + rb" has done (\d+) things", out)]
                assert done == list(range(done[0], done[0] + len(done)))
        assert producer.poll() is None


def test_the_table_of_examples_names_them_all():
    text = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"\]\(([\w.]+)\)", text))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}


def flat(fields: dict, before: str = "") -> dict:
    """The fields of structs under the names that declarations have for them."""
    found = {}
    for name, value in fields.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
def test_merged_reader_prints_what_merged_json_has(mount, buffers: str):
    mount.command(f"trace create t subbuf_size=256K n_subbufs=4 buffers={buffers}\ntrace start t")
    for name in ("trace_forms", "trace_structs"):
        program = compile_c([TRACES / f"{name}.c"])
        subprocess.run([program], env={**os.environ, "RELAYFS": str(mount.path)}, check=True, timeout=DEADLINE_S)
    printed = succeed(spawn(python_program("merged_reader"), mount.path / "t/merged.raw", stdout=subprocess.PIPE))
    found = [json.loads(line) for line in printed.splitlines()]
    told = [json.loads(line) for line in (mount.path / "t/merged.json").read_bytes().splitlines()]
    for one in found:
        one["tid"] = one["fields"].pop("_vtid")
        one["pid"] = one["fields"].pop("_vpid", one.get("pid"))
    for one in told:
        one["fields"] = flat(one["fields"])
    assert len(told) > 10
    assert found == told


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox sh"])
def test_shell_alone_is_enough(mount, shell):
    process = spawn(shell.split(), EXAMPLES / "tail.sh", mount.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert succeed(process) == b"first\nsecond\nthird\n"
    assert sorted(path.name for path in mount.path.iterdir()) == [
        *(".channels", ".counters", ".crashed", ".traces", "control"),
        *COUNTERS,
        "error_log",
    ]
    assert mount.error_log == ""


def test_compile_line_in_the_first_comment_works(tmp_path):
    """With pkg-config, as users do; the package's own copy of the library need not be where the linker looks."""
    for source in sorted(EXAMPLES.glob("*.c")):
        first = source.read_text().splitlines()[0]
        command = first.removeprefix("/* ").removesuffix(" */")
        plain = f"cc -O2 -o {source.stem} {source.name} $(pkg-config --cflags --libs relayfs)"
        assert command.removesuffix(" -pthread") == plain
        for file in (source, *EXAMPLES.glob("*.h")):
            (tmp_path / file.name).write_text(file.read_text())
        subprocess.run(["sh", "-euc", command], cwd=tmp_path, check=True)
        assert (tmp_path / source.stem).exists()
