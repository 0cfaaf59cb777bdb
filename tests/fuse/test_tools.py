"""Ordinary tools on a relay file while a producer adds lines to it: every line, in order, none twice.

What a tool prints and what is left for the next reader are together what was written. Where a tool takes less than
everything, or cannot work on a stream, the test states what it gets.
"""

import gzip
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Mount, wait_until
from traffic import LINE_BYTES, Stream, drain, lines

PRELOADED = 400
# Reading byte by byte, as shells do, is slower than writing: they would never see an end.
AT_MOST = 2000


def shell(script: str, stream: Stream, program: str = "bash") -> subprocess.CompletedProcess[bytes]:
    """Run a script in which $F is the relay file."""
    return subprocess.run(
        [program, "-c", script], cwd=stream.mount.path, env={**os.environ, "F": stream.name, "LC_ALL": "C"},
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.fixture
def live(request: pytest.FixtureRequest, mount: Mount) -> Iterator[Stream]:
    """A relay file with lines in it, to which more are added all the time."""
    stream = Stream(mount, "app/cpu", getattr(request, "param", "c"))
    mount.create(stream.channel)
    stream.start(at_most=AT_MOST)
    wait_until(lambda: stream.fact("records") >= PRELOADED, "the producer is at work")
    yield stream
    stream.kill()


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    """A relay file with lines in it, and nobody who adds more."""
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel)
    stream.write(PRELOADED)
    yield stream
    stream.kill()


# --- tools that show all they read ---


@pytest.mark.parametrize(
    "script",
    [
        'cat "$F"',
        'cat < "$F"',
        'cat "$F" | cat',
        'dd if="$F" bs=1M status=none',
        'dd if="$F" bs=512 status=none',
        'dd if="$F" bs=7 status=none',
        'dd if="$F" iflag=direct bs=1M status=none',
        'head -c 100000000 "$F"',
        'head -n 100000000 "$F"',
        'tail -n +1 "$F"',
        'tee < "$F"',
        'sed -n p "$F"',
        'mawk 1 "$F"',
        'grep line "$F"',
        'cut -b 1- "$F"',
        'tr x x < "$F"',
        'perl -ne print "$F"',
        'while read -r line; do echo "$line"; done < "$F"',
        'mapfile -t all < "$F"; printf "%s\\n" "${all[@]}"',
        'printf "%s\\n" "$(<"$F")"',
        'busybox cat "$F"',
        'busybox dd if="$F" bs=1M status=none',
        'busybox tail -n +1 "$F"',
        'busybox sed -n p "$F"',
    ],
)
def test_a_tool_shows_every_line_once_and_in_order(live: Stream, script: str) -> None:
    done = shell(script, live)
    rest = live.rest()
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) >= PRELOADED * LINE_BYTES
    assert done.stdout + rest == lines(live.written)


@pytest.mark.parametrize("live", ["python"], indirect=True)
@pytest.mark.parametrize("script", ['cat "$F"', 'dd if="$F" bs=512 status=none'])
def test_lines_of_a_python_producer_are_shown_once_and_in_order(live: Stream, script: str) -> None:
    test_a_tool_shows_every_line_once_and_in_order(live, script)


def test_dash_reads_every_line_once_and_in_order(live: Stream) -> None:
    done = shell('while read -r line; do echo "$line"; done < "$F"', live, "dash")
    rest = live.rest()
    assert len(done.stdout) >= PRELOADED * LINE_BYTES
    assert done.stdout + rest == lines(live.written)


PYTHON_READERS = {
    "read": "sys.stdout.buffer.write(open(F, 'rb').read())",
    "unbuffered": "sys.stdout.buffer.write(open(F, 'rb', buffering=0).readall())",
    "readline": "f = open(F, 'rb')\nwhile line := f.readline(): sys.stdout.buffer.write(line)",
    "iteration": "for line in open(F): sys.stdout.write(line)",
    "pathlib": "sys.stdout.buffer.write(pathlib.Path(F).read_bytes())",
    "fileinput": "for line in fileinput.input([F]): sys.stdout.write(line)",
    "copyfileobj": "shutil.copyfileobj(open(F, 'rb'), sys.stdout.buffer)",
}


