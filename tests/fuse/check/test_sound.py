"""relayctl check finds nothing wrong where nothing is, served or not, also while all is written, read and killed."""

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from build import PROGRAMS, ROOT, compile_c
from checked import RELAY, RINGS, CheckedStore, check, checked_store, consume, output, take, write
from forking import RELAYCTL, run
from making import making
from mounts import DEADLINE_S, Mount, User, wait_until
from stress import is_long
from traced import start_trace, traced
from triggering import wait_lines

from relayfs_fuse.counters import Counters


@pytest.fixture
def store() -> Iterator[CheckedStore]:
    with checked_store() as made:
        yield made


def all_kinds(store: CheckedStore) -> list[tuple[str, Path]]:
    """Make a channel of each kind; return the type and the first mem file."""
    made = [("relay", store.relay(f"relay/{n}", **options)) for n, options in enumerate(RELAY)]
    return made + [("ring", store.ring(f"ring/{n}", **options)) for n, options in enumerate(RINGS)]


def state_of(store: Path) -> dict[str, tuple[int, int, str]]:
    """What would show a change: times, allocated blocks and contents."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_blocks, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in store.rglob("*")
        if path.is_file()
    }


def test_each_kind_of_channel_new_written_and_read(store: CheckedStore) -> None:
    made = all_kinds(store)
    lengths = [random.Random(1).randrange(1, 300) for _ in range(200)]
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})  # the CPU of mem0
    try:
        for act in (lambda *_: None, write_some, read_some, write_some):
            for kind, mem in made:
                act(kind, mem, lengths)
            before = state_of(store.path)
            said = check("--store", store.path)
            assert (said.status, said.findings) == (0, [])
            # With the store and two directories.
            assert said.summary["checked"] == len(made) + 3
            assert state_of(store.path) == before
    finally:
        os.sched_setaffinity(0, affinity)


def write_some(kind: str, mem: Path, lengths: list[int]) -> None:
    (write if kind == "relay" else output)(mem, lengths)


def read_some(kind: str, mem: Path, _: list[int]) -> None:
    if kind == "relay":
        consume(mem, 3000)
    else:
        take(mem, 3)


def test_what_people_see(store: CheckedStore) -> None:
    store.relay("app/log")
    done = run([RELAYCTL, "check", store.path], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 objects checked, no damage\n", "")
    (store.path / "app/log/mem0").chmod(0o644)
    (store.path / "new\x1bline\n").touch()
    done = run([RELAYCTL, "check", store.path], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout == (
        f"warning  new\\x1bline\\n: {store.path}/new\\x1bline\\n: a file that belongs to no channel -> remove it: "
        f"'{store.path}/new\\x1bline\\n'\n3 objects checked, no damage, 1 warning\n"
    )
    (store.path / "app/log/mem0").chmod(0o757)
    done = run([RELAYCTL, "check", "app", "--store", store.path], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"damaged  app/log: {store.path}/app/log/mem0: its mode is 0757, so it has more than is needed; allowed: at "
        f"most 0666 -> chmod 0646 {store.path}/app/log/mem0",
        "2 objects checked, 1 damaged",
    ]


def test_what_cannot_be_checked(store: CheckedStore, unprivileged: User) -> None:
    for arguments, status, text in (
        ((store.path / "none",), 1, "is no store"),
        (("/proc",), 1, "is no store"),
        (("--store", store.path / "none"), 1, "No such file"),
        (("--store", store.path / ".root"), 1, "is no directory"),
        (("nothing", "--store", store.path), 3, "there is no channel, directory or trace nothing"),
        (("--nothing",), 2, "No such option"),
    ):
        done = run([RELAYCTL, "check", *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
        assert (done.returncode, done.stdout, text in done.stderr) == (status, "", True), done
    done = unprivileged.run(RELAYCTL, "check", "--store", store.path)
    assert (done.returncode, "Permission denied" in done.stderr) == (1, True)


# --- with a server, and after it ---


def test_a_served_store_and_what_its_server_leaves(mount: Mount) -> None:
    mount.create("app/cpu")
    mount.create("app/single", "buffers=single mode=overwrite timestamp=mono start_reserve=16")
    mount.create("ring", "type=ring")
    with Counters(mount.path) as counters:
        counters.add("app/requests").adjust()
    for buffers in ("perprocess", "peruser", "shared"):
        start_trace(
            mount, buffers, f"buffers={buffers} subbuf_size=4K {'mode=overwrite' if buffers == 'shared' else ''}"
        )
    classic = [compile_c([ROOT / "tests/fuse/programs/classic_client.c"])]
    environment = {"RELAYFS": str(mount.path)}
    with traced(mount) as program, making(environment) as maker, making(environment, command=classic) as client:
        program("emit 500")
        for line in ("texts <head> <foot> -", "full 0", "open /xlog/9 64 2 39", *["write classic"] * 6):
            client.ask(line)
        maker("start 24")
        maker("open made - 4096 4")
        maker("write hello")
        for arguments in ((), ("-m", mount.path), (mount.path,), (mount.store,)):
            said = check(*arguments, env=environment)
            assert (said.status, said.findings) == (0, []), arguments
            # The store, counters, .traces; 3 traces and the process in each; app, 3 channels and those of programs.
            assert said.summary["checked"] >= 3 + 6 + 6
        assert check(mount.path / "app/cpu").summary["checked"] == 1
        assert check("app", env=environment).summary["checked"] == 3
        assert check("shared", "ring", env=environment).summary["checked"] == 3
    mount.kill()
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    said = check(mount.store)
    assert (said.status, said.damaged) == (0, [])


def test_a_users_own_store(make_mount: object, unprivileged: User, scratch_store: Path) -> None:
    scratch_store.parent.chmod(0o777)
    script = """
