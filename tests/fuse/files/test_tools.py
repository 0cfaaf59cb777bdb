"""Ordinary tools on a relay file while a producer adds lines to it: every line, in order, none twice.

What a tool prints and what is left for the next reader are together what was written. Where a tool takes more than it
shows, the test states what it gets.
"""

import contextlib
import gzip
import hashlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import forking
import pytest
from build import compile_c, run_command
from mounts import DEADLINE_S, Mount, wait_until
from traffic import LINE_BYTES, PRELOADED, Stream, drain, lines, streaming

pytestmark = pytest.mark.one_mount

# Reading byte by byte, as shells do, is slower than writing: they would never see an end.
AT_MOST = 600


def shell(script: str, stream: Stream, program: str = "bash") -> subprocess.CompletedProcess[bytes]:
    """Run a script in which $F is the relay file."""
    return subprocess.run(
        [program, "-c", script], cwd=stream.mount.path, env={**os.environ, "F": stream.name, "LC_ALL": "C"},
        capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.fixture
def live(request: pytest.FixtureRequest, mount: Mount) -> Iterator[Stream]:
    """A relay file with lines in it, to which more are added all the time."""
    with streaming(mount, kind=getattr(request, "param", "c")) as stream:
        stream.start(at_most=AT_MOST)
        wait_until(lambda: stream.shown("records") >= PRELOADED, "the producer is at work")
        yield stream


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
        'tail -c +1 "$F"',
        'tail -n 1000000 "$F"',
        'tail -c 100000000 "$F"',
        'head -c -0 "$F"',
        'cat -u "$F"',
        'cat -n "$F" | cut -f 2',
        'less "$F"',
        'od -An -v -tx1 "$F" | xxd -r -p',
        'xxd "$F" | xxd -r',
        'paste "$F"',
        '(head -n 5; cat) < "$F"',
        '(tail -c +1; cat) < "$F"',
        '(sed 5q; sed 5q; perl -ne print) < "$F"',
        '(read -r a; echo "$a"; head -c 100; read -r b; echo "$b"; cat) < "$F"',
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
    done = forking.run(
        [sys.executable, "-c", imports + code, live.file], capture_output=True, timeout=DEADLINE_S, check=True
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
    done = subprocess.run(
        [*command, live.file, tmp_path / "copy"], capture_output=True, timeout=DEADLINE_S, check=False
    )
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


@pytest.mark.parametrize(
    "script", ['wc -c "$F" | cut -d " " -f 1', 'wc -c < "$F"', 'stat -c %s "$F"', 'du -b "$F" | cut -f 1']
)
def test_a_file_is_as_long_as_what_is_unread(stream: Stream, script: str) -> None:
    assert int(shell(script, stream).stdout) == PRELOADED * LINE_BYTES
    drain(stream.file)
    assert int(shell(script, stream).stdout) == 0
    stream.write(3)
    assert int(shell(script, stream).stdout) == 3 * LINE_BYTES
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
    taken = stream.shown("read_bytes")
    assert taken >= 5 * LINE_BYTES
    assert stream.rest() == lines(PRELOADED)[taken:]


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
@pytest.mark.parametrize(("option", "shown"), [("", 10), ("-n 5", 5), ("-n 100000", PRELOADED)])
def test_tail_shows_the_last_lines_of_what_is_unread(stream: Stream, tool: str, option: str, shown: int) -> None:
    assert shell(f'{tool} {option} "$F"', stream).stdout == lines(PRELOADED)[-shown * LINE_BYTES :]
    assert stream.rest() == b""
    stream.write(3)
    assert shell(f'{tool} {option} "$F"', stream).stdout == lines(3, first=PRELOADED)


@pytest.fixture(params=[PRELOADED, 50_000], ids=["little", "much"])
def unread(request: pytest.FixtureRequest, stream: Stream) -> bytes:
    """What the relay file of `stream` gives: less than programs take for worth a seek, or more; not its first data."""
    taken = PRELOADED // 2 * LINE_BYTES
    subprocess.run(["dd", f"if={stream.file}", f"bs={taken}", "count=1", "of=/dev/null", "status=none"], check=True)
    stream.write(request.param)
    return lines(stream.written)[taken:]


def last_lines(data: bytes, n: int) -> bytes:
    return data[-n * LINE_BYTES :]


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
def test_tail_takes_all_and_shows_the_end(stream: Stream, unread: bytes, tool: str) -> None:
    assert shell(f'{tool} -n 5 "$F"', stream).stdout == last_lines(unread, 5)
    assert stream.rest() == b""
    stream.write(300)
    assert shell(f'{tool} -c 100 "$F"', stream).stdout == lines(stream.written)[-100:]
    assert stream.rest() == b""


def test_tail_c_shows_the_last_bytes_of_much(stream: Stream, unread: bytes) -> None:
    assert shell('tail -c 100 "$F"', stream).stdout == unread[-100:]
    assert stream.rest() == b""


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
def test_tail_from_a_byte_on_shows_all_behind_it(stream: Stream, unread: bytes, tool: str) -> None:
    assert shell(f'{tool} -c +101 "$F"', stream).stdout == unread[100:]
    assert stream.rest() == b""


def test_head_leaves_out_the_end(stream: Stream, unread: bytes) -> None:
    assert shell('head -n -5 "$F"', stream).stdout == unread.removesuffix(last_lines(unread, 5))
    # It had to look for them.
    assert stream.rest() == b""
    stream.write(5)
    assert shell('head -c -100 "$F"', stream).stdout == lines(stream.written)[-5 * LINE_BYTES : -100]


def test_what_head_has_left_out_goes_to_the_next_on_the_same_descriptor(stream: Stream, unread: bytes) -> None:
    end = last_lines(unread, 5)
    assert shell('(head -n -5; echo; cat) < "$F"', stream).stdout == unread.removesuffix(end) + b"\n" + end


@pytest.mark.parametrize("how", ["2", "l/3", "r/4"])
def test_split_divides_all_that_is_unread(stream: Stream, unread: bytes, tmp_path: Path, how: str) -> None:
    done = shell(f'split -n {how} "$F" {tmp_path}/part', stream)
    assert (done.returncode, done.stderr) == (0, b"")
    parts = [path.read_bytes().splitlines(keepends=True) for path in sorted(tmp_path.iterdir())]
    if how.startswith("r/"):  # in turn
        parts = [list(row) for row in zip_longest(*parts, fillvalue=b"")]
    assert b"".join(b"".join(part) for part in parts) == unread
    assert stream.rest() == b""


def test_split_shows_one_part_and_takes_what_is_before_it(stream: Stream, unread: bytes) -> None:
    third = len(unread) // 3
    got = shell('split -n 2/3 "$F"', stream).stdout
    assert got == unread[third : 2 * third]
    # Of little it takes all into its memory at once.
    assert unread.endswith(stream.rest())


@pytest.mark.parametrize("options", ["", "--format=ustar", "--totals=USR1"])
def test_tar_packs_all_that_is_unread(stream: Stream, unread: bytes, options: str) -> None:
    done = shell(f'tar -c {options} -f - "$F" | tar -x -O -f -', stream)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", unread)
    assert stream.rest() == b""


def test_tar_packs_what_was_unread_when_it_opened_the_file(live: Stream) -> None:
    done = shell('tar -c -f - "$F" | tar -x -O -f -', live)
    assert done.stderr in (b"", b"tar: %s: file changed as we read it\n" % live.name.encode())
    assert len(done.stdout) >= PRELOADED * LINE_BYTES
    assert done.stdout + live.rest() == lines(live.written)


@pytest.mark.parametrize("options", ["--inplace", "--whole-file", "--append"])
def test_rsync_copies_all_that_is_unread(stream: Stream, unread: bytes, tmp_path: Path, options: str) -> None:
    done = shell(f'rsync {options} "$F" {tmp_path}/copy', stream)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "copy").read_bytes() == unread
    assert stream.rest() == b""


class Terminal:
    """A terminal of 24 lines with a program on it: what it shows, all of it, and what is typed."""

    def __init__(self, *command: str | Path) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=slave, stdout=slave, stderr=slave,
            env={**os.environ, "TERM": "vt100"},
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(self._master, False)
        self._shown = b""

    @property
    def shown(self) -> bytes:
        with contextlib.suppress(OSError):  # nothing new, or the program has ended
            self._shown += os.read(self._master, 1 << 16)
        return self._shown

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_less_goes_to_the_end_and_follows_and_scrolls_back(stream: Stream, unread: bytes) -> None:
    with contextlib.closing(Terminal("less", "-f", "+F", stream.file)) as terminal:
        wait_until(lambda: unread.splitlines()[-1] in terminal.shown, "less shows the last line")
        stream.write(3)
        wait_until(lambda: b"%08d" % (stream.written - 1) in terminal.shown, "less shows what is new")
        terminal.type(b"\x03")  # ends +F only
        wait_until(lambda: terminal.shown.rstrip().endswith((b":", b"\x1b[K", b"(END)\x1b[m")), "less takes commands")
        terminal.type(b"100\x19")  # 100 lines back
        wait_until(lambda: b"%08d" % (stream.written - 110) in terminal.shown, "less has scrolled back")
        terminal.type(b"q")
        wait_until(lambda: terminal.shown is not None and terminal.process.poll() == 0, "less ends")
    assert stream.rest() == b""


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ('dd if="$F" bs=31 skip=9 count=3 status=none', slice(9 * LINE_BYTES, 12 * LINE_BYTES)),
        ('tail -c +101 "$F"', slice(100, None)),
        ('(dd bs=31 count=3 status=none; head -n 5; cat) < "$F"', slice(None)),
        ('tail -n 5 "$F"', slice(-5 * LINE_BYTES, None)),
        ('tail -c 100 "$F"', slice(-100, None)),
        ('head -n -5 "$F"', slice(-5 * LINE_BYTES)),
        ('head -n 7 "$F" > /dev/null; head -c -100 "$F" | tail -c 1000', slice(-1100, -100)),
        ('tar cP "$F" | tar xPO', slice(None)),
    ],
)
def test_discarded_records_do_not_put_programs_that_seek_out_of_step(mount: Mount, script: str, shown: slice) -> None:
    n = 40_000
    path = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=64")
    subprocess.run(run_command(compile_c([Path(__file__).with_name("discarder.c")]), path, n), check=True)
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "F": str(path)}, capture_output=True, check=True)
    assert done.stdout == lines(n)[shown]


