"""Attacks that were seen to succeed once, each by itself: the server goes on, and so do all others."""

import errno
import os
import re
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from making import N_CPUS, making
from mapping import unprotecting
from mounts import DEADLINE_S, NOBODY, Mount, User, truncate, wait_until
from traced import environment_of, program, start_trace, traced
from traffic import append, short_lines

OWNED = f"uid={NOBODY} gid={NOBODY} perm=0666"
PAGE = 4096
N_CLAIMS, CLAIM_BYTES = 256, 64
# struct relay_subbuf: the ledgers lie behind the data; two for each sub-buffer, then the claims.
LEDGER_BYTES, START_BYTES_AT = 64, 16
GEOMETRY = "buffers=single scheme=lockless subbuf_size=4K n_subbufs=4"
LEDGERS_AT = 4 * PAGE
CLAIMS_AT = LEDGERS_AT + 8 * LEDGER_BYTES
RING_LOCK_AT = 8
# All that the log may say of it. A task of the server that failed and was started again would say so, too.
DAMAGED = r" WARNING: \S+ is damaged: mem\d: | WARNING: \S+/mem\d cannot be used: "
# More than a tick of everything that the server does regularly.
TICKS_S = 1.3

SCRIBBLE = """
import mmap, os, sys

file, at, data = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
descriptor = os.open(file, os.O_RDWR)
with mmap.mmap(descriptor, os.fstat(descriptor).st_size) as memory:
    memory[at : at + len(data)] = data
"""

RESIZE = """
import os, sys

for path in sys.argv[1:]:
    for how in (lambda: os.truncate(path, 0), lambda: os.ftruncate(os.open(path, os.O_RDWR), 0),
                lambda: os.posix_fallocate(os.open(path, os.O_RDWR), 0, 1 << 30),
                lambda: os.link(path, path + ".kept"), lambda: os.link(path, "/dev/shm/relayfs-test-kept")):
        try:
            how()
        except OSError:
            continue
        print("done", path)
"""


def scribble(user: User, mount: Mount, channel: str, at: int, data: bytes) -> None:
    done = user.python(SCRIBBLE, mount.path / f".channels/{channel}/mem0", str(at), data.hex())
    assert done.returncode == 0, done.stderr


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def relay_buffer(mount: Mount, channel: str = "victim") -> Path:
    file = mount.create(channel, f"{GEOMETRY} {OWNED}")
    append(file, short_lines(100))
    return file


def ring(mount: Mount, channel: str = "victim") -> Path:
    file = mount.create(channel, f"type=ring buffers=single size=4K framing=line {OWNED}")
    append(file, b"record")
    return file


# What is written where, and what the channel's state says then; "ok": no reader needs that word.
MUTATIONS: dict[str, tuple[Callable[[Mount, str], Path], int, bytes, str]] = {
    "a count of 2^63": (
        relay_buffer, LEDGERS_AT + START_BYTES_AT, word(1 << 63),
        f"damaged: mem0: relay_subbuf[0].start_bytes is {1 << 63}, more than 0",
    ),
    "all ledgers": (
        relay_buffer, LEDGERS_AT, b"\xff" * (8 * LEDGER_BYTES),
        f"damaged: mem0: relay_subbuf[0].start_bytes is {(1 << 64) - 1}, more than 0",
    ),
    "all claims": (relay_buffer, CLAIMS_AT, b"\xff" * (N_CLAIMS * CLAIM_BYTES), "ok"),
    "zeroed claims and control": (
        relay_buffer, CLAIMS_AT, bytes(N_CLAIMS * CLAIM_BYTES + PAGE), "damaged: mem0: relay_geometry.magic is 0, not "
    ),
    "a ring's counts": (
        ring, 160, b"\xff" * 8, f"damaged: mem0: relay_ring_counts.missed is {(1 << 64) - 1}, more than 0"
    ),
    "a ring's position": (ring, 0, word((1 << 63) + 8), "ok"),
    "a ring's producer": (
        ring, PAGE, b"\xff" * 64, f"damaged: mem0: the producer position is {(1 << 64) - 1}, no multiple of 8"
    ),
}  # fmt: skip