@pytest.mark.parametrize("code", PYTHON_READERS.values(), ids=PYTHON_READERS)
def test_python_reads_every_line_once_and_in_order(live: Stream, code: str) -> None:
    imports = "import fileinput, pathlib, shutil, sys; F = sys.argv[1]\n"
    done = subprocess.run(
        [sys.executable, "-c", imports + code, live.file], capture_output=True, timeout=30, check=True
    )
    rest = live.rest()
    assert len(done.stdout) >= PRELOADED * LINE_BYTES
    assert done.stdout + rest == lines(live.written)


# --- tools that copy to a file ---


@pytest.mark.parametrize(
    "command",
    [
        ["cp"],
        ["cp", "--sparse=never"],
        ["cp", "--sparse=always"],
        ["cp", "--reflink=never"],
        ["cp", "-p"],
        ["install", "-m", "600"],
        ["busybox", "cp"],
        [sys.executable, "-c", "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"],
        [sys.executable, "-c", "import shutil, sys; shutil.copy2(sys.argv[1], sys.argv[2])"],
    ],
    ids=lambda command: "-".join(Path(word).name[:12] for word in command),
)
def test_a_copy_holds_every_line_once_and_in_order(live: Stream, tmp_path: Path, command: list[str]) -> None:
    done = subprocess.run([*command, live.file, tmp_path / "copy"], capture_output=True, timeout=30, check=False)
    rest = live.rest()
    copy = (tmp_path / "copy").read_bytes()
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(copy) >= PRELOADED * LINE_BYTES
    assert copy + rest == lines(live.written)


def test_cp_from_one_relay_file_to_another_loses_nothing(stream: Stream, mount: Mount) -> None:
    mount.create("copy", "buffers=single")
    done = shell('cp "$F" copy', stream)
    assert (done.returncode, done.stderr) == (0, b"")
    assert drain(mount.path / "copy") == lines(PRELOADED)
    assert stream.rest() == b""


def test_gzip_packs_every_line_once_and_in_order(live: Stream) -> None:
    done = shell('gzip -c "$F"', live)
    rest = live.rest()
    # It warns if what it read is not the size that was announced before: lines were added meanwhile.
    assert done.returncode in (0, 2)
    assert done.stderr in (b"", b"gzip: %s: file size changed while zipping\n" % live.name.encode())
    assert gzip.decompress(done.stdout) + rest == lines(live.written)


# --- tools that tell something about all they read ---


@pytest.mark.parametrize(
    "script",
    ['wc -l < "$F"', 'wc -l "$F" | cut -d " " -f 1', 'grep -c line "$F"', "mawk 'END{print NR}' \"$F\"",
     'busybox wc -l < "$F"', "sed -n '$=' \"$F\""],
)  # fmt: skip
def test_what_a_tool_counts_is_not_counted_again(live: Stream, script: str) -> None:
    counted = int(shell(script, live).stdout)
    rest = live.rest()
    assert counted >= PRELOADED
    assert rest == lines(live.written - counted, first=counted)


@pytest.mark.parametrize("tool", ["md5sum", "sha256sum", "busybox md5sum"])
def test_a_checksum_is_that_of_the_lines(live: Stream, tool: str) -> None:
    algorithm = tool.rsplit(maxsplit=1)[-1].removesuffix("sum")
    got = shell(f'{tool} "$F"', live).stdout.split()[0].decode()
    rest = live.rest()
    everything = lines(live.written)
    assert everything.endswith(rest)
    assert got == hashlib.new(algorithm, everything.removesuffix(rest)).hexdigest()


def test_wc_c_tells_how_much_was_ever_written_and_takes_nothing(stream: Stream) -> None:
    drain(stream.file)
    stream.write(3)
    assert int(shell('wc -c "$F" | cut -d " " -f 1', stream).stdout) == (PRELOADED + 3) * LINE_BYTES
    # Without a name it asks for its position, which a stream does not have.
    assert int(shell('wc -c < "$F"', stream).stdout) == 0
    assert stream.rest() == lines(3, first=PRELOADED)


# --- tools that take a part ---


def test_head_c_takes_no_more_than_it_shows(live: Stream) -> None:
    got = shell('head -c 100 "$F"', live).stdout
    assert len(got) == 100
    assert got + live.rest() == lines(live.written)


