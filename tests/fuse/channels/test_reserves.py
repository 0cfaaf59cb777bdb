"""Channels that keep space for headers and footers, made, written and read by a shell and ordinary programs."""

import errno
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, shell, wait_until
from traffic import append, short_lines

from relayfs_fuse import native
from relayfs_fuse.native.tables import CLOCKS

SUBBUF_SIZE, N_SUBBUFS = 64, 4
START, END, CHANNEL_START = 8, 4, 16
KEYS = (
    f"subbuf_size={SUBBUF_SIZE} n_subbufs={N_SUBBUFS} "
    f"start_reserve={START} end_reserve={END} channel_start_reserve={CHANNEL_START}"
)
# Lines of 12 bytes; a sub-buffer has space for 52 bytes of records, the first one for 36.
IN_FIRST, IN_OTHERS = 3, 4
MODES = ("no-overwrite", "overwrite")
SHAPES = [
    *(("percpu", scheme) for scheme in ("rseq", "lockless", "locking")),
    *((buffers, scheme) for buffers in ("global", "single") for scheme in ("lockless", "locking")),
]

# Writes lines FIRST to LAST - 1 to FILE, one record each.
WRITE = 'write() { for ((i = $2; i < $3; i++)); do printf "line %06d\\n" $i > $1 || break; done; }\n'


def start_of(subbuf: int) -> int:
    """Which line a sub-buffer begins with."""
    return IN_FIRST + (subbuf - 1) * IN_OTHERS if subbuf else 0


def stream(n: int, first_subbuf: int = 0) -> bytes:
    """Return what readers get of n lines, from a sub-buffer on: headers are zero, where nobody writes them."""
    data, subbuf = b"", first_subbuf
    while (first := start_of(subbuf)) < n:
        header = START + (0 if subbuf else CHANNEL_START)
        subbuf += 1
        data += bytes(header) + short_lines(min(start_of(subbuf), n) - first, first)
    return data


def subbuf_of(line: int) -> int:
    """In which sub-buffer a line is."""
    return 0 if line < IN_FIRST else 1 + (line - IN_FIRST) // IN_OTHERS


@pytest.fixture(params=[(*shape, mode) for shape in SHAPES for mode in MODES], ids="-".join)
def made(shared_mount: Mount, request: pytest.FixtureRequest) -> Iterator[tuple[Mount, str, str]]:
    """A channel of each kind: the mount, its relay file, its mode."""
    buffers, scheme, mode = request.param
    if scheme == "rseq" and native.scheme_default(0) != native.SCHEME_RSEQ:
        pytest.skip("this machine has no restartable sequences")
    done = shell(f'echo "create a/b {KEYS} buffers={buffers} scheme={scheme} mode={mode}" > control', shared_mount.path)
    assert done.stderr == ""
    yield shared_mount, "a/b" if buffers == "single" else "a/b0", mode
    shared_mount.command("remove a/b")