def check_figures(directory: Path) -> set[str]:
    """Return which figures of a channel are told: those in range; others are refused because it is damaged."""
    told = set()
    for path in directory.rglob("*"):
        if path.is_dir() or path.name in ("mem0", "state"):
            continue
        try:
            text = path.read_text()
        except OSError as error:
            assert error.errno == errno.EBADMSG, path
            continue
        number = re.fullmatch("-?[0-9]+\n", text)
        assert number is None or 0 <= int(text) < 1 << 63, f"{path}: {text}"
        told.add(path.name)
    return told


def cat(file: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["cat", file], capture_output=True, timeout=DEADLINE_S, check=False)


def mutate(user: User, mount: Mount, channel: str, what: str) -> Path:
    """Make a channel and write into its memory; what is told of it then is right. Return its file."""
    make, at, data, said = MUTATIONS[what]
    file = make(mount, channel)
    scribble(user, mount, channel, at, data)
    figures = check_figures(mount.path / ".channels" / channel)
    assert mount.shown(channel, "state").startswith(said), what
    assert ("records" in figures) == (said == "ok"), (what, figures)
    got = cat(file)
    if said == "ok":
        assert got.stdout in (short_lines(100), b"record\n"), (what, got.stderr)
    else:
        assert (got.returncode, got.stdout) == (1, b""), what
        assert b"Bad message" in got.stderr, what
    return file


def test_stores_of_a_few_bytes_end_no_server(mount: Mount, unprivileged: User) -> None:
    mount.expect(DAMAGED)
    other = mount.create("other", GEOMETRY)
    victims = {f"victim{number}": what for number, what in enumerate(MUTATIONS)}
    files = [mutate(unprivileged, mount, channel, what) for channel, what in victims.items()]
    for _ in range(2):
        end = time.monotonic() + TICKS_S
        while time.monotonic() < end:
            listed = subprocess.run(
                ["ls", "-la", mount.path], capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            assert (listed.returncode, listed.stderr) == (0, "")
            assert {*victims, "other"} <= set(os.listdir(mount.path / ".channels"))
            append(other, b"still here\n")
            for file in files:
                cat(file)
            assert other.read_bytes() == b"still here\n"
        for channel, what in victims.items():
            check_figures(mount.path / ".channels" / channel)
            assert mount.shown(channel, "state").startswith(MUTATIONS[what][3].partition(" ")[0]), what
        assert mount.process is not None
        assert mount.process.poll() is None
        # What was stored is still there for the next server.
        assert mount.stop() == 0
        mount.start()
    for channel in victims:
        mount.command(f"remove {channel}")
    assert not [name for name in os.listdir(mount.path) if name.startswith("victim")]


@pytest.mark.parametrize("whose", ["the user", "the store's owner"])
def test_a_trace_buffer_is_truncated_while_it_is_polled(mount: Mount, unprivileged: User, whose: str) -> None:
    mount.expect(DAMAGED)
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4")
    with traced(mount, user=NOBODY) as hostile, traced(mount) as honest, select.epoll() as epoll:
        hostile.ask("emit 10")
        directory = f"traced-{hostile.process.pid}"
        wait_until((mount.path / "t" / directory).exists, "it is shown")
        files = [os.open(mount.path / f"t/{directory}/cpu{cpu}", os.O_RDONLY | os.O_NONBLOCK) for cpu in range(N_CPUS)]
        # Each is looked at once by us; from then on it is the server that looks, and tells.
        for descriptor in files:
            epoll.register(descriptor, select.EPOLLPRI)
        assert not epoll.poll(0)
        for cpu in range(N_CPUS):
            memory = mount.store / f"t/{directory}/cpu/mem{cpu}"
            if whose == "the user":
                done = unprivileged.python(RESIZE, memory, mount.path / f".channels/t/{directory}/cpu/mem{cpu}")
                assert (done.returncode, done.stdout) == (0, ""), done.stderr
            else:
                truncate(memory, 0)
        if whose == "the user":
            assert not epoll.poll(TICKS_S)
        else:
            wait_until(lambda: len(epoll.poll(0.1)) == len(files), "who polls is told of each")
        for descriptor in files:
            os.close(descriptor)
        honest.ask("emit 10")
        assert mount.process is not None
        assert mount.process.poll() is None
        assert "t" in os.listdir(mount.path)
        assert mount.control.read_text()
    mount.command("trace stop t")
    mount.command("trace remove t")


@pytest.mark.usefixtures("mapped_through")
@pytest.mark.parametrize("is_immutable", [True, False], ids=["immutable", "refused by the mount alone"])
def test_nobody_resizes_or_keeps_memory_that_others_map(
    mount: Mount, unprivileged: User, tmp_path: Path, is_immutable: bool
) -> None:
    if not is_immutable:
        assert mount.stop() == 0
        mount.program = unprotecting(mount.program, tmp_path)
        mount.start()
    file = relay_buffer(mount)
    memory = mount.path / ".channels/victim/mem0"
    size = memory.stat().st_size
    done = unprivileged.python(RESIZE, mount.store / "victim/mem0", memory)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # A relay file has no length that could be set: what `: >` asks of it changes nothing.
    unprivileged.run("truncate", "-s", "0", file)
    unprivileged.run("fallocate", "-l", "1G", file)
    assert memory.stat().st_size == (mount.store / "victim/mem0").stat().st_size == size
    assert memory.stat().st_nlink == (mount.store / "victim/mem0").stat().st_nlink == 1
    assert file.read_bytes() == short_lines(100)


def is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(100))