def test_dd_takes_as_many_blocks_as_it_is_told(live: Stream) -> None:
    got = shell('dd if="$F" bs=100 count=3 status=none', live).stdout
    assert len(got) == 300
    assert got + live.rest() == lines(live.written)


def test_dd_skips_by_reading(stream: Stream) -> None:
    got = shell('dd if="$F" bs=100 skip=1 count=1 status=none', stream).stdout
    assert got == lines(PRELOADED)[100:200]
    assert stream.rest() == lines(PRELOADED)[200:]


@pytest.mark.parametrize("program", ["bash", "dash"])
def test_shells_take_one_line_at_a_time(stream: Stream, program: str) -> None:
    script = '{ read -r a; read -r b; } < "$F"; echo "$a"; echo "$b"; cat "$F"'
    assert shell(script, stream, program).stdout == lines(PRELOADED)


@pytest.mark.parametrize("tool", ["head", "busybox head"])
def test_head_n_shows_the_next_lines_and_takes_what_it_read_ahead(stream: Stream, tool: str) -> None:
    done = shell(f'{tool} -n 5 "$F"', stream)
    assert (done.returncode, done.stdout) == (0, lines(5))
    taken = stream.fact("read_bytes")
    assert taken >= 5 * LINE_BYTES
    assert stream.rest() == lines(PRELOADED)[taken:]


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
@pytest.mark.parametrize(("option", "shown"), [("", 10), ("-n 5", 5), ("-n 100000", PRELOADED)])
def test_tail_shows_the_last_lines_of_what_is_unread(stream: Stream, tool: str, option: str, shown: int) -> None:
    assert shell(f'{tool} {option} "$F"', stream).stdout == lines(PRELOADED)[-shown * LINE_BYTES :]
    assert stream.rest() == b""
    stream.write(3)
    assert shell(f'{tool} {option} "$F"', stream).stdout == lines(3, first=PRELOADED)


def test_tail_c_shows_the_last_bytes_of_what_is_unread(stream: Stream) -> None:
    assert shell('tail -c 100 "$F"', stream).stdout == lines(PRELOADED)[-100:]
    assert stream.rest() == b""


@pytest.mark.parametrize(
    "script",
    ['tail -c +31 "$F"', 'tail -c +1 "$F"', 'tail -c +1 -f "$F"', 'head -n -5 "$F"', 'head -c -100 "$F"',
     'split -n 2 "$F"'],
)  # fmt: skip
def test_tools_that_must_seek_say_so_and_take_nothing(stream: Stream, script: str) -> None:
    done = shell(script, stream)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"seek" in done.stderr or b"cannot determine file size" in done.stderr
    assert stream.rest() == lines(PRELOADED)


def test_tail_c_must_seek_once_more_than_a_block_was_ever_written(stream: Stream) -> None:
    drain(stream.file)
    stream.write((1 << 20) // LINE_BYTES + 1)
    done = shell('tail -c 100 "$F"', stream)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Illegal seek" in done.stderr
    assert stream.rest() == lines(stream.written - PRELOADED, first=PRELOADED)


def test_busybox_sh_polls_before_it_reads_and_so_reads_packets_until_removal(mount: Mount) -> None:
    stream = Stream(mount, "packets")
    mount.create(stream.channel, "delivery=packet")
    stream.write(PRELOADED)
    script = 'while read -r line; do echo "$line"; done < "$F"'
    reader = subprocess.Popen(
        ["busybox", "sh", "-c", script], cwd=mount.path, env={**os.environ, "F": stream.name}, stdout=subprocess.PIPE
    )
    wait_until(lambda: stream.fact("unread_bytes") == 0, "the shell has read it all")
    stream.write(3)
    wait_until(lambda: stream.fact("unread_bytes") == 0, "the shell reads what comes")
    mount.command("remove packets")
    assert reader.communicate(timeout=20)[0] == lines(PRELOADED + 3)


def test_a_tool_between_producer_and_pipe_reads_like_a_stream(live: Stream) -> None:
    done = shell('cat "$F" | head -n 5; cat "$F"', live)
    assert done.stdout.startswith(lines(5))
    # What cat had read and head did not want is gone; from there on nothing is missing.
    after = done.stdout[5 * LINE_BYTES :] + live.rest()
    assert lines(live.written).endswith(after)