def test_a_shell_that_reads_one_line_takes_no_more(stream: Stream, unread: bytes) -> None:
    for first in range(0, 3 * LINE_BYTES, LINE_BYTES):
        assert shell('read -r line < "$F"; echo "$line"', stream).stdout == unread[first : first + LINE_BYTES]
    assert stream.rest() == unread[3 * LINE_BYTES :]


@pytest.mark.parametrize("script", ['cmp "$F" COPY', 'diff "$F" COPY', 'cmp - COPY < "$F"', 'diff COPY "$F"'])
def test_what_is_unread_compares_equal_to_its_copy(stream: Stream, unread: bytes, tmp_path: Path, script: str) -> None:
    (tmp_path / "copy").write_bytes(unread)
    done = shell(script.replace("COPY", str(tmp_path / "copy")), stream)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert stream.rest() == b""


def test_busybox_sh_polls_before_it_reads_and_so_reads_packets_until_removal(mount: Mount) -> None:
    stream = Stream(mount, "packets")
    mount.create(stream.channel, "delivery=packet")
    stream.write(100)  # it reads byte by byte
    script = 'while read -r line; do echo "$line"; done < "$F"'
    reader = subprocess.Popen(
        ["busybox", "sh", "-c", script], cwd=mount.path, env={**os.environ, "F": stream.name}, stdout=subprocess.PIPE
    )
    wait_until(lambda: stream.shown("unread_bytes") == 0, "the shell has read it all")
    stream.write(3)
    wait_until(lambda: stream.shown("unread_bytes") == 0, "the shell reads what comes")
    mount.command("remove packets")
    assert reader.communicate(timeout=DEADLINE_S)[0] == lines(103)