def run(mount: Mount, script: str) -> bytes:
    done = subprocess.run(
        ["bash", "-c", WRITE + script], cwd=mount.path, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.stderr == b""
    return done.stdout


# --- what readers get ---


def test_headers_are_zeros_before_the_lines_and_footers_are_not_read(made: tuple[Mount, str, str]) -> None:
    mount, file, _ = made
    n = start_of(N_SUBBUFS)
    assert run(mount, f"cat {file}; write {file} 0 {n}; stat -c %s {file}") == b"%d\n" % len(stream(n))
    assert mount.shown("a/b", "bytes") == str(len(stream(n)))
    assert run(mount, f"cat {file}") == stream(n)
    assert [mount.shown("a/b", name) for name in ("records", "read_records", "lost")] == [str(n), str(n), "0"]
    assert run(mount, f"write {file} {n} {n + 1}; cat {file}") == stream(n + 1, N_SUBBUFS)


def test_a_full_buffer_keeps_or_overwrites_whole_sub_buffers(made: tuple[Mount, str, str]) -> None:
    mount, file, mode = made
    n = start_of(3 * N_SUBBUFS) + 1
    if mode == "overwrite":
        first = subbuf_of(n - 1) - (N_SUBBUFS - 1)
        assert run(mount, f"write {file} 0 {n}; cat {file}") == stream(n, first)
        assert mount.shown("a/b", "lost_overwritten") == str(start_of(first))
    else:
        kept = start_of(N_SUBBUFS)
        done = shell(f"{WRITE} write {file} 0 {n}; cat {file}", mount.path)
        assert done.stdout.encode() == stream(kept)
        assert "No space left on device" in done.stderr
        assert mount.shown("a/b", "lost_full") == "1"
    produced, padding = int(mount.shown("a/b", "produced")), int(mount.shown("a/b", "padding"))
    assert padding == produced * (SUBBUF_SIZE - START - IN_OTHERS * 12) - (CHANNEL_START - 12)


def test_a_flush_begins_the_next_sub_buffer_with_its_header(made: tuple[Mount, str, str]) -> None:
    mount, file, _ = made
    got = run(mount, f"write {file} 0 1; echo flush a/b > control; write {file} 1 2; cat {file}")
    assert got == bytes(START + CHANNEL_START) + short_lines(1) + bytes(START) + short_lines(1, 1)


def test_after_a_reset_the_very_first_header_comes_again_and_is_zero(made: tuple[Mount, str, str]) -> None:
    mount, file, _ = made
    n = start_of(N_SUBBUFS)
    # The second lap leaves lines where the first had the channel's header.
    run(mount, f"write {file} 0 {n}; cat {file}; write {file} {n} {n + IN_OTHERS}")
    got = run(mount, f"echo reset a/b > control; write {file} 0 2; cat {file}")
    assert got == stream(2)
    assert mount.shown("a/b", "records") == "2"


def test_a_record_has_what_the_reserves_leave(made: tuple[Mount, str, str]) -> None:
    mount, file, _ = made
    with pytest.raises(OSError) as refused:
        append(mount.path / file, bytes(SUBBUF_SIZE - START - END + 1))
    assert refused.value.errno == errno.EMSGSIZE
    # The first sub-buffer is too short for it, others are not.
    largest = b"x" * (SUBBUF_SIZE - START - END)
    append(mount.path / file, largest)
    assert run(mount, f"cat {file}") == bytes(START + CHANNEL_START + START) + largest
    assert [mount.shown("a/b", name) for name in ("records", "lost_too_large", "lost")] == ["1", "1", "1"]


# --- tools ---


@pytest.mark.parametrize(
    "command",
    [
        "cat {}", "tail -c +1 {}", "head -c 1000 {}", "cp {} /dev/stdout", "{{ head -c 30; cat; }} < {}",
        "dd if={} bs=10 status=none", "dd if={} bs=1M iflag=fullblock status=none",
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_tools_read_headers_and_lines(shared_mount: Mount, mode: str, command: str) -> None:
    shared_mount.create("tools", f"{KEYS} buffers=single mode={mode}")
    assert run(shared_mount, f"write tools 0 15; {command.format('tools')}") == stream(15)
    assert shared_mount.shown("tools", "lost") == shared_mount.shown("tools", "unread_bytes") == "0"
    shared_mount.command("remove tools")


@pytest.mark.parametrize(("read", "mode"), [("nowait", "no-overwrite"), ("nowait", "overwrite"), ("wait", "overwrite")])
def test_who_follows_gets_every_header_and_line(shared_mount: Mount, tmp_path: Path, read: str, mode: str) -> None:
    shared_mount.create("followed", f"{KEYS} buffers=single mode={mode} read={read}")
    command = ["cat"] if read == "wait" else ["tail", "-c", "+1", "-s", "0.01", "-f"]
    out = tmp_path / "out"
    with out.open("wb") as file:
        follower = subprocess.Popen([*command, shared_mount.path / "followed"], stdout=file)
    for n in range(3, 40, 3):
        run(shared_mount, f"write followed {n - 3} {n}")
        wait_until(lambda n=n: out.read_bytes() == stream(n), f"{n} lines")  # type: ignore[misc]
    shared_mount.command("remove followed")
    if read == "nowait":
        follower.terminate()
    follower.wait(DEADLINE_S)
    assert out.read_bytes() == stream(39)


# --- servers, timers, poll(2) ---


def test_the_next_server_goes_on_where_the_last_one_was(mount: Mount) -> None:
    mount.create("log", f"{KEYS} buffers=single timestamp=mono")
    run(mount, "write log 0 5; head -c 30 log > /dev/null")
    before = mount.channels(), (mount.path / "log").stat().st_size
    mount.kill()
    mount.start()
    assert (mount.channels(), (mount.path / "log").stat().st_size) == before
    assert run(mount, "write log 5 15; cat log") == stream(15)[30:]
    mount.stop()
    mount.start()
    assert run(mount, "write log 15 16; cat log") == stream(16, N_SUBBUFS)


@pytest.mark.parametrize("timestamp", [word for word, clock in CLOCKS.items() if clock.is_available])
def test_a_timestamp_takes_no_space(shared_mount: Mount, timestamp: str) -> None:
    shared_mount.create("timed", f"buffers=single timestamp={timestamp} subbuf_size=24 n_subbufs=2")
    assert shared_mount.shown("timed", "timestamp") == timestamp
    assert run(shared_mount, "write timed 0 4; cat timed") == short_lines(4)
    shared_mount.command("remove timed")


def test_flush_interval_leaves_sub_buffers_of_headers_alone(shared_mount: Mount) -> None:
    path = shared_mount.create("often", f"{KEYS} buffers=single mode=overwrite flush_interval=20")
    for produced in ("1", "2"):
        append(path, b"x")
        wait_until(lambda produced=produced: shared_mount.shown("often", "produced") == produced, "a flush")  # type: ignore[misc]
    # Many intervals have passed between the first and the second: none of them switched.
    assert path.read_bytes() == bytes(START + CHANNEL_START) + b"x" + bytes(START) + b"x" + bytes(START)
    shared_mount.command("remove often")


def test_poll_tells_of_room_as_writers_find_it(shared_mount: Mount) -> None:
    sizes = "subbuf_size=16 n_subbufs=2 start_reserve=4 end_reserve=4"
    path = shared_mount.create("polled", f"buffers=single delivery=bulk {sizes}")
    descriptor = os.open(path, os.O_RDWR)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    told = []
    for _ in range(3):
        told.append(dict(poll.poll(0)).get(descriptor, 0))
        os.write(descriptor, b"8 bytes\n") if told[-1] & select.POLLOUT else None
    assert told == [select.POLLOUT, select.POLLOUT, select.POLLIN]
    with pytest.raises(OSError) as full:
        os.write(descriptor, b"x")
    assert full.value.errno == errno.ENOSPC
    assert os.read(descriptor, 12) == bytes(4) + b"8 bytes\n"
    os.close(descriptor)
    shared_mount.command("remove polled")


def test_without_a_client_callback_mode_begins_no_sub_buffer(shared_mount: Mount) -> None:
    path = shared_mount.create("asked", f"{KEYS} buffers=single mode=callback")
    for command in ("resume asked", "flush asked", "resume asked"):
        with pytest.raises(OSError) as refused:
            append(path, b"x")
        assert refused.value.errno == errno.ENOSPC
        shared_mount.command(command)
    assert path.read_bytes() == b""
    assert [shared_mount.shown("asked", name) for name in ("lost_full", "records", "suspended")] == ["3", "0", "0"]
    shared_mount.command("remove asked")
