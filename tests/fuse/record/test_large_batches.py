"""relayctl record of buffers from which it takes so much at once that this is written past the page cache."""

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from babeltrace import MAGIC, PACKET, Packet, read, read_if_any
from mounts import DEADLINE_S, wait_until
from tracing import Store, anonymous_kib, catches, finish, recorded, recording, relayctl

IS_LONG = os.environ.get("RELAYFS_STRESS") == "long"
KILLED = Path(__file__).with_name("killed_recorder.py")
# Events do not fill these to the last byte.
LARGE = {"subbuf_size": 60 << 10, "n_subbufs": 64}
# More than one batch, which is a quarter of the buffer, and less than the buffer.
N_FITTING = 130_000


def heads(stream: Path) -> list[tuple[int, Packet]]:
    """Return the heads of a file's packets, with their offsets."""
    found, at, data = [], 0, stream.read_bytes()
    while at < len(data):
        found.append((at, Packet(*PACKET.unpack_from(data, at))))
        assert found[-1][1].magic == MAGIC
        at += found[-1][1].bits // 8
    assert at == len(data)
    return found


@pytest.mark.parametrize("check", ["none", "all"])
def test_large_packets_begin_where_blocks_of_the_disk_do(store, run, record, out, check):
    """So the disk can take them from memory. Small ones have no padding."""
    program = run(store.create("t", **LARGE), "app")
    assert program.write(N_FITTING) == 0
    with record("--check", check) as process:
        recorded(out, N_FITTING - 5000, "app")
        refused = program.write_patiently(100)
        finish(process)
    seen = read(out)
    assert (seen.events["app"], seen.lost) == (list(range(N_FITTING + 100)), refused)
    full = [(at, head) for at, head in heads(out / program.name / "cpu0") if head.content_bits > 8 * 60_000]
    assert len(full) > 50
    assert all((at + head.bits // 8) % 4096 == 0 for at, head in full)
    assert all(head.bits > head.content_bits for _, head in full)
    small = [head for _, head in heads(out / program.name / "cpu0") if 8 * 72 < head.content_bits < 8 * 30_000]
    assert small
    assert all(head.bits == head.content_bits for head in small)


def killed(store: Store, out: Path, *how: object) -> int:
    """Have recorders killed, as killed_recorder.py says, until one has recorded all; return how many were killed."""
    done = subprocess.run(
        [sys.executable, KILLED, "t", store.path, out, *map(str, how)],
        capture_output=True, text=True, timeout=10 * DEADLINE_S, check=True,
    )  # fmt: skip
    assert "not recorded" not in done.stdout
    return int(done.stdout.split()[-1])


def test_a_batch_that_was_written_and_not_consumed_does_not_end_a_recording(store, run, out):
    """All of its packets are there already; others are behind it."""
    program = run(store.create("t", **LARGE), "app")
    assert program.write(N_FITTING) == 0
    assert killed(store, out, 1, 1000, "end") == 1
    assert read(out).events["app"] == list(range(N_FITTING))


@pytest.mark.stress
@pytest.mark.parametrize("first", [1, 7])
def test_whichever_call_a_recorder_is_killed_at_the_next_one_goes_on(store, run, out, first):
    """Nothing is lost, and nothing there twice."""
    n_killed = n = 0
    trace = store.create("t", **LARGE)
    program = run(trace, "app")
    while n_killed < (100 if IS_LONG else 10):
        assert program.write(N_FITTING) == 0
        n += N_FITTING
        now = killed(store, out, first + n_killed % 20, 1 if IS_LONG else 9)
        assert now
        n_killed += now
        # What has become a packet is in order.
        for path in sorted((out / program.name).glob("cpu0*")):
            numbers = [head.number for _, head in heads(path) if head.content_bits > 8 * PACKET.size]
            assert numbers == sorted(set(numbers))
    assert read(out).events["app"] == list(range(n))


@pytest.mark.stress
@pytest.mark.parametrize("check", ["none", "all"])
def test_a_recorder_that_is_killed_at_any_moment_loses_nothing(store, run, out, check):
    trace = store.create("t", **LARGE)
    program = run(trace, "app")
    n = 2_000_000 if IS_LONG else 300_000
    program.start_patiently(n)
    for _ in range(100 if IS_LONG else 4):
        with recording("t", "--store", store.path, "-o", out, "--check", check) as process:
            # It is killed while it writes, or shortly before or behind that.
            select.select([], [], [], random.random() / 5)
            process.kill()
            process.wait()
    with recording("t", "--store", store.path, "-o", out, "--check", check) as process:
        refused = program.done()
        finish(process)
    seen = read(out)
    assert (seen.events["app"], seen.lost) == (list(range(n)), refused)


def test_a_disk_that_fails_ends_it_and_is_named(store, run, out):
    """What is not written stays in the buffers."""
    program = run(store.create("t", **LARGE), "app")
    assert program.write(N_FITTING) == 0
    script = (
        "import errno, os, sys\n"
        "from relayfs_fuse.cli.relayctl import main\n"
        "write, n = os.pwritev, [0]\n"
        "def failing(*arguments):\n"
        "    n[0] += 1\n"
        "    if n[0] == 15:\n"
        "        raise OSError(errno.EIO, os.strerror(errno.EIO))\n"
        "    return write(*arguments)\n"
        "os.pwritev = failing\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", script, "record", "t", "--store", store.path, "-o", out, "--duration", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {out}/{program.name}/cpu0: Input/output error\n")
    n = len(read_if_any(out).events["app"])
    assert 0 < n < N_FITTING
    assert relayctl("record", "t", "--store", store.path, "-o", out, "--duration", "0").returncode == 0
    assert read(out).events["app"] == list(range(N_FITTING))


SLOW = """
import fcntl, os, sys, time
from relayfs_fuse.cli.relayctl import main
write = os.pwritev
def slowly(descriptor, pieces, at):
    if sum(map(len, pieces)) > 1 << 19:
        is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        print("direct" if is_direct else "cached", flush=True)
        time.sleep(0.2 if is_direct else 0.0)
    return write(descriptor, pieces, at)
os.pwritev = slowly
sys.exit(main())
"""


def test_what_a_slow_disk_cannot_take_goes_to_the_page_cache(store, run, out):
    """So that the buffers are empty sooner; while they are, the disk is written to directly."""
    program = run(store.create("t", **LARGE), "app")
    command = [sys.executable, "-c", SLOW, "record", "t", "--store", store.path, "-o", out]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: catches(process, signal.SIGTERM), "the recorder")
        refused = program.write_patiently(400_000)
        process.send_signal(signal.SIGTERM)
        ways, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert set(ways.split()) == {"direct", "cached"}
    seen = read(out)
    assert (seen.events["app"], seen.lost) == (list(range(400_000)), refused)


@pytest.mark.parametrize("check", ["none", "all"])
def test_it_takes_no_more_memory_than_for_a_batch(store, run, record, out, check):
    n = 1_200_000
    program = run(store.create("t", subbuf_size=1 << 20, n_subbufs=64), "app")
    with record("--check", check, is_forked=False) as process:
        assert program.write(10) == 0
        program.flush()
        recorded(out, 10, "app")
        before = anonymous_kib(process.pid)
        # It finds everything at once.
        process.send_signal(signal.SIGSTOP)
        assert program.write(n) == 0
        program.flush()
        process.send_signal(signal.SIGCONT)
        recorded(out, n + 10, "app")
        assert anonymous_kib(process.pid) - before < 16 << 10
        finish(process)
