"""relayctl write and run: what becomes of the bytes of a pipe in a channel, and of what cannot be written."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forking import RELAYCTL, run, start
from mounts import DEADLINE_S, Mount, opened, wait_until
from tracing import relayctl

from relayfs_fuse import Ring

pytestmark = pytest.mark.one_mount

SMALL = "buffers=single subbuf_size=4K n_subbufs=2"
LARGEST = 4096


def write(mount: Mount, data: bytes, *arguments: object) -> tuple[int, str]:
    command = [RELAYCTL, "write", *map(str, arguments), "--mount", mount.path]
    done = run(command, input=data, capture_output=True, timeout=DEADLINE_S)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def run_program(mount: Mount, script: str, *arguments: object, **options: object) -> tuple[int, str]:
    done = relayctl("run", *arguments, "--mount", mount.path, "--", "sh", "-c", script, **options)
    assert done.stdout == ""
    return done.returncode, done.stderr


def records(path: Path) -> list[bytes]:
    with Ring(path) as ring:
        return [bytes(record) for record in ring.records(timeout=0)]


@pytest.mark.parametrize("options", ["buffers=single", "type=ring", "type=ring times=mono"])
def test_lines_become_records(mount: Mount, options: str) -> None:
    channel = mount.create("app/lines", options)
    text = b"one\n\n\0two" + b"." * 5000 + b"\nthe end"
    # By a path of the mount, and by a path from its root.
    assert write(mount, text, "app/lines") == (0, "")
    done = run([RELAYCTL, "write", channel], input=b"more\n", capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    lines = [*text.splitlines(keepends=True), b"more\n"]
    if "ring" in options:
        assert records(channel) == lines
    else:
        assert int(mount.shown("app/lines", "records")) == len(lines)
        assert channel.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("options", ["", "buffers=single", "type=ring size=128K"])
def test_lines_of_each_length_become_records(mount: Mount, options: str) -> None:
    channel = mount.create("app/each", options)
    lines = [b"%d" % n + b"." * (n % 200) + b"\n" for n in range(600)]
    assert write(mount, b"".join(lines), "app/each") == (0, "")
    if "ring" in options:
        assert records(channel) == lines
        return
    assert int(mount.shown("app/each", "records")) == len(lines)
    files = [channel] if options else [Path(f"{channel}{cpu}") for cpu in range(os.cpu_count() or 1)]
    written = b"".join(file.read_bytes() for file in files).splitlines(keepends=True)
    assert sorted(written) == sorted(lines)


def test_other_records_are_cut_by_their_lengths(mount: Mount) -> None:
    ring = mount.create("app/ring", "type=ring size=4K framing=length")
    assert write(mount, b"abcdef", "app/ring", "--fixed", 3) == (0, "")
    framed = Path(f"{ring}0").read_bytes()
    # What read(2) returns can be written again. An empty record is one, too.
    assert write(mount, framed + bytes(4), "app/ring", "--length-prefixed") == (0, "")
    assert records(ring) == [b"abc", b"def", b""]
    within = "relayctl: the input ends within record 2; its {} bytes are not written\n"
    assert write(mount, b"abcd", "app/ring", "--fixed", 3) == (1, within.format(1))
    assert write(mount, b"\1\0\0\0a\3\0\0\0bc", "app/ring", "--length-prefixed") == (1, within.format(6))
    assert records(ring) == [b"abc", b"a"]
    status, said = write(mount, b"", "app/ring", "--fixed", 5000)
    assert status == 2
    assert "a record of app/ring has at most 4080 bytes" in said
    plain = mount.create("app/plain", SMALL)
    status, said = write(mount, b"\0\0\0\0\1\0\0\0a", "app/plain", "--length-prefixed")
    assert (status, plain.read_bytes()) == (1, b"a")
    assert said.endswith("records that were not written: 1: a channel of relay buffers has no empty records\n")


def test_records_that_do_not_fit_are_named_and_counted(mount: Mount) -> None:
    channel = mount.create("app/small", SMALL)
    # The second is longer than any block that is read at once; the last has no end.
    long = [b"x" * (LARGEST + 1), b"y" * (3 << 20), b"z" * (2 << 20)]
    text = b"first\n" + long[0] + b"\nsecond\n" + long[1] + b"\nthird\n" + long[2]
    status, said = write(mount, text, "app/small")
    assert status == 1
    assert said.splitlines() == [
        *(
            f"relayctl: app/small: line {number} has {length} bytes, and is not written: a record has at most {LARGEST}"
            for number, length in ((2, LARGEST + 2), (4, len(long[1]) + 1), (6, len(long[2])))
        ),
        f"relayctl: app/small: lines that were not written: 3 longer than {LARGEST} bytes",
    ]
    assert channel.read_bytes() == b"first\nsecond\nthird\n"
    assert int(mount.shown("app/small", "lost_too_large")) == 3
    prefixed = b"\1\0\0\0a" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20) + b"\1\0\0\0b"
    status, said = write(mount, prefixed, "app/small", "--length-prefixed")
    assert (status, channel.read_bytes()) == (1, b"ab")
    assert said.startswith(f"relayctl: app/small: record 2 has {1 << 20} bytes, and is not written")


@pytest.mark.parametrize("options", [SMALL, "type=ring size=4K framing=line"])
def test_a_full_channel_is_waited_for_or_loses_what_is_counted(mount: Mount, options: str) -> None:
    mount.create("app/full", options)
    lines = b"".join(b"%0100d\n" % number for number in range(1000))
    relay_file = next(path for path in (mount.path / "app").iterdir() if path.name.startswith("full"))
    command = [RELAYCTL, "write", "app/full", "--mount", mount.path]
    with start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(lines)
        writer.stdin.close()
        assert writer.stderr is not None
        # It says so after a second, while nobody reads.
        assert writer.stderr.readline() == b"relayctl: app/full is full; waiting for a reader (--drop does not wait)\n"
        read = b""

        def has_all() -> bool:
            nonlocal read
            read += relay_file.read_bytes()
            return len(read) >= len(lines)

        wait_until(has_all, lambda: f"all of {len(lines)} bytes: {len(read)}")
        assert (writer.wait(DEADLINE_S), writer.stderr.read()) == (0, b"")
    assert read == lines
    assert mount.shown("app/full", "lost") == "0"
    status, said = write(mount, lines, "app/full", "--drop")
    kept = relay_file.read_bytes()
    lost = 1000 - kept.count(b"\n")
    assert (status, kept, int(mount.shown("app/full", "lost"))) == (1, lines[: len(kept)], lost)
    assert said == f"relayctl: app/full: lines that were not written: {lost} because it was full\n"


@contextmanager
def writing(mount: Mount, lines: bytes, *command: object) -> Iterator[subprocess.Popen]:
    """Run a command that gets lines, and then waits for more."""
    with start([RELAYCTL, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=False) as writer:
        try:
            assert writer.stdin is not None
            writer.stdin.write(lines)
            writer.stdin.flush()
            yield writer
        finally:
            writer.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_when_all_that_is_written_can_be_read(mount: Mount, signum: signal.Signals) -> None:
    channel = mount.create("app/bulk", "buffers=single delivery=bulk")
    with writing(mount, b"one\ntwo\nthr", "write", channel) as writer:
        wait_until(lambda: mount.shown("app/bulk", "records") == "2", "two records")
        assert mount.shown("app/bulk", "produced") == "0"
        writer.send_signal(signum)
        _, said = writer.communicate(timeout=DEADLINE_S)
        assert writer.returncode == -signum
    assert mount.shown("app/bulk", "produced") == "1"
    assert channel.read_bytes() == b"one\ntwo\n"
    left = "relayctl: {0}: lines that were not written: 3 bytes that were read before a signal or an error came\n"
    assert said.decode() == (left + "relayctl: {0}: interrupted after 2 records\n").format(channel)


def test_an_input_that_cannot_be_read_is_named(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/bulk", "buffers=single delivery=bulk")
    with opened(tmp_path / "file", os.O_WRONLY | os.O_CREAT) as unreadable:
        done = run([RELAYCTL, "write", channel], stdin=unreadable, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (1, b"relayctl: the standard input: Bad file descriptor\n")


def test_a_signal_while_the_channel_is_full_says_what_is_not_written(mount: Mount) -> None:
    lines = b"".join(b"%099d\n" % number for number in range(500))
    for options in (SMALL, "type=ring size=4K buffers=single framing=line"):
        channel = mount.create("app/full", options)
        program = ["run", channel, "--block", "--", "cat"]
        for command in (["write", channel], program):
            with writing(mount, lines, *command) as writer:
                assert writer.stdin is not None
                assert writer.stderr is not None
                writer.stdin.close()
                said = b"relayctl: %s is full; waiting for a reader (--drop does not wait)\n" % bytes(channel)
                assert writer.stderr.readline() == said
                writer.send_signal(signal.SIGTERM)
                told = writer.stderr.read().decode()
                status = writer.wait(DEADLINE_S)
            kept = channel.read_bytes()
            assert lines.startswith(kept)
            assert f": {len(lines) - len(kept)} bytes that were read before a signal" in told
            assert (status, "interrupted after" in told) == ((0, False) if command is program else (-15, True))
        mount.command("remove app/full")


def test_what_cannot_be_written_to_is_said(mount: Mount) -> None:
    mount.create("app/cpu")
    done = relayctl("write", "app/cp", "--mount", mount.path)
    expected = f"relayctl: there is no channel app/cp in {mount.path}; channels: app/cpu\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert relayctl("write", mount.path / "app/cp").stderr == expected
    mount.command("disable app/cpu")
    status, said = write(mount, b"a\nb\n", "app/cpu")
    assert status == 1
    assert said == "relayctl: app/cpu: line 1 and what follows are not written: the channel is disabled\n"


def test_a_program_prints_into_a_channel(mount: Mount) -> None:
    channel = mount.create("app/out", "buffers=single")
    other = mount.create("app/err", "buffers=single")
    script = "read line; echo $line; echo error >&2; echo two; printf 'the end'; exit 7"
    assert run_program(mount, script, "app/out", input="from here\n") == (7, "")
    assert channel.read_bytes() == b"from here\nerror\ntwo\nthe end"
    assert run_program(mount, script, "app/out", "--stderr", "app/err", input="x\n") == (7, "")
    assert (channel.read_bytes(), other.read_bytes()) == (b"x\ntwo\nthe end", b"error\n")
    # A program that has closed its standard output lives on.
    assert run_program(mount, "echo one; exec >&- 2>&-; sleep 0.1; exit 3", "app/out") == (3, "")
    assert channel.read_bytes() == b"one\n"
    assert run_program(mount, "kill -9 $$", "app/out") == (128 + 9, "")
    # Signals that Python ignores are not ignored by the program.
    assert run_program(mount, "kill -PIPE $$", "app/out") == (128 + 13, "")
    for program, status in (("/nonesuch", 127), ("/etc/passwd", 126)):
        done = relayctl("run", "app/out", "--mount", mount.path, "--", program)
        assert (done.returncode, done.stderr.count(program)) == (status, 1)
    status, said = run_program(mount, "exit 0", "app/none")
    assert status == 125
    assert said.endswith(f"; make it: relayctl create -m {mount.path} app/none mode=overwrite times=mono\n")


def test_channels_that_do_not_exist_are_made_if_it_is_wanted(mount: Mount, tmp_path: Path) -> None:
    for times in (1, 2):
        assert run_program(mount, "echo out; echo err >&2; exit 3", "app/out", "--stderr", "app/err",
                           "--create", "buffers=single times=mono") == (3, "")  # fmt: skip
        assert [mount.shown(name, "records") for name in ("app/out", "app/err")] == [str(times)] * 2
        assert mount.shown("app/out", "times") == "mono"
    ran = tmp_path / "ran"
    for name, words, why in (("app/x", "mode=wrong", "mode=wrong"), ("app", "", "directory")):
        status, said = run_program(mount, f"touch {ran}", name, "--create", words)
        assert (status, said.count("\n")) == (125, 1)
        assert why in said
    assert not ran.exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_program(mount: Mount, signum: signal.Signals) -> None:
    channel = mount.create("app/out", "buffers=single")
    script = f"trap 'echo caught; exit 5' {signum.name.removeprefix('SIG')}; echo up; while :; do sleep 0.01; done"
    with start([RELAYCTL, "run", "app/out", "--mount", mount.path, "--", "sh", "-c", script]) as process:
        try:
            wait_until(lambda: mount.shown("app/out", "records") == "1", "the program's first line")
            process.send_signal(signum)
            assert process.wait(DEADLINE_S) == 5
        finally:
            process.kill()
    assert channel.read_bytes() == b"up\ncaught\n"


def test_a_full_or_removed_channel_holds_up_no_program(mount: Mount) -> None:
    channel = mount.create("app/full", SMALL)
    script = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i + 1)); done"
    status, said = run_program(mount, script, "app/full")
    kept = channel.read_bytes().splitlines()
    lost = 2000 - len(kept)
    assert (status, kept) == (0, [b"%d" % number for number in range(len(kept))])
    assert said == f"relayctl: app/full: lines that were not written: {lost} because it was full\n"
    # With --block it waits: nothing is lost.
    command = [RELAYCTL, "run", "app/full", "--block", "--mount", mount.path, "--", "sh", "-c", script]
    read = b""
    with start(command, stderr=subprocess.PIPE) as process:

        def has_ended() -> bool:
            nonlocal read
            read += channel.read_bytes()
            return process.poll() is not None

        wait_until(has_ended, "the program's end")
        assert process.stderr is not None
        assert process.returncode == 0
    assert (read + channel.read_bytes()).splitlines() == [b"%d" % number for number in range(2000)]
    mount.create("app/gone", SMALL)
    taken = f"until grep -qx 1 {mount.path}/.channels/app/gone/records; do sleep 0.01; done"
    script = f"echo one; {taken}; echo remove app/gone >{mount.path}/control; echo two; echo three; exit 4"
    status, said = run_program(mount, script, "app/gone")
    assert (status, said) == (4, "relayctl: app/gone: lines that were not written: 2: the channel was removed\n")


def test_who_outlives_the_program_is_read_on(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/out", "buffers=single")
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    status, said = run_program(mount, f"(read line <{fifo}; echo $line; exec >&- 2>&-) & echo first; exit 6", "app/out")
    assert status == 6
    reader = int(said.removeprefix("relayctl: processes that sh has started still write; process ").split()[0])
    assert Path(f"/proc/{reader}/stat").exists()
    fifo.write_text("last\n")
    read = b""

    def has_all() -> bool:
        nonlocal read
        read += channel.read_bytes()
        return read == b"first\nlast\n"

    wait_until(has_all, lambda: f"both lines: {read!r}")
    wait_until(lambda: not Path(f"/proc/{reader}").exists(), "the end of the process that reads on")