@pytest.mark.parametrize("owner", ["nonsense", "a live thread", "a dead thread"])
def test_a_scribbled_lock_of_a_ring_holds_nobody_for_ever(mount: Mount, unprivileged: User, owner: str) -> None:
    file = ring(mount)
    with making(environment_of(mount), None, [program("traced")]) as bystander:
        value = b"\xff" * 8 if owner == "nonsense" else owner_word(bystander.process.pid)
        if owner == "a dead thread":
            bystander.kill()
        scribble(unprivileged, mount, "victim", RING_LOCK_AT, value)
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        if owner != "a dead thread":
            # The lock says that somebody is reading: poll(2) and both kinds of read(2) agree, and none of them lasts.
            assert not is_readable(descriptor)
            with pytest.raises(BlockingIOError):
                os.read(descriptor, PAGE)
            got = cat(file)
            assert (got.returncode, got.stdout) == (1, b""), got
            assert b"resource busy" in got.stderr
            assert not is_readable(descriptor)
            scribble(unprivileged, mount, "victim", RING_LOCK_AT, bytes(8))
        wait_until(lambda: is_readable(descriptor), "it can be read")
        assert os.read(descriptor, PAGE) == b"record\n"
        os.close(descriptor)
    mount.command("remove victim")


def owner_word(pid: int) -> bytes:
    """Return what a lock says that is held by a thread; see native/src/base/owner.c."""
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    inode = os.stat("/proc/self/ns/pid").st_ino
    namespace = (inode ^ inode >> 16) & 0xFFFF
    return word(pid | namespace << 22 | (start & ((1 << 26) - 1)) << 38)


@pytest.mark.parametrize("garbage", ["enable h\n" * 95_000, "\n" * 1_000_000], ids=["commands", "newlines"])
def test_a_long_write_of_commands_holds_up_nobody(
    make_mount: Callable[..., Mount], unprivileged: User, garbage: str
) -> None:
    mount = make_mount("control_mode=0666")
    mount.create("h", f"{GEOMETRY} {OWNED}")
    text = mount.log.parent / "garbage"
    text.write_text(garbage)
    flood = subprocess.Popen(
        ["sh", "-c", f"for i in 1 2 3 4; do dd if={text} of={mount.control} bs=2M conv=notrunc 2>/dev/null; done"],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
    )  # fmt: skip
    costs: list[float] = []
    try:
        while flood.poll() is None or len(costs) < 20:
            # How long it lasts depends on what else the machine does.
            before = mount.cpu_s()
            mount.create(f"mine/{len(costs)}", GEOMETRY)
            costs.append(mount.cpu_s() - before)
    finally:
        flood.kill()
        flood.wait()
    assert max(costs) < 2.0