def test_lsof_tells_who_has_a_file_open(stream: Stream) -> None:
    # It asks every mount that it sees, of which one of somebody else's may not answer: so it sees none.
    lsof = "unshare -m bash -c 'umount -a -l -t fuse.relayfs; lsof -w -t -- \"$F\"'"
    with stream.file.open("rb"):
        assert os.getpid() in map(int, shell(lsof, stream).stdout.split())
    assert shell(lsof, stream).stdout == b""
    assert stream.rest() == lines(PRELOADED)


def test_inotify_tells_of_system_calls_only(stream: Stream) -> None:
    # It tells nobody when it watches: so until it has seen a write.
    watch = f'inotifywait -q -t {DEADLINE_S:.0f} -e modify "$F" & '
    command = ["bash", "-c", watch + 'while kill -0 $!; do echo x > "$F"; sleep 0.1; done 2> /dev/null; wait $!']
    done = subprocess.run(command, cwd=stream.mount.path, env={**os.environ, "F": stream.name}, capture_output=True,
                          timeout=2 * DEADLINE_S, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{stream.name} MODIFY \n".encode())
    # Records of programs that map the memory are seen by poll(2), not by inotify.
    assert shell('inotifywait -q -t 1 -e modify "$F"', stream).returncode == 2


def test_a_tool_between_producer_and_pipe_reads_like_a_stream(live: Stream) -> None:
    done = shell('cat "$F" | head -n 5; cat "$F"', live)
    assert done.stdout.startswith(lines(5))
    # What cat had read and head did not want is gone; from there on nothing is missing.
    after = done.stdout[5 * LINE_BYTES :] + live.rest()
    assert lines(live.written).endswith(after)