from relayfs_fuse import native
from relayfs_fuse.counters import Counters
import os, sys
os.mkdir(sys.argv[1], 0o700)
native.counters_create(sys.argv[1], 64)
Counters(sys.argv[1]).add("a/b")
owner = {"uid": os.getuid(), "gid": os.getgid(), "file_mode": 0o640}
native.store_create(sys.argv[1] + "/log", {"subbuf_size": 4096, "n_subbufs": 4, "n_buffers": 1, "buffers": 1, **owner})
"""
    done = unprivileged.python(script, scratch_store)
    assert done.returncode == 0, done.stderr
    done = unprivileged.run(RELAYCTL, "check", scratch_store)
    assert (done.returncode, done.stdout) == (0, "3 objects checked, no damage\n")
    done = unprivileged.run(RELAYCTL, "check", env={**os.environ, "RELAYFS": str(scratch_store)})
    assert done.returncode in {0, 1}


def test_what_a_flight_recorder_leaves_is_sound(mount: Mount) -> None:
    trace = start_trace(mount, "t", "subbuf_size=4K mode=overwrite")
    mount.command("trigger add all on t judge:step do snapshot limit=1ms keep=2")
    with traced(mount) as program:
        program.ask("emit 10")
        wait_lines(trace, "all", 2)
        program.kill()
    wait_until(lambda: list((mount.path / ".crashed").iterdir()), "there is a card")
    assert check(mount.store).findings == []


# --- while it is written and read ---


@pytest.mark.stress
def test_nothing_is_wrong_while_all_is_written_read_and_killed(store: CheckedStore) -> None:
    flat_out = compile_c([PROGRAMS / "flat_out.c"])
    made = all_kinds(store)
    rounds = len(made) * (4 if is_long() else 1) // (1 if is_long() else 2)
    chance = random.Random(3)
    for n in range(rounds):
        which = n * len(made) // rounds % len(made)
        kind, mem = made[which]
        with ExitStack() as stack:
            cpu = 0 if (RELAY + RINGS)[which]["scheme"] == 1 else 1
            commands = [(mem, 0, "write"), (mem, cpu, "write"), (mem, cpu, "read")]
            if kind == "relay" and n % 3 == 2:
                commands.append((mem, cpu, "reset"))
            programs = [
                stack.enter_context(subprocess.Popen([flat_out, kind, str(at), str(cpu), what]))
                for at, cpu, what in commands
            ]
            stack.callback(lambda programs=programs: [one.kill() for one in programs])
            end = time.monotonic() + (0.25 if is_long() else 0.1)
            while time.monotonic() < end:
                said = check(mem.parent.relative_to(store.path), "--store", store.path)
                assert said.damaged == [], (kind, mem)
                victim = chance.randrange(2)
                programs[victim].kill()
                programs[victim].wait()
                where, cpu, what = commands[victim]
                programs[victim] = subprocess.Popen([flat_out, kind, str(where), str(cpu), what])
            assert all(one.poll() is None for one in programs)
        assert check(mem.parent.relative_to(store.path), "--store", store.path).damaged == []


@pytest.mark.stress
def test_nothing_is_wrong_while_channels_and_traces_come_and_go(mount: Mount) -> None:
    start_trace(mount, "t", "subbuf_size=4K mode=overwrite")
    with traced(mount) as program:
        program.start("flood 100 10")
        with Counters(mount.path) as counters:
            for n in range(200 if is_long() else 20):
                mount.create(f"a/b/c{n % 3}", "buffers=single subbuf_size=4K n_subbufs=2")
                counters.add(f"app/{n}")
                if n % 7 == 0:
                    start_trace(mount, f"other{n}")
                assert check(mount.store).damaged == []
                mount.command(f"remove a/b/c{n % 3}")
                if n % 7 == 3:
                    mount.command(f"trace remove other{n - 3}")
        program.process.kill()
